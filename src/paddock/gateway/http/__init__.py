"""HTTP: connections, bodies, server-sent events, TLS, request ids, disconnects, the access log."""
