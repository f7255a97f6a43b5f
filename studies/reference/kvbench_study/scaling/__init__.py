"""kvbench-study scaling: how errors grow with fewer bytes, more tokens and flatter attention."""
