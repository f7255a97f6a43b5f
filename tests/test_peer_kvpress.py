"""kvpress against kvbench on equal inputs: expected-attention, lagkv, knorm, keydiff.

kvpress's own `score` functions get the hidden states of small random Llamas and the keys and values
of the traces that scripts/dump_traces.py makes of them. Their scores are compared with the
definitions written anew in NumPy, from the trace alone, and their selections with what `kvbench
replay --kept` kept. Both programs are given one problem:

- kvpress takes the middle alone for the cache; expected-attention's four sinks, which no score of
  it touches, are put before it. So its softmax runs over the middle, as kvbench's does.
- Its hidden states are those of the scoring queries: all before the evaluated ones (scores=past),
  or all (scores=all). Their number is the position from which on future queries are expected.
- lagkv's scores are ranks, so ties are many. kvpress leaves them to the sort; kvbench's rule (what
  ranks highest: the newest first; all else: the lowest position) is applied to kvpress's scores.
- Tokens within rounding of the threshold may be chosen differently: they are counted, and few.

Run by a python that has kvpress 0.5.5 and torch, as that of `make test-dump`; elsewhere it is
skipped, aloud. Environment: KVBENCH, the program; without it only NumPy is compared.
"""

import csv
import importlib.util
import json
import os
import subprocess
import sys
import unittest

NEEDED = ("kvpress", "torch", "transformers", "h5py", "numpy")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
REASON = f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump"
if not MISSING:
    import numpy as np
    import torch
    import transformers
    from dump_models import DumpCase, read_tables, read_trace, unrotate
    from kvpress import ExpectedAttentionPress, KeyDiffPress, KnormPress, LagKVPress
else:
    DumpCase = unittest.TestCase

TOKENS, RECENT, QUERIES, LAG = 700, 96, 64, 32
N_SKIP = LAG_SINK = 4  # kvpress's n_sink
N_FUTURE = 512
SINKS = (4, 16)
SIZES = (8, 40, 100, 333)  # tokens kept; lagkv's own sinks, last partition and tail are 40 or so
# kvpress runs in float64 here. The trace's queries, keys and tables are float32: un-rotating rounds
# to 2^-24, and a logit of some tens carries that many units. kvbench scores tokens in float32.
SCORE_ROUNDING = 1e-4
# Of all selected tokens, how many may be within rounding of a threshold.
FEW_TIES = 0.01

YARN = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
                            "original_max_position_embeddings": 256}}
LLAMA3 = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0,
                              "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                              "original_max_position_embeddings": 256}}
MODELS = {"groups": {}, "single": {"num_key_value_heads": 4}, "yarn": YARN, "llama3": LLAMA3}


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


@unittest.skipIf(MISSING, REASON)
class PeerTest(DumpCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ids = np.random.default_rng(11).integers(3, 97, TOKENS)
        cls.ids_file = cls.file("peer.jsonl", json.dumps(cls.ids.tolist()) + "\n")
        cls.traces, cls.peers = {}, {}
        cls.compared = cls.ties = 0

    @classmethod
    def tearDownClass(cls):
        print(f"{cls.compared} tokens selected by both, {cls.ties} within rounding of a tie and "
              "selected by one alone", file=sys.stderr)

    def trace(self, name):
        if name not in self.traces:
            folder = self.model(name, "llama", max_position_embeddings=2048, **MODELS[name])
            self.traces[name] = self.dump(folder)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, attn_implementation="eager").eval()
            hidden = {}
            for layer in model.model.layers:
                layer.self_attn.register_forward_pre_hook(
                    lambda module, _, kwargs: hidden.update(
                        {module.layer_idx: kwargs["hidden_states"].double()}), with_kwargs=True)
            with torch.inference_mode():
                model(input_ids=torch.as_tensor(self.ids)[None])
            model = model.double()
            for layer in model.model.layers:
                layer.self_attn.rotary_emb = model.model.rotary_emb  # as BasePress does
            self.peers[name] = [layer.self_attn for layer in model.model.layers], hidden
        return self.traces[name]

    def layers(self, name, sink):
        """(index, layer's arrays, k and v of the middle) of each layer."""
        for index, layer in read_trace(self.trace(name)).items():
            yield index, layer, *(layer[part][:, sink:TOKENS - RECENT] for part in "kv")

    def press(self, press, name, index, k, v, past=TOKENS, before=0):
        """kvpress's scores [Hkv, m]; `before`: tokens put before the middle for its sinks."""
        modules, hidden = self.peers[name]

        def tensor(x):
            return torch.from_numpy(np.concatenate([np.ones_like(x[:, :before]), x], 1))[None]
        with torch.inference_mode():
            scores = press.score(modules[index], hidden[index][:, :past], tensor(k), tensor(v),
                                 None, {})
        return scores[0, :, before:].numpy()

    def expected_scores(self, name, index, k, v, past):
        press = ExpectedAttentionPress(0.5, n_future_positions=N_FUTURE, n_sink=N_SKIP)
        return self.press(press, name, index, k, v, past, N_SKIP)

    # ------------------------------------------------------------------- kvpress against NumPy

    def test_expected_attention_by_its_definition(self):
        for name in MODELS:
            for sink in SINKS:
                for index, layer, k, v in self.layers(name, sink):
                    tables = read_tables(self.trace(name), index)
                    for past in (TOKENS - QUERIES, TOKENS):
                        peer = self.expected_scores(name, index, k, v, past)
                        own = expected_attention(layer["q"][:, :past], k, v, tables, past)
                        off = np.abs(own / peer - 1).max()
                        self.assertTrue(off <= SCORE_ROUNDING, (name, sink, index, past, off))

    def test_un_rotating_matters(self):
        # Otherwise equal selections would say nothing of the tables.
        for name in MODELS:
            differ = 0
            for index, layer, k, v in self.layers(name, 4):
                past = TOKENS - QUERIES
                tables = read_tables(self.trace(name), index)
                turned, post = (np.argsort(-expected_attention(
                    layer["q"][:, :past], k, v, tables, past, which))[:, :100]
                    for which in (False, True))
                differ += sum(len(set(a) - set(b)) for a, b in zip(turned, post)) / len(turned)
            self.assertGreater(differ / 3, 10, name)

    def test_lagkv_by_its_definition(self):
        press = LagKVPress(0.5, n_sink=LAG_SINK, lag_size=LAG)
        for name in ("groups", "single"):
            for index, _, k, v in self.layers(name, 4):
                peer = self.press(press, name, index, k, v)
                for head, scores in enumerate(peer):
                    own, spread = lagkv(k[head], v[head])
                    # Ranks are exact but where two spreads are within rounding of each other.
                    gaps = np.diff(np.sort(spread, axis=1), axis=1) / spread.max()
                    if gaps.min() > 1e-9:
                        self.assertEqual(own.tolist(), scores.tolist())
                    else:
                        self.assertLess((own != scores).sum(), 3)
                self.assertEqual(set(peer.ravel()), {i / LAG for i in range(LAG + 1)})

    def test_lagkv_of_a_short_middle(self):
        # A departure: kvpress ranks its sinks over the rest, here they are the oldest of a tie.
        press = LagKVPress(0.5, n_sink=LAG_SINK, lag_size=LAG)
        for index, _, k, v in self.layers("groups", 4):
            short = LAG_SINK + 2 * LAG - 1
            scores = self.press(press, "groups", index, k[:, :short], v[:, :short])[0]
            kept = set(np.argsort(-scores, kind="stable")[:20])
            self.assertEqual(kept, {0, 1, 2, 3, *range(short - 16, short)})
            ranks, _ = lagkv(k[0, :short], v[0, :short])
            self.assertEqual(keep_by_rank(ranks, 20), set(range(short - 20, short)))

    # ------------------------------------------------------------------ kvbench against kvpress

    def kept(self, name, algorithm, sink, *options):
        """[(layer, KV head, parameters, positions of the middle kept, counted from its first)]."""
        program = os.environ.get("KVBENCH")
        if not program:
            self.skipTest("KVBENCH does not name the program")
        table = os.path.join(self.folder, f"{self.id()}-{len(os.listdir(self.folder))}.csv")
        sizes = ",".join(map(str, SIZES))
        joint = ";" if ":" in algorithm else ":"
        result = subprocess.run(
            [program, "replay", self.trace(name), "-o", table, "--kept", "--algorithm",
             f"{algorithm}{joint}tokens={sizes}", "--sink", str(sink), "--recent", str(RECENT),
             "--queries", str(QUERIES), *options], capture_output=True, text=True, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        out = []
        with open(table[:-4] + ".kept.csv", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                self.assertEqual(row["algorithm"], algorithm.partition(":")[0])
                params = dict(part.split("=") for part in row["params"].split(";"))
                held = set()
                for part in row["tokens"].split():
                    first, _, last = part.partition("-")
                    held |= set(range(int(first), int(last or first) + 1))
                middle = range(sink, TOKENS - RECENT)
                self.assertEqual(held - set(middle),
                                 {*range(sink), *range(TOKENS - RECENT, TOKENS)})
                out.append((int(row["layer"]), int(row["kv_head"]), params,
                            {i - sink for i in held & set(middle)}))
        heads = MODELS[name].get("num_key_value_heads", 2)
        self.assertEqual(len(out), 3 * heads * len(SIZES))
        return out

    def compare(self, kept, scores, size, rounding, where):
        """Equal sets, but for tokens whose scores are within `rounding` of the last one kept."""
        self.assertEqual(len(kept), size, where)
        order = np.argsort(-scores, kind="stable")
        only = kept ^ set(order[:size].tolist())
        last = scores[order[size - 1]]
        for token in only:
            off = abs(scores[token] - last)
            self.assertTrue(off <= rounding * abs(last), (where, token, scores[token], last))
        type(self).compared += size - len(only) // 2
        type(self).ties += len(only) // 2

    def check_ties(self):
        self.assertLessEqual(self.ties, FEW_TIES * self.compared)

    def test_expected_attention_keeps_what_kvpress_keeps(self):
        for name in MODELS:
            for sink, which, past in ((4, "past", TOKENS - QUERIES), (4, "all", TOKENS),
                                      (16, "past", TOKENS - QUERIES)):
                scores = {index: self.expected_scores(name, index, k, v, past)
                          for index, _, k, v in self.layers(name, sink)}
                for layer, head, params, kept in self.kept(
                        name, "expected-attention", sink, "--scores", which):
                    # The tables are used, and kvpress's defaults are ours.
                    self.assertEqual((params["rope"], params["n_future"], params["n_skip"]),
                                     ("tables", "512", "4"))
                    self.compare(kept, scores[layer][head], int(params["tokens"]), SCORE_ROUNDING,
                                 (name, sink, which, layer, head, params["tokens"]))
        self.check_ties()

    def test_lagkv_keeps_what_kvpress_keeps(self):
        press = LagKVPress(0.5, n_sink=LAG_SINK, lag_size=LAG)
        for name in ("groups", "single"):
            for sink in SINKS:
                middle = {index: (k, v) for index, _, k, v in self.layers(name, sink)}
                scores = {index: self.press(press, name, index, *kv)
                          for index, kv in middle.items()}
                for layer, head, params, kept in self.kept(name, f"lagkv:lag={LAG}", sink):
                    self.assertEqual(params["lag_sink"], str(LAG_SINK))
                    size, own = int(params["tokens"]), scores[layer][head]
                    want = keep_by_rank(own, size)
                    self.assertEqual(len(kept), size)
                    # Where two spreads are within rounding, their ranks may change places.
                    only = kept ^ want
                    where = name, sink, layer, head, size, sorted(only)
                    for part, at in (divmod(token - LAG_SINK, LAG) for token in only):
                        _, spread = lagkv(*(x[head] for x in middle[layer]))
                        self.assertTrue(0 <= part < len(spread), where)
                        near = np.abs(spread[part] / spread[part, at] - 1) <= SCORE_ROUNDING
                        self.assertGreater(near.sum(), 1, where)
                    type(self).compared += size - len(only) // 2
                    type(self).ties += len(only) // 2
        self.check_ties()

    def test_knorm_and_keydiff_keep_what_kvpress_keeps(self):
        for algorithm, press in (("knorm", KnormPress(0.5)), ("keydiff", KeyDiffPress(0.5))):
            for name in ("groups", "single"):
                scores = {index: self.press(press, name, index, k, v)
                          for index, _, k, v in self.layers(name, 4)}
                for layer, head, params, kept in self.kept(name, algorithm, 4):
                    self.compare(kept, scores[layer][head], int(params["tokens"]), SCORE_ROUNDING,
                                 (algorithm, name, layer, head, params["tokens"]))
        self.check_ties()


if __name__ == "__main__":
    if MISSING:
        print(f"SKIPPED: {REASON}")
        sys.exit(77)
    unittest.main()
