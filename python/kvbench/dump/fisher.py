"""Fisher information of a model's key and value weights by layer (KVReviver), for kvbench-py dump."""

import numpy as np
import torch

from kvbench.trace.writer import TraceError

FP16_LOSS_SCALE = 2.0**12  # keeps float16 gradients above the smallest number


def kv_weights(model, layers):
    """Returns {layer: [(weight, function that selects key and value rows of its gradient)]}."""
    out = {}
    for module in model.modules():
        layer = getattr(module, "layer_idx", None)
        if layer is None or (layers is not None and layer not in layers):
            continue
        child = dict(module.named_children())
        if all(hasattr(child.get(name), "weight") for name in ("k_proj", "v_proj")):
            out[layer] = [(child[name].weight, lambda g: g) for name in ("k_proj", "v_proj")]
        elif all(hasattr(child.get(name), "weight") for name in ("qkv_proj", "o_proj")):
            # Phi-3: rows of queries, keys, values.
            queries = child["o_proj"].weight.shape[1]
            out[layer] = [(child["qkv_proj"].weight, lambda g, q=queries: g[q:])]
        elif type(module).__name__ == "GPTNeoXAttention":  # Per head: queries, keys, values.
            size = module.head_size
            out[layer] = [(child["query_key_value"].weight, lambda g, s=size: g.view(-1, 3, s, g.shape[1])[:, 1:])]
        elif type(module).__name__ == "GPT2Attention":  # Columns of queries, keys, values.
            out[layer] = [(child["c_attn"].weight, lambda g: g[:, g.shape[0]:])]
    return out


def fisher_information(model, prompts, args):
    """Returns {layer: F}: Fisher information of the key and value weights (KVReviver, technical appendix).

    F = mean over samples of the sum over all elements w of W_K and W_V of (dL/dw)^2. A sample is at most
    --fisher-tokens tokens of a prompt, L its mean negative log-likelihood per predicted token: the diagonal, empirical
    Fisher information.
    """
    weights = kv_weights(model, args.layers)
    unknown = TraceError(f"{args.model}: --fisher: {type(model).__name__}: its key and value weights are not "
                         "known here: unsupported")
    if not weights:
        raise unknown
    for pairs in weights.values():
        for weight, _ in pairs:
            weight.requires_grad_(True)
    factor = FP16_LOSS_SCALE if model.dtype == torch.float16 else 1.0
    sums, samples = dict.fromkeys(weights, 0.0), 0
    for *_, ids in prompts:
        for start in range(0, len(ids), args.fisher_tokens):
            part = torch.as_tensor(ids[start:start + args.fisher_tokens], device=model.device)[None]
            if part.shape[1] < 2:
                continue
            model.zero_grad(set_to_none=True)
            loss = model(input_ids=part, labels=part, use_cache=False).loss
            if not loss.requires_grad:  # the weights found take no part: those of cross attention
                raise unknown
            (loss * factor).backward()
            for layer, pairs in weights.items():
                sums[layer] += sum(float((rows(weight.grad).double() / factor).square().sum())
                                   for weight, rows in pairs)
            samples += 1
    model.zero_grad(set_to_none=True)
    model.requires_grad_(False)
    if not samples:
        raise TraceError("--fisher: no prompt has two tokens, so nothing is predicted")
    for layer, total in sums.items():
        if not np.isfinite(total):
            raise TraceError(f"{args.model}: layer {layer}: its Fisher information is {total}; try "
                             "--compute-dtype float32")
    return {layer: total / samples for layer, total in sums.items()}
