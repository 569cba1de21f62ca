// Ollama's JavaScript package, unchanged. Arguments: the folder of the package, the server's URL, the name of a model.
import assert from "node:assert";
import { pathToFileURL } from "node:url";

const [folder, host, model] = process.argv.slice(2);
const { Ollama } = await import(pathToFileURL(`${folder}/dist/index.mjs`));
const ollama = new Ollama({ host });
const messages = [{ role: "user", content: "say: hello there" }];

const whole = await ollama.chat({ model, messages });
assert.strictEqual(whole.message.content, "hello there");
let text = "";
for await (const part of await ollama.chat({ model, messages, stream: true })) text += part.message.content;
assert.strictEqual(text, "hello there");

const tools = [{ type: "function", function: { name: "look", parameters: { type: "object", properties: {} } } }];
const call = '{"name": "look", "arguments": {}}';
const called = await ollama.chat({ model, messages: [{ role: "user", content: `say: ${call}` }], tools });
assert.strictEqual(called.message.tool_calls[0].function.name, "look");

assert.strictEqual((await ollama.generate({ model, prompt: "say: hi" })).response, "hi");
assert.ok((await ollama.list()).models.some((one) => one.model.startsWith(model)));
assert.ok((await ollama.show({ model })).capabilities.includes("completion"));
assert.ok((await ollama.ps()).models.length > 0);
assert.ok((await ollama.version()).version);
await assert.rejects(ollama.chat({ model, messages, format: "yaml" }), /format/);

const endless = await ollama.generate({ model, prompt: "tell me", stream: true });
await assert.rejects(async () => {
  for await (const _ of endless) endless.abort();
}, { name: "AbortError" });
console.log("done");
