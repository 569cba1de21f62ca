/** The difference of two texts, word by word. */

export interface Part {
  kind: "same" | "added" | "removed";
  text: string;
}

/** With more words than this on both sides, only the common beginning and end are found. */
const MOST = 2_000;

export function diff(before: string, after: string): Part[] {
  const [left, right] = [words(before), words(after)];
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start++;
  let end = 0;
  const most = Math.min(left.length, right.length) - start;
  while (end < most && left[left.length - 1 - end] === right[right.length - 1 - end]) end++;
  const middle = between(left.slice(start, left.length - end), right.slice(start, right.length - end));
  return merged([
    { kind: "same", text: left.slice(0, start).join("") },
    ...middle,
    { kind: "same", text: left.slice(left.length - end).join("") },
  ]);
}

function words(text: string): string[] {
  return text.match(/\s+|[^\s\w]|\w+/g) ?? [];
}

/** By the longest common subsequence. */
function between(left: string[], right: string[]): Part[] {
  if (left.length > MOST || right.length > MOST) {
    return [
      { kind: "removed", text: left.join("") },
      { kind: "added", text: right.join("") },
    ];
  }
  const width = right.length + 1;
  const length = new Uint16Array((left.length + 1) * width);
  const at = (row: number, column: number) => length[row * width + column] ?? 0;
  for (let row = left.length - 1; row >= 0; row--) {
    for (let column = right.length - 1; column >= 0; column--) {
      length[row * width + column] =
        left[row] === right[column] ? at(row + 1, column + 1) + 1 : Math.max(at(row + 1, column), at(row, column + 1));
    }
  }
  const parts: Part[] = [];
  let [row, column] = [0, 0];
  while (row < left.length || column < right.length) {
    if (row < left.length && column < right.length && left[row] === right[column]) {
      parts.push({ kind: "same", text: left[row] ?? "" });
      row++;
      column++;
    } else if (column >= right.length || (row < left.length && at(row + 1, column) >= at(row, column + 1))) {
      parts.push({ kind: "removed", text: left[row++] ?? "" });
    } else parts.push({ kind: "added", text: right[column++] ?? "" });
  }
  return parts;
}

function merged(parts: Part[]): Part[] {
  const found: Part[] = [];
  for (const part of parts) {
    const last = found.at(-1);
    if (part.text === "") continue;
    if (last?.kind === part.kind) last.text += part.text;
    else found.push({ ...part });
  }
  return found;
}
