"""Reference results: kvbench-study reference."""
