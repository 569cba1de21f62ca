/** Images in a format and size that the server reads. */

import { TEXT } from "../text";
import { tooLarge } from "./limits";
import type { MediaFile } from "./types";

/** Before it is made smaller. */
const LARGEST_FILE = 64 * 1024 * 1024;
/** Models read images at less than this: more pixels only take time. */
const LONGEST_SIDE = 2048;
const LARGEST_SENT = 4 * 1024 * 1024;
const QUALITY = 0.9;

/** The size of an image whose longer side is at most `most`. */
export function fitted(width: number, height: number, most = LONGEST_SIDE): [number, number] {
  const scale = Math.min(1, most / Math.max(width, height));
  return [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
}

/** Whether the server would show the model the same image as the browser shows. It ignores the orientation in EXIF. */
export function isPlain(head: Uint8Array): boolean {
  const text = String.fromCharCode(...head);
  return text.startsWith("\x89PNG") || (text.startsWith("\xff\xd8\xff") && !text.includes("Exif\0\0"));
}

/** The image as it is sent, or why it cannot be used. */
export async function pictureOf(file: File): Promise<MediaFile | string> {
  const { name, size } = file;
  if (size > LARGEST_FILE) return tooLarge(name, size, LARGEST_FILE);
  let image: ImageBitmap;
  try {
    image = await createImageBitmap(file);
  } catch {
    return TEXT.attachments.notPicture(name);
  }
  try {
    const [width, height] = fitted(image.width, image.height);
    const isSmall = width === image.width && size <= LARGEST_SENT;
    const head = new Uint8Array(await file.slice(0, 4096).arrayBuffer());
    const data = isSmall && isPlain(head) ? await copied(file, head) : await drawn(image, width, height);
    return data ? { name, kind: "image", data } : TEXT.attachments.notPicture(name);
  } finally {
    image.close();
  }
}

/** A copy: the file may change or vanish from the disk. */
async function copied(file: File, [first]: Uint8Array): Promise<Blob> {
  return new Blob([await file.arrayBuffer()], { type: first === 0xff ? "image/jpeg" : "image/png" });
}

async function drawn(image: ImageBitmap, width: number, height: number): Promise<Blob | null> {
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const brush = canvas.getContext("2d");
  if (!brush) return null;
  // JPEG has no transparency: what is transparent would become black.
  brush.fillStyle = "#fff";
  brush.fillRect(0, 0, width, height);
  brush.imageSmoothingQuality = "high";
  brush.drawImage(image, 0, 0, width, height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", QUALITY));
}
