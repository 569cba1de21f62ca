/** The view of the messages: it follows a growing answer until the user scrolls up, and keeps its place otherwise. */

import { signal } from "@preact/signals";

/** A message and where its top is, in pixels below the top of the view. */
interface Anchor {
  message: string;
  top: number;
}

interface Position {
  /** Null: at the end. */
  anchor: Anchor | null;
  /** The number of messages that were rendered. */
  count: number;
}

/** Where each conversation was left. */
const positions = new Map<string, Position>();

/** If the user scrolls down as near as this to the end, in pixels, the view follows again. */
const NEAR = 60;
/** A movement belongs to a gesture that is at most this old, in milliseconds: browsers scroll smoothly. */
const GESTURE_MS = 1_500;
const UPWARD = new Set(["ArrowUp", "PageUp", "Home", " ", "Tab"]);

export class Scrolling {
  /** Whether the view stays at the end of the conversation. */
  readonly following = signal(true);
  /** What stays where it is while the messages around it are rendered, until the user scrolls. */
  private held: Anchor | null = null;
  private position = 0;
  private gesture = Number.NEGATIVE_INFINITY;
  private pressed = false;

  constructor(private readonly view: HTMLElement) {
    view.addEventListener("wheel", this.gestured, { passive: true });
    view.addEventListener("touchmove", this.gestured, { passive: true });
    view.addEventListener("keydown", this.keyed);
    // The scroll bar, or a selection that is dragged over the edge.
    view.addEventListener("pointerdown", () => {
      this.pressed = true;
    });
    addEventListener("pointerup", this.released);
    addEventListener("pointercancel", this.released);
  }

  close(): void {
    removeEventListener("pointerup", this.released);
    removeEventListener("pointercancel", this.released);
  }

  /** Show a conversation where it was left. Returns how many messages must be rendered for that, if that is known. */
  static countOf(conversation: string | null): number | null {
    return positions.get(conversation ?? "")?.count ?? null;
  }

  enter(conversation: string | null): void {
    this.held = positions.get(conversation ?? "")?.anchor ?? null;
    this.following.value = this.held === null;
    this.settle();
  }

  /** The content has changed its size. */
  settle(): void {
    this.look();
    if (this.following.peek()) this.toEnd();
    else if (this.held) this.hold(this.held);
  }

  /** Messages will be added above the view. */
  beforeEarlier(): void {
    this.held = this.first();
  }

  /** They have been added. A movement that is still going on must not be disturbed by the next change. */
  afterEarlier(): void {
    this.settle();
    this.held = null;
  }

  toEnd = (): void => {
    this.following.value = true;
    this.moveTo(this.view.scrollHeight);
  };

  /** The view has moved: remember its place. */
  moved(conversation: string | null, count: number): void {
    this.look();
    positions.set(conversation ?? "", { anchor: this.following.peek() ? null : this.first(), count });
  }

  /**
   * Only the user stops following: by a movement upward during or after a gesture. The browser also moves the view up,
   * when content above the end becomes shorter.
   */
  private look(): void {
    const { scrollTop, scrollHeight, clientHeight } = this.view;
    const [before, left] = [this.position, scrollHeight - scrollTop - clientHeight];
    this.position = scrollTop;
    const isTheirs = this.pressed || performance.now() - this.gesture < GESTURE_MS;
    if (scrollTop < before && isTheirs && left > 1) this.following.value = false;
    else if (scrollTop > before && left < NEAR) this.following.value = true;
  }

  private hold({ message, top }: Anchor): void {
    const element = this.view.querySelector(`[data-message="${CSS.escape(message)}"]`);
    if (element) this.moveTo(this.view.scrollTop + this.below(element) - top);
  }

  /** The first visible message. */
  private first(): Anchor | null {
    for (const element of this.view.querySelectorAll<HTMLElement>("[data-message]")) {
      const { bottom } = element.getBoundingClientRect();
      if (bottom > this.view.getBoundingClientRect().top) {
        return { message: element.dataset.message ?? "", top: this.below(element) };
      }
    }
    return null;
  }

  private below(element: Element): number {
    return element.getBoundingClientRect().top - this.view.getBoundingClientRect().top;
  }

  private moveTo(top: number): void {
    this.view.scrollTop = top;
    this.position = this.view.scrollTop;
  }

  private gestured = (): void => {
    this.gesture = performance.now();
    this.held = null;
  };

  private keyed = (event: KeyboardEvent): void => {
    if (UPWARD.has(event.key)) this.gestured();
    const isModified = event.ctrlKey || event.shiftKey || event.altKey || event.metaKey;
    if (event.key !== "Home" || event.target !== this.view || isModified) return;
    // At once: earlier messages that are added during the browser's own smooth movement would end it on its way.
    event.preventDefault();
    this.view.scrollTop = 0;
  };

  private released = (): void => {
    if (this.pressed) this.gestured();
    this.pressed = false;
  };
}
