"""Statistical comparison of methods over prompts: kvbench-py compare."""
