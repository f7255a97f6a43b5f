"""Tables of `kvbench cluster`."""
