/** The settings for answers. A field has the text that was typed; an empty field leaves the value to the server. */

import { TEXT } from "../text";
import { toolsIn } from "../tools/offered";

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
  dry_multiplier: string;
  dry_base: string;
  dry_allowed_length: string;
  dry_penalty_last_n: string;
  xtc_probability: string;
  xtc_threshold: string;
  /** "on" or "off". */
  thinking: string;
  effort: string;
  /** One per line. */
  stop: string;
  /** A JSON schema that answers must match. */
  schema: string;
  /** A JSON list of functions that the model may call. */
  tools: string;
  /** A JSON list of tools of the server's MCP servers, which the server calls. */
  server_tools: string;
  /** A JSON object whose fields are added to each request. */
  custom: string;
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
  dry_multiplier: "",
  dry_base: "",
  dry_allowed_length: "",
  dry_penalty_last_n: "",
  xtc_probability: "",
  xtc_threshold: "",
  thinking: "",
  effort: "",
  stop: "",
  schema: "",
  tools: "",
  server_tools: "",
  custom: "",
};

/** Settings with all fields, of a value that may lack some. Null if it has none. */
export function filled(value: unknown): Settings | null {
  if (!isObject(value)) return null;
  const fields = Object.keys(NOTHING_SET).map((name) => [name, typeof value[name] === "string" ? value[name] : ""]);
  return Object.fromEntries(fields);
}

export function areSame(one: Settings, other: Settings): boolean {
  return (Object.keys(NOTHING_SET) as Field[]).every((name) => one[name].trim() === other[name].trim());
}

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

/** DRY and XTC, which few people set. */
export const MORE_NUMBERS: NumberField[] = [
  number("dry_multiplier", TEXT.settings.dryMultiplier, 0, 100),
  number("dry_base", TEXT.settings.dryBase, 1, 100),
  { ...number("dry_allowed_length", TEXT.settings.dryAllowed, 0, 2 ** 31 - 1), whole: true },
  { ...number("dry_penalty_last_n", TEXT.settings.dryLast, -1, 2 ** 31 - 1), whole: true },
  number("xtc_probability", TEXT.settings.xtcProbability, 0, 1),
  number("xtc_threshold", TEXT.settings.xtcThreshold, 0, 1),
];
const ALL_NUMBERS = [...NUMBERS, ...MORE_NUMBERS];

export const EFFORTS = ["low", "medium", "high"];
/** Custom fields cannot replace what the page itself needs. */
const RESERVED = ["messages", "model", "stream", "stream_options"];

function number(name: Field, [label, hint]: readonly [string, string], least: number, most: number): NumberField {
  return { name, label, hint, least, most, whole: false };
}

export type Problems = Partial<Record<Field, string>>;

/** The part of a request's body that the settings make, and their errors by field. */
export function parsed(settings: Settings): { fields: Record<string, unknown>; problems: Problems } {
  const fields: Record<string, unknown> = {};
  const problems: Problems = {};
  for (const field of ALL_NUMBERS) {
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
  read("server_tools", settings.server_tools, problems, (value) => {
    const tools = toolsIn(value);
    if (!tools) return TEXT.settings.notTools;
    const more = tools.map((tool) => ({ type: "function", function: tool.function }));
    if (more.length > 0) fields.tools = [...((fields.tools as unknown[] | undefined) ?? []), ...more];
    return null;
  });
  if (settings.thinking) fields.enable_thinking = settings.thinking === "on";
  if (settings.effort && settings.thinking !== "off") fields.reasoning_effort = settings.effort;
  read("custom", settings.custom, problems, (value) => {
    if (!isObject(value)) return TEXT.settings.notCustom;
    const reserved = RESERVED.find((name) => name in value);
    if (reserved) return TEXT.settings.reserved(reserved);
    Object.assign(fields, value);
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
  if (settings.tools.trim() || settings.server_tools) words.push(TEXT.settings.chips.tools);
  if (settings.thinking) words.push(TEXT.settings.chips.thinking(settings.thinking));
  if (settings.effort && settings.thinking !== "off") words.push(TEXT.settings.chips.effort(settings.effort));
  if (settings.custom.trim()) words.push(TEXT.settings.chips.custom);
  const numbers = ALL_NUMBERS.filter(({ name }) => settings[name].trim()).length + (settings.stop.trim() ? 1 : 0);
  if (numbers > 0) words.push(TEXT.settings.parameters(numbers));
  return words;
}
