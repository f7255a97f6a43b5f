"""Behind the names of `kvbench`: tables, traces, runs of the program, methods in Python."""
