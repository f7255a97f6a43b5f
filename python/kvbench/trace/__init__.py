"""Traces (docs/trace_format.md): a writer that takes some rows at a time."""

from kvbench.trace.writer import TraceError, TraceWriter, from_bfloat16, to_bfloat16

__all__ = ["TraceError", "TraceWriter", "from_bfloat16", "to_bfloat16"]
