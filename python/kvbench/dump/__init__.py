"""Traces of Hugging Face's models: kvbench-py dump."""
