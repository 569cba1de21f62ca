import { expect, test } from "vitest";
import { textOf } from "./textFiles";

const file = (name: string, ...bytes: number[]) => new File([new Uint8Array(bytes)], name);

test("text is read in encodings with a byte order mark", async () => {
  expect(await textOf(new File(["ä\r\nb"], "a.txt"))).toEqual({ name: "a.txt", text: "ä\nb" });
  expect(await textOf(file("b.txt", 0xff, 0xfe, 0x41, 0))).toEqual({ name: "b.txt", text: "A" });
});

test("binary and large files are refused with a reason", async () => {
  expect(await textOf(file("c.png", 0x89, 0x50, 0, 1))).toBe(
    "c.png is not an image, audio, PDF or text file that this page can read.",
  );
  expect(await textOf(file("d.bin", 0x41, 0))).toBe(
    "d.bin is not an image, audio, PDF or text file that this page can read.",
  );
  const large = { name: "e", size: 3 * 1024 * 1024, arrayBuffer: () => Promise.reject(new Error("it was read")) };
  expect(await textOf(large)).toBe("e is too large (3 MB; the limit is 1 MB).");
});
