"""kvbench-py policy: an algorithm and a budget for each layer."""
