"""kvpress's QFilterPress and the authors' make_filters.py against kvbench-py qfilters, on data/sample.h5.

- QFilterPress gets kvbench's filters in place of those that it would download, with the authors'
  sign, and scores the trace's keys. It keeps the largest as external-scores does.
- make_filters.py (github.com/NathanGodey/qfilters, cda5c38) is a script that loads a model. What it
  makes of a layer's queries is written anew, without its draw of 3000 queries.

Run by a python that has kvpress 0.5.5 and torch, as that of `make test-dump`; elsewhere it is
skipped, aloud.
"""

import os
import sys
import types
import unittest

from script_case import ROOT, missing

MISSING = missing("kvpress", "torch", "h5py", "numpy")
if not MISSING:
    import numpy as np
    import torch
    from kvpress import QFilterPress

    from kvbench import qfilters
    from kvbench.trace.heads import read_head, trace_heads

SAMPLE = os.path.join(ROOT, "data", "sample.h5")
# kvpress multiplies and sums in float32: 64 products of numbers up to 26 times 0.5.
PRESS_ROUNDING = 1e-4
# torch's singular value decomposition is float32's.
SVD_ROUNDING = 1e-4


def make_filters(queries, kv_heads):
    """Of a layer's queries [Hq, n, d], as the authors' script has it."""
    u, _, vh = torch.linalg.svd(queries.float(), full_matrices=False)
    svd_sign = ((u[..., 0] > 0).float().mean(-1) > 0.5).float() * 2 - 1
    svd_filter_q = -svd_sign[:, None] * vh[..., 0, :]
    return svd_filter_q.reshape(kv_heads, -1, svd_filter_q.shape[-1]).mean(-2)


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
class FiltersPeerTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.filters = qfilters.fit([SAMPLE])["layers"]
        (cls.prompt,) = {prompt for prompt, *_ in trace_heads(SAMPLE)}
        cls.heads = {layer: [read_head(SAMPLE, cls.prompt, layer, head) for head in range(len(filters))]
                     for layer, filters in cls.filters.items()}

    def test_the_authors_make_the_same_filters(self):
        for layer, heads in self.heads.items():
            queries = torch.from_numpy(np.concatenate([head.q for head in heads]))
            peer = -make_filters(queries, len(heads)).numpy()
            off = np.abs(peer - self.filters[layer]).max()
            self.assertTrue(off <= SVD_ROUNDING, (layer, off))
            self.assertGreater(np.linalg.norm(self.filters[layer], axis=1).min(), 0.1)

    def test_scores_are_those_of_the_press(self):
        press = QFilterPress(0.5)
        layers = max(self.filters) + 1
        stored = np.zeros((layers, *next(iter(self.filters.values())).shape), np.float32)
        for layer, filters in self.filters.items():
            stored[layer] = -filters
        press.q_filters = torch.from_numpy(stored)
        for layer, heads in self.heads.items():
            keys = np.array([head.k for head in heads])
            peer = press.score(types.SimpleNamespace(layer_idx=layer), None,
                               torch.from_numpy(keys)[None], None, None, {})[0].numpy()
            own = qfilters.project(keys, self.filters[layer])
            self.assertEqual((own.shape, own.dtype), (peer.shape, np.float32))
            off = np.abs(own - peer).max()
            self.assertTrue(off <= PRESS_ROUNDING, (layer, off))
            for count in (64, 512):
                for one, two in zip(own, peer):
                    # Those that differ are within rounding of the last one kept.
                    differ = np.setxor1d(np.argsort(-one)[:count], np.argsort(-two)[:count])
                    near = np.abs(one[differ] - np.sort(one)[-count]) <= PRESS_ROUNDING
                    self.assertTrue(near.all(), (layer, count))
