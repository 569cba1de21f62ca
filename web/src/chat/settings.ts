/** The settings for answers. A field has the text that was typed; an empty field leaves the value to the server. */

export interface Settings {
  system: string;
  temperature: string;
  top_p: string;
  top_k: string;
  min_p: string;
  repeat_penalty: string;
  presence_penalty: string;
  frequency_penalty: string;
  max_tokens: string;
  seed: string;
  /** One per line. */
  stop: string;
  /** A JSON schema that answers must match. */
  schema: string;
  /** A JSON list of functions that the model may call. */
  tools: string;
}

export type Field = keyof Settings;

export const NOTHING_SET: Settings = {
  system: "",
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  repeat_penalty: "",
  presence_penalty: "",
  frequency_penalty: "",
  max_tokens: "",
  seed: "",
  stop: "",
  schema: "",
  tools: "",
};

export interface NumberField {
  name: Field;
  label: string;
  hint: string;
  least: number;
  most: number;
  whole: boolean;
}

/** The limits are the server's. If it refuses a value anyway, the answer shows the error. */
export const NUMBERS: NumberField[] = [
  number("temperature", "Temperature", "0: always the most likely token", 0, 100),
  number("top_p", "Top p", "Sample from the most likely tokens up to this total probability", 0, 1),
  { ...number("top_k", "Top k", "Sample from this many most likely tokens; 0: all", -1, 2 ** 31 - 1), whole: true },
  number("min_p", "Min p", "Minimum probability, relative to the most likely token", 0, 1),
  number("repeat_penalty", "Repeat penalty", "Above 1: less repetition", 0.01, 100),
  number("presence_penalty", "Presence penalty", "Penalty for tokens that already occur", -100, 100),
  number("frequency_penalty", "Frequency penalty", "Penalty for each occurrence of a token", -100, 100),
  { ...number("max_tokens", "Max tokens", "−1: up to the size of the context", -1, 2 ** 31 - 1), whole: true },
  { ...number("seed", "Seed", "The same seed gives the same answer", -1, Number.MAX_SAFE_INTEGER), whole: true },
];

function number(name: Field, label: string, hint: string, least: number, most: number): NumberField {
  return { name, label, hint, least, most, whole: false };
}

export type Problems = Partial<Record<Field, string>>;

/** The part of a request's body that the settings make, and their errors by field. */
export function parsed(settings: Settings): { fields: Record<string, unknown>; problems: Problems } {
  const fields: Record<string, unknown> = {};
  const problems: Problems = {};
  for (const field of NUMBERS) {
    const text = settings[field.name].trim();
    if (text === "") continue;
    const value = Number(text);
    const problem = problemWith(value, field);
    if (problem) problems[field.name] = problem;
    else fields[field.name] = value;
  }
  const stops = settings.stop.split("\n").filter((line) => line !== "");
  if (stops.length > 0) fields.stop = stops;
  read("schema", settings.schema, problems, (value) => {
    if (!isObject(value)) return "A JSON schema is an object: { … }";
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema: value } };
    return null;
  });
  read("tools", settings.tools, problems, (value) => {
    if (!Array.isArray(value)) return "Tools are a JSON list: [ … ]";
    const place = value.findIndex((tool) => !isObject(tool) || !isObject(tool.function) || !tool.function.name);
    if (place >= 0) return `Tool ${place + 1} is not { "type": "function", "function": { "name": … } }`;
    if (value.length > 0) fields.tools = value;
    return null;
  });
  return { fields, problems };
}

function problemWith(value: number, { least, most, whole }: NumberField): string | null {
  if (!Number.isFinite(value)) return "Not a number";
  if (whole && !Number.isInteger(value)) return "Must be a whole number";
  if (value < least) return `At least ${least}`;
  if (value > most) return `At most ${most}`;
  return null;
}

function read(name: Field, text: string, problems: Problems, use: (value: unknown) => string | null): void {
  if (text.trim() === "") return;
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    problems[name] = `Not JSON: ${(error as Error).message}`;
    return;
  }
  const problem = use(value);
  if (problem) problems[name] = problem;
}

function isObject(value: unknown): value is Record<string, unknown> & { function?: Record<string, unknown> } {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** A short summary of what is set, shown beside the message box. */
export function inForce(settings: Settings): string[] {
  const words: string[] = [];
  if (settings.system.trim()) words.push("System prompt");
  if (settings.schema.trim()) words.push("JSON schema");
  if (settings.tools.trim()) words.push("Tools");
  const numbers = NUMBERS.filter(({ name }) => settings[name].trim()).length + (settings.stop.trim() ? 1 : 0);
  if (numbers > 0) words.push(numbers === 1 ? "1 parameter" : `${numbers} parameters`);
  return words;
}
