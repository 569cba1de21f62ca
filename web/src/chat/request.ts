/** A branch of a conversation and its settings → the body of a chat completion. */

import { dataUrl } from "../attachments/encoding";
import { type Attachment, isMedia, isText, type MediaFile, type TextFile } from "../attachments/types";
import { parsed, type Settings } from "./settings";
import type { Message } from "./tree";

export async function chatRequest(
  path: Message[],
  settings: Settings,
  model: string | null,
): Promise<Record<string, unknown>> {
  const system = settings.system.trim();
  const messages = await Promise.all(path.filter(says).map(asSent));
  return {
    ...(model !== null && { model }),
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages],
    ...parsed(settings).fields,
    stream: true,
    stream_options: { include_usage: true },
    // Requested so that an answer that is stopped or fails has statistics too.
    timings_per_token: true,
    return_progress: true,
    cache_report: true,
  };
}

/** An answer that failed before its first token is not part of the conversation. */
function says(message: Message): boolean {
  return message.role !== "assistant" || message.content !== "" || message.calls.length > 0;
}

async function asSent(message: Message): Promise<Record<string, unknown>> {
  switch (message.role) {
    case "user":
      return { role: "user", content: await contentOf(message.content, message.attachments) };
    case "tool":
      return { role: "tool", tool_call_id: message.call, content: message.content };
    case "assistant":
      return {
        role: "assistant",
        content: message.content,
        ...(message.reasoning && { reasoning_content: message.reasoning }),
        ...(message.calls.length > 0 && {
          tool_calls: message.calls.map(({ id, name, arguments: text }) => ({
            id,
            type: "function",
            function: { name, arguments: text },
          })),
        }),
      };
  }
}

/** Images and audio first, if there are any, then the text. */
async function contentOf(content: string, attachments: Attachment[]): Promise<unknown> {
  const media = attachments.filter(isMedia);
  const files = attachments.filter(isText);
  const text = withFiles(content, files);
  if (media.length === 0) return text;
  return [...(await Promise.all(media.map(partOf))), ...(text ? [{ type: "text", text }] : [])];
}

const AUDIO_FORMATS: Record<string, string> = { "audio/wav": "wav", "audio/mpeg": "mp3", "audio/flac": "flac" };

async function partOf({ kind, data }: MediaFile): Promise<Record<string, unknown>> {
  const url = await dataUrl(data);
  if (kind === "image") return { type: "image_url", image_url: { url } };
  const format = AUDIO_FORMATS[data.type];
  return { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), ...(format && { format }) } };
}

/** Files first, each in a fence that its content cannot close, then the user's text. */
export function withFiles(content: string, attached: TextFile[]): string {
  const files = attached.map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [...files, ...(content ? [content] : [])].join("\n\n");
}
