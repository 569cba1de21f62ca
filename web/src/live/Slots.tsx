import "./slots.css";
import type { LiveModel, Slot } from "../api/live";
import { TEXT } from "../text";
import { count, guesses } from "./words";

/** More idle slots than this are summarised in one line. */
const IDLE_ROWS = 4;

/** The slots of a model, and what each one does. */
export function Slots({ model: { id, slots } }: { model: LiveModel }) {
  const idle = slots.filter((slot) => slot.state === "idle");
  const shown = idle.length > IDLE_ROWS ? slots.filter((slot) => slot.state !== "idle") : slots;
  return (
    <>
      {shown.length > 0 && (
        <ul class="slots" aria-label={TEXT.live.slotsOf(id)}>
          {shown.map((slot) => (
            <SlotRow key={slot.id} slot={slot} />
          ))}
        </ul>
      )}
      {shown.length < slots.length && (
        <p class="quiet small slots-idle">
          {idle.length === slots.length
            ? TEXT.live.allIdle(count(idle.length))
            : TEXT.live.moreIdle(count(idle.length))}
        </p>
      )}
    </>
  );
}

/** A slot's number in its colour. */
export function SlotChip({ id, idle = false }: { id: number; idle?: boolean }) {
  return (
    <span class="slot-chip" style={{ background: idle ? "none" : slotColour(id) }}>
      {id}
    </span>
  );
}

export function slotColour(id: number): string {
  return `var(--slot-${id % 8})`;
}

function SlotRow({ slot }: { slot: Slot }) {
  return (
    <li class={`slot ${slot.state}`}>
      <SlotChip id={slot.id} idle={slot.state === "idle"} />
      <span class="slot-state">{TEXT.live.slotStates[slot.state]}</span>
      <SlotBar slot={slot} />
      {slot.state !== "idle" && <SlotWords slot={slot} />}
      {slot.key !== null && <span class="slot-key">{slot.key}</span>}
    </li>
  );
}

/** The cached, computed and remaining parts of the prompt, then the answer. */
function SlotBar({ slot }: { slot: Slot }) {
  const { state, prompt_tokens, prompt_done, cached_tokens, answered_tokens } = slot;
  if (state === "idle") return <span class="slot-bar" />;
  const answered = state === "answer" ? answered_tokens : 0;
  return (
    <span class="slot-bar" aria-hidden="true">
      <i class="cached" style={{ flexGrow: cached_tokens }} />
      <i class="read" style={{ flexGrow: Math.max(0, prompt_done - cached_tokens) }} />
      <i class="unread" style={{ flexGrow: Math.max(0, prompt_tokens - prompt_done) }} />
      <i class="answered" style={{ flexGrow: answered }} />
    </span>
  );
}

function SlotWords({ slot }: { slot: Slot }) {
  const { state, prompt_tokens, prompt_done, cached_tokens, answered_tokens } = slot;
  const guessed = guesses(slot);
  const read = count(Math.max(0, prompt_done - cached_tokens));
  return (
    <span class="slot-words">
      {cached_tokens > 0 && (
        <>
          <b class="cached">{count(cached_tokens)}</b> {TEXT.live.cached} ·{" "}
        </>
      )}
      <b class="read">{read}</b>
      {state === "prompt" ? TEXT.live.processedOf(count(prompt_tokens - cached_tokens)) : TEXT.live.processed}
      {state === "answer" && (
        <>
          <b class="answered">{count(answered_tokens)}</b> {TEXT.live.generated}
          {guessed !== null && ` · ${guessed}`}
        </>
      )}
    </span>
  );
}
