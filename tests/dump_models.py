"""Small random models of many architectures, and what tests of kvbench-py dump share."""

import json
import os
import sys
import tempfile
import unittest
from unittest import mock

from script_case import ProgramCase, call, missing, read_rows, write_text

NEEDED = ("torch", "transformers", "h5py", "numpy")
MISSING = missing(*NEEDED)
if not MISSING:
    import h5py
    import numpy as np
    import torch
    import transformers

    from kvbench import command
    from kvbench.dump import main as dump_traces
    from kvbench.trace import writer as kt

TOKENS, VOCABULARY = 40, 97
SIZES = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96,
         "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         # Wide enough that attention is far from uniform.
         "initializer_range": 0.2, "max_position_embeddings": 128, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": 2}
# Without grouped queries.
PLAIN = {key: value for key, value in SIZES.items() if key != "num_key_value_heads"}
ARCHITECTURES = {
    "llama": ("LlamaConfig", SIZES),
    "mistral": ("MistralConfig", SIZES | {"sliding_window": 64}),
    "qwen2": ("Qwen2Config", SIZES),
    "qwen3": ("Qwen3Config", SIZES | {"head_dim": 32}),
    "gemma": ("GemmaConfig", SIZES | {"head_dim": 32}),
    "gemma2": ("Gemma2Config", SIZES | {"head_dim": 32, "attn_logit_softcapping": None,
                                        "query_pre_attn_scalar": 20, "sliding_window": 64}),
    "gemma3": ("Gemma3TextConfig", SIZES | {
        "head_dim": 32, "sliding_window": 64, "query_pre_attn_scalar": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "phi3": ("Phi3Config", SIZES | {"sliding_window": None}),
    "phi": ("PhiConfig", SIZES | {"partial_rotary_factor": 0.5}),
    "gpt_neox": ("GPTNeoXConfig", PLAIN),
    "opt": ("OPTConfig", PLAIN | {"ffn_dim": 96, "word_embed_proj_dim": 64, "init_std": 0.2}),
    "gpt2": ("GPT2Config", PLAIN),
}
NO_ROTATION = {"opt", "gpt2"}
# Norms behind the projection, which the dump folds in.
NORMS_BEHIND = {"Gemma2DecoderLayer": "post_attention_layernorm", "Gemma3DecoderLayer": "post_attention_layernorm",
                "Olmo2DecoderLayer": "post_attention_layernorm", "Exaone4DecoderLayer": "post_attention_layernorm",
                "Glm4DecoderLayer": "post_self_attn_layernorm"}
OUTPUT_LAYERS = ("o_proj", "dense", "out_proj", "c_proj")
# Rounding to 2^-11 (half an ulp) of q, k, v, and in the model of logits and probabilities: each
# 5e-4 at most and partly averaged out; bfloat16 has 3 bits less; 2^-24 in float32, over sums of 64
# and logits of about 10.
TOLERANCE = {"float16": 1e-3, "float32": 1e-5, "bfloat16": 8e-3}
# Chunks run through matrix products of other shapes, which sum in another order, in every layer.
CHUNK_TOLERANCE = 1e-5


def attention(layer, scale=None):
    """[Hq, nq, dv] of the last queries by the definition, in double, from what a layer of a trace holds."""
    q, k, v = (layer[name] for name in "qkv")
    group, n, nq = len(q) // len(k), k.shape[1], q.shape[1]
    scale, window = layer.get("scale", q.shape[2]**-0.5) if scale is None else scale, layer.get("window", n)
    out = np.zeros((len(q), nq, v.shape[2]))
    for head in range(len(q)):
        for j in range(nq):
            seen = slice(max(0, n - nq + j + 1 - window), n - nq + j + 1)
            logits = k[head // group, seen] @ q[head, j] * scale
            weights = np.exp(logits - logits.max())
            total = weights.sum()
            if "sink_logit" in layer:
                total += np.exp(np.float64(layer["sink_logit"][head]) - logits.max())
            out[head, j] = weights @ v[head // group, seen] / total
    return out


def own_model(path, dtype, implementation):
    """A second copy of a model, which knows nothing of the dump and runs transformers' own attention."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=getattr(torch, dtype), attn_implementation="eager").eval()
    if model._supports_sdpa:
        model.set_attn_implementation(implementation)
    return model


def own_run(path, ids, dtype="float32", implementation="eager"):
    """Of own_model, by layer: what enters the output projection [n, Hq * dv], what the attention module returns without
    the bias [n, hidden], the projection's weight [hidden, columns], and the norms of the layer's input [n].
    """
    model = own_model(path, dtype, implementation)
    heads, outputs, weights = {}, {}, {}
    for module in model.modules():
        layer, children = getattr(module, "layer_idx", None), dict(module.named_children())
        names = [name for name in OUTPUT_LAYERS if name in children]
        if layer is None or not names or "Attention" not in type(module).__name__:
            continue
        last = children[names[0]]
        bias = 0.0 if getattr(last, "bias", None) is None else last.bias.detach().double().numpy()
        weight = last.weight.detach().double().numpy()
        weights[layer] = weight.T if type(last).__name__ == "Conv1D" else weight
        last.register_forward_pre_hook(
            lambda _, inputs, layer=layer: heads.update({layer: inputs[0][0].double().numpy()}))
        module.register_forward_hook(lambda _, inputs, output, layer=layer, bias=bias: outputs.update(
            {layer: output[0][0].double().numpy() - bias}))
    with torch.inference_mode():
        states = model(input_ids=torch.as_tensor(ids)[None], output_hidden_states=True)
    # Entry l is what enters layer l; the last is behind the final norm.
    norms = {layer: np.linalg.norm(states.hidden_states[layer][0].double().numpy(), axis=1) for layer in outputs}
    return heads, outputs, weights, norms


def added_to_stream(path, ids, dtype="float32", implementation="eager"):
    """{layer: what the norm behind the attention adds to the residual stream [n, hidden]} of own_model; {} without such
    norms.
    """
    model, out = own_model(path, dtype, implementation), {}
    for block in model.modules():
        norm = NORMS_BEHIND.get(type(block).__name__)
        if norm:
            layer = block.self_attn.layer_idx
            getattr(block, norm).register_forward_hook(
                lambda _, inputs, output, layer=layer: out.update({layer: output[0].double().numpy()}))
    with torch.inference_mode():
        model(input_ids=torch.as_tensor(ids)[None])
    return out


def read_trace(path, prompt="p0"):
    """{layer: {"q", "k", "v": float64, attributes...}} of one prompt."""
    out = {}
    with h5py.File(path) as file:
        half = file.attrs["dtype"] == "bfloat16"
        for layer, group in file[f"prompts/{prompt}/layers"].items():
            out[int(layer)] = {name: (kt.from_bfloat16(group[name][:]) if half
                                      else group[name][:]).astype(np.float64) for name in "qkv"}
            out[int(layer)].update(group.attrs)
    return out


def read_projections(path, prompt="p0"):
    """{layer: (W float64, norms, note)} of one prompt."""
    out = {}
    with h5py.File(path) as file:
        for layer, group in file[f"prompts/{prompt}/layers"].items():
            weight, norms = group["o_proj"][:], group["residual_norm"][:]
            assert norms.dtype == np.float32
            if weight.dtype == np.uint16:
                weight = kt.from_bfloat16(weight)
            out[int(layer)] = weight.astype(np.float64), norms, group.attrs.get("o_proj_note")
    return out


def read_tables(path, layer):
    """cos and sin (float64) and layout of a layer."""
    with h5py.File(path) as file:
        root = file["rope"]
        own = root if "cos" in root else root[str(layer)]
        for name in ("cos", "sin"):
            assert own[name].dtype == np.float32
        return own["cos"][:].astype(float), own["sin"][:].astype(float), own.attrs["layout"]


def unrotate(x, cos, sin, layout):
    """x [heads, n, d] turned back, row i by the tables' row i."""
    out, half = x.copy(), cos.shape[1]
    for i in range(half):
        a, b = (i, i + half) if layout == "half" else (2 * i, 2 * i + 1)
        c, s = cos[:x.shape[1], i], sin[:x.shape[1], i]
        length = c**2 + s**2
        out[..., a] = (c * x[..., a] + s * x[..., b]) / length
        out[..., b] = (c * x[..., b] - s * x[..., a]) / length
    return out


def attends_as(capture):
    """The dump with another Capture, as if the model's own attention were that one."""
    return mock.patch.multiple(dump_traces, Capture=capture, check_own_attention=lambda *_: None)


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
class DumpCase(ProgramCase):
    """The script, run in this process on models that are made once per class."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        transformers.utils.logging.disable_progress_bar()
        cls.ids = np.random.default_rng(5).integers(3, VOCABULARY, TOKENS)
        cls.ids_file = cls.file("ids.jsonl", json.dumps(cls.ids.tolist()) + "\n")
        cls.models = {}

    @classmethod
    def file(cls, name, text):
        return write_text(os.path.join(cls.folder, name), text)

    @classmethod
    def model(cls, name, config=None, change=None, **changes):
        """Folder of a random model of an architecture, made once per name; change(model): of its
        parameters, before it is saved."""
        if name not in cls.models:
            kind, sizes = ARCHITECTURES.get(config or name) or (config, SIZES)
            torch.manual_seed(7)
            model = transformers.AutoModelForCausalLM.from_config(
                getattr(transformers, kind)(**sizes | changes), dtype=torch.float32)
            # Biases and norms start at zero and one, where a mistake in them would not show.
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    torch.nn.init.normal_(parameter, parameter.data.mean().item(), 0.1)
            if change:
                with torch.no_grad():
                    change(model)
            cls.models[name] = os.path.join(cls.folder, name)
            model.save_pretrained(cls.models[name])
        return cls.models[name]

    @classmethod
    def words_model(cls, name="words", config="llama", **changes):
        """A model with a word tokenizer: `w7` is the token 7, and every text starts with 1."""
        path = cls.model(name, config, **changes)
        if not os.path.exists(os.path.join(path, "tokenizer.json")):
            from tokenizers import pre_tokenizers, processors
            cls.save_tokenizer(path, [f"w{i}" for i in range(3, VOCABULARY)], pre_tokenizers.WhitespaceSplit(),
                               processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)]))
        return path

    @staticmethod
    def save_tokenizer(path, words, split, post=None):
        """Of `words`, tokens from 3 on, in a text that `split` takes apart."""
        from tokenizers import Tokenizer, models
        inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(("<pad>", "<s>", "<unk>", *words))},
                                           unk_token="<unk>"))
        inner.pre_tokenizer = split
        if post:
            inner.post_processor = post
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=inner, bos_token="<s>", unk_token="<unk>", pad_token="<pad>").save_pretrained(path)

    def run_script(self, *arguments):
        return call(lambda: command.run_main(dump_traces.main), "kvbench-py dump", *arguments)

    def dump(self, model, *options, prompts=None):
        """Path of a new trace of one model."""
        path = os.path.join(self.folder, f"{self.id()}-{len(os.listdir(self.folder))}.h5")
        what = prompts or ("--token-ids", self.ids_file)
        result = self.run_script("--model", model, "-o", path, *what, *options)
        self.assertEqual(result.code, 0, result.err)
        self.stderr = result.err
        return path

    def replay(self, path, *options):
        """The rows of `kvbench replay` in double, of the last 8 queries."""
        table = path + ".csv"
        self.done("replay", path, "-o", table, "--sink", "2", "--recent", "8", "--queries", "8", "--precision",
                  "float64", *options)
        return read_rows(table)

    def expect_error(self, text, *arguments, code=2):
        path = os.path.join(self.folder, "refused.h5")
        result = self.run_script(*arguments, "-o", path)
        self.assertEqual(result.code, code, result.err)
        lines = result.err.strip().splitlines()
        self.assertTrue(lines[-1].startswith("kvbench-py dump: "), result.err)
        self.assertIn(text, lines[-1])
        left = [name for name in os.listdir(self.folder) if name.startswith("refused")]
        self.assertEqual(left, [])

    def assert_close(self, got, expected, tolerance, message=""):
        self.assertEqual(got.shape, expected.shape)
        deviation = np.linalg.norm(got - expected) / np.linalg.norm(expected)
        self.assertTrue(deviation <= tolerance, f"{message}: {deviation} > {tolerance}")

    def assert_same(self, got, expected):
        self.assertEqual(got.shape, expected.shape)
        self.assertTrue((got == expected).all())
