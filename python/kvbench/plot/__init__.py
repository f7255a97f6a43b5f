"""Figures: scripts/plot_*.py."""
