"""Names, sizes and layouts of a trace's parts (docs/trace_format.md)."""

import re

NAME = re.compile("[A-Za-z0-9._-]{1,100}")  # of sets of extra queries, and of scores
MAX_POSITION = 2**31 - 1
ROPE_LAYOUTS = ("half", "interleaved")
# Positions of a rotary table beyond the prompt, for methods that expect future queries (expected-attention: 512).
FUTURE_POSITIONS = 512
CHUNK_TOKENS = 1024  # tokens per head and chunk, as in the C++ writer
