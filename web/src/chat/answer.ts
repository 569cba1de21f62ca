/** The chunks of a streamed chat completion → the answer so far. */

import type { CacheReport } from "../api/live";
import { partsIn } from "../timeline/parts";
import type { AnswerMessage, Statistics, ToolCall } from "./tree";

interface Timings {
  cache_n: number;
  prompt_n: number;
  predicted_n: number;
  predicted_per_second: number;
  [part: string]: unknown;
}

export interface Chunk {
  choices: {
    delta: {
      content?: string | null;
      reasoning_content?: string;
      tool_calls?: { index: number; id?: string; function: { name?: string; arguments?: string } }[];
    };
    finish_reason: string | null;
  }[];
  usage?: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_tokens_details?: { cached_tokens: number };
  } | null;
  timings?: Timings;
  cache_report?: CacheReport;
  prompt_progress?: { total: number; cache: number; processed: number };
}

export interface Progress {
  done: number;
  total: number;
}

export type Written = Pick<
  AnswerMessage,
  "content" | "reasoning" | "thought" | "calls" | "finish" | "statistics" | "firstToken"
>;

/** Times are in seconds of a monotonic clock. */
export class AnswerBuilder {
  /** The progress of the prefill, until the first token. */
  progress: Progress | null = null;
  private content = "";
  private reasoning = "";
  private calls: ToolCall[] = [];
  private finish: string | null = null;
  private statistics: Statistics | null = null;
  private first: number | null = null;
  private thinking: { since: number; until: number | null } | null = null;

  constructor(private readonly asked: number) {}

  feed(chunk: Chunk, now: number): void {
    if (chunk.prompt_progress) {
      this.progress = { done: chunk.prompt_progress.processed, total: chunk.prompt_progress.total };
    }
    const choice = chunk.choices[0];
    if (choice) this.add(choice.delta, now);
    if (choice?.finish_reason) this.finish = choice.finish_reason;
    this.count(chunk, now);
  }

  written(now: number): Written {
    return {
      content: this.content,
      reasoning: this.reasoning,
      thought: this.thinking ? (this.thinking.until ?? now) - this.thinking.since : null,
      calls: this.calls,
      finish: this.finish,
      statistics: this.statistics,
      firstToken: this.first === null ? null : this.first - this.asked,
    };
  }

  private add(delta: Chunk["choices"][number]["delta"], now: number): void {
    const calls = delta.tool_calls ?? [];
    if (!delta.content && !delta.reasoning_content && calls.length === 0) return;
    this.first ??= now;
    this.progress = null;
    if (delta.reasoning_content) {
      this.reasoning += delta.reasoning_content;
      this.thinking ??= { since: now, until: null };
    }
    if (delta.content) this.content += delta.content;
    for (const { index, id, function: part } of calls) {
      const known = this.calls[index];
      const call = {
        id: known?.id ?? id ?? "",
        name: known?.name ?? part.name ?? "",
        arguments: (known?.arguments ?? "") + (part.arguments ?? ""),
      };
      this.calls = known ? this.calls.map((other) => (other === known ? call : other)) : [...this.calls, call];
    }
    if (this.thinking && !delta.reasoning_content) this.thinking.until ??= now;
  }

  private count({ usage, timings, cache_report: report }: Chunk, now: number): void {
    if (timings) {
      this.statistics = {
        promptTokens: timings.cache_n + timings.prompt_n,
        cachedTokens: timings.cache_n,
        answerTokens: timings.predicted_n,
        tokensPerSecond: timings.predicted_per_second || null,
        parts: partsIn(timings),
        report: report ?? null,
        waited: now - this.asked,
      };
    }
    if (usage) {
      this.statistics = {
        ...this.statistics,
        promptTokens: usage.prompt_tokens,
        cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
        answerTokens: usage.completion_tokens,
        tokensPerSecond: this.statistics?.tokensPerSecond ?? null,
      };
    }
  }
}
