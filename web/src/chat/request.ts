/** A branch of a conversation and its settings → the body of a chat completion. */

import { parsed, type Settings } from "./settings";
import type { Attachment, Message } from "./tree";

export function requestBody(path: Message[], settings: Settings, model: string | null): Record<string, unknown> {
  const system = settings.system.trim();
  return {
    ...(model !== null && { model }),
    messages: [...(system ? [{ role: "system", content: system }] : []), ...path.filter(says).map(asSent)],
    ...parsed(settings).fields,
    stream: true,
    stream_options: { include_usage: true },
    // Requested so that an answer that is stopped or fails has statistics too.
    timings_per_token: true,
    return_progress: true,
  };
}

/** An answer that failed before its first token is not part of the conversation. */
function says(message: Message): boolean {
  return message.role !== "assistant" || message.content !== "" || message.calls.length > 0;
}

function asSent(message: Message): Record<string, unknown> {
  switch (message.role) {
    case "user":
      return { role: "user", content: withAttachments(message.content, message.attachments) };
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

/** Files first, each in a fence that its content cannot close, then the user's text. */
export function withAttachments(content: string, attachments: Attachment[]): string {
  const files = attachments.map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
  });
  return [...files, ...(content ? [content] : [])].join("\n\n");
}
