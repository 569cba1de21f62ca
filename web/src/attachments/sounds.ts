/** Audio in a format that the server reads: WAV, MP3 and FLAC. The browser converts others. */

import { TEXT } from "../text";
import { tooLarge } from "./limits";
import type { MediaFile } from "./types";

const LARGEST_FILE = 64 * 1024 * 1024;
/** A larger one is converted, which makes it smaller. */
const LARGEST_SENT = 4 * 1024 * 1024;
const LONGEST_MINUTES = 10;
/** What speech models read. */
const RATE = 16_000;

const FORMATS: [begin: string, type: string][] = [
  ["RIFF", "audio/wav"],
  ["fLaC", "audio/flac"],
  ["ID3", "audio/mpeg"],
  ["\xff\xfb", "audio/mpeg"],
  ["\xff\xf3", "audio/mpeg"],
  ["\xff\xf2", "audio/mpeg"],
];

/** The type of a file that the server reads, by its first bytes. */
export function typeOf(head: Uint8Array): string | null {
  const text = String.fromCharCode(...head);
  return FORMATS.find(([begin]) => text.startsWith(begin))?.[1] ?? null;
}

/** The audio as it is sent, or why it cannot be used. */
export async function soundOf(file: File): Promise<MediaFile | string> {
  const { name, size } = file;
  if (size > LARGEST_FILE) return tooLarge(name, size, LARGEST_FILE);
  const bytes = await file.arrayBuffer();
  const type = typeOf(new Uint8Array(bytes, 0, Math.min(4, bytes.byteLength)));
  if (type && size <= LARGEST_SENT) return { name, kind: "audio", data: new Blob([bytes], { type }) };
  try {
    // It decodes to its own rate, with one channel.
    const context = new OfflineAudioContext(1, 1, RATE);
    const sound = await context.decodeAudioData(bytes);
    const minutes = Math.ceil(sound.duration / 60);
    if (sound.duration > 60 * LONGEST_MINUTES) return TEXT.attachments.tooLong(name, minutes, LONGEST_MINUTES);
    return { name, kind: "audio", data: new Blob([wavOf(mixed(sound), RATE)], { type: "audio/wav" }) };
  } catch {
    return TEXT.attachments.notSound(name);
  }
}

function mixed(sound: AudioBuffer): Float32Array {
  const channels = Array.from({ length: sound.numberOfChannels }, (_, place) => sound.getChannelData(place));
  return Float32Array.from({ length: sound.length }, (_, at) => {
    let sum = 0;
    for (const channel of channels) sum += channel[at] as number;
    return sum / channels.length;
  });
}

/** A WAV file of one channel with 16 bits per sample. */
export function wavOf(samples: Float32Array, rate: number): ArrayBuffer {
  const bytes = new ArrayBuffer(44 + 2 * samples.length);
  const view = new DataView(bytes);
  const letters = (at: number, text: string) => {
    for (let index = 0; index < text.length; index++) view.setUint8(at + index, text.charCodeAt(index));
  };
  letters(0, "RIFF");
  view.setUint32(4, bytes.byteLength - 8, true);
  letters(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  letters(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, index) => {
    view.setInt16(44 + 2 * index, Math.round(Math.max(-1, Math.min(1, sample)) * 32767), true);
  });
  return bytes;
}
