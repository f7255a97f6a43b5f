"""Real models from the package index: kvbench-study model."""
