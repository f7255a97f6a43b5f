"""bench/peer_torch.py against NumPy, one token at a time, at small sizes; and its lines.

Without torch every test is skipped, aloud.
"""

import contextlib
import importlib.util
import io
import json
import math
import os
import subprocess
import sys
import unittest
from unittest import mock

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPT = os.path.join(ROOT, "bench", "peer_torch.py")
sys.path.insert(0, os.path.dirname(SCRIPT))

HAVE_TORCH = importlib.util.find_spec("torch") is not None
if HAVE_TORCH:
    import peer_torch
    import torch

# float64 sums of some hundred terms of size 1, in another order.
CLOSE = {"rtol": 1e-10, "atol": 1e-12}


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


@unittest.skipUnless(HAVE_TORCH, "no torch: the peer was not tested")
class PeerTest(unittest.TestCase):
    def setUp(self):
        generator = np.random.default_rng(3)
        self.n, self.m, self.group, self.scale = 77, 9, 3, 0.4
        self.k = generator.normal(size=(self.n, 5))
        self.v = generator.normal(size=(self.n, 4))
        self.q = generator.normal(size=(self.group, self.m, 5))
        self.u = generator.uniform(size=self.n)

    @staticmethod
    def tensors(*arrays):
        return [torch.from_numpy(np.ascontiguousarray(a)) for a in arrays]

    def probabilities(self, g, r):
        seen = self.n - self.m + r + 1
        return softmax(self.scale * self.k[:seen] @ self.q[g, r])

    def test_exact_attention(self):
        found = peer_torch.exact_attention(*self.tensors(self.q, self.k, self.v), self.scale)
        for g in range(self.group):
            for r in range(self.m):
                p = self.probabilities(g, r)
                np.testing.assert_allclose(found[g, r].numpy(), p @ self.v[:len(p)], **CLOSE)

    def test_attention_sums_in_any_chunks(self):
        expected = np.zeros((self.group, self.n))
        for g in range(self.group):
            for r in range(self.m):
                p = self.probabilities(g, r)
                expected[g, :len(p)] += p
        for chunk in (1, 4, 100):
            found = peer_torch.attention_sums(*self.tensors(self.q, self.k), self.scale, chunk)
            np.testing.assert_allclose(found.numpy(), expected, **CLOSE)

    def test_partial_sums(self):
        rows = np.arange(0, self.n, 2)
        numerator, denominator, shift = (
            x.numpy() for x in peer_torch.partial_sums(
                *self.tensors(self.q, self.k, self.v, rows), 2.0, self.scale))
        for g in range(self.group):
            for r in range(self.m):
                terms = 2.0 * np.exp(self.scale * self.k[rows] @ self.q[g, r])
                back = math.exp(shift[g, r])
                np.testing.assert_allclose(denominator[g, r] * back, terms.sum(), **CLOSE)
                np.testing.assert_allclose(numerator[g, r] * back, terms @ self.v[rows], **CLOSE)

    def test_balance_blocks(self):
        block = 19
        n = 4 * block
        k, v, u = self.k[:n], self.v[:n], self.u[:n]
        expected = np.empty(n)
        inside = 0
        for begin in range(0, n, block):
            keys = k[begin:begin + block] - k[begin:begin + block].mean(axis=0)
            values = v[begin:begin + block]
            kernel = np.exp(self.scale * keys @ keys.T) * (values @ values.T)
            for j in range(block):
                y = kernel[:j, j] @ expected[begin:begin + j]
                p = min(1.0, max(0.0, 0.5 - y / kernel[j, j]))
                inside += 0.0 < p < 1.0
                expected[begin + j] = 1.0 if u[begin + j] < p else -1.0
        self.assertGreater(inside, block, "hardly a draw decides")
        found = peer_torch.balance_blocks(*self.tensors(k, v, u), self.scale, block)
        np.testing.assert_array_equal(found.numpy(), expected)

    def test_balance_blocks_of_long_keys(self):
        # exp(s |k|^2) is beyond float64: 1600 nats.
        found = peer_torch.balance_blocks(
            *self.tensors(self.k[:64] * 40, self.v[:64], self.u[:64]), self.scale, 32)
        self.assertEqual(set(found.tolist()), {-1.0, 1.0})

    def test_k_center(self):
        centers, squared = (x.numpy() for x in peer_torch.k_center(*self.tensors(self.k), 11))
        expected = [0]
        while True:
            distances = np.array([[((row - self.k[c])**2).sum() for c in expected]
                                  for row in self.k]).min(axis=1)
            if len(expected) == 11:
                break
            expected.append(int(distances.argmax()))
        self.assertEqual(centers.tolist(), expected)
        np.testing.assert_allclose(squared, distances, **CLOSE)

    def test_coverage(self):
        units = self.k / np.linalg.norm(self.k, axis=1)[:, None]
        similar = np.maximum(0.0, units @ units.T)
        candidates = np.array([3, 70, 9, 0])
        gains = peer_torch.coverage_gains(*self.tensors(units, candidates, similar[5]))
        expected = [sum(max(0.0, similar[c, i] - similar[5, i]) for i in range(self.n))
                    for c in candidates]
        np.testing.assert_allclose(gains.numpy(), expected, **CLOSE)
        for chunk in (10, 1000):
            singles = peer_torch.coverage_singletons(*self.tensors(units), chunk)
            np.testing.assert_allclose(singles.numpy(), similar.sum(axis=1), **CLOSE)

    def test_most_similar(self):
        kept, others = np.arange(0, self.n, 2), np.arange(1, self.n, 2)
        expected = [max(range(len(kept)), key=lambda i, o=o: self.k[o] @ self.k[kept[i]]
                        / np.linalg.norm(self.k[kept[i]])) for o in others]
        for chunk in (7, 1000):
            found = peer_torch.most_similar(*self.tensors(self.k, kept, others), chunk)
            self.assertEqual(found.tolist(), expected)

    def test_lines(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(peer_torch.main(["--device", "cpu", "--n", "64"]), 0)
        lines = [json.loads(line) for line in out.getvalue().splitlines()]
        self.assertEqual({line["name"] for line in lines},
                         {f"{name}/64" for name in peer_torch.SIZES})
        self.assertEqual({line["dtype"] for line in lines if "exact_attention" in line["name"]},
                         {"float64", "float32", "bfloat16"})
        for line in lines:
            self.assertTrue(0.0 < line["seconds"] < math.inf, line)

    def test_a_piece_that_fails_is_said_and_left_out(self):
        def full(*_):
            raise RuntimeError("out of memory\nand more")

        out, err = io.StringIO(), io.StringIO()
        with mock.patch.object(peer_torch, "k_center", full), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            self.assertEqual(peer_torch.main(["--device", "cpu", "--n", "16", "--only",
                                              "k_center,most_similar"]), 1)
        self.assertEqual({json.loads(line)["name"] for line in out.getvalue().splitlines()},
                         {"most_similar/16"})
        self.assertEqual(err.getvalue().splitlines(),
                         [f"peer_torch.py: k_center/16 in {kind}: out of memory"
                          for kind in ("float64", "float32")])

    def test_refusals(self):
        for arguments, code in ((["--only", "none"], 2), (["--n", "1"], 2),
                                (["--device", "toaster"], 3), (["--device", "meta"], 3)):
            result = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True,
                                    text=True, check=False)
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertNotIn("Traceback", result.stderr)
            self.assertEqual(result.stdout, "")


class NamesTest(unittest.TestCase):
    def test_every_piece_is_one_of_the_devices(self):
        # Both files are read as text: neither needs torch nor a card.
        with open(os.path.join(ROOT, "bench", "bench_device.cu"), encoding="utf-8") as file:
            device = file.read()
        with open(SCRIPT, encoding="utf-8") as file:
            peer = file.read()
        names = peer[peer.index("SIZES = {"):]
        names = [part.split('"')[0] for part in names[:names.index("}")].split('"')[1::2]]
        self.assertEqual(len(names), 9)
        for name in names:
            self.assertIn(f'math, "{name}"', device)


if __name__ == "__main__":
    unittest.main()
