"""Compressed caches in the model: kvbench-py score."""
