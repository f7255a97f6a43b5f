"""Reference results: kvbench-py reference."""
