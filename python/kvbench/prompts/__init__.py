"""Prompts: kvbench-py prompts, kvbench-py needles."""
