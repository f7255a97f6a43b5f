"""Real models from the package index: kvbench-py model."""
