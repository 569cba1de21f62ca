"""The APIs that clients speak. One folder per dialect."""
