"""Metrics of a replay against scores of the model: kvbench-py correlate."""
