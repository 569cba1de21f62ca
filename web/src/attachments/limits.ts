/** What can be attached to a message. */

import { TEXT } from "../text";
import { type Attachment, isMedia, type MediaKind } from "./types";

export const MOST_FILES = 16;

export function tooLarge(name: string, size: number, most: number): string {
  return TEXT.attachments.tooLarge(name, megabytes(size), megabytes(most));
}

function megabytes(bytes: number): string {
  return (Math.ceil((10 * bytes) / (1024 * 1024)) / 10).toString();
}

/** Why a model cannot be asked about these files, if it cannot. */
export function notAccepted(files: Attachment[], model: { id: string; media: MediaKind[] }): string[] {
  const kinds = new Set(files.filter(isMedia).map(({ kind }) => kind));
  const missing = [...kinds].filter((kind) => !model.media.includes(kind));
  return missing.map((kind) => (kind === "image" ? TEXT.attachments.noImages : TEXT.attachments.noAudio)(model.id));
}
