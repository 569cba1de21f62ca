import { useSignal } from "@preact/signals";
import { TEXT } from "../text";
import { Preformatted } from "../ui/Preformatted";
import { giveResults } from "./session";
import type { AnswerMessage, ToolCall } from "./tree";

/** The tool calls of a model. If no message follows, the user can enter results and send them. */
export function Calls({ message, open }: { message: AnswerMessage; open: boolean }) {
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
          <p class="call-name">
            <span class="small quiet">{TEXT.message.call}</span> <code>{call.name}</code>
          </p>
          <Preformatted text={readable(call)} label={TEXT.message.argumentsOf(call.name)} />
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
