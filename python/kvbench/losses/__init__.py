"""What models lose under methods, by source: kvbench-py losses."""
