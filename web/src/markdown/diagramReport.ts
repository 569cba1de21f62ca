/** What the frame of a diagram reports to the page. */

export const LONGEST_SOURCE = 20_000;
const TALLEST = 5_000;
const LONGEST_REASON = 200;

export type DiagramReport =
  | { state: "ready" }
  | { state: "drawn"; height: number }
  | { state: "failed"; reason: string };

/** A message of the frame, or null if it is not one of these. */
export function reportOf(data: unknown): DiagramReport | null {
  if (typeof data !== "object" || data === null) return null;
  const { state, height, reason } = data as Record<string, unknown>;
  if (state === "ready") return { state };
  if (state === "drawn" && typeof height === "number" && height > 0) {
    return { state, height: Math.min(height, TALLEST) };
  }
  if (state === "failed" && typeof reason === "string") return { state, reason: firstLine(reason) };
  return null;
}

/** Mermaid's errors go on with an excerpt of the source and lists of tokens. */
function firstLine(reason: string): string {
  const line = reason.trim().split("\n")[0] ?? "";
  const short = line.length > LONGEST_REASON ? `${line.slice(0, LONGEST_REASON)}…` : line;
  return short.replace(/[:.\s]+$/, "");
}

/** The first word of a diagram, such as `flowchart`: after its front matter, directives and comments. */
export function kindOf(source: string): string {
  const body = source.replace(/^\s*---\n[\s\S]*?\n---\s*\n/, "").replace(/%%\{[\s\S]*?\}%%/g, "");
  const line = body.split("\n").find((text) => text.trim() !== "" && !text.trim().startsWith("%%"));
  return /^\s*([A-Za-z][\w-]{0,39})/.exec(line ?? "")?.[1] ?? "";
}
