"""K-means in torch as a caches file: merges the middle into weighted means. kmeans_torch.py TRACE.h5 CACHES.h5."""
import sys

import torch

from kvbench.caches import CacheWriter, read_head, trace_heads

SINK, RECENT, QUERIES = 16, 512, 256


def kmeans(k, v, count, rounds=10):
    """Mean keys, mean values and log sizes of at most `count` clusters of keys."""
    centres = k[torch.linspace(0, len(k) - 1, count).long()]
    for _ in range(rounds):
        nearest = torch.cdist(k, centres).argmin(dim=1)
        members = torch.nn.functional.one_hot(nearest, len(centres)).to(k.dtype)
        sizes = members.sum(dim=0)
        there = sizes > 0
        members, sizes = members[:, there] / sizes[there], sizes[there]
        centres = members.T @ k
    return centres, members.T @ v, sizes.log()


trace, out = sys.argv[1:]
with CacheWriter(out, [trace], SINK, RECENT, QUERIES) as writer:
    for rho in (0.25, 0.125):
        group = writer.group("kmeans-torch", {"rounds": 10}, budget=rho, scores="none")
        for prompt, layer, kv_head in trace_heads(trace):
            head = read_head(trace, prompt, layer, kv_head)
            k, v = (torch.from_numpy(x[SINK:len(x) - RECENT]).double() for x in (head.k, head.v))
            element = 4 if head.dtype == "float32" else 2
            pair = element * (k.shape[1] + v.shape[1])
            count = int(rho * len(k) * pair) // (pair + 4)  # a weight is 4 bytes
            k, v, log_weight = kmeans(k, v, count)
            group.put(prompt, layer, kv_head, k.numpy(), v.numpy(), log_weight=log_weight.numpy())
