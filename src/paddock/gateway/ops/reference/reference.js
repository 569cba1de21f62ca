// Lists the operations of openapi.json and sends requests. Text is only ever set as text, never as HTML.
"use strict";

const element = (name, text, attributes = {}) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

/** A schema with its references replaced, `depth` levels deep, without what is said elsewhere. */
const resolved = (schema, all, depth) => {
  if (Array.isArray(schema)) return schema.map((item) => resolved(item, all, depth));
  if (schema === null || typeof schema !== "object") return schema;
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    return depth > 0 ? resolved(all[name], all, depth - 1) : name;
  }
  return Object.fromEntries(
    Object.entries(schema).map(([key, value]) => [key, resolved(value, all, depth)]),
  );
};

const shown = (title, schema, all) => {
  const parts = [element("h3", title)];
  parts.push(element("pre", JSON.stringify(resolved(schema, all, 3), null, 2)));
  return parts;
};

const needs = (operation) => {
  const roles = (operation.security ?? []).flatMap((scheme) => Object.values(scheme)).flat();
  if (roles.includes("admin")) return "admin key";
  return operation.security?.length ? "key" : "no key";
};

const send = async (method, path, body, output) => {
  const key = document.getElementById("key").value;
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  if (body !== undefined) headers["content-type"] = "application/json";
  output.textContent = "…";
  try {
    const response = await fetch(path.replace(/^\//, ""), { method, headers, body });
    output.textContent = `${response.status} ${response.statusText}\n`;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      output.textContent += part.value;
      if (output.textContent.length > 1_000_000) return void reader.cancel();
    }
  } catch (error) {
    output.textContent += String(error);
  }
};

const form = (method, path, hasBody) => {
  const made = element("div");
  const where = element("input", undefined, { value: path, size: 60, "aria-label": "path" });
  const body = element("textarea", "{}", { "aria-label": "body", spellcheck: "false" });
  const button = element("button", "Send", { type: "button" });
  const output = element("pre", "");
  button.addEventListener("click", () => send(method, where.value, hasBody ? body.value : undefined, output));
  made.append(element("h3", "Try it"), where, ...(hasBody ? [body] : []), button, output);
  return made;
};

const operationView = (method, path, operation, all) => {
  const details = element("details");
  const summary = element("summary");
  summary.append(element("span", method.toUpperCase(), { class: "method" }), element("code", path));
  summary.append(element("span", needs(operation), { class: "need" }));
  details.append(summary);
  details.dataset.words = `${method} ${path} ${operation.description ?? ""}`.toLowerCase();
  const fill = () => {
    const inside = element("div");
    inside.append(element("p", operation.description ?? operation.summary ?? ""));
    if (operation.parameters?.length) inside.append(...shown("Parameters", operation.parameters, all));
    for (const [type, { schema }] of Object.entries(operation.requestBody?.content ?? {}))
      inside.append(...shown(`Body: ${type}`, schema, all));
    for (const [type, { schema }] of Object.entries(operation.responses?.["200"]?.content ?? {}))
      inside.append(...shown(`Answer: ${type}`, schema, all));
    inside.append(form(method.toUpperCase(), path, operation.requestBody !== undefined));
    details.append(inside);
  };
  details.addEventListener("toggle", fill, { once: true });
  return details;
};

const show = (description) => {
  const all = description.components?.schemas ?? {};
  const groups = new Map();
  for (const [path, operations] of Object.entries(description.paths))
    for (const [method, operation] of Object.entries(operations)) {
      const tag = operation.tags?.[0] ?? "other";
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(operationView(method, path, operation, all));
    }
  const main = document.getElementById("operations");
  main.replaceChildren();
  for (const [tag, views] of groups) main.append(element("h2", tag), ...views);
  document.getElementById("filter").addEventListener("input", ({ target }) => {
    for (const view of main.querySelectorAll("details"))
      view.hidden = !view.dataset.words.includes(target.value.toLowerCase());
  });
};

fetch("openapi.json")
  .then((response) => response.json())
  .then(show)
  .catch((error) => {
    document.getElementById("operations").textContent = `openapi.json cannot be read: ${error}`;
  });
