"""The models that exist: files, GGUF headers, options, downloads. Reads headers only; loads nothing."""
