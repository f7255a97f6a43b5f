"""Correlation of replay metrics with model scores: kvbench-study correlate."""
