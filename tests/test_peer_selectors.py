"""Public code of triattention, defensivekv and dropkv against kvbench on equal inputs: the tokens kept.

The problem is that of peer_kvpress.py: hidden states of small random Llamas, and the traces of them. Peers, and where
they differ from kvbench (nothing of them is kept here):

- WeianMao/triattention c3744ee, triattention/methods/pruning_utils.py. It gets the means of the trace's un-rotated
  scoring queries in place of a calibration set's; its scores of the query heads are reduced here.
- FFY0/DefensiveKV 9251b95, kvpress/presses/efficient_defensivekv_press.py. Without sinks, and with a window behind the
  middle, its cache is kvbench's middle. The mean attention on the keys before its window, which lowers its 0.9, is made
  0. Its Triton kernel is replaced by its own function in torch. Over several layers its first stage has the layer's
  largest score and need not come first: here it has more than any score.
- NVIDIA/kvpress, pull request 285 at 7fb8625, kvpress/presses/dropkv_press.py. It pools over the window too: its
  unpooled scores are pooled here.

Run by a python that has kvpress 0.5.5 and torch, as that of `make test-dump`; elsewhere it is skipped, aloud.
Environment: KVBENCH, the program; KVBENCH_TRIATTENTION, KVBENCH_DEFENSIVEKV, KVBENCH_DROPKV, folders of checkouts of
the three; a test whose own is not named is skipped.
"""

import os
import types

from peer_kvpress import END, MISSING, QUERIES, SCORE_ROUNDING, TOKENS, PeerCase
from peer_reads import load_file, stub

if not MISSING:
    import numpy as np
    import torch

PAST = TOKENS - QUERIES
WINDOW = PAST - END  # the peers' last queries, whose keys they keep
NAMES = ("groups", "single", "yarn", "llama3")
SIZES = (8, 40, 100, 333)


class SelectorsPeerTest(PeerCase):
    def peer(self, variable, path):
        """A file of the checkout that the environment names."""
        if not os.environ.get(variable):
            self.skipTest(f"{variable} names no checkout")
        return load_file(variable.lower(), os.path.join(os.environ[variable], path))

    def test_triattention(self):
        peer = self.peer("KVBENCH_TRIATTENTION", "triattention/methods/pruning_utils.py")

        def scores(name, index, aggregate, reduce, past):
            cos, sin = (x[0] for x in self.peers[name][2])
            factor = float(cos[0].norm() / len(cos[0])**0.5)
            rotary = self.peers[name][0][index].rotary_emb
            layer = next(layer for at, layer, *_ in self.layers(name, 0) if at == index)

            def pairs(rows, first):
                rows = torch.from_numpy(rows).double()
                at = slice(first, first + len(rows))
                return peer.invert_rope(rows, cos[at], sin[at], factor)
            out = []
            for head, queries in enumerate(layer["q"]):
                keys = layer["k"][head * len(layer["k"]) // len(layer["q"])]
                q = peer.to_complex_pairs(pairs(queries[:past], 0))
                parts = peer.compute_frequency_statistics_from_means(
                    q.mean(0), q.abs().mean(0), pairs(keys[:END], 0))
                out.append(peer.score_keys_for_round(
                    torch.arange(END), PAST, *parts[:2], rotary.inv_freq.double(), parts[2],
                    peer.build_geometric_offsets(65536, "cpu"), aggregate,
                    torch.full((q.shape[1],), factor**2)).numpy())
            out = np.stack(out).reshape(len(layer["k"]), -1, END)
            return out.mean(1) if reduce == "mean" else out.max(1)

        for name in NAMES:
            for which, past in (("past", PAST), ("all", TOKENS)):
                for aggregate, reduce in (("mean", "mean"), ("max", "mean"), ("mean", "max")):
                    self.check(f"triattention:aggregate={aggregate};reduce={reduce}", (name,),
                               lambda name, index, _k, _v, sink, _: scores(
                                   name, index, aggregate, reduce, past)[:, sink:],
                               "--scores", which)

    def defensive_scores(self, press, name, index, size):
        """The peer's scores [Hkv, END] where a head may have `size` tokens first."""
        layer = next(layer for at, layer, *_ in self.layers(name, 0) if at == index)
        k, v = (layer[part][:, :PAST] for part in "kv")
        modules, hidden, turns = self.peers[name]
        press.compression_ratio = 1 - (size + WINDOW + 0.25) / END
        metadata = types.SimpleNamespace(bsz=1, num_key_value_heads=len(k), head_lens=[PAST] * len(k))
        with torch.inference_mode():
            out = press.score(modules[index], hidden[index][:, :PAST], *(torch.from_numpy(x).double() for x in (k, v)),
                              None, {"metadata": metadata, "position_embeddings": [x[:, :PAST] for x in turns]})
        return out.reshape(len(k), PAST)[:, :END].numpy()

    def test_defensivekv(self):
        for module in ("efficient_ada_scorer_press", "efficient_ada_global_scorer_press"):
            kind = "".join(part.capitalize() for part in module.split("_"))
            stub(f"kvpress.presses.{module}", **{kind: object})
        stub("kvpress.ops")
        stub("kvpress.ops.vw_norm", vw_l1norm=None)
        peer = self.peer("KVBENCH_DEFENSIVEKV", "kvpress/presses/efficient_defensivekv_press.py")
        attend = peer.EfficientDefensiveKVPress.compute_window_attention

        class Press(peer.EfficientDefensiveKVPress):
            def vwl1norm_triton(self, values, module, scores, bias, mean):
                probe = torch.zeros_like(scores)
                least = 0, 0, int(mean[0, 0].argmin())  # never in the first stage
                probe[least] = 1
                first = self.vwl1norm(values, module, probe, bias, mean) > 0
                first[least] = False
                return torch.where(first, 2.0, self.vwl1norm(values, module, scores, bias, mean))

            @staticmethod
            def compute_window_attention(*args):
                return attend(*args)[0], 0.0

        for name in NAMES:
            self.trace(name)
            for kernel in (5, 1):
                press = Press(window_size=WINDOW, kernel_size=kernel)
                for scope in ("layer", "layers"):
                    got = {}
                    for layer, head, params, kept in self.kept(
                            name, f"defensivekv:window={WINDOW};kernel={kernel};scope={scope}", 0, sizes=SIZES):
                        group = layer if scope == "layer" else 0
                        got.setdefault((group, int(params["tokens"])), {})[layer, head] = kept
                    for (_, size), heads in got.items():
                        layers = {layer: self.defensive_scores(press, name, layer, size) for layer, _ in heads}
                        scores = np.concatenate([layers[layer][head] for layer, head in heads])
                        joint = {place * END + token for place, kept in enumerate(heads.values()) for token in kept}
                        self.compare(joint, scores, size * len(heads), SCORE_ROUNDING,
                                     ("defensivekv", name, scope, size))
        self.check_ties("defensivekv")

    def test_dropkv(self):
        peer = self.peer("KVBENCH_DROPKV", "kvpress/presses/dropkv_press.py")

        def scores(name, index, sink, kernel):
            layer = next(layer for at, layer, *_ in self.layers(name, 0) if at == index)
            raw = self.press(peer.DropKVPress(0.5, WINDOW, 1), name, index,
                             *(layer[part][:, :PAST] for part in "kv"), (0, PAST))[:, sink:END]
            return np.stack([np.convolve(row, np.ones(kernel) / kernel, "same") for row in raw])

        for kernel in (7, 1):
            self.check(f"dropkv:window={WINDOW};kernel={kernel}", NAMES,
                       lambda name, index, _k, _v, sink, _: scores(name, index, sink, kernel))
