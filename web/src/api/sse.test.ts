import { expect, test } from "vitest";
import { EventParser } from "./sse";

const TEXT =
  ': a comment\r\ndata: {"a":1}\r\n\r\nevent: tree\ndata: one\ndata:two\n\nid: 7\n\ndata: [DONE]\n\ndata: unfinished\n';
const EVENTS = [
  { event: "message", data: '{"a":1}' },
  { event: "tree", data: "one\ntwo" },
  { event: "message", data: "[DONE]" },
];

test("events are the same however the text is cut", () => {
  for (let first = 0; first <= TEXT.length; first++) {
    for (let second = first; second <= TEXT.length; second++) {
      const parser = new EventParser();
      const pieces = [TEXT.slice(0, first), TEXT.slice(first, second), TEXT.slice(second)];
      expect(pieces.flatMap((piece) => parser.feed(piece))).toEqual(EVENTS);
    }
  }
});
