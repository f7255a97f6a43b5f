"""Caches of small random models, and what tests of kvbench-py score share.

The references run a second copy of each model, which knows nothing of the script, over all tokens at
once: transformers' own eager attention with a mask that has a bias per query head and token, or a
loop of ours.
"""

import os
import sys
import unittest
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


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
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
