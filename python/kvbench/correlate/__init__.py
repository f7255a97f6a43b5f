"""Metrics of a replay against scores of the model: scripts/correlate.py."""
