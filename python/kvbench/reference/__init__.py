"""The reference results: kvbench-py reference."""
