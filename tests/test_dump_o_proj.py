"""What kvbench-py dump --o-proj writes: output projections and norms of the residual stream.

A second copy of each model, which knows nothing of the dump, says what its attention modules return
(hooks) and what enters its layers (transformers' own output_hidden_states). The attention that the
projection multiplies is computed from the trace, in double.
Environment: KVBENCH, the program; without it, it is not run.
"""

import json
import os
from unittest import mock

from dump_models import CHUNK_TOLERANCE, MISSING, DumpCase

if not MISSING:
    import h5py
    import numpy as np
    import torch
    from dump_models import dump_traces, own_run, read_projections

    from kvbench.dump import capture


class OutputProjectionTest(DumpCase):
    def test_element_types(self):
        model = self.model("llama")
        for dtype, compute, stored in (("float16", "float16", np.float16), ("float16", "float32", np.float32),
                                       ("bfloat16", "bfloat16", np.uint16),
                                       ("bfloat16", "float16", np.float32),
                                       ("float32", "float32", np.float32)):
            path = self.dump(model, "--o-proj", "--dtype", dtype, "--compute-dtype", compute)
            with h5py.File(path) as file:
                data = file["prompts/p0/layers/0/o_proj"]
                self.assertEqual(data.dtype, stored)
                self.assertEqual(data.chunks, (64, 16))
            # No rounding beside the model's own.
            self.assert_same(read_projections(path)[0][0], own_run(model, self.ids, compute)[2][0])
        with h5py.File(self.dump(model)) as file:
            self.assertEqual(sorted(file["prompts/p0/layers/0"]), ["k", "q", "v"])

    def test_a_weight_that_the_traces_type_holds_takes_no_more(self):
        def as_published(model):
            for parameter in model.parameters():
                parameter.copy_(parameter.to(torch.bfloat16))
            # One weight that needs more: it alone is stored as float32.
            model.model.layers[1].self_attn.o_proj.weight[3, 5] = 1 + 2.0**-20
        model = self.model("published", "llama", as_published)
        path = self.dump(model, "--o-proj", "--dtype", "bfloat16")
        weights = own_run(model, self.ids)[2]
        with h5py.File(path) as file:
            types = [file[f"prompts/p0/layers/{i}/o_proj"].dtype for i in range(3)]
        self.assertEqual(types, [np.uint16, np.float32, np.uint16])
        for index, (weight, _, _) in read_projections(path).items():
            self.assert_same(weight, weights[index])

    def test_prompts_share_the_weights(self):
        model = self.model("llama")
        path = self.dump(model, "--o-proj", prompts=self.prompts_of(9, 30, 12))
        with h5py.File(path) as file:
            first, *others = (file[f"prompts/p{i}/layers/1/o_proj"] for i in range(3))
            for other in others:
                self.assertEqual(first, other)
        whole = read_projections(self.dump(model, "--o-proj"))[1][1]
        for i, n in enumerate((9, 30, 12)):
            norms = read_projections(path, f"p{i}")[1][1]
            self.assert_close(norms, whole[:n], CHUNK_TOLERANCE)

    def prompts_of(self, *tokens):
        """Options of dump: prompts of these lengths."""
        lines = [json.dumps(self.ids[:n].tolist()) for n in tokens]
        return "--token-ids", self.file("prompts.jsonl", "\n".join(lines))

    def test_layers_that_are_left_out(self):
        # Two layers are dropped again in the second chunk of the first prompt, and are written for
        # the second, which has one chunk.
        bounds = capture.Capture.bounds

        def capped(self, module, *rest):
            if self.start and module.layer_idx != 1:
                return capture.Bounds(reason="soft capping of logits")
            return bounds(self, module, *rest)
        model = self.model("llama")
        with mock.patch.object(capture.Capture, "bounds", capped):
            path = self.dump(model, "--o-proj", "--inexact", "skip", "--chunk", "8", prompts=self.prompts_of(40, 8))
        weights = own_run(model, self.ids)[2]
        for prompt, expected in (("p0", [1]), ("p1", [0, 1, 2])):
            projections = read_projections(path, prompt)
            self.assertEqual(sorted(projections), expected)
            for index, (weight, _, _) in projections.items():
                self.assert_same(weight, weights[index])

    def expect_refusal(self, text, change):
        """`change` alters the loaded model, whose dump is then refused."""
        load = dump_traces.load_model

        def changed(args):
            model, *rest = load(args)
            change(model.model.layers)
            return (model, *rest)
        with mock.patch.object(dump_traces, "load_model", changed):
            self.expect_error(text, "--model", self.model("llama"), "--token-ids", self.ids_file, "--o-proj")

    def test_refusals(self):
        def swap(at, make):
            def change(layers):
                layers[at].self_attn.o_proj = make(layers[at].self_attn.o_proj)
            return change

        def tie(layers):
            layers[2].self_attn.o_proj = layers[0].self_attn.o_proj

        def shifted(layers):
            layers[1].self_attn.register_forward_hook(lambda _, inputs, output: (output[0] + 1.0, *output[1:]))

        def elsewhere(layers):
            layers[0].post_attention_layernorm.register_forward_pre_hook(lambda _, inputs: (inputs[0].flip(-1),))
            layers[0].register_forward_hook(lambda _, inputs, output: output * 1.5)
        its = "LlamaAttention: its output projection"
        for text, change in (
                ("layer 2: its output projection is also that of layer 0", tie),
                (f"layer 1: {its} does more than multiply by its weight", swap(1, lambda _: More(64, 64, bias=False))),
                ("layer 0: LlamaAttention: no part of it is given what its heads give", swap(0, Gated)),
                (f"layer 0: {its} is a Quantised of torch.int8", swap(0, Quantised)),
                ("layer 1: LlamaAttention: what it returns to its layer is not its output projection's", shifted),
                ("layer 0: LlamaDecoderLayer: where it adds its attention's output is not known", elsewhere)):
            with self.subTest(text):
                self.expect_refusal(text, change)
        gemma = self.model("streams", "Gemma3nTextConfig", intermediate_size=[96] * 3, num_kv_shared_layers=0,
                           head_dim=16, laurel_rank=8, altup_num_inputs=2, hidden_size_per_layer_input=8,
                           vocab_size_per_layer_input=97, activation_sparsity_pattern=[0.0] * 3,
                           layer_types=["sliding_attention", "sliding_attention", "full_attention"])
        self.expect_error("where it adds its attention's output is not known here", "--model", gemma,
                          "--token-ids", self.ids_file, "--o-proj")
        # Another layer's trouble is none of a selection's.
        result = self.run_script("--model", self.model("llama"), "--token-ids", self.ids_file,
                                 "--o-proj", "--layers", "1", "-o",
                                 os.path.join(self.folder, "one.h5"))
        self.assertEqual(result.code, 0, result.err)

    def test_kvbench_reads_it(self):
        for options in (("float16",), ("float16", "--compute-dtype", "float32"), ("bfloat16",)):
            path = self.dump(self.model("gemma2"), "--o-proj", "--dtype", *options)
            (told,) = json.loads(self.done("info", "--json", path))
            for layer in told["prompts"][0]["layers"]:
                self.assertEqual((layer["hidden"], layer["residual_norm"]), (64, True))


if not MISSING:
    class More(torch.nn.Linear):
        def forward(self, x):
            return super().forward(torch.sigmoid(x))

    class Gated(torch.nn.Module):
        """Something else between the heads and the projection."""

        def __init__(self, plain):
            super().__init__()
            self.inner = plain

        def forward(self, x):
            return self.inner(torch.sigmoid(x))

    class Quantised(torch.nn.Linear):
        """Eight bits and a factor."""

        def __init__(self, plain):
            super().__init__(64, 64, bias=False)
            weight = plain.weight.detach()
            self.factor = weight.abs().max() / 127
            self.weight = torch.nn.Parameter((weight / self.factor).round().to(torch.int8), False)

        def forward(self, x):
            return x @ (self.weight.to(x.dtype) * self.factor).T
