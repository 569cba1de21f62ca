/** The settings for answers. A field has the text that was typed; an empty field leaves the value to the server. */

import { TEXT } from "../text";

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
  number("temperature", TEXT.settings.temperature, 0, 100),
  number("top_p", TEXT.settings.topP, 0, 1),
  { ...number("top_k", TEXT.settings.topK, -1, 2 ** 31 - 1), whole: true },
  number("min_p", TEXT.settings.minP, 0, 1),
  number("repeat_penalty", TEXT.settings.repeat, 0.01, 100),
  number("presence_penalty", TEXT.settings.presence, -100, 100),
  number("frequency_penalty", TEXT.settings.frequency, -100, 100),
  { ...number("max_tokens", TEXT.settings.maxTokens, -1, 2 ** 31 - 1), whole: true },
  { ...number("seed", TEXT.settings.seed, -1, Number.MAX_SAFE_INTEGER), whole: true },
];

function number(name: Field, [label, hint]: readonly [string, string], least: number, most: number): NumberField {
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
    if (!isObject(value)) return TEXT.settings.notSchema;
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema: value } };
    return null;
  });
  read("tools", settings.tools, problems, (value) => {
    if (!Array.isArray(value)) return TEXT.settings.notTools;
    const place = value.findIndex((tool) => !isObject(tool) || !isObject(tool.function) || !tool.function.name);
    if (place >= 0) return TEXT.settings.notTool(place + 1);
    if (value.length > 0) fields.tools = value;
    return null;
  });
  return { fields, problems };
}

function problemWith(value: number, { least, most, whole }: NumberField): string | null {
  if (!Number.isFinite(value)) return TEXT.settings.notNumber;
  if (whole && !Number.isInteger(value)) return TEXT.settings.notWhole;
  if (value < least) return TEXT.settings.least(least);
  if (value > most) return TEXT.settings.most(most);
  return null;
}

function read(name: Field, text: string, problems: Problems, use: (value: unknown) => string | null): void {
  if (text.trim() === "") return;
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    problems[name] = TEXT.settings.notJson((error as Error).message);
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
  if (settings.system.trim()) words.push(TEXT.settings.chips.system);
  if (settings.schema.trim()) words.push(TEXT.settings.chips.schema);
  if (settings.tools.trim()) words.push(TEXT.settings.chips.tools);
  const numbers = NUMBERS.filter(({ name }) => settings[name].trim()).length + (settings.stop.trim() ? 1 : 0);
  if (numbers > 0) words.push(TEXT.settings.parameters(numbers));
  return words;
}
