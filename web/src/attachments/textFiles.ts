/** Reads files as text, or says why it cannot. */

import { TEXT } from "../text";
import { tooLarge } from "./limits";
import type { TextFile } from "./types";

const LARGEST_FILE = 1024 * 1024;

/** The text of a file, or why it cannot be used. A file that is too large is not read. */
export async function textOf(file: Pick<File, "name" | "size" | "arrayBuffer">): Promise<TextFile | string> {
  const { name, size } = file;
  if (size > LARGEST_FILE) return tooLarge(name, size, LARGEST_FILE);
  try {
    const bytes = new Uint8Array(await file.arrayBuffer());
    const text = new TextDecoder(encodingOf(bytes), { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return { name, text: text.replaceAll("\r\n", "\n") };
  } catch {
    // Reported below.
  }
  return TEXT.attachments.notSupported(name);
}

function encodingOf([first, second]: Uint8Array): string {
  if (first === 0xff && second === 0xfe) return "utf-16le";
  if (first === 0xfe && second === 0xff) return "utf-16be";
  return "utf-8";
}
