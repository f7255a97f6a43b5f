"""kvbench-py policy: the loss from the errors of layers, and an algorithm and a budget for each layer."""
