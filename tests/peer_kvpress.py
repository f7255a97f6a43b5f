"""What tests of kvpress against kvbench share: definitions in NumPy, one problem for both programs.

The definitions are written anew from the trace alone. See test_peer_kvpress.py.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import unittest
from unittest import mock

from script_case import KVBENCH, missing, read_rows

NEEDED = ("kvpress", "torch", "transformers", "h5py", "numpy")
MISSING = missing(*NEEDED)
REASON = f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump"
if not MISSING:
    import h5py
    import numpy as np
    import torch
    import transformers
    from dump_models import DumpCase, read_tables, read_trace, unrotate
    from kvpress.presses.scorer_press import ScorerPress
else:
    DumpCase, ScorerPress = unittest.TestCase, object

TOKENS, RECENT, QUERIES, LAG = 700, 96, 64, 32
END = TOKENS - RECENT  # of the middle
N_SKIP = LAG_SINK = 4  # kvpress's n_sink
N_FUTURE = 512
SINKS = (4, 16)
SIZES = (8, 40, 100, 333)  # tokens kept; lagkv's own sinks, last partition and tail are 40 or so
FIRST, LAST, CHUNK = 8, 4, 256  # compactor's
WINDOW, KERNEL = 32, 5  # snapkv's

YARN = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                            "original_max_position_embeddings": 256}}
LLAMA3 = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                              "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                              "original_max_position_embeddings": 256}}
MODELS = {"groups": {}, "single": {"num_key_value_heads": 4}, "yarn": YARN, "llama3": LLAMA3}


# --------------------------------------------------------------------------- definitions in NumPy

def expected_attention(q, k, v, tables, past, post=False):
    """Scores [Hkv, m] of the middle's k, v [Hkv, m, d], by the definition.

    q [Hq, past, d]: the scoring queries; post: their statistics as they are, without tables.
    """
    cos, sin, layout = tables
    if not post:
        q = unrotate(q, cos, sin, layout)
    q = q[:, N_SKIP:]
    d, group = k.shape[2], q.shape[0] // k.shape[0]
    turn = np.zeros((d, d))
    for i in range(d // 2):  # layout half, all channels turn
        c, s = (t[past:past + N_FUTURE, i].mean() for t in (cos, sin))
        turn[i, i], turn[i, i + d // 2], turn[i + d // 2, i], turn[i + d // 2, i + d // 2] = \
            c, -s, s, c
    out = np.zeros(k.shape[:2])
    for head in range(q.shape[0]):
        mean = q[head].mean(0)
        centred = q[head] - mean
        cov = centred.T @ centred / len(centred)
        if not post:
            mean, cov = turn @ mean, turn @ cov @ turn.T
        keys = k[head // group]
        logits = keys @ mean / d**0.5 + np.einsum("ni,ij,nj->n", keys, cov, keys) / (2 * d)
        weights = np.exp(logits - logits.max())
        out[head // group] += weights / weights.sum() / group
    return out * np.linalg.norm(v, axis=2)


def lag_spread(rows):
    """Softmax over each partition's tokens of the channels' spread, [partitions - 1, LAG]."""
    parts = [rows[i:i + LAG] for i in range(0, len(rows) - LAG + 1, LAG)]
    out = []
    for part, reference in zip(parts, parts[1:]):
        low, high = reference.min(0), reference.max(0)
        spread = ((part - low) / (high - low)).std(axis=1, ddof=1)
        out.append(np.exp(spread - spread.max()) / np.exp(spread - spread.max()).sum())
    return np.array(out)


def lagkv(k, v):
    """Ranks [m] of one head's k, v [m, d] over LAG, 1 for what ranks highest; and the spreads."""
    if len(k) < LAG_SINK + 2 * LAG:
        return np.ones(len(k)), None
    spread = (lag_spread(k[LAG_SINK:]) + lag_spread(v[LAG_SINK:])) / 2
    ranks = np.ones(len(k))
    for i, part in enumerate(spread):
        for j, value in enumerate(part):
            ranks[LAG_SINK + i * LAG + j] = (part < value).sum() / LAG
    return ranks, spread


def keep_by_rank(scores, size):
    """The `size` largest; ties among the highest go to the newest, others to the lowest."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], -i if scores[i] == 1 else i))
    return set(order[:size])


def leverage(keys):
    """x' (X'X + 1e-2 I)^-1 x of the rows of keys [heads, m, d] less their mean."""
    out = []
    for rows in keys:
        x = rows - rows.mean(0)
        gram = x.T @ x + 1e-2 * np.eye(x.shape[1])
        out.append(np.einsum("id,id->i", x, np.linalg.solve(gram, x.T).T))
    return np.array(out)


def z_scores(x):
    return (x - x.mean()) / x.std(ddof=1)


def chunk_attention(q, k, v):
    """compactor's attention [Hkv, m] of q [Hq, m, d], k and v [Hkv, m, d]."""
    group, m = len(q) // len(k), k.shape[1]
    out = np.zeros(k.shape[:2])
    for head, queries in enumerate(q):
        for at in range(0, m, CHUNK):
            rows, keys = (np.zeros((CHUNK, k.shape[2])) for _ in range(2))
            there = min(CHUNK, m - at)
            rows[:there] = queries[at:at + CHUNK]
            keys[:there] = k[head // group, at:at + CHUNK]
            logits = rows @ keys.T
            weights = np.exp(logits - logits.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            out[head // group, at:at + there] += weights.sum(0)[:there] / group
    heavy = np.pad(out * np.linalg.norm(v, axis=2), ((0, 0), (1, 1)))
    return (heavy[:, :-2] + heavy[:, 1:-1] + heavy[:, 2:]) / 3


def compactor(q, bare, k, v, size):
    """Scores [Hkv, m]; bare: un-rotated keys. What ranks highest is above all, falling."""
    inner = slice(FIRST, k.shape[1] - LAST)
    scores = np.zeros(k.shape[:2])
    scores[:, inner] = (1 - size / k.shape[1]) * z_scores(leverage(bare[:, inner])) + \
        z_scores(chunk_attention(q[:, inner], k[:, inner], v[:, inner]))
    return raise_ends(scores)


def raise_ends(scores):
    """kvpress gives the first 8 and last 4 the largest score there is: by position, as kvbench."""
    out, m = scores.copy(), scores.shape[1]
    for i in (*range(FIRST), *range(m - LAST, m)):
        out[:, i] = 1e9 - i
    return out


def curdkv(k, v, window=16, first=4):
    """Shares of windows' squared norms, multiplied, [Hkv, m]."""
    out = np.ones(k.shape[:2])
    for x in (k, v):
        squares = (x**2).sum(2)
        for at in range(0, out.shape[1], window):
            part = squares[:, at:at + window]
            out[:, at:at + window] *= part / part.sum(1, keepdims=True)
    out[:, :first] = np.inf
    return out


def output_norms(v, w, group):
    """Mean over each group's heads of |W_h v|_1, [Hkv, m]; w [hidden, Hq dv]."""
    out = np.zeros(v.shape[:2])
    for head in range(len(v) * group):
        columns = w[:, head * v.shape[2]:(head + 1) * v.shape[2]]
        out[head // group] += np.abs(v[head // group] @ columns.T).sum(1) / group
    return out


def criticalkv(scores, norms, size):
    """Scores [Hkv, m]: the floor(size / 2) best first, the others by the product."""
    out = (scores + 1e-4) * norms
    for head, own in enumerate(scores):
        out[head, np.argsort(-own, kind="stable")[:size // 2]] = np.inf
    return out


def value_merge(k, v, kept):
    """One head's values [B, dv] of the `kept` tokens after merging, and which changed."""
    unit = k / np.linalg.norm(k, axis=1, keepdims=True)
    length = np.linalg.norm(v, axis=1)
    above, below = v[kept].copy(), np.ones(len(kept))
    for i in sorted(set(range(len(k))) - set(kept)):
        cosines = unit[kept] @ unit[i]
        to = cosines.argmax()
        weight = max(0, cosines[to]) * length[i] / (length[i] + length[kept[to]] + 1e-6)
        above[to] += weight * v[i]
        below[to] += weight
    return above / below[:, None], below > 1


def think(q, k, ratio):
    """Keys [Hkv, m, d] without their channels of least weight; q [Hq, window, d]."""
    out, group = k.copy(), len(q) // len(k)
    for head, keys in enumerate(out):
        weight = (q[head * group:(head + 1) * group]**2).mean((0, 1)) * (keys**2).mean(0)
        keys[:, np.argsort(weight, kind="stable")[:int(k.shape[2] * ratio)]] = 0
    return out


# ------------------------------------------------------------------------- kvpress and kvbench

class Given(ScorerPress):
    """A press whose scores are given: for presses that wrap another."""

    def score(self, *_):
        return self.scores.clone()


def given(scores, size):
    """Given with scores [Hkv, m] and a ratio that keeps `size` of m whatever float64 rounds."""
    press = Given(1 - (size + 0.25) / scores.shape[1])
    press.scores = torch.from_numpy(scores)[None]
    return press


@contextlib.contextmanager
def exact_sketch():
    """kvpress's sketch as the identity: with as many columns as channels it then is exact."""
    def identity(*shape, **kwargs):
        return (torch.eye(*shape[-2:], **kwargs) * shape[-1]**0.5).expand(shape)
    with mock.patch("torch.randn", identity):
        yield


@unittest.skipIf(MISSING, REASON)
class PeerCase(DumpCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ids = np.random.default_rng(11).integers(3, 97, TOKENS)
        cls.ids_file = cls.file("peer.jsonl", json.dumps(cls.ids.tolist()) + "\n")
        cls.traces, cls.peers, cls.counts = {}, {}, {}

    @classmethod
    def tearDownClass(cls):
        for algorithm, (compared, ties) in sorted(cls.counts.items()):
            print(f"{algorithm}: {compared} tokens selected by both, {ties} within rounding of a "
                  "tie and selected by one alone", file=sys.stderr)

    def trace(self, name):
        if name not in self.traces:
            folder = self.model(name, "llama", max_position_embeddings=2048, **MODELS[name])
            self.traces[name] = self.dump(folder)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, attn_implementation="eager").eval()
            hidden, turns = {}, []

            def keep(module, _, kwargs):
                hidden[module.layer_idx] = kwargs["hidden_states"].double()
                turns[:] = [x.double() for x in kwargs["position_embeddings"]]
            for layer in model.model.layers:
                layer.self_attn.register_forward_pre_hook(keep, with_kwargs=True)
            with torch.inference_mode():
                model(input_ids=torch.as_tensor(self.ids)[None])
            model = model.double()
            for layer in model.model.layers:
                layer.self_attn.rotary_emb = model.model.rotary_emb  # as BasePress does
            self.peers[name] = [layer.self_attn for layer in model.model.layers], hidden, turns
        return self.traces[name]

    def with_projection(self, name):
        """The trace with the model's output projections, as formats have them."""
        path = os.path.join(self.folder, f"{name}-o_proj.h5")
        shutil.copyfile(self.trace(name), path)
        with h5py.File(path, "a") as file:
            for index, group in file["prompts/p0/layers"].items():
                if "o_proj" not in group:
                    group["o_proj"] = self.projection(name, int(index)).astype(np.float32)
        return path

    def projection(self, name, index):
        return self.peers[name][0][index].o_proj.weight.detach().numpy()

    def layers(self, name, sink):
        """(index, layer's arrays, k and v of the middle) of each layer."""
        for index, layer in read_trace(self.trace(name)).items():
            yield index, layer, *(layer[part][:, sink:END] for part in "kv")

    def bare_keys(self, name, index, layer, sink):
        """The middle's keys before their rotation."""
        return unrotate(layer["k"], *read_tables(self.trace(name), index))[:, sink:END]

    def press(self, press, name, index, k, v, positions=(0, TOKENS), before=0, act="score"):
        """kvpress's scores [Hkv, m] with the hidden states at `positions`; `before`: tokens put
        before the middle for its sinks. act=compress: keys and values [Hkv, B, d]."""
        modules, hidden, turns = self.peers[name]

        def tensor(x):
            return torch.from_numpy(np.concatenate([np.ones_like(x[:, :before]), x], 1))[None]
        at = slice(*positions)
        with torch.inference_mode():
            out = getattr(press, act)(
                modules[index], hidden[index][:, at], tensor(k), tensor(v), None,
                {"position_embeddings": [x[:, at] for x in turns]})
        return out[0, :, before:].numpy() if act == "score" else [x[0].numpy() for x in out]

    def replay(self, name, algorithm, sink, *options, sizes=SIZES, trace=None, recent=RECENT):
        """(what the program did, its table's path) of a replay with --kept. sizes: of `tokens`, or
        none."""
        if not KVBENCH:
            self.skipTest("KVBENCH does not name the program")
        table = os.path.join(self.folder, f"{self.id()}-{len(os.listdir(self.folder))}.csv")
        joint = ";" if ":" in algorithm else ":"
        sized = f"{joint}tokens={','.join(map(str, sizes))}" if sizes else ""
        result = subprocess.run(
            [KVBENCH, "replay", trace or self.trace(name), "-o", table, "--kept", "--algorithm",
             algorithm + sized, "--sink", str(sink),
             "--recent", str(recent), "--queries", str(QUERIES), *options],
            capture_output=True, text=True, check=False)
        return result, table

    def kept(self, name, algorithm, sink, *options, sizes=SIZES, trace=None, recent=RECENT):
        """[(layer, KV head, parameters, positions of the middle kept, counted from its first)]."""
        result, table = self.replay(name, algorithm, sink, *options, sizes=sizes, trace=trace,
                                    recent=recent)
        self.assertEqual(result.returncode, 0, result.stderr)
        out, end = [], TOKENS - recent
        for row in read_rows(table[:-4] + ".kept.csv"):
            self.assertEqual(row["algorithm"], algorithm.partition(":")[0])
            params = dict(part.split("=") for part in row["params"].split(";"))
            held = set()
            for part in row["tokens"].split():
                first, _, last = part.partition("-")
                held |= set(range(int(first), int(last or first) + 1))
            middle = range(sink, end)
            self.assertEqual(held - set(middle), {*range(sink), *range(end, TOKENS)})
            out.append((int(row["layer"]), int(row["kv_head"]), params,
                        {i - sink for i in held & set(middle)}))
        heads = MODELS[name].get("num_key_value_heads", 2)
        self.assertEqual(len(out), 3 * heads * len(sizes))
        return out

    def count(self, algorithm, compared, ties):
        before = self.counts.get(algorithm, (0, 0))
        self.counts[algorithm] = before[0] + compared, before[1] + ties

    def compare(self, kept, scores, size, rounding, where, unit=0):
        """Equal sets, but for tokens whose scores are within `rounding` of the last one kept; of
        scores that cancel (z-scores), within `rounding` of `unit`. where[0]: the algorithm."""
        self.assertEqual(len(kept), size, where)
        order = np.argsort(-scores, kind="stable")
        only = kept ^ set(order[:size].tolist())
        last = scores[order[size - 1]]
        for token in only:
            off = abs(scores[token] - last)
            self.assertTrue(off <= rounding * max(unit, abs(last)),
                            (where, token, scores[token], last))
        self.count(where[0], size - len(only) // 2, len(only) // 2)

    def check_ties(self, algorithm, few):
        compared, ties = self.counts[algorithm]
        self.assertGreater(compared, 0)
        self.assertLessEqual(ties, few * compared)
