"""One worker process: start, connection, watchdog, requests in flight."""
