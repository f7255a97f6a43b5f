"""Conversion of foreign dumps to traces: kvbench-py convert."""
