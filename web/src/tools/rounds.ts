/** Runs the calls of an answer: the server calls the tool, and the result is kept in the answer until it is sent. */

import { ApiError, postJson } from "../api/client";
import { giveResults } from "../chat/session";
import { adopt, conversation, messages, settings, shown } from "../chat/state";
import type { AnswerMessage, ToolCall } from "../chat/tree";
import * as store from "../history/store";
import { TEXT } from "../text";
import { argumentsIn, offered, toolOf } from "./offered";
import { beginCalls, type CallsRun, callsRunning, endCalls } from "./running";

interface ToolCallResult {
  content: string;
  is_error: boolean;
}

/** Run one call that the user has confirmed. Its result waits for the user. */
export async function runCall(answer: AnswerMessage, place: number): Promise<void> {
  const run = beginCalls(answer.conversation, answer.id);
  if (!run) return;
  try {
    await callTool(answer, place, run);
  } finally {
    ended(answer, run);
  }
}

/** Run all calls that have no result, in order, and send the results. A call that is stopped ends this. */
export async function runAll(answer: AnswerMessage, run = beginCalls(answer.conversation, answer.id)): Promise<void> {
  if (!run) return;
  try {
    let now = answer;
    for (const place of answer.calls.keys()) {
      if (now.calls[place]?.result !== undefined) continue;
      const called = await callTool(now, place, run);
      if (!called) return;
      now = called;
    }
    const isShown = conversation.value?.id === now.conversation && shown.value.at(-1)?.message.id === now.id;
    if (isShown) {
      const results = now.calls.map(({ result }) => result ?? "");
      await giveResults(now, results);
    }
  } finally {
    ended(answer, run);
  }
}

/** Change what is known of a call, wherever the answer is shown. */
export async function changeCall(
  answer: AnswerMessage,
  place: number,
  fields: Partial<ToolCall>,
): Promise<AnswerMessage> {
  const here = messages.value.get(answer.id);
  const known = here ?? (await store.load(answer.conversation))?.messages.find(({ id }) => id === answer.id);
  const latest = known?.role === "assistant" ? known : answer;
  const calls = latest.calls.map((call, at) => (at === place ? { ...call, ...fields } : call));
  const changed = { ...latest, calls };
  adopt(changed);
  await store.save(changed);
  return changed;
}

/** The answer with the result; null if the call was stopped, or the server cannot be reached. */
async function callTool(answer: AnswerMessage, place: number, { abort }: CallsRun): Promise<AnswerMessage | null> {
  const call = answer.calls[place];
  const tool = call && toolOf(offered(settings.value), call);
  if (!tool) return null;
  const given = argumentsIn(call.arguments);
  if (!given) return changeCall(answer, place, failed(TEXT.tools.notArguments));
  await changeCall(answer, place, { begun: true });
  try {
    const body = { server: tool.server, tool: tool.tool, arguments: given };
    const { content, is_error: isError } = await postJson<ToolCallResult>("/v1/mcp/call", body, abort.signal);
    return await changeCall(
      answer,
      place,
      isError ? failed(content) : { begun: false, result: content, failed: false },
    );
  } catch (error) {
    if (abort.signal.aborted) {
      await changeCall(answer, place, { begun: false });
      return null;
    }
    const problem = error instanceof ApiError ? error : null;
    const changed = await changeCall(answer, place, failed(problem?.message ?? String(error)));
    return problem && problem.status > 0 ? changed : null;
  }
}

/** The model sees it too. */
function failed(reason: string): Partial<ToolCall> {
  return { begun: false, result: TEXT.tools.failedResult(reason), failed: true };
}

function ended({ conversation: id }: AnswerMessage, run: CallsRun): void {
  if (callsRunning.peek().get(id) === run) endCalls(id);
}
