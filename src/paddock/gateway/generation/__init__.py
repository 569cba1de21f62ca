"""What all dialects share: request fields, starting, collecting and merging generations."""
