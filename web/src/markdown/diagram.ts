/** Diagrams that a model wrote, drawn by Mermaid in a frame without an origin and without a network (diagram.html). */

import library from "@mermaid-js/tiny/dist/mermaid.tiny.js?url";
import { scheme } from "../live/scheme";
import { TEXT } from "../text";
import { kindOf, LONGEST_SOURCE, reportOf } from "./diagramReport";

const LOADING_MS = 60_000;
/** The frame may share its process with the page, so a diagram must not compute for long. */
const DRAWING_MS = 20_000;

/** Draw a diagram in a frame that is part of the page, or say why that is not possible. */
export function drawDiagram(view: HTMLIFrameElement, source: string, failed: (reason: string) => void): void {
  if (source.length > LONGEST_SOURCE) {
    failed(TEXT.markdown.diagramTooLong(LONGEST_SOURCE.toLocaleString("en")));
    return;
  }
  if (!view.isConnected) return;
  view.title = TEXT.markdown.diagram(kindOf(source));
  const loaded = loadLibrary();
  loaded.catch(() => fail(TEXT.markdown.diagramNotLoaded));
  let timer = setTimeout(() => fail(TEXT.markdown.diagramNotLoaded), LOADING_MS);
  addEventListener("message", hear);
  view.src = "./diagram.html";

  function stop(): void {
    clearTimeout(timer);
    removeEventListener("message", hear);
  }

  function fail(reason: string): void {
    stop();
    failed(reason);
  }

  function hear({ source: sender, data }: MessageEvent): void {
    if (!view.isConnected) stop();
    if (sender === null || sender !== view.contentWindow) return;
    const report = reportOf(data);
    if (report?.state === "ready") {
      void loaded.then((text) => {
        clearTimeout(timer);
        timer = setTimeout(() => fail(TEXT.markdown.diagramTooSlow(DRAWING_MS / 1_000)), DRAWING_MS);
        view.contentWindow?.postMessage({ library: text, source, dark: scheme.value === "dark" }, "*");
      }, noop);
    } else if (report?.state === "drawn") {
      stop();
      view.style.height = `${report.height}px`;
    } else if (report?.state === "failed") {
      fail(TEXT.markdown.diagramFailed(report.reason));
    }
  }
}

async function loadLibrary(): Promise<string> {
  const response = await fetch(library);
  if (!response.ok) throw new Error(`${library} is answered with ${response.status}`);
  return response.text();
}

function noop(): void {}
