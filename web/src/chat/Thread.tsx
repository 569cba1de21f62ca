import "./thread.css";
import { useSignal, useSignalEffect } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { IconButton } from "../ui/Icon";
import { LiveRegion } from "./LiveRegion";
import { MessageView } from "./MessageView";
import { atWork, conversation, model, running, send, shown } from "./session";
import type { Place } from "./tree";

/** The number of messages that are rendered at first, and again whenever the first of them comes into view. */
const PAGE = 30;
/** If the view is this near to the end, in pixels, it stays at the end. */
const NEAR = 60;
const QUESTIONS = [
  "Explain what a hash table is, with a small example.",
  "Write a haiku about a horse at a gate.",
  "What should I look for when I buy a used bicycle?",
];

/** The messages. Only the end of a long conversation is rendered until the user scrolls up. */
export function Thread() {
  const scroller = useRef<HTMLDivElement>(null);
  const inside = useRef<HTMLDivElement>(null);
  const beginning = useRef<HTMLDivElement>(null);
  const count = useSignal(PAGE);
  const following = useSignal(true);
  const anchor = useRef<{ element: Element; top: number } | null>(null);
  /** The last known position of the view. */
  const position = useRef(0);
  const id = conversation.value?.id ?? null;
  const places = shown.value;
  const hidden = Math.max(0, places.length - count.value);

  useLayoutEffect(() => {
    count.value = PAGE;
    following.value = true;
    toEnd();
  }, [id]);

  function toEnd() {
    if (scroller.current) moveTo(scroller.current, scroller.current.scrollHeight);
  }

  function moveTo(view: HTMLDivElement, top: number) {
    view.scrollTop = top;
    position.current = view.scrollTop;
  }

  /** Only a user moves the view up. Text may arrive before the event of that movement, so look at the position too. */
  function look(view: HTMLDivElement) {
    const isUp = view.scrollTop < position.current;
    position.current = view.scrollTop;
    if (view.scrollHeight - view.scrollTop - view.clientHeight < NEAR) following.value = true;
    else if (isUp) following.value = false;
  }

  // New text and late rendering make it longer. Stay at the end if the view is there.
  useEffect(() => {
    const watching = new ResizeObserver(() => {
      if (scroller.current) look(scroller.current);
      if (following.value) toEnd();
    });
    if (inside.current) watching.observe(inside.current);
    if (scroller.current) watching.observe(scroller.current);
    return () => watching.disconnect();
  }, []);

  // Show the message that the user sends.
  useSignalEffect(() => {
    if (atWork.value) following.value = true;
  });

  useEffect(() => {
    const watching = new IntersectionObserver(([entry]) => entry?.isIntersecting && !following.value && showEarlier(), {
      root: scroller.current,
      rootMargin: "600px 0px 0px",
    });
    if (beginning.current) watching.observe(beginning.current);
    return () => watching.disconnect();
  }, [hidden]);

  function showEarlier() {
    const element = inside.current?.querySelector("article");
    anchor.current = element ? { element, top: element.getBoundingClientRect().top } : null;
    count.value += PAGE;
  }

  // Keep the view when messages are added above it.
  useLayoutEffect(() => {
    const before = anchor.current;
    if (scroller.current && before)
      moveTo(scroller.current, scroller.current.scrollTop + before.element.getBoundingClientRect().top - before.top);
    anchor.current = null;
  }, [count.value]);

  return (
    <div class="thread-frame">
      <section
        class="thread"
        ref={scroller}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it must scroll without a mouse
        tabIndex={0}
        aria-label="Messages"
        onScroll={() => scroller.current && look(scroller.current)}
      >
        <div class="thread-inside" ref={inside}>
          {places.length === 0 && <Welcome />}
          {hidden > 0 && (
            <div ref={beginning} class="earlier">
              <button type="button" class="plain small" onClick={showEarlier}>
                {hidden} earlier {hidden === 1 ? "message" : "messages"}
              </button>
            </div>
          )}
          {places.slice(hidden).map((place) => (
            <Row key={place.message.id} place={place} last={place === places.at(-1)} />
          ))}
        </div>
      </section>
      {!following.value && (
        <div class="to-end">
          <IconButton icon="down" label="To the end" onClick={toEnd} />
        </div>
      )}
      <LiveRegion />
    </div>
  );
}

/** Rendered again only when its message or the message's siblings change. */
function Row({ place: { message, siblings }, last }: { place: Place; last: boolean }) {
  const writing = running.value.get(message.id) ?? null;
  const others = siblings.map(({ id }) => id).join();
  return useMemo(
    () => <MessageView message={message} siblings={siblings} writing={writing?.now ?? null} last={last} />,
    [message, others, writing, last],
  );
}

function Welcome() {
  return (
    <div class="welcome">
      <h2>What would you like to know?</h2>
      <p class="quiet">
        {model.value ? (
          <>
            You are talking to <strong>{model.value.id}</strong>, which runs on this server. What you write is kept in
            this browser.
          </>
        ) : (
          "Looking for models…"
        )}
      </p>
      <ul class="questions">
        {QUESTIONS.map((question) => (
          <li key={question}>
            <button type="button" onClick={() => void send(question, [])} disabled={!model.value}>
              {question}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}
