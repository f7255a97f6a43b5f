"""kvpress against kvbench on equal inputs: fourteen methods that both have.

kvpress's own `score` and `compress` functions get the hidden states of small random Llamas and the
keys and values of the traces that kvbench-py dump makes of them. Their scores are compared
with the definitions written anew in NumPy, from the trace alone (peer_kvpress.py), and their
selections with what `kvbench replay --kept` kept. Both programs are given one problem:

- kvpress takes the middle alone for the cache; expected-attention's four sinks, which no score of
  it touches, are put before it. So its softmax runs over the middle, as kvbench's does.
- Its hidden states are those of the scoring queries: all before the evaluated ones (scores=past),
  or all (scores=all). Their number is the position from which on future queries are expected.
- lagkv's scores are ranks, so ties are many. kvpress leaves them to the sort; kvbench's rule (what
  ranks highest: the newest first; all else: the lowest position) is applied to kvpress's scores.
  So it is to compactor's first 8 and last 4 tokens, to which kvpress gives its largest score.
- leverage and compactor: kvpress's random sketch is made the identity of as many columns as
  channels, which is exact; kvbench runs with sketch=0. compactor's blending is the share that goes.
- snapkv, pyramidkv, adakv: kvpress takes the whole prompt (scores=past) for the cache, whose last
  32 tokens are its window and no part of the middle; of its scores the middle's count. It pools
  over tokens outside the middle, and zeros behind the prompt; there, at two tokens of each end, its
  own unpooled scores are pooled anew over the middle, as kvbench has it. With kernel=1 nothing is.
- pyramidkv: both with a window of 1, since kvpress falls back to equal budgets where a layer's is
  below the window. Sizes are multiples of 20, where its roundings and kvbench's largest remainders
  are the same whole numbers, and no layer gets more than the middle less the window.
- adakv, criticalkv, value-merge: kvpress's wrappers get scores of their own: the middle's SnapKV
  scores above, or 1 for what `h2o` of kvbench kept. So AdaKV's safe part is of the middle.
- value-merge: what kvpress's merged cache gives for the evaluated queries is compared with the
  rows' rel_error.
- think: the middle's keys that kvpress thinned are compared with the definition, and what they
  give for the evaluated queries with the rows' rel_error.
- Tokens within rounding of the threshold may be chosen differently: they are counted, and few.

Run by a python that has kvpress 0.5.5 and torch, as that of `make test-dump`; elsewhere it is
skipped, aloud. Environment: KVBENCH, the program; without it only NumPy is compared.
"""

import sys
import unittest

from peer_kvpress import (
    END,
    FIRST,
    LAG,
    LAG_SINK,
    LAST,
    MISSING,
    MODELS,
    N_FUTURE,
    N_SKIP,
    QUERIES,
    REASON,
    SINKS,
    SIZES,
    TOKENS,
    PeerCase,
    chunk_attention,
    compactor,
    curdkv,
    exact_sketch,
    expected_attention,
    keep_by_rank,
    lagkv,
    leverage,
    raise_ends,
    z_scores,
)
from peer_kvpress_attention import AttentionPeerTest  # noqa: F401  (unittest.main runs it too)

if not MISSING:
    import numpy as np
    from dump_models import read_tables
    from kvpress import (
        CompactorPress,
        CURPress,
        ExpectedAttentionPress,
        KeyDiffPress,
        KnormPress,
        LagKVPress,
        LeverageScorePress,
    )

# kvpress runs in float64 here. The trace's queries, keys and tables are float32: un-rotating rounds
# to 2^-24, and a logit of some tens carries that many units. kvbench scores tokens in float32.
SCORE_ROUNDING = 1e-4
# Of z-scores, whose unit is 1: kvpress casts what it factors to float32, and its softmax too; both
# are off by 1e-5 at most here.
Z_ROUNDING = 1e-4
# Of all selected tokens, how many may be within rounding of a threshold.
FEW_TIES = 0.01


class PeerTest(PeerCase):
    # ------------------------------------------------------------------- kvpress against NumPy

    def expected_scores(self, name, index, k, v, past):
        press = ExpectedAttentionPress(0.5, n_future_positions=N_FUTURE, n_sink=N_SKIP)
        return self.press(press, name, index, k, v, (0, past), N_SKIP)

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
                                 ("expected-attention", name, sink, which, layer, head,
                                  params["tokens"]))
        self.check_ties("expected-attention", FEW_TIES)

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
                    self.count("lagkv", size - len(only) // 2, len(only) // 2)
        self.check_ties("lagkv", FEW_TIES)

    def test_knorm_and_keydiff_keep_what_kvpress_keeps(self):
        for algorithm, press in (("knorm", KnormPress(0.5)), ("keydiff", KeyDiffPress(0.5))):
            for name in ("groups", "single"):
                scores = {index: self.press(press, name, index, k, v)
                          for index, _, k, v in self.layers(name, 4)}
                for layer, head, params, kept in self.kept(name, algorithm, 4):
                    self.compare(kept, scores[layer][head], int(params["tokens"]), SCORE_ROUNDING,
                                 (algorithm, name, layer, head, params["tokens"]))
            self.check_ties(algorithm, FEW_TIES)

    # --------------------------------------- leverage, compactor, curdkv: kvpress, NumPy, kvbench

    def leverage_scores(self, name, index, k, v, sink):
        with exact_sketch():
            return self.press(LeverageScorePress(0.5, k.shape[2]), name, index, k, v, (sink, END))

    def compactor_scores(self, name, index, k, v, sink, size):
        press = CompactorPress(1 - size / k.shape[1], sketch_dimension=k.shape[2])
        with exact_sketch():
            return raise_ends(self.press(press, name, index, k, v, (sink, END)))

    def test_leverage_and_compactor_by_their_definitions(self):
        for name in MODELS:
            for sink in SINKS:
                for index, layer, k, v in self.layers(name, sink):
                    bare = self.bare_keys(name, index, layer, sink)
                    peer = self.leverage_scores(name, index, k, v, sink)
                    off = np.abs(z_scores(leverage(bare)) - peer).max()
                    self.assertTrue(off <= Z_ROUNDING, (name, sink, index, off))
                    peer = self.compactor_scores(name, index, k, v, sink, 100)
                    own = compactor(layer["q"][:, sink:END], bare, k, v, 100)
                    off = np.abs(own - peer).max()
                    self.assertTrue(off <= Z_ROUNDING, (name, sink, index, off))

    def test_compactors_parts_both_matter(self):
        for index, layer, k, v in self.layers("groups", 4):
            bare = self.bare_keys("groups", index, layer, 4)
            whole = compactor(layer["q"][:, 4:END], bare, k, v, 100)
            inner = slice(FIRST, k.shape[1] - LAST)
            chunks = chunk_attention(layer["q"][:, 4:END][:, inner], k[:, inner], v[:, inner])
            for part in (leverage(bare[:, inner]), chunks):
                top, own = (np.argsort(-x, axis=1)[:, :100] for x in (part, whole[:, inner]))
                same = np.mean([len(set(a) & set(b)) for a, b in zip(top, own)])
                self.assertLess(same, 95, index)

    def test_leverage_and_compactor_keep_what_kvpress_keeps(self):
        for name in MODELS:
            for sink in SINKS:
                middle = {index: (k, v) for index, _, k, v in self.layers(name, sink)}
                scores = {at: self.leverage_scores(name, at, *kv, sink)
                          for at, kv in middle.items()}
                for layer, head, params, kept in self.kept(name, "leverage:sketch=0", sink):
                    self.compare(kept, scores[layer][head], int(params["tokens"]),
                                 Z_ROUNDING, ("leverage", name, sink, layer, head), 1)
                scores = {(at, size): self.compactor_scores(name, at, *kv, sink, size)
                          for at, kv in middle.items() for size in SIZES}
                for layer, head, params, kept in self.kept(name, "compactor:sketch=0", sink):
                    size = int(params["tokens"])
                    self.compare(kept, scores[layer, size][head], size, Z_ROUNDING,
                                 ("compactor", name, sink, layer, head), 1)
        self.check_ties("leverage", FEW_TIES)
        self.check_ties("compactor", FEW_TIES)

    def test_a_sketch_wider_than_the_keys_keeps_what_the_exact_scores_keep(self):
        # 48 columns for 16 channels: all that is lost is what the ridge weighs.
        for algorithm in ("leverage", "compactor"):
            exact, drawn = (self.kept("groups", f"{algorithm}:sketch={sketch}", 4)
                            for sketch in (0, 48))
            same = sum(len(a[3] & b[3]) for a, b in zip(exact, drawn))
            self.assertGreater(same / sum(len(a[3]) for a in exact), 0.99, algorithm)

    def test_curdkv_is_what_kvpress_has(self):
        for name in MODELS:
            for sink in SINKS:
                scores = {}
                for index, _, k, v in self.layers(name, sink):
                    scores[index] = peer = self.press(CURPress(0.5), name, index, k, v)
                    own = curdkv(k, v)
                    own /= np.where(np.isinf(own), 0, own).sum(1, keepdims=True)
                    ratio = (own / peer)[:, 4:]  # kvpress's sum has the first four tokens too
                    self.assertTrue(np.ptp(ratio, axis=1).max() <= 1e-9, (name, sink, index))
                for layer, head, params, kept in self.kept(name, "curdkv", sink):
                    self.compare(kept, scores[layer][head], int(params["tokens"]), SCORE_ROUNDING,
                                 ("curdkv", name, sink, layer, head))
        self.check_ties("curdkv", FEW_TIES)


if __name__ == "__main__":
    if MISSING:
        print(f"SKIPPED: {REASON}")
        sys.exit(77)
    unittest.main()
