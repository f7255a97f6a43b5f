"""kvpress's KVzipPress against kvbench's kvzip, on a prompt that both have read.

KVzipPress runs as it is: it reads a prompt's first tokens, has the model repeat them by chunks, and
drops what scored least. The trace is what `kvbench-py dump --extra repeat` makes of the same model.
Its selections are compared with what `kvbench replay --kept` kept. Both programs are given one problem:

- The prompt's last 64 tokens are kvbench's evaluated ones; kvpress gets those before.
- The model's tokenizer has no chat template, and so kvpress puts "\\n" behind its instruction, as
  the dump always does. With a template the two prompts differ there.
- Chunks are kvpress's of 2048 tokens, which here is all, or of 250: the dump is told so as well.
- With 4 sinks, and the evaluated tokens alone as recent ones, kvbench's middle is what kvpress lets
  compete, which keeps the first 4. With other windows kvpress's own selection gets the scores of
  the middle alone and no sinks. kvpress has no budget for each head (budget=head): there its scores
  are sorted.
- plus: kvpress divides by the norm of the attention's input, behind the layer's norm, kvbench by
  `residual_norm`. The norms that kvpress sees are written there.
- Both softmaxes are over the same tokens: min(4, first) tokens, the chunk, the segment's own keys
  up to the query. Behind a template kvpress's first chunk begins at the template's end, not at 0.
- Tokens within rounding of the threshold may be chosen differently: they are counted, and few.

Run by a python that has kvpress 0.5.5 and torch, as that of `make test-dump`; elsewhere it is
skipped, aloud. Environment: KVBENCH, the program.
"""

import contextlib
import functools
import os
import shutil
from unittest import mock

from peer_kvpress import END, MISSING, MODELS, QUERIES, SCORE_ROUNDING, SIZES, TOKENS, PeerCase

if not MISSING:
    import h5py
    import numpy as np
    import torch
    import transformers
    from kvpress import KVzipPress

    from kvbench.dump import extra as dump_extra
else:
    KVzipPress = object

# Of all selected tokens, how many may be within rounding of a threshold.
FEW_TIES = 0.001
PREFIX, LAYERS = TOKENS - QUERIES, 3
FIRST_TOKENS = 4  # kvpress's n_sink
WHOLE, PARTS = 2048, 250  # chunks
# What the instructions are made of. Each piece is a token of its own, from 3 on.
WORDS = ("\n", ".", ",", "Repeat", "the", "previous", "context", "exactly", "part", "of",
         "starting", "with")
SET = "extra/repeat"
BUDGETS = ("head", "layer", "model")


class Zip(KVzipPress):
    """KVzipPress whose scores, [layer, KV head, token], remain."""

    def compress_post(self, model):
        self.scores = self.score_val[:, 0].numpy().copy()
        super().compress_post(model)

    def select(self, model, scores, kept, layerwise, n_sink):
        """What kvpress keeps of scores [layer, KV head, m], `kept` tokens: flags of that shape."""
        self.score_val = torch.from_numpy(scores.copy())[:, None]
        # A ratio that drops as many as it should, whatever float64 rounds.
        self.compression_ratio = (scores.size - kept + 0.25) / scores.size
        self.layerwise, self.n_sink = layerwise, n_sink
        super().compress_post(model)
        out = np.ones(scores.shape, bool)
        for layer in model.model.layers:
            _, heads, tokens = layer.self_attn.masked_key_indices
            out[layer.self_attn.layer_idx, heads.numpy(), tokens.numpy()] = False
            layer.self_attn.masked_key_indices = None
        return out


@contextlib.contextmanager
def float64():
    """kvpress fills its mask with float64's lowest in the default type."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


class ZipPeerTest(PeerCase):
    def folder_of(self, name):
        """A model's, with a tokenizer that has the instructions' words and no chat template."""
        path = self.model(name, "llama", max_position_embeddings=2048, **MODELS[name])
        if not os.path.exists(os.path.join(path, "tokenizer.json")):
            from tokenizers import Regex, pre_tokenizers
            self.save_tokenizer(path, WORDS, pre_tokenizers.Sequence([
                pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split(Regex(r"[\n.,]"), "isolated")]))
        return path

    def zip_trace(self, name, chunk):
        if (name, chunk) not in self.traces:
            by_chunk = functools.partial(dump_extra.repeat_segments, chunk=chunk)
            with mock.patch.object(dump_extra, "repeat_segments", by_chunk):
                self.traces[name, chunk] = self.dump(
                    self.folder_of(name), "--extra", "repeat", "--evaluated", str(QUERIES),
                    "--o-proj", "--dtype", "float32")
        return self.traces[name, chunk]

    def zip_peer(self, name, chunk, plus=False):
        """(press behind its run, model, norms: for each layer those of each run of the model)."""
        if (name, chunk, plus) not in self.peers:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                self.folder_of(name), attn_implementation="sdpa").double().eval()
            norms = [[] for _ in range(LAYERS)]

            def keep(module, _, kwargs):
                norms[module.layer_idx].append(kwargs["hidden_states"][0].norm(dim=-1).numpy())
            for layer in model.model.layers:
                layer.self_attn.register_forward_pre_hook(keep, with_kwargs=True)
            press = Zip(0.5, chunk_size=chunk, kvzip_plus_normalization=plus)
            ids = torch.as_tensor(self.ids[:PREFIX])[None]
            with float64(), torch.inference_mode(), press(model):
                model(input_ids=ids, past_key_values=transformers.DynamicCache())
            self.assertEqual(press.scores.shape[2], PREFIX)
            self.peers[name, chunk, plus] = press, model, norms
        return self.peers[name, chunk, plus]

    def plus_trace(self, name, chunk):
        """The trace whose segments have the norms that kvpress divides by."""
        if (name, chunk, "plus") not in self.traces:
            path = os.path.join(self.folder, f"{name}-{chunk}-plus.h5")
            shutil.copyfile(self.zip_trace(name, chunk), path)
            norms = self.zip_peer(name, chunk, True)[2]
            with h5py.File(path, "a") as file:
                for index in range(LAYERS):
                    segments = file[f"prompts/p0/layers/{index}/{SET}"]
                    # The first norms are of the prompt.
                    self.assertEqual(len(segments), len(norms[index]) - 1)
                    for at, part in segments.items():
                        del part["residual_norm"]  # and its checksum
                        part["residual_norm"] = norms[index][int(at) + 1].astype(np.float32)
            self.traces[name, chunk, "plus"] = path
        return self.traces[name, chunk, "plus"]

    def kept_flags(self, name, path, budget, plus, sink, recent):
        """{tokens asked for: flags [layer, KV head, m] of what kvbench kept of the middle}."""
        heads, m = MODELS[name].get("num_key_value_heads", 2), TOKENS - recent - sink
        out = {size: np.zeros((LAYERS, heads, m), bool) for size in SIZES}
        algorithm = f"kvzip:budget={budget};plus={str(plus).lower()}"
        for layer, head, params, kept in self.kept(
                name, algorithm, sink, trace=path, recent=recent):
            self.assertEqual((params["budget"], params["plus"]), (budget, str(plus).lower()))
            out[int(params["tokens"])][layer, head, sorted(kept)] = True
        return out

    def compare_flags(self, kept, scores, peer, size, where):
        """Arrays [m]: the same tokens, but for those within rounding of the last one kept."""
        tokens, peers = (set(np.flatnonzero(x).tolist()) for x in (kept, peer))
        self.assertEqual(peers, set(np.argsort(-scores, kind="stable")[:size].tolist()), where)
        self.compare(tokens, scores, size, SCORE_ROUNDING, where)

    def compare_budgets(self, name, chunk, plus, sink, recent):
        path = (self.plus_trace if plus else self.zip_trace)(name, chunk)
        press, model, _ = self.zip_peer(name, chunk, plus)
        end = TOKENS - recent
        whole = (sink, end) == (FIRST_TOKENS, PREFIX)
        scores = press.scores[..., sink:end].copy()
        heads, m = scores.shape[1:]
        for budget in BUDGETS:
            for size, kept in self.kept_flags(name, path, budget, plus, sink, recent).items():
                where = f"kvzip {budget}" + " plus" * plus, name, chunk, sink, recent, size
                if budget == "head":
                    for index in np.ndindex(LAYERS, heads):
                        own = scores[index]
                        best = np.isin(np.arange(m), np.argsort(-own, kind="stable")[:size])
                        self.compare_flags(kept[index], own, best, size, (*where, index))
                    continue
                total = LAYERS * heads * size
                if whole:
                    peer = press.select(model, press.scores,
                                        total + LAYERS * heads * FIRST_TOKENS, budget == "layer",
                                        FIRST_TOKENS)
                    self.assertTrue(peer[..., :FIRST_TOKENS].all(), where)
                    peer = peer[..., FIRST_TOKENS:]
                else:
                    peer = press.select(model, scores, total, budget == "layer", 0)
                # Heads share: they do not keep the same number.
                self.assertGreater(np.ptp(kept.sum(-1)), 0, where)
                parts = zip(kept, scores, peer) if budget == "layer" else [(kept, scores, peer)]
                for one in parts:
                    self.compare_flags(*(x.ravel() for x in one),
                                       total // (LAYERS if budget == "layer" else 1), where)

    def test_keeps_what_kvpress_keeps(self):
        """Of its own prompt, and of another middle."""
        for plus in (False, True):
            for name in MODELS:
                for chunk in (WHOLE, PARTS):
                    self.compare_budgets(name, chunk, plus, FIRST_TOKENS, QUERIES)
            for name in ("groups", "single"):
                self.compare_budgets(name, PARTS, plus, 16, TOKENS - END)
            for budget in BUDGETS:
                self.check_ties(f"kvzip {budget}" + " plus" * plus, FEW_TIES)
