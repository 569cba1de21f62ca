// The page without a network. With one, the page always comes from the server, so that an upgrade is seen at once.
// Files in assets/ have a hash of their content in the name and never change. API requests are not touched.

const PREFIX = "paddock-page-";
const PAGE = new URL("./", registration.scope).href;

addEventListener("install", (event) => event.waitUntil(fetch(PAGE).then(remember).then(skipWaiting)));
addEventListener("activate", (event) => event.waitUntil(clients.claim()));

addEventListener("fetch", (event) => {
  const { request } = event;
  const url = new URL(request.url);
  if (request.method !== "GET" || url.origin !== location.origin) return;
  if (request.mode === "navigate" && url.href.split(/[?#]/)[0] === PAGE) event.respondWith(page(event));
  else if (url.href.startsWith(`${PAGE}assets/`)) event.respondWith(asset(request));
});

async function page(event) {
  try {
    const response = await fetch(event.request);
    if (response.ok) event.waitUntil(remember(response.clone()));
    return response;
  } catch (error) {
    for (const name of (await versions()).reverse()) {
      const known = await (await caches.open(name)).match(PAGE);
      if (known) return known;
    }
    throw error;
  }
}

async function asset(request) {
  const known = await caches.match(request);
  if (known) return known;
  const response = await fetch(request);
  const newest = (await versions()).at(-1);
  if (response.ok && newest) await (await caches.open(newest)).put(request, response.clone());
  return response;
}

/** Keep the page and the files that it starts with. Tabs that are open may need the version before, no older one. */
async function remember(response) {
  if (!response.ok) throw new Error(`the page is answered with ${response.status}`);
  const text = await response.clone().text();
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  const hash = Array.from(new Uint8Array(digest, 0, 8), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const before = await versions();
  if (before.at(-1)?.endsWith(hash)) return;
  const name = `${PREFIX}${Date.now()}-${hash}`;
  const files = [...text.matchAll(/(?:src|href)="(\.\/[^"]+)"/g)].map(([, path]) => new URL(path, PAGE).href);
  const cache = await caches.open(name);
  await cache.addAll(files);
  await cache.put(PAGE, response);
  for (const old of before.slice(0, -1)) await caches.delete(old);
}

/** The caches, the oldest first: their names have a time. */
async function versions() {
  return (await caches.keys()).filter((name) => name.startsWith(PREFIX)).sort();
}
