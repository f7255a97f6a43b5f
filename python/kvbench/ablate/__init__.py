"""kvbench-py ablate: the error of caches, ingredient by ingredient."""
