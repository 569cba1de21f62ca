import { execFileSync } from "node:child_process";
import { expect, test } from "vitest";
import { type Call, curl, python } from "./commands";

const TEXTS = [
  "plain",
  "it's a 'quoted' \"text\"",
  "two\nlines\r\n\tand a tab",
  "$HOME `id` $(id) \\ \\' !! %s @file",
  "'",
  "''\\''",
  "",
  "nul\u0000, bell\u0007, \u2028, 🐎, é",
];

/** The arguments that a real shell gives to curl. */
function argumentsOf(command: string, env: Record<string, string> = {}): string[] {
  const script = `curl() { printf '%s\\0' "$@"; }\n${command}`;
  return execFileSync("sh", ["-c", script], { encoding: "utf8", env }).split("\0").slice(0, -1);
}

const call = (body: Call["body"], more: Partial<Call> = {}): Call => ({
  url: "http://127.0.0.1:8080/v1/completions",
  body,
  keyed: false,
  ...more,
});

test("a shell gives curl exactly the request, whatever the text", () => {
  for (const prompt of TEXTS) {
    const [url, , header, , body, ...rest] = argumentsOf(curl(call({ model: "m", prompt })));
    expect([url, header, rest]).toEqual(["http://127.0.0.1:8080/v1/completions", "Content-Type: application/json", []]);
    expect(JSON.parse(body ?? "")).toEqual({ model: "m", prompt });
  }
});

test("an address may contain any character", () => {
  const url = "http://localhost/it's%20here;id/v1/completions";
  expect(argumentsOf(curl(call({}, { url })))[0]).toBe(url);
});

test("the key comes from the environment", () => {
  const command = curl(call({ prompt: "p" }, { keyed: true }));
  expect(command).toContain("$PADDOCK_API_KEY");
  expect(argumentsOf(command, { PADDOCK_API_KEY: "secret" })).toContain("Authorization: Bearer secret");
  expect(python(call({}, { keyed: true }))).toContain('api_key=os.environ["PADDOCK_API_KEY"]');
  const other = call({}, { keyed: true, url: "http://localhost/tokenize" });
  expect(python(other)).toContain("f\"Bearer {os.environ['PADDOCK_API_KEY']}\"");
  expect(curl(call({ prompt: "p" }))).not.toContain("PADDOCK_API_KEY");
});

test("a stream is shown unbuffered", () => {
  expect(curl(call({ stream: true }))).toMatch(/^curl -N /);
  expect(python(call({ stream: true }))).toContain("for chunk in answer:");
});

test("Python: fields without a parameter go into extra_body", () => {
  const body = { model: "m", prompt: 'it\'s\n"this"', stop: ["a"], top_k: 40, deterministic: true, lora: [] };
  expect(python(call(body))).toBe(`from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
answer = client.completions.create(
    model="m",
    prompt="it's\\n\\"this\\"",
    stop=[
        "a",
    ],
    extra_body={
        "top_k": 40,
        "deterministic": True,
        "lora": [],
    },
)
print(answer.choices[0].text)
`);
});

test("Python: routes that openai does not know", () => {
  const body = { content: "it's", model: null };
  expect(python(call(body, { url: "http://localhost/below/tokenize" }))).toContain(`answer = httpx.post(
    "http://localhost/below/tokenize",
    json={
        "content": "it's",
        "model": None,
    },
)`);
});
