"""For operators: health, metrics, live view, tracing, reload, the web page."""
