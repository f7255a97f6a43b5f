"""Traces (docs/trace_format.md): a streaming writer."""

from kvbench.trace.writer import TraceError, TraceWriter, from_bfloat16, to_bfloat16

__all__ = ["TraceError", "TraceWriter", "from_bfloat16", "to_bfloat16"]
