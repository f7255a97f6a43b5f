"""Correlation of replay metrics with model scores: kvbench-py correlate."""
