/** Requests to the server that this page came from, and to no other. */

import { key, refused } from "./key";
import { type ServerEvent, serverEvents } from "./sse";

/** What the server says is wrong, in its own words. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly code: string | null = null,
    readonly param: string | null = null,
    readonly requestId: string | null = null,
  ) {
    super(message);
    this.name = "ApiError";
  }
}

export async function getJson<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await (await send(path, signal ? { signal } : {})).json()) as T;
}

export async function postJson<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  return (await (await post(path, body, signal)).json()) as T;
}

/** The events of a stream, until it ends or `signal` is aborted. */
export async function* getEvents(path: string, signal: AbortSignal): AsyncGenerator<ServerEvent> {
  yield* serverEvents(await send(path, { signal }));
}

export async function* postEvents(path: string, body: unknown, signal: AbortSignal): AsyncGenerator<ServerEvent> {
  yield* serverEvents(await post(path, body, signal));
}

async function post(path: string, body: unknown, signal?: AbortSignal): Promise<Response> {
  return send(path, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json" },
    ...(signal && { signal }),
  });
}

async function send(path: string, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  if (key.value) headers.set("Authorization", `Bearer ${key.value}`);
  let response: Response;
  try {
    // Relative, so that the page also works where a proxy serves it under a path.
    response = await fetch(`.${path}`, { ...init, headers, credentials: "same-origin" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new ApiError("The server cannot be reached.", 0);
  }
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (response.status === 401) refused.value = problem.message;
  throw problem;
}

async function problemOf(response: Response): Promise<ApiError> {
  const id = response.headers.get("x-request-id");
  try {
    return errorOf(await response.json(), response.status, id);
  } catch {
    return new ApiError(
      `The server answered ${response.status} ${response.statusText}`.trim(),
      response.status,
      null,
      null,
      id,
    );
  }
}

/** The error that a body, or an event of a stream, holds. */
export function errorOf(body: unknown, status: number, id: string | null = null): ApiError {
  const { message, code, param } = (body as { error: { message: string; code?: string; param?: string } }).error;
  return new ApiError(message, status, code ?? null, param ?? null, id);
}
