/** A file of the user → what is attached to the message. */

import { pdfOf } from "./pdf";
import { pictureOf } from "./pictures";
import { soundOf } from "./sounds";
import { textOf } from "./textFiles";
import type { Attachment } from "./types";

/** Reads a file by its type. Returns why if it cannot be used. */
export function read(file: File): Promise<Attachment | string> {
  // An SVG file is text that models can read. As an image it could have no size.
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") return pictureOf(file);
  // Some systems do not know these types.
  if (file.type.startsWith("audio/") || /\.(flac|opus|m4a)$/i.test(file.name)) return soundOf(file);
  if (file.type === "application/pdf" || /\.pdf$/i.test(file.name)) return pdfOf(file);
  return textOf(file);
}
