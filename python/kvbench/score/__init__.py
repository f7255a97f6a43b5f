"""Compressed caches in the model: scripts/score_model.py."""
