"""Caches files (docs/trace_format.md) in numpy: what compression methods keep of a prompt.

    with CacheWriter("c.h5", ["t.h5"], sink=16, recent=512, queries=256) as writer:
        group = writer.group("my-method", {"window": 32}, budget=0.25)
        for prompt, layer, kv_head in trace_heads("t.h5"):
            head = read_head("t.h5", prompt, layer, kv_head)
            ...
            group.put(prompt, layer, kv_head, head.k[kept], head.v[kept], token=kept)

    reader = CacheReader(["c.h5"])
    for group in reader.groups:
        entry = group.read(prompt, layer, kv_head)  # None if absent

Errors are TraceError, one line: file, path inside it, what, got, expected.
"""

from kvbench.caches.format import params_text, round_to
from kvbench.caches.reader import CacheEntry, CacheReader
from kvbench.caches.writer import CacheWriter, GroupWriter
from kvbench.hashing import file_sha256
from kvbench.trace.heads import Head, read_head, trace_heads
from kvbench.trace.writer import TraceError

__all__ = ["CacheEntry", "CacheReader", "CacheWriter", "GroupWriter", "Head", "TraceError",
           "file_sha256", "params_text", "read_caches", "read_head", "round_to", "trace_heads", "write_caches"]

read_caches, write_caches = CacheReader, CacheWriter  # as `kvbench` names them
