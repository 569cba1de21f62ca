import "./thread.css";
import { useSignal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { refused } from "../api/key";
import { connection, obstacle } from "../models/watching";
import { TEXT } from "../text";
import { IconButton } from "../ui/Icon";
import { LiveRegion } from "./LiveRegion";
import { MessageView } from "./MessageView";
import { Scrolling } from "./scrolling";
import { atWork, begunHere, conversation, model, running, send, shown } from "./session";
import type { Place } from "./tree";

/** The number of messages that are rendered at first, and again whenever the first of them comes into view. */
const PAGE = 30;

/** The messages. Only the end of a long conversation is rendered until the user scrolls up. */
export function Thread() {
  const scroller = useRef<HTMLDivElement>(null);
  const inside = useRef<HTMLDivElement>(null);
  const beginning = useRef<HTMLDivElement>(null);
  const scrolling = useSignal<Scrolling | null>(null);
  const count = useSignal(PAGE);
  const id = conversation.value?.id ?? null;
  const isAdding = useRef(false);
  const opened = useRef<string | null | undefined>(undefined);
  if (opened.current !== id) {
    opened.current = id;
    count.value = Scrolling.countOf(id) ?? PAGE;
  }
  const places = shown.value;
  const hidden = Math.max(0, places.length - count.value);
  const following = scrolling.value?.following.value ?? true;

  useLayoutEffect(() => {
    if (!scroller.current || !inside.current) return;
    const made = new Scrolling(scroller.current);
    scrolling.value = made;
    // New text and late rendering make it longer.
    const watching = new ResizeObserver(() => made.settle());
    watching.observe(inside.current);
    watching.observe(scroller.current);
    return () => {
      watching.disconnect();
      made.close();
    };
  }, []);

  useLayoutEffect(() => scrolling.peek()?.enter(id), [id]);

  // Show the message that the user sends.
  const answering = atWork.value?.now.peek().answer.id ?? null;
  useEffect(() => {
    if (answering !== null && begunHere(answering)) scrolling.peek()?.toEnd();
  }, [answering]);

  useEffect(() => {
    const watching = new IntersectionObserver(([entry]) => entry?.isIntersecting && !following && showEarlier(), {
      root: scroller.current,
      rootMargin: "600px 0px 0px",
    });
    if (beginning.current) watching.observe(beginning.current);
    return () => watching.disconnect();
  }, [hidden, following]);

  function showEarlier() {
    scrolling.peek()?.beforeEarlier();
    isAdding.current = true;
    count.value += PAGE;
  }

  // Keep the view when messages are added above it.
  useLayoutEffect(() => {
    if (isAdding.current) scrolling.peek()?.afterEarlier();
    isAdding.current = false;
  }, [hidden]);

  return (
    <div class="thread-frame">
      <section
        class="thread"
        ref={scroller}
        // biome-ignore lint/a11y/noNoninteractiveTabindex: it must scroll without a mouse
        tabIndex={0}
        aria-label={TEXT.chat.messages}
        onScroll={() => scrolling.peek()?.moved(id, count.peek())}
      >
        <div class="thread-inside" ref={inside}>
          {places.length === 0 && <Welcome />}
          {hidden > 0 && (
            <div ref={beginning} class="earlier">
              <button type="button" class="plain small" onClick={showEarlier}>
                {TEXT.chat.earlier(hidden)}
              </button>
            </div>
          )}
          {places.slice(hidden).map((place) => (
            <Row key={place.message.id} place={place} last={place === places.at(-1)} />
          ))}
        </div>
      </section>
      {!following && (
        <div class="to-end">
          <IconButton icon="down" label={TEXT.chat.scrollToEnd} onClick={() => scrolling.peek()?.toEnd()} />
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
  const trouble = obstacle.value;
  return (
    <div class="welcome">
      <h2>{TEXT.chat.welcome}</h2>
      {trouble ? <Obstacle {...trouble} /> : <Greeting />}
      <ul class="questions">
        {TEXT.chat.suggestions.map((question) => (
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

function Greeting() {
  return (
    <p class="quiet">
      {model.value ? TEXT.chat.talkingTo(<strong>{model.value.id}</strong>) : TEXT.chat.lookingForModels}
    </p>
  );
}

/** Why there is no model to talk to, and what to do. */
function Obstacle({ text, needsKey, noModel }: { text: string; needsKey: boolean; noModel: boolean }) {
  return (
    <div class="obstacle" role="status">
      <p>{text}</p>
      {noModel && (
        <p class="quiet">{TEXT.models.howToAdd(<code>paddock pull OWNER/NAME</code>, <code>--models-dir</code>)}</p>
      )}
      {needsKey && (
        <button type="button" class="primary" onClick={() => (refused.value = connection.value.problem)}>
          {TEXT.key.enter}
        </button>
      )}
      {noModel && (
        <button type="button" onClick={() => location.reload()}>
          {TEXT.models.reload}
        </button>
      )}
    </div>
  );
}
