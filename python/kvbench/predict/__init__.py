"""kvbench-py predict: the model's loss from the errors of its layers."""
