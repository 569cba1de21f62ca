import { useSignal } from "@preact/signals";
import { getJson } from "../api/client";
import { changeConversation, conversation, settings, settingsProblems } from "../chat/state";
import { TEXT } from "../text";
import { keyOf, offered, type ServerTool } from "../tools/offered";

interface Found {
  data: ServerTool[];
  servers: { name: string; tools: number; error: { message: string } | null }[];
}

/** Which tools of the server's MCP servers the chat offers. The servers are asked when this is opened. */
export function ServerTools({ onChange }: { onChange: (value: string) => void }) {
  const found = useSignal<Found | null>(null);
  const problem = useSignal<string | null>(null);
  const chosen = offered(settings.value);
  const allowed = conversation.value?.allowed ?? [];
  const keys = new Set(chosen.map(keyOf));

  function choose(tools: ServerTool[]) {
    const kept = tools.map(({ server, tool, function: about }) => ({ server, tool, function: about }));
    onChange(kept.length > 0 ? JSON.stringify(kept) : "");
  }

  function change(tools: ServerTool[], isOn: boolean) {
    const changed = new Set(tools.map(keyOf));
    const others = offered(settings.value).filter((tool) => !changed.has(keyOf(tool)));
    choose(isOn ? [...others, ...tools] : others);
  }

  async function load() {
    problem.value = null;
    try {
      const now = await getJson<Found>("/v1/mcp/tools");
      found.value = now;
      // A tool may have other parameters now.
      const known = new Map(now.data.map((tool) => [keyOf(tool), tool]));
      const before = offered(settings.value);
      if (before.length > 0) choose(before.map((tool) => known.get(keyOf(tool)) ?? tool));
    } catch (error) {
      problem.value = (error as Error).message;
    }
  }

  const listed = new Set(found.value?.data.map(keyOf));
  const gone = found.value ? chosen.filter((tool) => !listed.has(keyOf(tool))) : [];
  return (
    <details
      class="more"
      open={settingsProblems.peek().server_tools !== undefined}
      onToggle={({ currentTarget }) => {
        if (currentTarget.open && found.value === null) void load();
      }}
    >
      <summary>{TEXT.tools.title(chosen.length)}</summary>
      <p class="small quiet">{TEXT.tools.explanation}</p>
      {settingsProblems.value.server_tools && (
        <p class="small problem" role="alert">
          {settingsProblems.value.server_tools}{" "}
          <button type="button" onClick={() => onChange("")}>
            {TEXT.tools.reset}
          </button>
        </p>
      )}
      {allowed.length > 0 && (
        <p class="small">
          {TEXT.tools.allowed(allowed.length)}{" "}
          <button type="button" onClick={() => changeConversation({ allowed: [] })}>
            {TEXT.tools.askAgain}
          </button>
        </p>
      )}
      {problem.value ? (
        <p class="small problem" role="alert">
          {problem.value}
        </p>
      ) : (
        found.value === null && (
          <p class="small quiet" role="status">
            {TEXT.tools.loading}
          </p>
        )
      )}
      {found.value?.servers.length === 0 && <p class="small quiet">{TEXT.tools.none}</p>}
      {found.value?.servers.map(({ name, error }) => {
        const tools = found.value?.data.filter(({ server }) => server === name) ?? [];
        return (
          <fieldset key={name} class="server-tools">
            <legend>{name}</legend>
            {error && <p class="small problem">{error.message}</p>}
            {!error && tools.length === 0 && <p class="small quiet">{TEXT.tools.noTools}</p>}
            {tools.length > 1 && (
              <button type="button" class="plain small" onClick={() => change(tools, true)}>
                {TEXT.tools.all(name)}
              </button>
            )}
            {tools.map((tool) => (
              <Tool
                key={tool.tool}
                tool={tool}
                isOn={keys.has(keyOf(tool))}
                onSwitch={(isOn) => change([tool], isOn)}
              />
            ))}
          </fieldset>
        );
      })}
      {gone.length > 0 && (
        <fieldset class="server-tools">
          <legend>{TEXT.tools.gone}</legend>
          {gone.map((tool) => (
            <Tool key={keyOf(tool)} tool={tool} isOn onSwitch={(isOn) => change([tool], isOn)} />
          ))}
        </fieldset>
      )}
    </details>
  );
}

const LONGEST = 200;

function Tool({ tool, isOn, onSwitch }: { tool: ServerTool; isOn: boolean; onSwitch: (isOn: boolean) => void }) {
  const about = tool.function.description ?? "";
  return (
    <label class="check">
      <input type="checkbox" checked={isOn} onChange={({ currentTarget }) => onSwitch(currentTarget.checked)} />{" "}
      {tool.tool}{" "}
      <span class="small quiet" title={about}>
        {about.length > LONGEST ? `${about.slice(0, LONGEST)}…` : about}
      </span>
    </label>
  );
}
