"""Methods compared by statistics over prompts: scripts/compare.py."""
