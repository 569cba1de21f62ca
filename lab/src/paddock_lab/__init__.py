"""Experiments and benchmarks: one file or folder per question."""
