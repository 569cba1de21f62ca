/** The tools of the server that a chat offers to the model, and when their calls run without a question. */

import type { Settings } from "../chat/settings";
import type { AnswerMessage, Message, ToolCall } from "../chat/tree";

/** A function, and the tool of an MCP server that it stands for. */
export interface ServerTool {
  server: string;
  tool: string;
  function: { name: string; description?: string; parameters?: unknown };
}

/** The most answers with calls in a row whose calls run by themselves. */
export const MOST_ROUNDS = 20;

/** The tools in a JSON value, or null if it is no list of them. */
export function toolsIn(value: unknown): ServerTool[] | null {
  return Array.isArray(value) && value.every(isTool) ? value : null;
}

function isTool(value: unknown): value is ServerTool {
  const { server, tool, function: about } = (value ?? {}) as Partial<ServerTool>;
  return typeof server === "string" && typeof tool === "string" && typeof about?.name === "string";
}

export function offered({ server_tools: text }: Settings): ServerTool[] {
  try {
    return toolsIn(JSON.parse(text || "[]")) ?? [];
  } catch {
    return [];
  }
}

/** The tool that a call is for. Null: the user knows the result. */
export function toolOf(tools: ServerTool[], call: ToolCall): ServerTool | null {
  return tools.find((each) => each.function.name === call.name) ?? null;
}

/** Its name in the list of tools that a conversation allows. */
export function keyOf({ server, tool }: ServerTool): string {
  return `${server}/${tool}`;
}

/** The arguments of a call, or null if they are not a JSON object. */
export function argumentsIn(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : null;
  } catch {
    return null;
  }
}

/** Whether every call that has no result yet may run without a question. */
export function areAllowed({ calls }: AnswerMessage, tools: ServerTool[], allowed: string[]): boolean {
  return calls.every((call) => {
    const tool = toolOf(tools, call);
    return call.result !== undefined || (tool !== null && allowed.includes(keyOf(tool)));
  });
}

/** The number of answers with calls since the user's last message. */
export function roundsIn(path: Message[]): number {
  const last = path.map(({ role }) => role).lastIndexOf("user");
  return path.slice(last + 1).filter((message) => message.role === "assistant" && message.calls.length > 0).length;
}
