"""Traces of Hugging Face's models: scripts/dump_traces.py."""
