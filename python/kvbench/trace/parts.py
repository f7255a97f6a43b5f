"""Sizes of a trace's parts, and its rotary tables' layouts (docs/trace_format.md)."""

ROPE_LAYOUTS = ("half", "interleaved")
# Positions of a rotary table beyond the prompt, for methods that expect future queries (expected-attention: 512).
FUTURE_POSITIONS = 512
CHUNK_TOKENS = 1024  # tokens per head and chunk, as in the C++ writer
