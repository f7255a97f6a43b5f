"""Methods compared by statistics over prompts: kvbench-py compare."""
