"""The pieces of work that peers.py times: shapes, floors, and the same work done by other programs.

A peer is what its users would write, at its best settings: whole-tensor operations of PyTorch,
apricot, scikit-learn, NumPy, h5py, or the authors' own code. Nothing here is faster than the
library that it calls.
"""

import dataclasses
import math
import os
import sys

import h5py
import numpy as np
import torch
from peer_torch import attention, attention_sums, k_center

QUERIES, BLOCK, HALVINGS, ITERATIONS = 256, 256, 2, 10


@dataclasses.dataclass
class Shape:
    """A trace of one layer, and the tokens kept (or centres)."""
    n: int
    d: int
    q_heads: int = 1
    kv_heads: int = 1
    nq: int = 1024
    size: int = 0
    dtype: str = "float32"
    gzip: int = 0

    def options(self):
        return ["--layers", "1", "--n", str(self.n), "--d", str(self.d), "--dv", str(self.d),
                "--q-heads", str(self.q_heads), "--kv-heads", str(self.kv_heads),
                "--nq", str(self.nq), "--dtype", self.dtype, "--gzip", str(self.gzip)]

    def words(self):
        heads = f"{self.q_heads}/{self.kv_heads} heads" if self.kv_heads > 1 else (
            f"{self.q_heads} query heads" if self.q_heads > 1 else "one head")
        size = f", {self.size}" if self.size else ""
        return f"n={self.n}, d={self.d}, {heads}{size}"


def read(path):
    """q, k, v of layer 0 in float32: [heads, tokens, d]."""
    with h5py.File(path) as file:
        layer = next(iter(file["prompts"].values()))["layers/0"]
        return [layer[name][()].astype(np.float32) for name in ("q", "k", "v")]


def unit(k):
    return k / k.norm(dim=-1, keepdim=True)


class Work:
    """One row of the table. `operation`: of bench_operations; `peers`: label -> what to time."""
    name = operation = ""
    title = ""
    shape = Shape(2048, 64)
    tiny = {}  # what to change of the shape where only the code is tried
    threads = None  # the only number of threads, where not all are tried

    def own(self, kvbench, path):
        """Seconds and result of kvbench, where no operation says what to run."""
        raise NotImplementedError

    def flops(self, shape):
        """Of the products that the definition asks for; 0: it asks for none."""
        return 0.0

    def peers(self, path, options):
        raise NotImplementedError

    def agreement(self, ours, theirs):
        """How far the peer's result is from ours, in words; None: not comparable."""
        return None


def relative(ours, theirs):
    theirs = np.asarray(theirs, dtype=np.float64).ravel()
    if ours.shape != theirs.shape:
        return f"{ours.size} numbers against {theirs.size}"
    return f"{np.linalg.norm(ours - theirs) / np.linalg.norm(theirs):.0e}"


class ExactReplay(Work):
    name, title = "exact_replay", "whole `exact` replay, 256 queries"
    shape = Shape(32768, 128, 32, 8)
    tiny = {"n": 2048}

    def flops(self, shape):
        return shape.q_heads * QUERIES * shape.n * 4 * shape.d

    def peers(self, path, options):
        q, k, v = (torch.from_numpy(x) for x in read(path))
        scale = 1 / math.sqrt(self.shape.d)
        single = [q[:, -QUERIES:].contiguous(), k, v]
        double = [x.double() for x in single]
        return {"PyTorch fused attention, float32": lambda: attention(*single, scale),
                "PyTorch fused attention, float64": lambda: attention(*double, scale)}


class Truth(ExactReplay):
    name = operation = "truth"
    title = "exact attention, 256 queries"

    def agreement(self, ours, theirs):
        return relative(ours, theirs)


class Accumulated(Work):
    name = operation = "accumulated_attention"
    title = "accumulated attention, every query"
    shape = Shape(16384, 128, 4, 1, nq=0)
    tiny = {"n": 1024}

    def flops(self, shape):
        return shape.q_heads * shape.n * shape.n * shape.d

    def peers(self, path, options):
        q, k, _ = (torch.from_numpy(x) for x in read(path))
        scale = 1 / math.sqrt(self.shape.d)
        return {"PyTorch, blocks of 512 queries": lambda: attention_sums(q, k[0], scale)}

    def agreement(self, ours, theirs):
        return relative(ours, theirs)


class Balance(Work):
    name = operation = "softmax_balance_halvings"
    title = "SoftmaxBalance, T=2, blocks of 256"
    shape = Shape(32768, 128, 8, 8, nq=1)
    tiny = {"n": 1024}

    def flops(self, shape):  # two triangles of each block; half as many blocks the second time
        return shape.kv_heads * (2 - 0.5**(HALVINGS - 1)) * shape.n * BLOCK * 2 * shape.d

    def peers(self, path, options):
        if not options.authors:
            return {}
        sys.path.insert(0, os.path.join(options.authors, "src"))
        from balanced_walk import balanced_walk  # pylint: disable=import-outside-toplevel
        _, k, v = (torch.from_numpy(x)[None] for x in read(path))
        generator = torch.Generator().manual_seed(1)
        return {"the authors' code": lambda: balanced_walk(
            k, generator, 4.0, 1.0, 0.0, HALVINGS, BLOCK, value=v)[0]}


class KCenter(Work):
    name = operation = "k_center_keys"
    title = "k-center"
    shape = Shape(131072, 128, nq=1, size=512)
    tiny = {"n": 2048, "size": 64}

    def flops(self, shape):
        return shape.size * shape.n * 2 * shape.d

    def peers(self, path, options):
        x = torch.from_numpy(read(path)[1][0])
        return {"PyTorch, one product a step": lambda: sum(k_center(x, self.shape.size), [])}

    def agreement(self, ours, theirs):
        size = self.shape.size
        same = sum(a == b for a, b in zip(ours[:size], theirs[:size]))
        return f"{same} of {size} centres; last radius {relative(ours[-1:], theirs[-1:])}"


class Facility(Work):
    name = operation = "facility_location_keys"
    title = "facility location with similarities"
    shape = Shape(8192, 64, nq=1, size=819)
    tiny = {"n": 512, "size": 51}

    def flops(self, shape):
        return shape.n * shape.n * shape.d

    def peers(self, path, options):
        try:
            import apricot  # pylint: disable=import-outside-toplevel
        except ImportError:
            return {}
        k = torch.from_numpy(read(path)[1][0])
        units = unit(k)
        self.similarity = (units @ units.T).clamp_(min=0).numpy().astype(np.float64)

        def select():
            return apricot.FacilityLocationSelection(
                self.shape.size, metric="precomputed", optimizer="lazy").fit(self.similarity).ranking
        return {"apricot, lazy, the matrix given": select}

    def agreement(self, ours, theirs):
        mine, other = (self.similarity[:, np.asarray(chosen, dtype=int)].max(axis=1).sum()
                       for chosen in (ours[:self.shape.size], theirs))
        return f"objective {mine / other - 1:+.0e}"


class Lloyd(Work):
    name = operation = "lloyd"
    title = "k-means from k-center, 10 assignments"
    shape = Shape(8192, 64, nq=1, size=512)
    tiny = {"n": 512, "size": 32}

    def flops(self, shape):
        return (1 + ITERATIONS) * shape.n * shape.size * 2 * shape.d

    def peers(self, path, options):
        from sklearn.cluster import KMeans  # pylint: disable=import-outside-toplevel
        k = read(path)[1][0]

        def fit():
            start = k[k_center(torch.from_numpy(k), self.shape.size)[0]]
            KMeans(self.shape.size, init=start, n_init=1, max_iter=ITERATIONS, tol=0,
                   algorithm="lloyd").fit(k)
        return {"PyTorch k-center, scikit-learn KMeans": fit}


class Online(Work):
    name = operation = "online_clusters_keys"
    title = "online clusters at the k-center radius"
    shape = Shape(16384, 64, nq=1, size=512)
    tiny = {"n": 512, "size": 32}

    def peers(self, path, options):
        k = read(path)[1][0]
        delta = k_center(torch.from_numpy(k), self.shape.size)[1][-1]

        def stream():
            kept, count = np.empty_like(k), 0
            squares = np.empty(len(k), dtype=np.float32)
            for x in k:
                if count:
                    distance = squares[:count] - 2 * (kept[:count] @ x) + x @ x
                    if distance.min() <= delta * delta:
                        continue
                kept[count], squares[count] = x, x @ x
                count += 1
            return [count]
        return {"NumPy, one product a token": stream}

    def agreement(self, ours, theirs):
        return f"{int(ours[:-1].max()) + 1} clusters against {theirs[0]}"


class Sketch(Work):
    name = operation = "sketch"
    title = "count sketch of 3 rows"
    shape = Shape(32768, 128, nq=1, size=4096)
    tiny = {"n": 512, "size": 64}

    def peers(self, path, options):
        _, k, v = (torch.from_numpy(x[0]) for x in read(path))
        n, size = len(k), self.shape.size
        generator = torch.Generator().manual_seed(1)
        cells = torch.randint(size, (3, n), generator=generator)
        signs = torch.randint(2, (3, n, 1), generator=generator) * 2.0 - 1.0

        def fill():
            keys = torch.zeros(3, size, k.shape[1])
            values = torch.zeros(3, size, v.shape[1])
            for row in range(3):
                keys[row].index_add_(0, cells[row], k)
                values[row].index_add_(0, cells[row], v * signs[row])
            return keys
        return {"PyTorch index_add_, hashes given": fill}

    def agreement(self, ours, theirs):
        theirs = np.asarray(theirs, dtype=np.float64).reshape(3, -1, self.shape.d).sum(axis=1)
        return "sums of all cells " + relative(
            ours.reshape(3, -1, self.shape.d).sum(axis=1).ravel(), theirs)


class Matching(Work):
    name, threads = "attention_matching", 1
    title = "attention-matching, 768 reference queries"
    rows = 768
    shape = Shape(3584 + 768 + 1, 64, nq=0, size=448)
    tiny = {"size": 64}

    def own(self, kvbench, path):
        import peer_scipy  # pylint: disable=import-outside-toplevel
        seconds, misfit = peer_scipy.ours(kvbench, path, self.shape.size, self.rows)
        return seconds, np.array([misfit])

    def peers(self, path, options):
        import peer_scipy  # pylint: disable=import-outside-toplevel
        return {"NumPy, SciPy lsq_linear bvls": lambda: peer_scipy.theirs(
            path, self.shape.size, self.rows, "bvls")[1:]}

    def agreement(self, ours, theirs):
        return f"misfit {ours[0]:.4g}, peer {theirs[0]:.4g}"


class Reading(Work):
    name, operation = "reading_gzip", "reading"
    title = "reading a float16 layer, gzip"
    shape = Shape(16384, 128, 32, 8, nq=16384, dtype="float16", gzip=4)
    tiny = {"n": 1024, "nq": 1024}

    def peers(self, path, options):
        return {"h5py and astype": lambda: read(path) and None}


class ReadingRaw(Reading):
    name = "reading_raw"
    title = "reading a float16 layer, uncompressed"
    shape = Shape(16384, 128, 32, 8, nq=16384, dtype="float16", gzip=0)


WORKS = [ExactReplay, Truth, Accumulated, Balance, KCenter, Facility, Lloyd, Online, Sketch, Matching,
         Reading, ReadingRaw]
