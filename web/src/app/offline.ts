/** The page without a network, and after an upgrade of the server. */

const RELOADED = "paddock.reloaded";

/** Browsers allow service workers over HTTPS and on this machine only. */
export function installWorker(): void {
  // Not during development: the page's files have other names there.
  if (import.meta.env.PROD) void navigator.serviceWorker?.register("./page-worker.js").catch(() => undefined);
  // A part of the page that is not loaded yet belongs to a version that the server no longer has.
  addEventListener("vite:preloadError", (event) => {
    const last = Number(sessionStorage.getItem(RELOADED) ?? 0);
    if (Date.now() - last < 60_000) return;
    event.preventDefault();
    sessionStorage.setItem(RELOADED, String(Date.now()));
    location.reload();
  });
}
