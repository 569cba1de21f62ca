/** The text of PDF files. pdf.js is loaded with the first of them. */

import { TEXT } from "../text";
import { tooLarge } from "./limits";
import type { TextFile } from "./types";

const LARGEST_FILE = 64 * 1024 * 1024;
const LONGEST_TEXT = 1024 * 1024;

/** The part of pdf.js that is used. */
export interface TextItem {
  str: string;
  hasEOL: boolean;
}

/** The text of a page from its pieces, line by line. */
export function pageText(items: TextItem[]): string {
  return items
    .map(({ str, hasEOL }) => (hasEOL ? `${str}\n` : str))
    .join("")
    .replace(/[ \t]+$/gm, "")
    .replace(/\n{3,}/g, "\n\n")
    .trim();
}

/** The text of a PDF, or why it cannot be used. */
export async function pdfOf(file: File): Promise<TextFile | string> {
  const { name, size } = file;
  if (size > LARGEST_FILE) return tooLarge(name, size, LARGEST_FILE);
  const [{ getDocument, GlobalWorkerOptions }, { default: worker }] = await Promise.all([
    import("pdfjs-dist"),
    import("pdfjs-dist/build/pdf.worker.min.mjs?url"),
  ]);
  GlobalWorkerOptions.workerSrc = worker;
  // The page's content policy allows neither.
  const loading = getDocument({ data: await file.arrayBuffer(), isEvalSupported: false, useWasm: false });
  try {
    const document = await loading.promise;
    const pages: string[] = [];
    let length = 0;
    for (let number = 1; number <= document.numPages; number++) {
      const page = await document.getPage(number);
      const { items } = await page.getTextContent();
      const text = pageText(items.filter((item): item is TextItem & typeof item => "str" in item));
      page.cleanup();
      if (text) pages.push(text);
      length += text.length;
      if (length > LONGEST_TEXT) return TEXT.attachments.pdfTooLong(name);
    }
    return pages.length > 0 ? { name, text: pages.join("\n\n") } : TEXT.attachments.noTextInPdf(name);
  } catch (error) {
    const needsPassword = error instanceof Error && error.name === "PasswordException";
    return needsPassword ? TEXT.attachments.needsPassword(name) : TEXT.attachments.notPdf(name);
  } finally {
    await loading.destroy();
  }
}
