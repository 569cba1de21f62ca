import { expect, test } from "vitest";
import { dataUrl, fileOf, knownDataUrl } from "./encoding";
import { notAccepted } from "./limits";
import { pageText } from "./pdf";
import { fitted, isPlain } from "./pictures";
import { typeOf, wavOf } from "./sounds";
import type { Attachment } from "./types";

const bytes = (text: string) => Uint8Array.from(text, (letter) => letter.charCodeAt(0));
const image: Attachment = { name: "a.png", kind: "image", data: new Blob(["x"], { type: "image/png" }) };
const audio: Attachment = { name: "a.wav", kind: "audio", data: new Blob(["x"], { type: "audio/wav" }) };

test("a large picture is made smaller and keeps its shape", () => {
  expect(fitted(4000, 3000)).toEqual([2048, 1536]);
  expect(fitted(100, 20_000)).toEqual([10, 2048]);
  expect(fitted(1, 20_000)).toEqual([1, 2048]);
  expect(fitted(640, 480)).toEqual([640, 480]);
});

test("a photo with an orientation is not sent as it is", () => {
  expect(isPlain(bytes("\x89PNG\r\n"))).toBe(true);
  expect(isPlain(bytes("\xff\xd8\xff\xe0..JFIF"))).toBe(true);
  expect(isPlain(bytes("\xff\xd8\xff\xe1..Exif\0\0"))).toBe(false);
  expect(isPlain(bytes("RIFF....WEBP"))).toBe(false);
});

test("audio that the server reads is known by its first bytes", () => {
  expect(["RIFF", "fLaC", "ID3\x03", "\xff\xfb\x90\x00", "OggS"].map((head) => typeOf(bytes(head)))).toEqual([
    "audio/wav",
    "audio/flac",
    "audio/mpeg",
    "audio/mpeg",
    null,
  ]);
});

test("samples become a WAV file", () => {
  const view = new DataView(wavOf(Float32Array.from([0, 1, -2]), 16_000));
  expect(view.byteLength).toBe(50);
  expect(view.getUint32(4, true)).toBe(42);
  expect(view.getUint32(24, true)).toBe(16_000);
  expect(view.getUint32(40, true)).toBe(6);
  expect([44, 46, 48].map((at) => view.getInt16(at, true))).toEqual([0, 32767, -32767]);
});

test("a file is encoded once, and only media that the server reads are decoded", async () => {
  const url = await dataUrl(new Blob(["x"], { type: "image/png" }));
  expect(url).toBe("data:image/png;base64,eA==");
  const file = fileOf(url) as Blob;
  expect(knownDataUrl(file)).toBe(url);
  expect(await file.text()).toBe("x");
  for (const bad of ["data:image/svg+xml;base64,eA==", "data:image/png,x", "https://a.example/b.png", "", "null"]) {
    expect(fileOf(bad)).toBeNull();
  }
});

test("a model without images or audio is named", () => {
  expect(notAccepted([image, { name: "a", text: "x" }], { id: "m", media: [] })).toEqual([
    "m does not accept images. Select a model that does, or remove the images.",
  ]);
  expect(notAccepted([image, audio], { id: "m", media: ["image"] })).toEqual([
    "m does not accept audio. Select a model that does, or remove the audio.",
  ]);
  expect(notAccepted([image, audio], { id: "m", media: ["image", "audio"] })).toEqual([]);
});

test("the pieces of a PDF page become lines", () => {
  const items = ["A ", "title", "", "", "", "", "End. "].map((str, place) => ({ str, hasEOL: place > 0 }));
  expect(pageText(items)).toBe("A title\n\nEnd.");
});
