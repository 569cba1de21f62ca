"""Experiments and benchmarks: one file per question."""
