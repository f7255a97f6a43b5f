"""kvbench-study ablate: the error of caches, ingredient by ingredient."""
