"""Work of kvbench in whole-tensor operations of PyTorch, on the device of its inputs."""

import math

import torch


def attention(q, k, v, scale):
    """Outputs [heads, m, dv] of the last m queries by PyTorch's fused attention."""
    heads, m, _ = q.shape
    n = k.shape[1]
    mask = torch.full((m, n), -math.inf, dtype=q.dtype, device=q.device).triu(n - m + 1)
    return torch.nn.functional.scaled_dot_product_attention(
        q[None], k[None], v[None], attn_mask=mask, scale=scale,
        enable_gqa=heads != k.shape[0])[0]


def attention_sums(q, k, scale, rows=512):
    """Sums [heads, n] over queries of what each token gets: blocks of queries, one KV head."""
    heads, n, _ = q.shape
    sums = torch.zeros(heads, n, dtype=torch.float64, device=q.device)
    for begin in range(0, n, rows):
        end = min(n, begin + rows)
        logits = (q[:, begin:end] @ k[:end].T).mul_(scale)
        logits[:, :, begin:].add_(torch.full((end - begin, end - begin), -math.inf, device=q.device).triu(1))
        sums[:, :end] += torch.softmax(logits, dim=-1).sum(dim=1)
    return sums


def k_center(x, count):
    """Greedy centres from row 0 and the radius after each: one product per step. Nothing waits for a device
    before the end.
    """
    norms = (x * x).sum(dim=1)
    columns = x.T.contiguous()  # three times as fast as products with x itself
    squared = torch.full((x.shape[0],), math.inf, device=x.device)
    at = torch.zeros(1, dtype=torch.long, device=x.device)
    centers, farthest = [], []
    for _ in range(count):
        centers.append(at)
        distance = torch.addmm(norms[None], x[at], columns, alpha=-2.0)[0].add_(norms[at])
        torch.minimum(squared, distance, out=squared)
        at = squared.argmax().reshape(1)
        farthest.append(squared[at])
    return torch.cat(centers).tolist(), [math.sqrt(max(0.0, one)) for one in torch.cat(farthest).tolist()]
