"""The rotary tables (/rope) that kvbench-py dump writes, what it says of dtype and queries.

Un-rotating here is written anew, in NumPy. Equal tokens of layer 0 have equal keys before rotation,
so a prompt of few different tokens shows whether tables, layout and number of channels are the
model's; projections of a second copy of the model show the same of every layer.
"""

import json
from unittest import mock

from dump_models import ARCHITECTURES, MISSING, NO_ROTATION, TOKENS, DumpCase, read_tables, read_trace, unrotate

if not MISSING:
    import h5py
    import numpy as np
    import torch
    import transformers

    from kvbench.dump import rope as dump_rope

AHEAD = 512  # positions beyond the prompt that the format asks for


def scaled(kind, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


# name: (configuration, what differs). 40 tokens are more than those of 16 or 32 were made for.
SCALED = {
    "llama3": ("llama", scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                               original_max_position_embeddings=32)),
    "yarn": ("llama", scaled("yarn", factor=4.0, original_max_position_embeddings=32)),
    "linear": ("llama", scaled("linear", factor=4.0)),
    "dynamic-long": ("llama", {"max_position_embeddings": 16, **scaled("dynamic", factor=4.0)}),
    "longrope": ("phi3", {
        "original_max_position_embeddings": 16,
        **scaled("longrope", short_factor=[1.0] * 8, long_factor=[1.5 + i for i in range(8)],
                 original_max_position_embeddings=16)}),
}
# Neighbouring channels turn together; GLM turns half of them; Cohere 2 and SmolLM 3 have layers
# that do not rotate.
OTHERS = {
    "cohere": ("CohereConfig", {}),
    "cohere2": ("Cohere2Config", {"sliding_window": 64, "layer_types": [
        "sliding_attention", "full_attention", "sliding_attention"]}),
    "glm": ("GlmConfig", {"head_dim": 16}),
    "smollm3": ("SmolLM3Config", {"no_rope_layers": [1, 0, 1]}),
}
ROTARY = {name: (name, {}) for name in ARCHITECTURES if name not in NO_ROTATION}
INTERLEAVED = {"cohere", "cohere2", "glm"}
FUSED = {"phi3", "gpt_neox", "longrope"}  # without projections of queries and of keys alone
CHANNELS = {"phi": 8, "gpt_neox": 4, "glm": 8}  # fewer than the head's
# Largest relative difference of keys that should be equal: tables and stored keys are rounded to
# 2^-24, in a rotation and its inverse. A model in float16 rounds the tables and its keys to 2^-11.
EQUAL, EQUAL_HALF = 2e-6, 5e-3


def unequal(keys, ids):
    """Largest difference between keys [heads, n, d] of equal tokens, relative to their length."""
    worst = 0.0
    for token in set(ids):
        same = keys[:, [i for i, t in enumerate(ids) if t == token]]
        assert same.shape[1] > 3
        off = np.linalg.norm(same - same[:, :1], axis=2) / np.linalg.norm(same, axis=2)
        worst = max(worst, off.max())
    return worst


def projections(path, ids):
    """[layer] -> {"q", "k"} [heads, n, d] before rotation, by hooks in transformers' own model."""
    model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager")
    out = {}
    for module in model.modules():
        if not hasattr(module, "layer_idx") or not hasattr(module, "q_proj"):
            continue
        for part in "qk":
            norm = getattr(module, f"{part}_norm", None)

            def keep(_, inputs, output, part=part, module=module, normed=norm is not None):
                output = output[0].detach().double()
                heads = output if normed else output.view(len(ids), -1, module.head_dim)
                heads = heads if heads.shape[0] != len(ids) else heads.transpose(0, 1)
                out.setdefault(module.layer_idx, {})[part] = heads.numpy()
            (norm or getattr(module, f"{part}_proj")).register_forward_hook(keep)
    model(input_ids=torch.as_tensor(ids)[None])
    return out


class RopeTest(DumpCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.few = np.random.default_rng(8).integers(3, 8, TOKENS).tolist()
        cls.few_file = cls.file("few.jsonl", json.dumps(cls.few) + "\n")

    def dump_few(self, name, *options):
        config, changes = ({**ROTARY, **SCALED, **OTHERS})[name]
        model = self.model(name, config, **changes)
        return self.dump(model, *options, prompts=("--token-ids", self.few_file))

    def test_tables_undo_the_models_rotation(self):
        """Equal tokens have equal keys in layer 0, and queries and keys are what the projections gave."""
        for name in {**ROTARY, **SCALED, **OTHERS}:
            with self.subTest(name):
                path = self.dump_few(name)
                layers, tables = read_trace(path), read_tables(path, 0)
                cos, sin, layout = tables
                k = layers[0]["k"]
                self.assertEqual(layout, "interleaved" if name in INTERLEAVED else "half")
                self.assertEqual(cos.shape, (TOKENS + AHEAD, CHANNELS.get(name, k.shape[2]) / 2))
                self.assertTrue(unequal(unrotate(k, *tables), self.few) <= EQUAL)
                # Position 0 is not turned; all positions turned by one angle would pass the above.
                self.assertTrue((sin[0] == 0).all() and (cos[0] > 0).all())
                if name in SCALED:  # of two the tables carry an attention factor
                    factor = np.sqrt(cos**2 + sin**2)
                    self.assert_close(factor, np.full_like(factor, factor[0, 0]), EQUAL)
                    self.assertEqual(factor[0, 0] > 1.01, name in ("yarn", "longrope"))
                expected = projections(self.models[name], self.few)
                self.assertEqual(sorted(expected), [] if name in FUSED else [0, 1, 2])
                for index, parts in expected.items():
                    for part, values in parts.items():
                        self.assert_close(unrotate(layers[index][part], *read_tables(path, index)), values,
                                          EQUAL, f"layer {index} {part}")

    def test_layers_that_differ(self):
        path = self.dump_few("gemma3")
        with h5py.File(path) as file:
            self.assertEqual(sorted(file["rope"]), ["0", "1", "2"])
            self.assertNotIn("layout", file["rope"].attrs)
            # One copy of the numbers for the two local layers.
            self.assertEqual(file["rope/0/cos"], file["rope/2/cos"])
            self.assertNotEqual(file["rope/0/cos"], file["rope/1/cos"])
        local, full = (read_tables(path, layer)[0] for layer in (0, 1))
        at = np.arange(TOKENS + AHEAD)[:, None]
        for cos, theta in ((local, 1e4), (full, 1e6)):
            # Angles of 552 in float32 are off by half a unit of the last place, 3e-5.
            angle = at * theta**(-np.arange(16) / 16)
            self.assertTrue(np.abs(cos - np.cos(angle)).max() <= 1e-4)
        path = self.dump_few("cohere2")
        cos, sin, layout = read_tables(path, 1)
        self.assertEqual((cos.shape, layout), ((TOKENS + AHEAD, 1), "half"))
        self.assertTrue((cos == 1).all() and (sin == 0).all())
        self.assertIn("no rotation (layers 1)", self.stderr)
        # A selection has tables of its own layers alone.
        path = self.dump_few("gemma3", "--layers", "1")
        with h5py.File(path) as file:
            self.assertEqual(sorted(file["rope"]), ["cos", "sin"])
            self.assertEqual(file["rope"].attrs["layout"], "half")
        self.assertTrue((read_tables(path, 1)[0] == full).all())
        path = self.dump_few("gemma3", "--layers", "0,2", "--chunk", "16")
        self.assertTrue((read_tables(path, 2)[0] == local).all())

    def test_types_and_chunks(self):
        full = read_tables(self.dump_few("llama"), 0)[0]
        half = ["--dtype", "float16", "--compute-dtype", "float16"]
        for options in (half, [*half, "--chunk", "7"], ["--dtype", "float16"]):
            path = self.dump_few("llama", *options)
            cos, sin, layout = read_tables(path, 0)
            keys = unrotate(read_trace(path)[0]["k"], cos, sin, layout)
            self.assertTrue(unequal(keys, self.few) <= EQUAL_HALF, options)
            # A model in float16 multiplies by tables in float16, and these are what is stored.
            same = full.astype(np.float16) if "--compute-dtype" in options else full
            self.assertTrue((cos == same).all())

    def test_the_longest_prompt_decides(self):
        lines = [json.dumps(self.few[:n]) for n in (9, 40, 3)]
        prompts = ("--token-ids", self.file("three.jsonl", "\n".join(lines)))
        path = self.dump(self.model("llama"), prompts=prompts)
        self.assertEqual(len(read_tables(path, 0)[0]), TOKENS + AHEAD)
        # A rotation by length: one table for prompts of one length, or none.
        config, changes = SCALED["dynamic-long"]
        dynamic = self.model("dynamic-long", config, **changes)
        with h5py.File(self.dump(dynamic, prompts=prompts)) as file:
            self.assertNotIn("rope", file)
            self.assertEqual(file.attrs["rope"], "post")
        self.assertIn("no rotary tables (/rope): p1: the rotation depends on the prompt's length", self.stderr)
        twice = self.file("twice.jsonl", json.dumps(self.few) + "\n" + json.dumps(self.few[::-1]))
        path = self.dump(dynamic, prompts=("--token-ids", twice))
        tables = read_tables(path, 0)
        for prompt, ids in (("p0", self.few), ("p1", self.few[::-1])):
            k = read_trace(path, prompt)[0]["k"]
            self.assertTrue(unequal(unrotate(k, *tables), ids) <= EQUAL)

    def expect_none(self, model, reason):
        path = self.dump(model, prompts=("--token-ids", self.few_file))
        with h5py.File(path) as file:
            self.assertNotIn("rope", file)
            self.assertEqual(file.attrs["rope"], "post")
        self.assertIn("the trace gets no rotary tables (/rope): " + reason, self.stderr)

    def test_models_without_tables(self):
        for name in NO_ROTATION:
            with h5py.File(self.dump(self.model(name))) as file:
                self.assertNotIn("rope", file)
                self.assertEqual(file.attrs["rope"], "none")
            self.assertNotIn("rope", self.stderr)
            self.assertNotIn("rotary", self.stderr)
        # A norm with weights after the rotation: keys are no rotation of anything known.
        self.expect_none(self.model("hunyuan", "HunYuanDenseV1Config", head_dim=16),
                         "layer 0: HunYuanDenseV1Attention does not turn the first channels")

    def test_the_dump_checks_its_tables(self):
        model = self.model("llama")

        def other_layout(source, cos, width):
            yield dump_rope.Layer(source, slice(0, cos.shape[1] // 2), "interleaved")

        def later(source, count):
            return tuple(t[1:] for t in own(source, count + 1))
        own = dump_rope.Source.tables
        for where, name, other, reason in (
                (dump_rope, "candidates", other_layout, "layer 0: LlamaAttention does not turn the first channels of "
                 "queries and keys by its cos and sin alone (off by "),
                (dump_rope.Source, "tables", later, "p0: LlamaRotaryEmbedding gave other cos and sin when it ran"),
                (dump_rope, "is_rotation", lambda value: False, "layer 0: LlamaAttention is not given a cos and a sin"),
                (dump_rope.RotaryTables, "_made", lambda *_: None, "layer 0: LlamaAttention: which module made its"),
                (dump_rope, "takes_rotation", lambda module: False, "no layer's attention takes cos and sin")):
            with self.subTest(reason), mock.patch.object(where, name, other):
                self.expect_none(model, reason)

    def test_what_it_says_of_too_few_queries(self):
        ids = self.file("long.jsonl", json.dumps(self.few * 20) + "\n")
        model = self.model("long", "llama", max_position_embeddings=1024)
        for count, words in ((1, "none is left"), (256, "none is left"), (300, "44 are left"), (512, ""), (800, "")):
            self.dump(model, "--layers", "0", "--last-queries", count, prompts=("--token-ids", ids))
            said = [line for line in self.stderr.splitlines() if line.startswith("warning: ")]
            self.assertEqual(len(said), bool(words))
            self.assertIn(words, "".join(said))
        # All queries of these 40 tokens are stored.
        self.dump(self.model("llama"), "--last-queries", 40)
        self.assertNotIn("warning", self.stderr)
