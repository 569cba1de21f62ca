/** Parses the server-sent events of a response as they arrive. */

export interface ServerEvent {
  event: string;
  data: string;
}

export async function* serverEvents(response: Response): AsyncGenerator<ServerEvent> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parser.feed(value);
    }
  } finally {
    // A consumer that stops reading disconnects, and the server then cancels the request.
    await reader.cancel().catch(() => undefined);
  }
}

/** Text in any pieces → events. Comments are skipped: they only keep the connection alive. */
export class EventParser {
  private rest = "";
  private event = "";
  private data: string[] = [];

  feed(text: string): ServerEvent[] {
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.line(line));
  }

  private line(line: string): ServerEvent[] {
    if (line === "") {
      const events = this.data.length > 0 ? [{ event: this.event || "message", data: this.data.join("\n") }] : [];
      this.event = "";
      this.data = [];
      return events;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") this.event = value;
    if (name === "data") this.data.push(value);
    return [];
  }
}
