import { useSignal, useSignalEffect } from "@preact/signals";
import { useRef } from "preact/hooks";
import { TEXT } from "../text";
import { Announcer } from "./announcer";
import { atWork, messages } from "./session";

const KEPT = 5;

interface Told {
  id: string;
  announcer: Announcer;
}

/** Announces the answer to screen readers, sentence by sentence, and how it ended. */
export function LiveRegion() {
  const sentences = useSignal<{ number: number; text: string }[]>([]);
  const count = useRef(0);
  const told = useRef<Told | null>(null);
  useSignalEffect(() => {
    const writing = atWork.value;
    const answer = writing?.now.value.answer;
    const before = told.current;
    const said: string[] = [];
    if (before && before.id !== answer?.id) {
      // Its last words may arrive after the last frame.
      const ended = messages.peek().get(before.id)?.content ?? "";
      said.push(...before.announcer.sentences(ended, true), TEXT.chat.end);
      told.current = null;
    }
    if (answer) {
      told.current ??= { id: answer.id, announcer: new Announcer() };
      said.push(...told.current.announcer.sentences(answer.content, false));
    }
    const next = said.map((text) => ({ number: count.current++, text }));
    if (next.length > 0) sentences.value = [...sentences.peek(), ...next].slice(-KEPT);
  });
  return (
    <div class="hidden-visually" aria-live="polite" data-testid="announcements">
      {sentences.value.map(({ number, text }) => (
        <p key={number}>{text}</p>
      ))}
    </div>
  );
}
