/** Requests to the server that this page came from, and to no other. */

import { TEXT } from "../text";
import { anotherKey, key, keysGiven } from "./key";
import { type ServerEvent, serverEvents } from "./sse";

/** An error that the server reports, with its message. */
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

export async function get(path: string, signal?: AbortSignal): Promise<Response> {
  return send(path, signal ? { signal } : {});
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

/** A response whose events are read later. `headers` are added to the request. */
export async function post(
  path: string,
  body: unknown,
  signal?: AbortSignal,
  headers: Record<string, string> = {},
): Promise<Response> {
  return send(path, {
    method: "POST",
    body: JSON.stringify(body),
    headers: { "Content-Type": "application/json", ...headers },
    ...(signal && { signal }),
  });
}

export async function remove(path: string): Promise<void> {
  await send(path, { method: "DELETE" });
}

/** A request that is refused because it has no valid key is repeated when there is one. */
async function send(path: string, init: RequestInit): Promise<Response> {
  for (;;) {
    const given = keysGiven.value;
    const response = await sendOnce(path, init);
    if (response.ok) return response;
    const problem = await problemOf(response);
    if (response.status !== 401 || !(await anotherKey(given, problem.message, init.signal))) throw problem;
  }
}

async function sendOnce(path: string, init: RequestInit): Promise<Response> {
  const headers = new Headers(init.headers);
  if (key.value) headers.set("Authorization", `Bearer ${key.value}`);
  try {
    // Relative, so that the page also works behind a proxy that serves it under a path.
    return await fetch(`.${path}`, { ...init, headers, credentials: "same-origin" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw unreachable();
  }
}

/** The error of a connection that fails or is lost. */
export function unreachable(): ApiError {
  return new ApiError(navigator.onLine ? TEXT.app.unreachable : TEXT.app.offline, 0);
}

async function problemOf(response: Response): Promise<ApiError> {
  const id = response.headers.get("x-request-id");
  try {
    return errorOf(await response.json(), response.status, id);
  } catch {
    return new ApiError(TEXT.app.status(response.status, response.statusText), response.status, null, null, id);
  }
}

/** The error in a body or in an event of a stream. */
export function errorOf(body: unknown, status: number, id: string | null = null): ApiError {
  const { error, request_id } = body as ErrorBody;
  return new ApiError(error.message, status, error.code ?? null, error.param ?? null, request_id ?? id);
}

interface ErrorBody {
  error: { message: string; code?: string; param?: string };
  request_id?: string;
}
