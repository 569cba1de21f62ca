"""Which models exist: files, GGUF headers, options, downloads. Reads headers only, loads nothing."""
