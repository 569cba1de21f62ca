/** A conversation as a Markdown document: the branch that is shown. */

import { isMedia, isText } from "../attachments/types";
import { withFiles } from "../chat/request";
import { branch, type Message } from "../chat/tree";
import { TEXT } from "../text";
import type { Stored } from "./transfer";

export function asMarkdown({ conversation, messages }: Stored): string {
  const shown = branch(new Map(messages.map((message) => [message.id, message])), conversation.chosen);
  const system = conversation.settings.system?.trim();
  const parts = [
    `# ${conversation.title}`,
    ...(system ? [`## ${TEXT.settings.system}\n\n${system}`] : []),
    ...shown.map(({ message }) => section(message)),
  ];
  return `${parts.join("\n\n")}\n`;
}

function section(message: Message): string {
  if (message.role === "tool") return `## ${TEXT.message.toolResult}\n\n\`\`\`\n${message.content}\n\`\`\``;
  if (message.role === "user") {
    const media = message.attachments.filter(isMedia).map(({ name }) => `*${name}*`);
    const files = message.attachments.filter(isText);
    return [`## ${TEXT.message.you}`, ...media, withFiles(message.content, files)].filter(Boolean).join("\n\n");
  }
  const thoughts = message.reasoning.trim();
  const quoted = thoughts ? `> ${thoughts.replaceAll("\n", "\n> ")}` : "";
  const calls = message.calls.map(({ name, arguments: text }) => `\`\`\`json\n${name} ${text}\n\`\`\``);
  return [`## ${message.model ?? TEXT.message.answer}`, quoted, message.content, ...calls].filter(Boolean).join("\n\n");
}
