import { defineConfig } from "vitest/config";

// During development Vite serves the page and forwards requests to a running Paddock.
const server = process.env.PADDOCK_URL ?? "http://127.0.0.1:8080";

export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/paddock/page",
    emptyOutDir: true,
    target: "es2022",
    // The content policy allows no inline data, and descriptive file names are easier to read in a diff.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  server: {
    host: "127.0.0.1",
    proxy: Object.fromEntries(
      [
        "/v1",
        "/live",
        "/models",
        "/admin",
        "/props",
        "/slots",
        "/tokenize",
        "/detokenize",
        "/completion",
        "/health",
      ].map((path) => [path, { target: server, headers: { origin: server } }]),
    ),
  },
  // A busy machine must not fail a test.
  test: { environment: "node", include: ["src/**/*.test.ts"], testTimeout: 120_000 },
});
