import { expect, test } from "vitest";
import { type Block, blocksOf, definitionsIn, endsInCode, extended } from "./blocks";

const TEXT = `# A title

Some words, and a line
that goes on.
\`\`\`python
print("# no title")

print("$$")
\`\`\`
1. one

   more of one
2. two
- three

$$
x^2
$$

\\[ y \\] and more
| a | b |
|---|---|
| 1 | 2 |

$$ z $$
~~~
open`;

const kinds = (blocks: Block[]) => blocks.map(({ kind }) => kind);

test("blocks can be rendered separately", () => {
  const blocks = blocksOf(TEXT);
  expect(kinds(blocks)).toEqual(["text", "text", "code", "text", "math", "text", "math", "code"]);
  expect(blocks[2]).toMatchObject({ language: "python", code: 'print("# no title")\n\nprint("$$")' });
  expect(blocks[3]?.source).toBe("1. one\n\n   more of one\n2. two\n- three\n\n");
  expect(blocks[4]).toMatchObject({ tex: "x^2" });
  expect(blocks[6]).toMatchObject({ tex: "z" });
  expect(blocks[7]).toMatchObject({ code: "open", language: "" });
});

test("blocks contain the whole text", () => {
  expect(
    blocksOf(TEXT)
      .map(({ source }) => source)
      .join(""),
  ).toBe(TEXT);
});

test("a growing text has the same blocks as a complete one, wherever it is cut", () => {
  for (let step = 1; step < 12; step++) {
    let blocks: Block[] = [];
    for (let end = 0; end <= TEXT.length + step; end += step) {
      const text = TEXT.slice(0, end);
      blocks = extended(blocks, text);
      expect(blocks).toEqual(blocksOf(text));
    }
  }
});

test("appended text changes at most the last two blocks", () => {
  for (let end = 1; end < TEXT.length; end++) {
    const before = blocksOf(TEXT.slice(0, end));
    const after = blocksOf(TEXT.slice(0, end + 1));
    expect(after.slice(0, Math.max(0, before.length - 2))).toEqual(before.slice(0, -2));
  }
});

test("long lists and paragraphs are split, so that no block grows without limit", () => {
  const endless = [
    "- an item of a list\n".repeat(6000),
    "a line of words\n".repeat(6000),
    "x".repeat(100_000),
    "words ".repeat(20_000),
  ];
  for (const text of endless) {
    const blocks = blocksOf(text);
    expect(Math.max(...blocks.map(({ source }) => source.length))).toBeLessThanOrEqual(8_000);
    if (text.includes(" ")) expect(blocks.every(({ source }) => /\s$/.test(source))).toBe(true);
    expect(blocks.map(({ source }) => source).join("")).toBe(text);
    expect(extended(blocksOf(text.slice(0, 50_001)), text)).toEqual(blocks);
  }
});

test("an incomplete closing fence is not code", () => {
  for (const end of ["", "`", "``", "```", "```\n"]) {
    expect(blocksOf(`\`\`\`js\na\n\nb\n${end}`)[0]).toMatchObject({ code: "a\n\nb" });
  }
});

test("a block of code is complete once its closing fence is", () => {
  const closed = (text: string) => blocksOf(text).map((block) => block.kind === "code" && block.closed);
  for (const end of ["", "`", "``"]) expect(closed(`\`\`\`mermaid\na\n${end}`)).toEqual([false]);
  for (const end of ["```", "```\n", "````\n\n"]) expect(closed(`\`\`\`mermaid\na\n${end}`)).toEqual([true]);
  expect(closed("~~~\na\n```")).toEqual([false]);
});

test("code in lists and quotations is complete once its closing fence is", () => {
  for (const text of ["- a\n  ```mermaid\n  b", "> ```js\n> b\n> ``", "1. ```js\n   - b", "~~~\n```"]) {
    expect(endsInCode(text), text).toBe(true);
  }
  for (const text of [
    "a",
    "- a\n  ```mermaid\n  b\n  ```",
    "> ```js\n> b\n> ```\n",
    "1. ```js\n   - b\n   ```\n2. c",
  ]) {
    expect(endsInCode(text), text).toBe(false);
  }
});

test("a formula without an end is text", () => {
  expect(kinds(blocksOf("$$ five\n\nsix\n\nseven"))).toEqual(["text", "text", "text"]);
});

test("definitions of links are found", () => {
  expect(definitionsIn("See [a].\n\n[a]: https://a.example 'A'\n[b]: https://b.example")).toBe(
    "[a]: https://a.example 'A'\n[b]: https://b.example",
  );
});

test("a footnote is text, not a link definition for every block", () => {
  expect(definitionsIn("[a]: https://example.org\n\n[^1]: A note.")).toBe("[a]: https://example.org");
});
