"""Losses of models under compression, by source: kvbench-py losses."""
