"""Prompts: kvbench-study prompts, kvbench-study needles."""
