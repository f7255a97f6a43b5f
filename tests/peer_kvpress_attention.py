"""kvpress against kvbench on equal inputs: methods that score by observed attention.

Run by test_peer_kvpress.py, whose docstring says how both programs are given one problem.
"""

import contextlib
import sys

from peer_kvpress import (
    END,
    KERNEL,
    MISSING,
    QUERIES,
    SINKS,
    SIZES,
    TOKENS,
    WINDOW,
    PeerCase,
    criticalkv,
    given,
    output_norms,
    think,
    value_merge,
)
from script_case import read_rows

if not MISSING:
    import numpy as np
    import torch
    from kvpress import AdaKVPress, CriticalKVPress, MergingPress, PyramidKVPress, SnapKVPress, ThinKPress, TOVAPress

# kvpress runs in float64 here, the trace's queries and keys are float32: a logit of some tens
# carries that many units of 2^-24.
SCORE_ROUNDING = 1e-4
# Values of kvpress's merge are float32.
VALUE_ROUNDING = 1e-5
# Of all selected tokens, how many may be within rounding of a threshold.
FEW_TIES = 0.01
PYRAMID_SIZES = (40, 100, 200, 300)


@contextlib.contextmanager
def not_eager(config):
    """AdaKVPress refuses a model of eager attention, which hooks for hidden states do not mind."""
    before, config._attn_implementation = config._attn_implementation, "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = before


class AttentionPeerTest(PeerCase):
    def snap_scores(self, name, index, sink, window=WINDOW, kernel=KERNEL, past=TOKENS - QUERIES):
        """kvpress's SnapKV scores of the middle, pooled over the middle alone."""
        layer = self.layer(name, index)
        raw, out = (self.press(SnapKVPress(0.5, window, width), name, index,
                               *(layer[part][:, :past] for part in "kv"), (0, past))[:, sink:END]
                    for width in (1, kernel))
        half, m = kernel // 2, END - sink
        for i in (*range(half), *range(m - half, m)):
            out[:, i] = raw[:, max(0, i - half):i + half + 1].mean(1)
        return out

    def layer(self, name, index):
        return next(layer for at, layer, *_ in self.layers(name, 0) if at == index)

    def test_snapkv_keeps_what_kvpress_keeps(self):
        for name in ("groups", "single", "yarn"):
            for sink in SINKS:
                for kernel, which in ((1, "past"), (KERNEL, "past"), (KERNEL, "all")):
                    past = TOKENS if which == "all" else TOKENS - QUERIES
                    scores = [self.snap_scores(name, index, sink, kernel=kernel, past=past)
                              for index in range(3)]
                    for layer, head, params, kept in self.kept(
                            name, f"snapkv:kernel={kernel}", sink, "--scores", which):
                        self.assertEqual(params["window"], str(WINDOW))
                        self.compare(kept, scores[layer][head], int(params["tokens"]),
                                     SCORE_ROUNDING, ("snapkv", name, sink, kernel, layer, head))
        self.check_ties("snapkv", FEW_TIES)

    def test_tova_keeps_what_kvpress_keeps(self):
        for name in ("groups", "single", "yarn"):
            past = TOKENS - QUERIES
            scores = []
            for index in range(3):
                layer = self.layer(name, index)
                scores.append(self.press(TOVAPress(0.5), name, index,
                                         *(layer[part][:, :past] for part in "kv"),
                                         (0, past))[:, 4:END])
            for layer, head, params, kept in self.kept(name, "tova", 4):
                self.compare(kept, scores[layer][head], int(params["tokens"]), SCORE_ROUNDING,
                             ("tova", name, layer, head))
        self.check_ties("tova", FEW_TIES)

    def test_pyramidkv_keeps_what_kvpress_keeps(self):
        for name in ("groups", "single"):
            modules = self.trace(name) and self.peers[name][0]
            m = END - 4
            scores = [self.snap_scores(name, index, 4, window=1) for index in range(3)]
            for layer, head, params, kept in self.kept(name, f"pyramidkv:window=1;kernel={KERNEL}",
                                                       4, sizes=PYRAMID_SIZES):
                press = PyramidKVPress(1 - int(params["tokens"]) / m, window_size=1, beta=20)
                size = press.get_layer_budget(modules[layer], m)
                self.assertEqual(size == int(params["tokens"]), layer == 1)  # of three
                self.compare(kept, scores[layer][head], size, SCORE_ROUNDING,
                             ("pyramidkv", name, layer, head))
        self.check_ties("pyramidkv", FEW_TIES)

    def test_adakv_keeps_what_kvpress_keeps(self):
        for name in ("groups", "single"):
            scores = [self.snap_scores(name, index, 4) for index in range(3)]
            heads, m = scores[0].shape
            got, uneven = {}, 0
            for layer, head, params, kept in self.kept(name, "adakv", 4):
                self.assertEqual(params["floor"], "0.2")
                got.setdefault((layer, int(params["tokens"])), set()).update(
                    head * m + token for token in kept)
                uneven += len(kept) != int(params["tokens"])
            self.assertGreater(uneven, 0)
            for (layer, size), kept in got.items():
                module, press = self.peers[name][0][layer], AdaKVPress(given(scores[layer], size))
                with not_eager(module.config):
                    press.compress(module, None, torch.empty(0), torch.empty(0), None, {})
                _, head, token = (x.numpy() for x in module.masked_key_indices)
                want = set(range(heads * m)) - set((head * m + token).tolist())
                # The safe ones are not near the threshold; of the others the least kept is it.
                raised = scores[layer].copy()
                for own in raised:
                    own[np.argsort(-own, kind="stable")[:int(0.2 * size)]] = 1e9
                raised = raised.ravel()
                self.assertEqual(len(want), heads * size)
                last = raised[sorted(want)].min()
                for at in kept ^ want:
                    self.assertTrue(abs(raised[at] - last) <= SCORE_ROUNDING * last, (layer, size))
                self.assertEqual(len(kept), len(want))
                self.count("adakv", len(kept & want), len(want - kept))
        self.check_ties("adakv", FEW_TIES)

    def critical_scores(self, name, index, v, scores, size):
        press = CriticalKVPress(given(scores, size))
        return self.press(press, name, index, v, v)

    def test_criticalkv_by_its_definition(self):
        for name in ("groups", "single"):
            for index, layer, _, v in self.layers(name, 4):
                scores = self.snap_scores(name, index, 4)
                norms = output_norms(v, self.projection(name, index), len(layer["q"]) // len(v))
                for size in SIZES:
                    peer = self.critical_scores(name, index, v, scores, size)
                    own = criticalkv(scores, norms, size)
                    first = np.isinf(own)
                    self.assertEqual(first.tolist(), (peer > 1e300).tolist())
                    off = np.abs(own[~first] / peer[~first] - 1).max()
                    self.assertTrue(off <= 1e-9, (name, index, size, off))

    def test_criticalkv_keeps_what_kvpress_keeps(self):
        result, _ = self.replay("groups", "criticalkv", 4, trace=self.with_projection("groups"))
        if result.returncode and "output projection" in result.stderr:
            self.skipTest("the program reads no output projections: " + result.stderr.strip())
        for name in ("groups", "single"):
            middle = {index: v for index, _, _, v in self.layers(name, 4)}
            scores = {index: self.snap_scores(name, index, 4) for index in middle}
            by_score = 0
            for layer, head, params, kept in self.kept(name, "criticalkv", 4,
                                                       trace=self.with_projection(name)):
                size = int(params["tokens"])
                peer = self.critical_scores(name, layer, middle[layer], scores[layer], size)
                self.compare(kept, np.minimum(peer[head], 1e9), size, SCORE_ROUNDING,
                             ("criticalkv", name, layer, head))
                by_score += kept == set(np.argsort(-scores[layer][head])[:size])
            self.assertLess(by_score, 6, name)  # the values do decide
        self.check_ties("criticalkv", FEW_TIES)

    # ------------------------------------------------------------------------------- value-merge

    def merged(self, name, index, k, v, kept):
        """kvpress's cache [Hkv, B, d] of keys and values: kept tokens in order of position."""
        scores = np.zeros(k.shape[:2])
        for head, tokens in enumerate(kept):
            scores[head, tokens] = 1e6 - np.array(tokens)
        return self.press(MergingPress(given(scores, len(kept[0]))), name, index, k, v,
                          act="compress")

    def errors(self, layer, sink, keys, values):
        """rel_error of each query head where the middle is replaced by these."""
        out = []
        group, scale = len(layer["q"]) // len(layer["k"]), layer["k"].shape[2]**-0.5
        for head, q in enumerate(layer["q"]):
            k, v = (layer[part][head // group] for part in "kv")
            off = exact = 0
            for j in range(TOKENS - QUERIES, TOKENS):
                answers = []
                for middle in ((k[sink:END], v[sink:END]),
                               (keys[head // group], values[head // group])):
                    key, value = (np.concatenate([whole[:sink], part, whole[END:j + 1]])
                                  for whole, part in zip((k, v), middle))
                    logits = scale * key @ q[j]
                    weights = np.exp(logits - logits.max())
                    answers.append(weights @ value / weights.sum())
                off += ((answers[1] - answers[0])**2).sum()
                exact += (answers[0]**2).sum()
            out.append((off / exact)**0.5)
        return out

    def test_value_merge_is_what_kvpress_has(self):
        offs, gains = [], []
        for name in ("groups", "single"):
            for sink in SINKS:
                sets = {}
                for layer, _, params, kept in self.kept(name, "h2o", sink):
                    sets.setdefault((layer, int(params["tokens"])), []).append(sorted(kept))
                result, table = self.replay(name, "value-merge", sink)
                self.assertEqual(result.returncode, 0, result.stderr)
                rows = read_rows(table)
                exact = {(layer, int(params["tokens"]), head): kept for layer, head, params, kept
                         in self.kept(name, "value-merge", sink)}
                middle = {index: rest for index, *rest in self.layers(name, sink)}
                for (index, size), kept in sets.items():
                    layer, k, v = middle[index]
                    keys, values = self.merged(name, index, k, v, kept)
                    for head, tokens in enumerate(kept):
                        own, changed = value_merge(k[head], v[head], tokens)
                        self.assertTrue((keys[head] == k[head, tokens]).all())
                        off = np.abs(own - values[head]).max()
                        self.assertTrue(off <= VALUE_ROUNDING, (name, index, size, off))
                        self.assertEqual(exact[index, size, head],
                                         set(np.array(tokens)[~changed].tolist()))
                        self.assertGreater(changed.sum(), size // 8)
                    errors = self.errors(layer, sink, keys, values)
                    plain = self.errors(layer, sink, keys,
                                        np.array([v[h, t] for h, t in enumerate(kept)]))
                    for row in rows:
                        if (row["layer"], f"tokens={size}" in row["params"].split(";")) == \
                                (str(index), True):
                            head = int(row["q_head"])
                            off = abs(float(row["rel_error"]) / errors[head] - 1)
                            self.assertTrue(off <= VALUE_ROUNDING, (name, index, size, head, off))
                            offs.append(off)
                            gains.append(abs(plain[head] / errors[head] - 1))
        self.assertEqual(len(offs), 2 * 2 * 3 * 4 * len(SIZES))  # models, sinks, layers, heads
        self.assertGreater(np.median(gains), 100 * VALUE_ROUNDING)  # merging does something
        print(f"value-merge: rel_error of {len(offs)} rows, off by at most {max(offs):.1e}",
              file=sys.stderr)

    # ------------------------------------------------------------------------------------- think

    def thinned(self, name, index, k, v, ratio):
        """kvpress's keys [Hkv, m, d] of the middle, by the last WINDOW queries before QUERIES."""
        modules, hidden, turns = self.peers[name]
        past = slice(0, TOKENS - QUERIES)
        states = hidden[index][:, past]
        with torch.inference_mode():
            keys, values = ThinKPress(ratio, WINDOW).compress(
                modules[index], states, *(torch.from_numpy(x.copy())[None] for x in (k, v)), None,
                {"hidden_states": states, "position_embeddings": [x[:, past] for x in turns]})
        self.assertTrue((values[0].numpy() == v).all())
        return keys[0].numpy()

    def test_think_is_what_kvpress_has(self):
        offs = []
        for name in ("groups", "single", "yarn"):
            for sink in SINKS:
                middle = {index: rest for index, *rest in self.layers(name, sink)}
                for ratio in (0.3, 0.5, 0.8):
                    result, table = self.replay(name, f"think:ratio={ratio}", sink, sizes=())
                    self.assertEqual(result.returncode, 0, result.stderr)
                    rows = read_rows(table)
                    for index, (layer, k, v) in middle.items():
                        keys = self.thinned(name, index, k, v, ratio)
                        q = layer["q"][:, TOKENS - QUERIES - WINDOW:TOKENS - QUERIES]
                        self.assertTrue((keys == think(q, k, ratio)).all(), (name, index, ratio))
                        dropped = (keys == 0).all(1).sum(1)
                        self.assertEqual(set(dropped), {int(k.shape[2] * ratio)})
                        errors = self.errors(layer, sink, keys, v)
                        for row in rows:
                            if row["layer"] == str(index):
                                head = int(row["q_head"])
                                off = abs(float(row["rel_error"]) / errors[head] - 1)
                                self.assertTrue(off <= VALUE_ROUNDING,
                                                (name, sink, index, ratio, head, off))
                                offs.append(off)
        self.assertEqual(len(offs), 3 * 2 * 3 * 3 * 4)  # models, sinks, ratios, layers, heads
        print(f"think: rel_error of {len(offs)} rows, off by at most {max(offs):.1e}",
              file=sys.stderr)
