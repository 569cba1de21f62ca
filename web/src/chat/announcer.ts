/** A growing text → sentences to read aloud, each once. Code is mentioned, not read. */

const SENTENCE = /[^\n]*?[.!?…:]["'”’)\]]*(?=\s)|[^\n]*\n/y;
const FENCE = /^\s*(```|~~~)/;

export class Announcer {
  private told = 0;
  private inCode = false;

  /** The new sentences of a text that only grows. `complete`: the text has ended. */
  sentences(text: string, complete: boolean): string[] {
    const found: string[] = [];
    for (;;) {
      SENTENCE.lastIndex = this.told;
      const match = SENTENCE.exec(text)?.[0];
      const piece = match ?? (complete ? text.slice(this.told) : "");
      if (piece === "") return found;
      this.told += piece.length;
      const said = this.said(piece);
      if (said) found.push(said);
    }
  }

  private said(piece: string): string {
    if (FENCE.test(piece)) {
      this.inCode = !this.inCode;
      return this.inCode ? "Code." : "";
    }
    return this.inCode ? "" : piece.replace(/[#*_`>|~-]+(?=\s|$)|(?<=^|\s)[#*_`>|~-]+|[*_`]{1,3}/g, "").trim();
  }
}
