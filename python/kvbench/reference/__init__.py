"""The reference results: scripts/reference.py."""
