"""kvpress against kvbench on equal inputs: fifteen methods that both have.

kvpress's own `score` and `compress` functions get the hidden states of small random Llamas and the
keys and values of the traces that kvbench-py dump makes of them. Their selections are compared with what
`kvbench replay --kept` kept. Both programs are given one problem:

- kvpress takes the middle alone for the cache; the four sinks of expected-attention and CapPress, which no
  score of it touches, are put before it. So its softmax, or its maximum and sum, runs over the middle, as kvbench's
  does. CapPress casts what it solves to float32.
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
- think: what the keys that kvpress thinned give for the evaluated queries is compared with the rows' rel_error.
- Tokens within rounding of the threshold may be chosen differently: they are counted, and few.

Run by a python that has kvpress 0.5.5 and torch, as that of `make test-dump`; elsewhere it is
skipped, aloud. Environment: KVBENCH, the program.
"""

import contextlib
from unittest import mock

from peer_kvpress import END, MISSING, MODELS, QUERIES, SCORE_ROUNDING, SINKS, SIZES, TOKENS, PeerCase
from script_case import read_rows

if not MISSING:
    import kvpress
    import numpy as np
    import torch
    from kvpress.presses.scorer_press import ScorerPress
else:
    ScorerPress = object

LAG = 32
N_SKIP = LAG_SINK = 4  # kvpress's n_sink
N_FUTURE = 512
FIRST, LAST = 8, 4  # compactor's
WINDOW, KERNEL = 32, 5  # snapkv's
# Of z-scores, whose unit is 1: kvpress casts what it factors to float32, and its softmax too; both
# are off by 1e-5 at most here.
Z_ROUNDING = 1e-4
# Values of kvpress's merge are float32.
VALUE_ROUNDING = 1e-5
PYRAMID_SIZES = (40, 100, 200, 300)
PAST = TOKENS - QUERIES


def keep_by_rank(scores, size):
    """The `size` largest; ties among the highest go to the newest, others to the lowest."""
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], -i if scores[i] == 1 else i))
    return set(order[:size])


def raise_ends(scores):
    """kvpress gives the first 8 and last 4 the largest score there is: by position, as kvbench."""
    out, m = scores.copy(), scores.shape[1]
    for i in (*range(FIRST), *range(m - LAST, m)):
        out[:, i] = 1e9 - i
    return out


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


@contextlib.contextmanager
def not_eager(config):
    """AdaKVPress refuses a model of eager attention, which hooks for hidden states do not mind."""
    before, config._attn_implementation = config._attn_implementation, "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = before


class PeerTest(PeerCase):
    def test_expected_attention(self):
        press = kvpress.ExpectedAttentionPress(0.5, n_future_positions=N_FUTURE, n_sink=N_SKIP)
        for which, past in (("past", PAST), ("all", TOKENS)):
            # The tables are used, and kvpress's defaults are ours.
            self.check("expected-attention:rope=tables;n_future=512;n_skip=4", MODELS,
                       lambda name, index, k, v, *_: self.press(press, name, index, k, v, (0, past), N_SKIP),
                       "--scores", which)
        for *_, params, _ in self.kept("groups", "expected-attention", 4):
            self.assertEqual((params["rope"], params["n_future"], params["n_skip"]), ("tables", "512", "4"))

    def test_capkv(self):
        for tau in (5, 1):
            press = kvpress.CapPress(0.5, tau=tau, n_future_positions=N_FUTURE, n_sink=N_SKIP)
            for which, past in (("past", PAST), ("all", TOKENS)):
                self.check(f"capkv:rope=tables;tau={tau}", MODELS,
                           lambda name, index, k, v, *_: self.press(press, name, index, k, v, (0, past), N_SKIP),
                           "--scores", which)
        for *_, params, _ in self.kept("groups", "capkv", 4):  # kvpress's defaults are ours
            self.assertEqual([params[x] for x in ("rope", "tau", "n_future", "n_skip")], ["tables", "5", "512", "4"])

    def test_lagkv(self):
        press = kvpress.LagKVPress(0.5, n_sink=LAG_SINK, lag_size=LAG)
        for name in ("groups", "single"):
            for sink in SINKS:
                scores = {index: self.press(press, name, index, k, v) for index, _, k, v in self.layers(name, sink)}
                for layer, head, params, kept in self.kept(name, f"lagkv:lag={LAG}", sink):
                    self.assertEqual(params["lag_sink"], str(LAG_SINK))
                    size = int(params["tokens"])
                    self.assertEqual(len(kept), size)
                    # Where two spreads are within rounding, their ranks may change places.
                    only = kept ^ keep_by_rank(scores[layer][head], size)
                    self.count("lagkv", size - len(only) // 2, len(only) // 2)
        self.check_ties("lagkv")

    def test_knorm_keydiff_and_curdkv(self):
        for algorithm, kind, names in (("knorm", kvpress.KnormPress, ("groups", "single")),
                                       ("keydiff", kvpress.KeyDiffPress, ("groups", "single")),
                                       ("curdkv", kvpress.CURPress, MODELS)):
            self.check(algorithm, names, lambda name, index, k, v, *_: self.press(kind(0.5), name, index, k, v))

    def test_leverage_and_compactor(self):
        def leverage(name, index, k, v, sink, _):
            with exact_sketch():
                return self.press(kvpress.LeverageScorePress(0.5, k.shape[2]), name, index, k, v, (sink, END))

        def compactor(name, index, k, v, sink, size):
            press = kvpress.CompactorPress(1 - size / k.shape[1], sketch_dimension=k.shape[2])
            with exact_sketch():
                return raise_ends(self.press(press, name, index, k, v, (sink, END)))
        for algorithm, scores in (("leverage", leverage), ("compactor", compactor)):
            self.check(f"{algorithm}:sketch=0", MODELS, scores, rounding=Z_ROUNDING, unit=1)
            # 48 columns for 16 channels: all that is lost is what the ridge weighs.
            exact, drawn = (self.kept("groups", f"{algorithm}:sketch={sketch}", 4) for sketch in (0, 48))
            same = sum(len(a[3] & b[3]) for a, b in zip(exact, drawn))
            self.assertGreater(same / sum(len(a[3]) for a in exact), 0.99, algorithm)

    # -------------------------------------------------------------------------- observed attention

    def snap_scores(self, name, index, sink, window=WINDOW, kernel=KERNEL, past=PAST):
        """kvpress's SnapKV scores of the middle, pooled over the middle alone."""
        layer = self.layer(name, index)
        raw, out = (self.press(kvpress.SnapKVPress(0.5, window, width), name, index,
                               *(layer[part][:, :past] for part in "kv"), (0, past))[:, sink:END]
                    for width in (1, kernel))
        half, m = kernel // 2, END - sink
        for i in (*range(half), *range(m - half, m)):
            out[:, i] = raw[:, max(0, i - half):i + half + 1].mean(1)
        return out

    def layer(self, name, index):
        return next(layer for at, layer, *_ in self.layers(name, 0) if at == index)

    def test_snapkv(self):
        for kernel, which in ((1, "past"), (KERNEL, "past"), (KERNEL, "all")):
            self.check(f"snapkv:window={WINDOW};kernel={kernel}", ("groups", "single", "yarn"),
                       lambda name, index, _k, _v, sink, _: self.snap_scores(
                           name, index, sink, kernel=kernel, past=TOKENS if which == "all" else PAST),
                       "--scores", which)

    def test_tova(self):
        def scores(name, index, _k, _v, sink, _):
            layer = self.layer(name, index)
            return self.press(kvpress.TOVAPress(0.5), name, index, *(layer[part][:, :PAST] for part in "kv"),
                              (0, PAST))[:, sink:END]
        self.check("tova", ("groups", "single", "yarn"), scores, sinks=(4,))

    def test_pyramidkv(self):
        for name in ("groups", "single"):
            modules = self.trace(name) and self.peers[name][0]
            m = END - 4
            scores = [self.snap_scores(name, index, 4, window=1) for index in range(3)]
            for layer, head, params, kept in self.kept(name, f"pyramidkv:window=1;kernel={KERNEL}",
                                                       4, sizes=PYRAMID_SIZES):
                press = kvpress.PyramidKVPress(1 - int(params["tokens"]) / m, window_size=1, beta=20)
                size = press.get_layer_budget(modules[layer], m)
                self.assertEqual(size == int(params["tokens"]), layer == 1)  # of three
                self.compare(kept, scores[layer][head], size, SCORE_ROUNDING,
                             ("pyramidkv", name, layer, head))
        self.check_ties("pyramidkv")

    def test_adakv(self):
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
                module, press = self.peers[name][0][layer], kvpress.AdaKVPress(given(scores[layer], size))
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
        self.check_ties("adakv")

    def test_criticalkv(self):
        for name in ("groups", "single"):
            middle = {index: v for index, _, _, v in self.layers(name, 4)}
            scores = {index: self.snap_scores(name, index, 4) for index in middle}
            by_score = 0
            for layer, head, params, kept in self.kept(name, "criticalkv", 4):
                size, v = int(params["tokens"]), middle[layer]
                peer = self.press(kvpress.CriticalKVPress(given(scores[layer], size)), name, layer, v, v)
                self.compare(kept, np.minimum(peer[head], 1e9), size, SCORE_ROUNDING,
                             ("criticalkv", name, layer, head))
                by_score += kept == set(np.argsort(-scores[layer][head])[:size])
            self.assertLess(by_score, 6, name)  # the values do decide
        self.check_ties("criticalkv")

    # ------------------------------------------------------------------------------- value-merge

    def merged(self, name, index, k, v, kept):
        """kvpress's cache [Hkv, B, d] of keys and values: kept tokens in order of position."""
        scores = np.zeros(k.shape[:2])
        for head, tokens in enumerate(kept):
            scores[head, tokens] = 1e6 - np.array(tokens)
        return self.press(kvpress.MergingPress(given(scores, len(kept[0]))), name, index, k, v,
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

    def compare_errors(self, rows, layer, index, keys, values, where):
        """{query head: rel_error} where the middle is replaced by these; the layer's `rows` have the same."""
        errors = dict(enumerate(self.errors(layer, where[1], keys, values)))
        found = {int(row["q_head"]): float(row["rel_error"]) for row in rows if row["layer"] == str(index)}
        self.assertEqual(found.keys(), errors.keys(), where)
        for head, error in errors.items():
            self.assertTrue(abs(found[head] / error - 1) <= VALUE_ROUNDING, (*where, index, head))
        return errors

    def test_value_merge(self):
        gains = []
        for name in ("groups", "single"):
            for sink in SINKS:
                sets = {}
                for layer, _, params, kept in self.kept(name, "h2o", sink):
                    sets.setdefault((layer, int(params["tokens"])), []).append(sorted(kept))
                rows = read_rows(self.replay(name, "value-merge", sink))
                exact = {(layer, int(params["tokens"]), head): kept for layer, head, params, kept
                         in self.kept(name, "value-merge", sink)}
                middle = {index: rest for index, *rest in self.layers(name, sink)}
                for (index, size), kept in sets.items():
                    layer, k, v = middle[index]
                    keys, values = self.merged(name, index, k, v, kept)
                    for head, tokens in enumerate(kept):
                        changed = (values[head] != v[head, tokens]).any(1)
                        self.assertTrue((keys[head] == k[head, tokens]).all())
                        # What is merged with too little weight for a float32 is unchanged.
                        unchanged = set(np.array(tokens)[~changed].tolist())
                        self.assertLessEqual(exact[index, size, head], unchanged)
                        self.count("value-merge", size, len(unchanged - exact[index, size, head]))
                        self.assertGreater(changed.sum(), size // 8)
                    errors = self.compare_errors(
                        [row for row in rows if f"tokens={size}" in row["params"].split(";")], layer, index, keys,
                        values, (name, sink, size))
                    plain = self.errors(layer, sink, keys, np.array([v[h, t] for h, t in enumerate(kept)]))
                    gains += [abs(plain[head] / error - 1) for head, error in errors.items()]
        self.assertEqual(len(gains), 2 * 2 * 3 * 4 * len(SIZES))  # models, sinks, layers, heads
        self.assertGreater(np.median(gains), 100 * VALUE_ROUNDING)  # merging does something
        self.check_ties("value-merge")

    # ------------------------------------------------------------------------------------- think

    def thinned(self, name, index, k, v, ratio):
        """kvpress's keys [Hkv, m, d] of the middle, by the last WINDOW queries before QUERIES."""
        modules, hidden, turns = self.peers[name]
        past = slice(0, TOKENS - QUERIES)
        states = hidden[index][:, past]
        with torch.inference_mode():
            keys, values = kvpress.ThinKPress(ratio, WINDOW).compress(
                modules[index], states, *(torch.from_numpy(x.copy())[None] for x in (k, v)), None,
                {"hidden_states": states, "position_embeddings": [x[:, past] for x in turns]})
        self.assertTrue((values[0].numpy() == v).all())
        return keys[0].numpy()

    def test_think(self):
        for name in ("groups", "single", "yarn"):
            for sink in SINKS:
                middle = {index: rest for index, *rest in self.layers(name, sink)}
                for ratio in (0.3, 0.5, 0.8):
                    rows = read_rows(self.replay(name, f"think:ratio={ratio}", sink, sizes=()))
                    for index, (layer, k, v) in middle.items():
                        keys = self.thinned(name, index, k, v, ratio)
                        dropped = (keys == 0).all(1).sum(1)
                        self.assertEqual(set(dropped), {int(k.shape[2] * ratio)})
                        self.compare_errors(rows, layer, index, keys, v, (name, sink, ratio))
