"""The authors' balanced_walk against balancekv:authors: tokens and weights of every halving.

The peer is src/balanced_walk.py of ksheth96/BalanceKV 4ccee30 (nothing of it is kept here). It gets kvbench's uniforms
in place of torch.rand, and the middle's keys and values in float64; kvbench replays the same trace in float64. A
halving depends on the order and the weights of the one before, so equal sets for T = 1 to 4 mean equal order too.

Run by a python that has torch, as that of `make test-dump`; elsewhere it is skipped, aloud.
Environment: KVBENCH, the program; KVBENCH_BALANCEKV, a checkout of the peer, without which the test is skipped, aloud.
"""

import os
import sys
import unittest
from unittest import mock

from peer_reads import MISSING, load_file
from script_case import FolderCase

if not MISSING:
    import numpy as np
    import torch
    from philox import Stream

    import kvbench
    from kvbench.caches.reader import CacheReader

KV_HEADS, WIDTH, SINK, RECENT = 2, 64, 16, 24
AUTHORS = "step=repo;select=repo;center=padded;bias=plain;denominator=uniform"
HALVINGS = (1, 2, 3, 4)
# Relative rounding of float32's logarithms of weights.
ROUNDING = 1e-6


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
class BalanceKvPeerTest(FolderCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = os.environ.get("KVBENCH_BALANCEKV")
        if not folder:
            raise unittest.SkipTest("KVBENCH_BALANCEKV names no checkout")
        cls.peer = load_file("balanced_walk", os.path.join(folder, "src", "balanced_walk.py"))

    def trace(self, middle):
        """(path, keys, values [KV_HEADS, middle, WIDTH]). Their sizes give probabilities between 0 and 1."""
        generator = np.random.default_rng(middle)
        n = SINK + middle + RECENT
        q, k, v = (generator.normal(0.2 * size, size, (KV_HEADS, n, WIDTH)).astype(np.float32)
                   for size in (1, 0.7, 0.1))
        path = self.path(f"{middle}.h5")
        kvbench.write_trace(path, {"p0": [(q, k, v)]}, model="m", source="s", dtype="float32")
        return path, k[:, SINK:SINK + middle], v[:, SINK:SINK + middle]

    def kept(self, trace, options):
        """{(T, KV head): {token of the middle: (weight, weight of the denominator)}}."""
        caches = self.path("caches.h5")
        halvings = ",".join(map(str, HALVINGS))
        self.done("replay", trace, "-o", self.path("out.csv"), "--overwrite", "--precision", "float64",
                  "--sink", str(SINK), "--recent", str(RECENT), "--queries", str(RECENT),
                  "--export-caches", caches, "--algorithm", f"balancekv:T={halvings};{options}")
        out = {}
        with CacheReader(caches) as reader:
            for group in reader.groups:
                params = dict(pair.split("=") for pair in group.params.split(";"))
                for head in range(KV_HEADS):
                    entry = group.read("p0", 0, head)
                    weights = np.exp(entry.log_weight)
                    below = weights if entry.log_weight_den is None else np.exp(entry.log_weight_den)
                    out[int(params["T"]), head] = {
                        int(token) - SINK: pair for token, *pair in zip(entry.token, weights, below, strict=True)}
        return out

    def walked(self, keys, values, halvings, temperature, block):
        """Per KV head the same of the peer, which has no weights of the denominator."""
        calls = iter(range(halvings))

        def uniforms(shape, **_):
            purpose, count = f"walk-{next(calls)}", shape[2] * shape[3]
            drawn = np.stack([Stream.of("balancekv", purpose, head).uniforms(0, count) for head in range(KV_HEADS)])
            return torch.from_numpy(drawn).reshape(shape)

        with mock.patch.object(torch, "rand", uniforms):
            places, weights = self.peer.balanced_walk(
                torch.from_numpy(keys[None]).double(), None, 4.0, temperature, 0.0, halvings, block,
                value=torch.from_numpy(values[None]).double())
        return [dict(zip(places[0, head].tolist(), weights[0, head].tolist(), strict=True)) for head in range(KV_HEADS)]

    def test_tokens_and_weights_are_the_peers(self):
        # No multiples of 256 but one; with 31 tokens and four halvings one token is left.
        for middle in (31, 255, 300, 512, 777, 1023):
            trace, keys, values = self.trace(middle)
            for block in (16, 256):
                for temperature in (1, 0.1):
                    ours = self.kept(trace, f"{AUTHORS};temp={temperature};block={block}")
                    for halvings in HALVINGS:
                        theirs = self.walked(keys, values, halvings, temperature, block)
                        for head in range(KV_HEADS):
                            mine, where = ours[halvings, head], (middle, block, temperature, halvings, head)
                            self.assertEqual(sorted(mine), sorted(theirs[head]), where)
                            self.assertEqual(len(mine), middle >> halvings, where)
                            for token, (weight, below) in mine.items():
                                self.assertTrue(abs(weight / theirs[head][token] - 1) <= ROUNDING, (*where, token))
                                common = middle / len(mine)
                                self.assertTrue(abs(below / common - 1) <= ROUNDING, (*where, token))
