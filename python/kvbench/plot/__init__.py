"""Figures: kvbench-py plot NAME, and `figure` of each module (guest.py)."""
