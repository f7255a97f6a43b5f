"""One module per kind of figure, with a function of its name (kvbench.plot)."""
