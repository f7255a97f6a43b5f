"""kvbench-py dump --fisher against gradients in double, on small random models.

Needs torch and transformers (`make test-dump`); without them every test is skipped.
"""

import json
import os

from dump_models import MISSING, VOCABULARY, DumpCase, read_trace

if not MISSING:
    import numpy as np
    import torch
    import transformers


class DumpFisherTest(DumpCase):
    def test_fisher_against_a_slow_reference(self):
        path = self.model("llama")
        other = np.random.default_rng(6).integers(3, VOCABULARY, 9)
        prompts = self.file("two.jsonl", json.dumps(self.ids.tolist()) + "\n"
                            + json.dumps({"input_ids": other.tolist()}) + "\n")
        samples = [self.ids[:16], self.ids[16:32], self.ids[32:], other]
        model = transformers.AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").double()
        expected = np.zeros(3)
        for ids in samples:
            model.zero_grad()
            chances = model(input_ids=torch.as_tensor(ids)[None]).logits[0].log_softmax(-1)
            (-sum(chances[i, ids[i + 1]] for i in range(len(ids) - 1)) / (len(ids) - 1)).backward()
            for name, weight in model.named_parameters():
                if name.endswith(("k_proj.weight", "v_proj.weight")):
                    expected[int(name.split(".")[2])] += (weight.grad**2).sum() / len(samples)
        fused = self.fused_llama()
        for folder, options, tolerance in (
                # Gradients in single precision against double; in half, 2^-11 in each operation.
                (path, [], 1e-4), (fused, [], 1e-4), (path, ["--dtype", "float16"], 0.05)):
            trace = self.dump(folder, "--fisher", "--fisher-tokens", 16, *options, prompts=("--token-ids", prompts))
            for prompt in ("p0", "p1"):
                layers = read_trace(trace, prompt)
                got = np.array([layers[i]["fisher"] for i in range(3)])
                self.assertTrue((got > 0).all())
                self.assert_close(got, expected, tolerance, folder)
        layers = read_trace(self.dump(path, "--fisher", "--fisher-tokens", 16, "--layers", 1,
                                      "--max-prompts", 1, prompts=("--token-ids", prompts)))
        self.assertEqual(list(layers), [1])
        self.assertGreater(layers[1]["fisher"], 0)
        self.assertNotIn("fisher", read_trace(self.dump(path))[0])

    def test_weights_that_take_no_part_are_refused(self):
        bart = self.model("bart", "BartConfig", d_model=64, encoder_layers=1, decoder_layers=2,
                          encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=96,
                          decoder_ffn_dim=96)
        self.expect_error("--fisher: BartForCausalLM: its key and value weights are not known here",
                          "--model", bart, "--token-ids", self.ids_file, "--fisher")

    def fused_llama(self):
        """The Llama's weights in a Phi-3, whose projections are fused: the same function."""
        source = transformers.AutoModelForCausalLM.from_pretrained(self.model("llama")).state_dict()
        folder = self.model("fused", "phi3", rms_norm_eps=1e-6)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
        weights = {}
        for name in model.state_dict():
            stem, _, last = name.rpartition(".")
            block, _, part = stem.rpartition(".")
            parts = {"qkv_proj": ("q_proj", "k_proj", "v_proj"),
                     "gate_up_proj": ("gate_proj", "up_proj")}.get(part, (part,))
            weights[name] = torch.cat([source[".".join(filter(None, (block, p, last)))] for p in parts])
        model.load_state_dict(weights)
        model.save_pretrained(folder)
        self.assert_close(read_trace(self.dump(folder))[2]["k"],
                          read_trace(self.dump(self.model("llama")))[2]["k"], 1e-5)
        return folder

    def test_fisher_of_fused_heads(self):
        # Which rows of a fused weight make queries, keys and values: seen from what they change.
        for name, weight_name, axis in (("gpt_neox", "query_key_value", 0), ("gpt2", "c_attn", 1)):
            folder = self.model(name)
            model = transformers.AutoModelForCausalLM.from_pretrained(folder)
            ids = torch.as_tensor(self.ids)[None]
            model(input_ids=ids, labels=ids).loss.backward()
            weight = next(w for key, w in model.named_parameters() if key.endswith(f"0.attn.{weight_name}.weight")
                          or key.endswith(f"0.attention.{weight_name}.weight"))
            squares = (weight.grad**2).sum(1 - axis).reshape(12, 16).sum(1)
            before = read_trace(self.dump(folder, "--layers", 0))[0]
            expected = 0.0
            for block in range(12):  # 3 x 4 heads of 16 rows or columns.
                changed = transformers.AutoModelForCausalLM.from_pretrained(folder)
                state = changed.state_dict()
                key = next(k for k in state if k.endswith(f".{weight_name}.weight"))
                state[key].narrow(axis, 16 * block, 16).add_(1.0)
                other = os.path.join(self.folder, f"{name}-changed")
                changed.save_pretrained(other)
                after = read_trace(self.dump(other, "--layers", 0))[0]
                which = [part for part in "qkv" if not (before[part] == after[part]).all()]
                self.assertEqual(len(which), 1)
                if which != ["q"]:
                    expected += float(squares[block])
            got = read_trace(self.dump(folder, "--fisher"))[0]["fisher"]
            self.assertTrue(abs(got - expected) <= 1e-4 * expected, (name, got, expected))
