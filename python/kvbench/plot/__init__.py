"""Figures: kvbench-py plot NAME, and `figure` in each module (guest.py)."""
