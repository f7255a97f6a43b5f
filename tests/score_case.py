"""Caches of small random models, and what tests of kvbench-py score share.

The references run a second copy of each model, which knows nothing of the script, over all tokens at
once: transformers' own eager attention with a mask that has a bias per query head and token, or a
loop of ours.
"""

import os
from unittest import mock

from dump_models import MISSING, TOKENS, DumpCase
from script_case import call, read_rows

if not MISSING:
    import numpy as np
    import torch
    import transformers
    from dump_models import command

    from kvbench import caches as kc
    from kvbench.score import main as score_model

SINK, RECENT, QUERIES = 4, 12, 8
WINDOWS = {"sink": SINK, "recent": RECENT, "queries": QUERIES}
MIDDLE = range(SINK, TOKENS - RECENT)
# Float32 through three layers, logits of about 10, summed in another order.
TOLERANCE = 1e-4


class ScoreCase(DumpCase):
    """The script, run in this process, and the logits that it got over each group's caches."""

    def setUp(self):
        self.logits = []
        figures = score_model.Scorer.figures

        def recorded(scorer, logits):
            self.logits.append(logits.double().numpy())
            return figures(scorer, logits)
        patch = mock.patch.object(score_model.Scorer, "figures", recorded)
        patch.start()
        self.addCleanup(patch.stop)

    def path(self, end):
        return os.path.join(self.folder, f"{self.id()}-{len(os.listdir(self.folder))}{end}")

    def trace(self, model, *options):
        return self.dump(model, "--dtype", "float32", *options)

    def caches(self, trace, *groups, path=None, windows=WINDOWS, protocol="prefill"):
        """A caches file. group: (name, f); f(head, layer, kv_head): what `put` takes, or None."""
        path = path or self.path(".caches.h5")
        with kc.CacheWriter(path, [trace], protocol=protocol, **windows) as writer:
            for name, entry in groups:
                group = writer.group(name)
                for prompt, layer, head in kc.trace_heads(trace):
                    held = entry(kc.read_head(trace, prompt, layer, head), layer, head)
                    if held is not None:
                        group.put(prompt, layer, head, **held)
        return path

    def script(self, *arguments):
        return call(lambda: command.run_main(score_model.main), "kvbench-py score", *arguments)

    def score(self, model, trace, caches, *options, code=0, out=None):
        """The rows, as dicts; self.logits has the logits of each."""
        out = out or self.path(".csv")
        result = self.script(trace, "--model", model, "--caches", caches, "-o", out,
                             *options)
        self.assertEqual(result.code, code, result.err)
        self.stderr = result.err
        return read_rows(out)

    def refused(self, text, *arguments, code=2):
        out = self.path(".csv")
        result = self.script("-o", out, *arguments)
        self.assertEqual(result.code, code, result.err)
        self.assertEqual([name for name in os.listdir(self.folder)
                          if name.startswith(os.path.basename(out))], [])
        last = result.err.strip().splitlines()[-1]
        self.assertTrue(last.startswith("kvbench-py score: "), result.err)
        self.assertIn(text, last)

    def assert_logits(self, got, expected, message=""):
        self.assertEqual(got.shape, expected.shape)
        worst = float(np.abs(got - expected).max())
        self.assertTrue(worst <= TOLERANCE, f"{message}: {worst}")


def keep(tokens, log_weight=None):
    """A cache of these tokens, for every head."""
    tokens = np.asarray(tokens, int)
    return lambda head, *_: {"k": head.k[tokens], "v": head.v[tokens], "token": tokens,
                             "log_weight": log_weight}


def everything(head, *_):
    return keep(MIDDLE)(head)


def own_logits(path, ids, bias=None, queries=QUERIES, attention="eager"):
    """Logits of the last rows of the model's own run over all tokens.

    bias  [Hq, n] on the logits of attention of the last rows, -inf: not seen
    """
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation=attention).eval()
    n = len(ids)
    options = {}
    if bias is not None:
        low = torch.finfo(torch.float32).min
        mask = torch.zeros(1, len(bias), n, n).masked_fill(
            torch.ones(n, n, dtype=torch.bool).triu(1), low)
        mask[0, :, n - queries:] += torch.as_tensor(np.maximum(bias, low / 2))[:, None].float()
        # OPT would count positions in the mask.
        options = {"attention_mask": mask.clamp(min=low), "position_ids": torch.arange(n)[None]}
    with torch.inference_mode():
        return model(input_ids=torch.as_tensor(ids)[None], **options).logits[0, -queries:].double(
            ).numpy()


def middle_of(window):
    """Positions of the middle of a layer, with a window or none (docs/methods.md)."""
    first = max(SINK, TOKENS - QUERIES - window + 1) if window else SINK
    return range(first, max(first, TOKENS - RECENT))


def held_by(group, positions=None):
    """What queries may see of a group, for loop_logits. positions: of entries without one in layers with a window"""
    def held(module, head, keys, values):
        entry, window = group.read("p0", module.layer_idx, head), getattr(module, "sliding_window", None)
        at = np.full(len(entry.k), -1) if entry.token is None else entry.token
        if (at < 0).any():  # all queries see them where no window hides any
            at[at < 0] = 0 if not window or window > TOKENS else entry.counted if positions is None else positions
        weights = np.zeros(len(at)) if entry.log_weight is None else entry.log_weight
        own = [(t, keys[t], 0, values[t]) for t in range(len(keys)) if t not in middle_of(window)]
        k, v = entry.k.astype(float), entry.v.astype(float)
        above = below = own + list(zip(at, k, weights, v, strict=True))
        if entry.log_weight_den is not None:
            weights = entry.log_weight_den
            below = own + list(zip(at, k, weights, v)) if entry.k_den is None else []
        if entry.k_den is not None:
            weights = np.zeros(len(entry.k_den)) if entry.log_weight_den is None else weights
            below = own + [(0, key, weight, None) for key, weight in zip(entry.k_den.astype(float), weights)]
        return above, below
    return held


def loop_logits(path, ids, held=None):
    """Logits of the model with an attention of loops, in double, behind TOKENS - QUERIES tokens.

    held(module, KV head, keys, values)  what those see of the first TOKENS: [(position, key, log weight, value)] above
    the fraction and below it; without it all tokens
    """
    def attention(module, query, key, value, mask, scaling=None, **_):
        scale = query.shape[3]**-0.5 if scaling is None else scaling
        q, k, v = (t[0].double().numpy() for t in (query, key, value))
        n, window = q.shape[1], getattr(module, "sliding_window", None) or q.shape[1]
        out = np.empty((n, len(q), v.shape[2]))
        for h in range(len(q)):
            head = h * len(k) // len(q)
            own = [(t, k[head, t], 0, v[head, t]) for t in range(n)]
            late = held(module, head, k[head], v[head]) if held else (own, own)
            for row in range(n):
                above, below = ([(np.exp(scale * (one @ q[h, row]) + weight), answer)
                                 for at, one, weight, answer in entries if row - window < at <= row]
                                for entries in (late if row >= TOKENS - QUERIES else (own, own)))
                out[row, h] = sum(weight * answer for weight, answer in above) / sum(weight for weight, _ in below)
        return torch.as_tensor(out)[None].float(), None

    transformers.AttentionInterface.register("kvbench_loops", attention)
    transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS.register(
        "kvbench_loops", transformers.masking_utils.eager_mask)
    return own_logits(path, ids, queries=len(ids) - TOKENS + QUERIES, attention="kvbench_loops")
