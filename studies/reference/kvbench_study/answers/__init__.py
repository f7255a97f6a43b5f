"""Whether models still answer tasks over compressed caches, with controls: kvbench-study answers."""
