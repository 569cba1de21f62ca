import { useSignal } from "@preact/signals";
import { TEXT } from "../text";
import { offered, toolOf } from "../tools/offered";
import { later } from "../ui/later";
import { Preformatted } from "../ui/Preformatted";
import { giveResults, settings } from "./session";
import type { AnswerMessage, ToolCall } from "./tree";

const ToolCalls = later(async () => (await import("../tools/ToolCalls")).ToolCalls);

/** The tool calls of a model. If no message follows, the user runs them, or enters results, and sends those. */
export function Calls({ message, open }: { message: AnswerMessage; open: boolean }) {
  const tools = open ? offered(settings.value) : [];
  if (message.calls.some((call) => toolOf(tools, call))) return <ToolCalls message={message} />;
  return <PlainCalls message={message} open={open} />;
}

/** The name and the arguments of a call. */
export function CallHead({
  call,
  from = null,
  hidesArguments = false,
}: {
  call: ToolCall;
  from?: string | null;
  hidesArguments?: boolean;
}) {
  const notes = [from !== null && TEXT.tools.from(from), call.written !== undefined && TEXT.tools.changed];
  return (
    <>
      <p class="call-name">
        <span class="small quiet">{TEXT.message.call}</span> <code>{call.name}</code>{" "}
        <span class="small quiet">{notes.filter(Boolean).join(" · ")}</span>
      </p>
      {!hidesArguments && <Preformatted text={readable(call)} label={TEXT.message.argumentsOf(call.name)} />}
    </>
  );
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

function readable(call: ToolCall): string {
  try {
    return JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch {
    return call.arguments;
  }
}
