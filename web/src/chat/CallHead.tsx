import { TEXT } from "../text";
import { Preformatted } from "../ui/Preformatted";
import type { ToolCall } from "./tree";

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

function readable(call: ToolCall): string {
  try {
    return JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch {
    return call.arguments;
  }
}
