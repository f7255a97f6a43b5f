"""kvbench-py scaling: how errors grow with fewer bytes, more tokens and flatter attention."""
