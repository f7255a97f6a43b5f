"""Peers of retrieval methods, and what their selections cost (tests/test_peer_retrieval.py)."""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
import types

from script_case import missing

MISSING = missing("torch", "transformers", "h5py", "numpy")
if not MISSING:
    import numpy as np
    import torch

    from kvbench.trace.heads import read_head

HEADS, KV_HEADS, TOKENS, QUERIES, WIDTH = 4, 2, 512, 24, 64
GROUP = HEADS // KV_HEADS


def load_file(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def stub(name, **members):
    """An empty module in place of a package that a peer imports and these tests do not need."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(members)
    sys.modules[name] = module
    return module


class Hub:
    """sparse-attention-hub's maskers, without its adapters, loggers and plots."""

    PACKAGE = "sparse_attention_hub"
    MASKERS = PACKAGE + ".sparse_attention.research_attention.maskers"

    def __init__(self, folder):
        if self.PACKAGE not in sys.modules:
            stubs = [stub("ray", tune=stub("ray.tune", grid_search=list))] if missing("ray") else []
            if missing("scipy"):
                stubs.append(stub("scipy", stats=stub("scipy.stats", norm=None)))
            # Packages whose own __init__ would import all of the repository.
            for name in ("", ".sparse_attention", ".sparse_attention.research_attention"):
                where = os.path.join(folder, *(self.PACKAGE + name).split("."))
                stub(self.PACKAGE + name, __path__=[where])
            for part in ("fixed", "sampling"):
                self.masker(part)
            for name in stubs:  # others ask for more of them
                for loaded in [x for x in sys.modules if x.partition(".")[0] == name.__name__]:
                    del sys.modules[loaded]
        self.mask = self.module(".sparse_attention.utils.mask").Mask

    def module(self, name):
        return importlib.import_module(self.PACKAGE + name)

    def masker(self, name):
        return importlib.import_module(f"{self.MASKERS}.{name}")

    def select(self, masker, queries, keys, taken=0, data=None):
        """Probabilities [heads, queries, keys] of what `masker` adds to the first `taken` tokens, and 0 for these."""
        shape = (1, len(queries), queries.shape[1], keys.shape[1])
        before = torch.zeros(shape, dtype=torch.float64)
        before[..., :taken] = 1
        mask = masker.add_mask(
            keys=torch.from_numpy(keys)[None], queries=torch.from_numpy(queries)[None],
            values=torch.from_numpy(keys)[None], attention_mask=None, scaling=WIDTH**-0.5, dropout=0.0,
            sparse_meta_data={} if data is None else data,
            previous_mask=self.mask.create_mask_from_dense_mask(shape, before, torch.float64), layer_idx=0)
        out = mask.get_dense_mask()[0].numpy().astype(np.float64)
        assert (out[..., :taken] == 1).all() and not mask.is_full_mask()
        return out[..., taken:]


# ----------------------------------------------------------------------- one problem for both

class Problem:
    """A trace's arrays, float64. q [HEADS, QUERIES, d] evaluated, past: scoring queries; k, v [KV_HEADS, TOKENS, d]."""

    def __init__(self, trace, window):
        heads = [read_head(trace, "p0", 0, head) for head in range(KV_HEADS)]
        stored = np.concatenate([head.q for head in heads]).astype(np.float64)
        self.q, self.past = (np.ascontiguousarray(x) for x in (stored[:, -QUERIES:], stored[:, :-QUERIES]))
        self.k, self.v = (np.array([getattr(head, name) for head in heads], np.float64) for name in "kv")
        self.sink, self.end = window[0], TOKENS - window[1]
        self.pair_bytes = (self.k.shape[2] + self.v.shape[2]) * (4 if heads[0].dtype == "float32" else 2)

    @property
    def middle(self):
        return self.k[:, self.sink:self.end]

    def repeat(self, x):
        return np.repeat(x, GROUP, 0)

    def exact(self):
        """exp of logits less their largest, [HEADS, QUERIES, TOKENS]; 0 for tokens after the query."""
        logits = np.einsum("hqd,hnd->hqn", self.q, self.repeat(self.k)) * WIDTH**-0.5
        later = np.arange(TOKENS)[None] > np.arange(TOKENS - QUERIES, TOKENS)[:, None]
        logits[:, later] = -np.inf
        return np.exp(logits - logits.max(2, keepdims=True))

    def errors(self, weights):
        """Relative errors [HEADS, QUERIES] where tokens of the middle have weights [HEADS, QUERIES, m]."""
        whole = self.exact()
        part = whole.copy()
        part[:, :, self.sink:self.end] *= weights
        a, z = (np.einsum("hqn,hnv->hqv", x, self.repeat(self.v)) / x.sum(2, keepdims=True) for x in (whole, part))
        return np.linalg.norm(z - a, axis=2) / np.linalg.norm(a, axis=2)

    def mass_kept(self, weights):
        """Mean over queries, [HEADS]."""
        whole = self.exact()
        missed = (whole[:, :, self.sink:self.end] * (weights == 0)).sum(2) / whole.sum(2)
        return 1 - missed.mean(1)

    def lightest_left_out(self, weights):
        """The same without the token of each query that matters least."""
        out = weights.copy()
        mass = np.where(weights > 0, self.exact()[:, :, self.sink:self.end] * weights, np.inf)
        np.put_along_axis(out, mass.argmin(2)[:, :, None], 0, 2)
        return out


def top(scores, count):
    """1 for the `count` largest of [..., m], ties to the first; 0 for others."""
    out = np.zeros(scores.shape)
    np.put_along_axis(out, np.argsort(-scores, axis=-1, kind="stable")[..., :count], 1, -1)
    return out


def quantise(x, bits):
    """Read back of codes with a float16 minimum and step for each row of [..., channels]."""
    low, high = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
    low, step = (np.float32(y).astype(np.float16).astype(np.float64) for y in (low, (high - low) / (2**bits - 1)))
    return low + step * np.clip(np.rint((x - low) / step), 0, 2**bits - 1)
