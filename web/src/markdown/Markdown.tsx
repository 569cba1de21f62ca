import { useLayoutEffect, useRef } from "preact/hooks";
import "./markdown.css";
import { MarkdownView } from "./view";

/** A text in Markdown, which may grow from one rendering to the next. */
export function Markdown({ text }: { text: string }) {
  const root = useRef<HTMLDivElement>(null);
  const view = useRef<MarkdownView | null>(null);
  useLayoutEffect(() => {
    if (!root.current) return;
    view.current ??= new MarkdownView(root.current);
    view.current.show(text);
  }, [text]);
  useLayoutEffect(() => () => view.current?.close(), []);
  return <div class="markdown" ref={root} />;
}
