"""Traces of Hugging Face models: kvbench-py dump."""
