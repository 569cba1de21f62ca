// llama-server's page installs a service worker, which would show that page here too. This one removes it.
addEventListener("install", () => skipWaiting());
addEventListener("activate", (event) => event.waitUntil(leave()));

async function leave() {
  const names = await caches.keys();
  await Promise.all(names.map((name) => caches.delete(name)));
  await registration.unregister();
  const pages = await clients.matchAll({ type: "window" });
  for (const page of pages) page.navigate(page.url);
}
