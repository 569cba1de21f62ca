/** A request as a command for a shell and for Python. It never contains the key. */

export type Json = string | number | boolean | null | readonly Json[] | { readonly [name: string]: Json };

export interface Call {
  /** The full address of the route. */
  url: string;
  body: Readonly<Record<string, Json>>;
  /** Whether requests have a key. The command then takes it from $PADDOCK_API_KEY. */
  keyed: boolean;
}

export function curl({ url, body, keyed }: Call): string {
  const options = [
    body.stream === true ? "curl -N" : "curl",
    quoted(url),
    ...(keyed ? ['-H "Authorization: Bearer $PADDOCK_API_KEY"'] : []),
    "-H 'Content-Type: application/json'",
    `-d ${quoted(JSON.stringify(body, null, 2))}`,
  ];
  return options.join(" \\\n  ");
}

/** Within single quotes a shell changes nothing, and only a single quote ends them. */
function quoted(text: string): string {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

export function python(call: Call): string {
  const path = new URL(call.url).pathname;
  if (path.endsWith("/v1/completions")) return throughClient(call, "completions", "/completions");
  if (path.endsWith("/v1/embeddings")) return throughClient(call, "embeddings", "/embeddings");
  return throughHttp(call);
}

/** The parameters of `openai`'s functions. Other fields go into `extra_body`. */
const PARAMETERS = new Set([
  ...["model", "prompt", "max_tokens", "temperature", "top_p", "seed", "stop", "stream", "stream_options", "logprobs"],
  ...["echo", "n", "frequency_penalty", "presence_penalty", "input", "encoding_format", "dimensions"],
]);

function throughClient({ url, body, keyed }: Call, resource: string, route: string): string {
  const fields = Object.entries(body);
  const own = fields.filter(([name]) => PARAMETERS.has(name));
  const extra = fields.filter(([name]) => !PARAMETERS.has(name));
  const given = [
    ...own.map(([name, value]) => `    ${name}=${literal(value, 1)},`),
    ...(extra.length > 0 ? [`    extra_body=${literal(Object.fromEntries(extra), 1)},`] : []),
  ];
  // The package requires a key even if the server does not.
  const key = keyed ? 'os.environ["PADDOCK_API_KEY"]' : '"none"';
  return [
    ...(keyed ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(url.slice(0, -route.length))}, api_key=${key})`,
    `answer = client.${resource}.create(`,
    ...given,
    ")",
    ...shown(resource, body.stream === true),
    "",
  ].join("\n");
}

function shown(resource: string, streamed: boolean): string[] {
  if (resource === "embeddings") return ["for item in answer.data:", "    print(item.embedding)"];
  if (!streamed) return ["print(answer.choices[0].text)"];
  return [
    "for chunk in answer:",
    "    if chunk.choices:",
    '        print(chunk.choices[0].text, end="", flush=True)',
    "print()",
  ];
}

function throughHttp({ url, body, keyed }: Call): string {
  return [
    ...(keyed ? ["import os", ""] : []),
    "import httpx  # installed with openai, which has no function for this",
    "",
    "answer = httpx.post(",
    `    ${literal(url)},`,
    ...(keyed ? ['    headers={"Authorization": f"Bearer {os.environ[\'PADDOCK_API_KEY\']}"},'] : []),
    `    json=${literal(body, 1)},`,
    ")",
    "print(answer.raise_for_status().json())",
    "",
  ].join("\n");
}

/** Strings and numbers of JSON are valid in Python. */
function literal(value: Json, depth = 0): string {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = "    ".repeat(depth + 1);
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  const lines = Array.isArray(value)
    ? value.map((item: Json) => `${inner}${literal(item, depth + 1)},\n`)
    : Object.entries(value).map(
        ([name, item]) => `${inner}${JSON.stringify(name)}: ${literal(item as Json, depth + 1)},\n`,
      );
  if (lines.length === 0) return open + close;
  return `${open}\n${lines.join("")}${"    ".repeat(depth)}${close}`;
}
