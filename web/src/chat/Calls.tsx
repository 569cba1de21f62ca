import { useSignal } from "@preact/signals";
import { TEXT } from "../text";
import { offered, toolOf } from "../tools/offered";
import { later } from "../ui/later";
import { CallHead } from "./CallHead";
import { giveResults, settings } from "./session";
import type { AnswerMessage } from "./tree";

const ToolCalls = later(async () => (await import("../tools/ToolCalls")).ToolCalls);

/** The tool calls of a model. If no message follows, the user runs them, or enters results, and sends those. */
export function Calls({ message, open }: { message: AnswerMessage; open: boolean }) {
  const tools = open ? offered(settings.value) : [];
  if (message.calls.some((call) => toolOf(tools, call))) return <ToolCalls message={message} />;
  return <PlainCalls message={message} open={open} />;
}

function PlainCalls({ message, open }: { message: AnswerMessage; open: boolean }) {
  const results = useSignal<string[]>([]);
  const complete = message.calls.every((_, place) => results.value[place]?.trim());
  return (
    <form
      class="calls"
      onSubmit={(event) => {
        event.preventDefault();
        if (complete) void giveResults(message, results.value);
      }}
    >
      {message.calls.map((call, place) => (
        <div class="call" key={call.id}>
          <CallHead call={call} />
          {open && (
            <label>
              <span class="small quiet">{TEXT.message.resultOf(call.name)}</span>
              <textarea
                rows={2}
                value={results.value[place] ?? ""}
                onInput={({ currentTarget }) => {
                  const changed = message.calls.map((_, at) => results.value[at] ?? "");
                  changed[place] = currentTarget.value;
                  results.value = changed;
                }}
              />
            </label>
          )}
        </div>
      ))}
      {open && (
        <div class="actions">
          <button type="submit" class="primary" disabled={!complete}>
            {TEXT.message.sendResults(message.calls.length)}
          </button>
        </div>
      )}
    </form>
  );
}
