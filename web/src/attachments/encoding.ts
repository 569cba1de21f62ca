/** Files as `data:` addresses: for requests, drafts and exports. */

/** A file is encoded once, however many requests contain it. */
const known = new WeakMap<Blob, string>();

export async function dataUrl(file: Blob): Promise<string> {
  const before = known.get(file);
  if (before !== undefined) return before;
  const bytes = new Uint8Array(await file.arrayBuffer());
  const parts: string[] = [];
  // More arguments than this overflow the stack.
  for (let at = 0; at < bytes.length; at += 8192) parts.push(String.fromCharCode(...bytes.subarray(at, at + 8192)));
  const url = `data:${file.type};base64,${btoa(parts.join(""))}`;
  known.set(file, url);
  return url;
}

/** Its address, if it is known: a page that is being closed cannot wait. */
export function knownDataUrl(file: Blob): string | null {
  return known.get(file) ?? null;
}

const ALLOWED = /^data:((?:image\/(?:png|jpeg|gif|bmp))|(?:audio\/(?:wav|mpeg|flac)));base64,([A-Za-z0-9+/]+={0,2})$/;

/** The file of an address, or null if it is not one of an image or audio file that the server reads. */
export function fileOf(url: string): Blob | null {
  const match = ALLOWED.exec(url);
  if (!match) return null;
  try {
    const bytes = Uint8Array.from(atob(match[2] as string), (letter) => letter.charCodeAt(0));
    const file = new Blob([bytes], { type: match[1] as string });
    known.set(file, url);
    return file;
  } catch {
    return null;
  }
}
