"""Prompts: scripts/make_prompts.py, scripts/make_needles.py."""
