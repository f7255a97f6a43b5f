"""kvbench-study atlas: what attention heads are like, and which method serves each best."""
