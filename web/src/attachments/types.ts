/** The files of a message. */

export interface TextFile {
  name: string;
  text: string;
}

export type MediaKind = "image" | "audio";

/** The file as it is sent. The browser's database stores its bytes outside the message, so that lists stay fast. */
export interface MediaFile {
  name: string;
  kind: MediaKind;
  data: Blob;
}

export type Attachment = TextFile | MediaFile;

export function isText(file: Attachment): file is TextFile {
  return !("data" in file);
}

export function isMedia(file: Attachment): file is MediaFile {
  return "data" in file;
}
