"""data/README.md: its figures against what numpy computes from data/sample.h5."""

import hashlib
import os
import re
import sys
import unittest

import numpy as np
from script_case import ROOT

try:
    import h5py

    from kvbench.trace.writer import from_bfloat16
except (ImportError, SystemExit):
    h5py = None

QUERIES = 256  # the last ones, as the page says
RECENT = 64


def page(folder):
    with open(os.path.join(ROOT, folder, "README.md"), encoding="utf-8") as file:
        return file.read()


def said(pattern):
    """The groups of a pattern in data/README.md, whatever its line breaks."""
    return re.search(pattern, " ".join(page("data").split())).groups()


def table(text):
    """{layer: cells} of the table whose first column is `layer`."""
    head, *rows = re.search(r"^\| layer \|.*\n(?:\|.*\n)+", text, re.MULTILINE)[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[1:]]
    names = [cell.strip() for cell in head.strip("|").split("|")]
    return {int(row[0]): dict(zip(names[1:], row[1:], strict=True)) for row in cells}


def attention(q, k):
    """softmax of the last QUERIES queries over all tokens up to their own, float64."""
    n = len(k)
    logits = q[n - QUERIES:].astype(float) @ k.T.astype(float) / np.sqrt(k.shape[1])
    logits[np.arange(n)[None] > np.arange(n - QUERIES, n)[:, None]] = -np.inf
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def shares(a):
    """Means over the queries: attention on token 0, on the RECENT last tokens, entropy."""
    n = a.shape[1]
    recent = [row[end - RECENT + 1:end + 1].sum() for row, end in zip(a, range(n - QUERIES, n))]
    entropy = -np.sum(a * np.log(np.where(a > 0, a, 1)), axis=1)
    return a[:, 0].mean(), np.mean(recent), entropy.mean()


def norms(x):
    norm = np.linalg.norm(x.astype(float), axis=2)
    return norm.min(), np.median(norm), norm.max()


class Sample(unittest.TestCase):
    def test_files_have_the_sums_that_the_pages_say(self):
        for folder, name in (("data", "sample.h5"), ("tests/data", "small.h5")):
            with open(os.path.join(ROOT, folder, name), "rb") as file:
                own = hashlib.sha256(file.read()).hexdigest()
            stated = re.findall(rf"^\| `{name}` \|.*\| `(\w{{64}})` \|$", page(folder),
                                re.MULTILINE)
            self.assertEqual(stated, [own], f"{folder}/README.md")

    def test_the_table_is_what_the_trace_shows(self):
        if h5py is None:
            self.skipTest(f"{sys.executable} has no h5py")
        stated = table(page("data"))
        with h5py.File(os.path.join(ROOT, "data", "sample.h5")) as file:
            layers = file["prompts/prose-1/layers"]
            self.assertEqual(sorted(stated), sorted(map(int, layers)))
            for layer, cells in stated.items():
                q, k, v = (from_bfloat16(layers[str(layer)][name][...]) for name in "qkv")
                group = len(q) // len(k)
                heads = np.array([shares(attention(q[h], k[h // group])) for h in range(len(q))])
                token_0, recent, entropy = heads.mean(axis=0)
                own = {"on token 0": f"{token_0:.2f} "
                                     f"({heads[:, 0].min():.2f} to {heads[:, 0].max():.2f})",
                       "on the last 64": f"{recent:.2f}",
                       "entropy": f"{entropy:.1f}",
                       "key norms": " / ".join(f"{x:.3g}" for x in norms(k)),
                       "value norms": " / ".join(f"{x:.3g}" for x in norms(v)),
                       "key norm of token 0": f"{np.linalg.norm(k[:, 0], axis=1).mean():.3g}",
                       "value norm of token 0": f"{np.linalg.norm(v[:, 0], axis=1).mean():.3g}"}
                self.assertEqual(cells, own, f"layer {layer}")

    def test_layer_0_depends_on_the_token_alone(self):
        if h5py is None:
            self.skipTest(f"{sys.executable} has no h5py")
        with h5py.File(os.path.join(ROOT, "data", "sample.h5")) as file:
            ids = file["prompts/prose-1/token_ids"][...]
            layer = file["prompts/prose-1/layers/0"]
            k, v = (from_bfloat16(layer[name][...]).astype(float) for name in "kv")
            cos, sin = (file["rope"][name][:len(ids)].astype(float) for name in ("cos", "sin"))
        first, second = np.split(k, 2, axis=2)
        turned = np.concatenate([first * cos + second * sin, second * cos - first * sin], axis=2)
        distinct, where = np.unique(ids, return_inverse=True)
        earliest = np.array([np.flatnonzero(ids == token)[0] for token in distinct])
        self.assertTrue((v == v[:, earliest[where]]).all())
        off = np.abs(turned - turned[:, earliest[where]]).max() / np.abs(turned).max()
        self.assertEqual((f"{off:.1e}".replace("e-0", "e-"),),
                         said(r"equal to (\S+) of the largest element"))
        values = {len(np.unique(head, axis=0)) for head in v}
        self.assertEqual(len(values), 1)
        self.assertEqual((str(len(distinct)), str(values.pop())),
                         said(r"(\d+) distinct tokens, (\d+) distinct values"))

    def test_keys_are_not_centred(self):
        if h5py is None:
            self.skipTest(f"{sys.executable} has no h5py")
        shares_of_mean = {}
        with h5py.File(os.path.join(ROOT, "data", "sample.h5")) as file:
            for name, layer in file["prompts/prose-1/layers"].items():
                for k in from_bfloat16(layer["k"][...]).astype(float):
                    share = np.square(k.mean(axis=0)).sum() / np.square(k).sum(axis=1).mean()
                    shares_of_mean[share] = name
        own = [f"{share:.2f} (layer {shares_of_mean[share]})"
               for share in (min(shares_of_mean), max(shares_of_mean))]
        self.assertEqual(tuple(own), said(r"mean is (.*?\)) to (.*?\)) of their mean square"))


if __name__ == "__main__":
    unittest.main()
