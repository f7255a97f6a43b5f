"""SnapKV in numpy as a caches file: snapkv_numpy.py TRACE.h5 CACHES.h5."""
import sys

import numpy as np

from kvbench.caches import CacheWriter, read_head, trace_heads

SINK, RECENT, QUERIES, WINDOW, KERNEL = 16, 512, 256, 32, 5


def snapkv(head, middle, budget):
    n, end = len(head.k), len(head.k) - QUERIES  # the evaluated queries must not be used
    first = n - head.q.shape[1]  # position of the first stored query
    votes = np.zeros(len(middle))
    for q in head.q.astype(float):
        logits = head.scale * q[end - WINDOW - first:end - first] @ head.k.astype(float).T
        for row, position in zip(logits, range(end - WINDOW, end)):
            p = np.exp(row[:position + 1] - row[:position + 1].max())
            p = np.pad(p / p.sum(), (0, n - position - 1))[middle]
            votes += p / WINDOW / len(head.q)
    near = np.convolve(np.ones(len(middle)), np.ones(KERNEL), "same")
    pooled = np.convolve(votes, np.ones(KERNEL), "same") / near
    return np.sort(middle[np.argsort(-pooled, kind="stable")[:budget]])


trace, out = sys.argv[1:]
with CacheWriter(out, [trace], SINK, RECENT, QUERIES) as writer:
    for rho in (0.25, 0.125):
        group = writer.group("snapkv-numpy", {"window": WINDOW, "kernel": KERNEL}, budget=rho)
        for prompt, layer, kv_head in trace_heads(trace):
            head = read_head(trace, prompt, layer, kv_head)
            middle = np.arange(SINK, len(head.k) - RECENT)
            kept = snapkv(head, middle, int(rho * len(middle)))
            group.put(prompt, layer, kv_head, head.k[kept], head.v[kept], token=kept)
