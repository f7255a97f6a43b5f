"""What tests of kvpress against kvbench share: one problem for both programs. See test_peer_kvpress.py."""

import json
import os
import sys
import unittest

from script_case import missing, read_rows

NEEDED = ("kvpress", "torch", "transformers", "h5py", "numpy")
MISSING = missing(*NEEDED)
if not MISSING:
    import numpy as np
    import torch
    import transformers
    from dump_models import DumpCase, read_trace
else:
    DumpCase = unittest.TestCase

TOKENS, RECENT, QUERIES = 700, 96, 64
END = TOKENS - RECENT  # of the middle
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


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
class PeerCase(DumpCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ids = np.random.default_rng(11).integers(3, 97, TOKENS)
        cls.ids_file = cls.file("peer.jsonl", json.dumps(cls.ids.tolist()) + "\n")
        cls.traces, cls.peers, cls.counts = {}, {}, {}

    def trace(self, name):
        if name not in self.traces:
            folder = self.model(name, "llama", max_position_embeddings=2048, **MODELS[name])
            self.traces[name] = self.dump(folder, "--o-proj")
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

    def layers(self, name, sink):
        """(index, layer's arrays, k and v of the middle) of each layer."""
        for index, layer in read_trace(self.trace(name)).items():
            yield index, layer, *(layer[part][:, sink:END] for part in "kv")

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
        """The table of a replay with --kept. sizes: of `tokens`, or none."""
        table = os.path.join(self.folder, f"{self.id()}-{len(os.listdir(self.folder))}.csv")
        joint = ";" if ":" in algorithm else ":"
        sized = f"{joint}tokens={','.join(map(str, sizes))}" if sizes else ""
        self.done("replay", trace or self.trace(name), "-o", table, "--kept", "--algorithm", algorithm + sized,
                  "--sink", str(sink), "--recent", str(recent), "--queries", str(QUERIES), *options)
        return table

    def kept(self, name, algorithm, sink, *options, sizes=SIZES, trace=None, recent=RECENT):
        """[(layer, KV head, parameters, positions of the middle kept, counted from its first)]."""
        table = self.replay(name, algorithm, sink, *options, sizes=sizes, trace=trace, recent=recent)
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

    def check(self, algorithm, names, scores, *options, sinks=SINKS, rounding=SCORE_ROUNDING, unit=0, **how):
        """kvbench keeps the largest of scores(name, index, k, v, sink, size) [Hkv, m], of the middle's k and v."""
        for name in names:
            for sink in sinks:
                middle = {index: (k, v) for index, _, k, v in self.layers(name, sink)}
                found = {}
                for layer, head, params, kept in self.kept(name, algorithm, sink, *options, **how):
                    size = int(params["tokens"])
                    if (layer, size) not in found:
                        found[layer, size] = scores(name, layer, *middle[layer], sink, size)
                    self.compare(kept, found[layer, size][head], size, rounding,
                                 (algorithm.partition(":")[0], name, sink, layer, head), unit)
        self.check_ties(algorithm.partition(":")[0])

    def check_ties(self, algorithm, few=FEW_TIES):
        compared, ties = self.counts[algorithm]
        self.assertGreater(compared, 0)
        self.assertLessEqual(ties, few * compared)
