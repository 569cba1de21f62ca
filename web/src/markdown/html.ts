/**
 * Markdown → safe elements: whatever a model writes, no script runs, no style is set, and nothing is loaded from
 * another host until the user follows a link.
 */

import DOMPurify from "dompurify";
import { Marked } from "marked";
import { TEXT } from "../text";
import { footnotes } from "./footnotes";
import { formulas } from "./formulas";

const marked = new Marked(
  {
    gfm: true,
    renderer: {
      checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    },
  },
  formulas,
  footnotes,
);

const TAGS =
  "a b blockquote br caption code dd del details div dl dt em h1 h2 h3 h4 h5 h6 hr i ins kbd li mark ol p pre q s samp " +
  "small span strong sub summary sup table tbody td tfoot th thead tr u ul var";
const ALLOWED = {
  ALLOWED_TAGS: TAGS.split(" "),
  ALLOWED_ATTR: ["href", "title", "start", "align", "colspan", "rowspan", "open", "class"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  // Not addresses. Without this their values would have to match the pattern above.
  ADD_URI_SAFE_ATTR: ["start", "align", "colspan", "rowspan", "open"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  IN_PLACE: true as const,
};
/** The allowed classes. Others could conflict with the page's own. */
const CLASSES = /^(?:language-[\w+#-]+|formula|formula-display|footnote)$/;

export function rendered(markdown: string): DocumentFragment {
  // A document without a window loads and runs nothing.
  const inert = new DOMParser().parseFromString(marked.parse(markdown, { async: false }), "text/html");
  const root = inert.createElement("div");
  root.append(...inert.body.childNodes);
  for (const media of root.querySelectorAll("img, image, video, audio, source, iframe, embed")) linked(media);
  DOMPurify.sanitize(root, ALLOWED);
  for (const element of root.querySelectorAll("[class]")) keepKnownClasses(element);
  for (const link of root.querySelectorAll("a[href]")) {
    link.setAttribute("target", "_blank");
    link.setAttribute("rel", "noopener noreferrer nofollow");
  }
  for (const item of root.querySelectorAll("li")) if (/^\s*[☐☑] /.test(item.textContent)) item.className = "task";
  for (const table of root.querySelectorAll("table")) scrollable(table);
  const fragment = document.createDocumentFragment();
  fragment.append(...root.childNodes);
  return fragment;
}

/** An element that would load something becomes a link. */
function linked(media: Element): void {
  const address = media.getAttribute("src") ?? media.getAttribute("href") ?? "";
  const link = media.ownerDocument.createElement("a");
  link.setAttribute("href", address);
  link.textContent = media.getAttribute("alt") || address || TEXT.markdown.image;
  media.replaceWith(link);
}

function keepKnownClasses(element: Element): void {
  const known = [...element.classList].filter((name) => CLASSES.test(name));
  if (known.length > 0) element.className = known.join(" ");
  else element.removeAttribute("class");
}

function scrollable(table: Element): void {
  const frame = table.ownerDocument.createElement("div");
  frame.className = "table";
  // It must scroll without a mouse.
  frame.tabIndex = 0;
  frame.setAttribute("role", "region");
  frame.setAttribute("aria-label", TEXT.markdown.table);
  table.replaceWith(frame);
  frame.append(table);
}
