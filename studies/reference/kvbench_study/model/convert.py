"""Converts a GGUF file to a Hugging Face folder with float32 weights and the file's tokenizer.
Needs torch, transformers, gguf, accelerate and sentencepiece.
"""

import os

from kvbench.programs import MODELS, expect_modules
from kvbench_study.model.parts import ModelError

os.environ.setdefault("TQDM_DISABLE", "1")  # avoids thousands of lines where stderr is a file

NEEDED = (*MODELS, "gguf", "accelerate", "sentencepiece")
# llama.cpp's token types: control tokens never match text; user-defined ones match as a whole.
CONTROL, USER_DEFINED = 3, 4
# Word pattern of Qwen2's tokenizer.json.
QWEN2_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def split_rules(pre):
    """Returns the normalizer (or None) and word split of a pre-tokenizer."""
    from tokenizers import Regex, normalizers, pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel
    if pre == "smollm":
        return None, pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            byte_level(add_prefix_space=False, use_regex=True)])
    return normalizers.NFC(), pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2_WORDS), "isolated"),
        byte_level(add_prefix_space=False, use_regex=False)])


def byte_level_bpe(get, pre):
    """Returns the tokenizer of kind `gpt2`: the file has its merges."""
    from tokenizers import Tokenizer, decoders, models

    merges = [tuple(pair.split(" ")) for pair in get("merges")]
    inner = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(get("tokens"))}, merges=merges))
    normalizer, inner.pre_tokenizer = split_rules(pre)
    if normalizer is not None:
        inner.normalizer = normalizer
    inner.decoder = decoders.ByteLevel()
    return inner


def merges_by_score(tokens, scores):
    """Returns the merges of a SentencePiece BPE: all splits of a token into two tokens, the token of the largest score
    first.
    """
    ids = {token: i for i, token in enumerate(tokens)}
    out = []
    for token in sorted(tokens, key=lambda token: -scores[ids[token]]):
        pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
        out += sorted((pair for pair in pairs if pair[0] in ids and pair[1] in ids),
                      key=lambda pair: (ids[pair[0]], ids[pair[1]]))
    return out


def sentencepiece_bpe(get):
    """Returns the tokenizer of kind `llama`, with <bos> before each text if the file asks for it."""
    from tokenizers import Tokenizer, decoders, models, normalizers, processors

    tokens = get("tokens")
    inner = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)},
                                 merges=merges_by_score(tokens, get("scores")),
                                 unk_token=tokens[get("unknown_token_id")], fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Replace(" ", "\u2581")
    inner.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    if get("add_bos_token"):
        bos = get("bos_token_id")
        inner.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)])
    return inner


def build_tokenizer(path, pre):
    """Returns the tokenizer of a GGUF file.

    pre  required pre-tokenizer: smollm, qwen2, or default (Gemma's SentencePiece)

    transformers would guess from the architecture: CodeLlama's for SmolLM2, which puts <|im_start|>
    before every text, and for Gemma one that splits words into letters.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(path).fields

    def get(name, default=None):
        field = fields.get(f"tokenizer.ggml.{name}")
        return default if field is None else field.contents()

    kind = (get("model"), get("pre"), get("add_bos_token"), get("add_space_prefix", False))
    expected = ("llama", pre, True, False) if pre == "default" else ("gpt2", pre, False, False)
    if kind != expected:
        raise ModelError(f"{path}: tokenizer is {kind}, expected {expected}")
    tokens, types = get("tokens"), get("token_type")
    inner = sentencepiece_bpe(get) if pre == "default" else byte_level_bpe(get, pre)
    inner.add_special_tokens([AddedToken(token, normalized=False, special=True)
                              for token, type_ in zip(tokens, types) if type_ == CONTROL])
    inner.add_tokens([AddedToken(token, normalized=False, special=False)
                      for token, type_ in zip(tokens, types) if type_ == USER_DEFINED])
    ids = {role: get(f"{field}_token_id") for role, field in
           (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))}
    names = {f"{role}_token": tokens[at] for role, at in ids.items() if at is not None}
    architecture = fields["general.architecture"].contents()
    out = PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False,
                                  model_max_length=fields[f"{architecture}.context_length"].contents(),
                                  **names)
    if "tokenizer.chat_template" in fields:
        out.chat_template = fields["tokenizer.chat_template"].contents()
    return out


def convert(folder, weights, target, pre):
    """Saves the model of folder/weights in float32, and its tokenizer, in `target`."""
    expect_modules("kvbench-study model", NEEDED)
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=weights, dtype=torch.float32)
    # The weights are plain float32, but save_pretrained rejects a quantizer.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target, max_shard_size="100GB")  # a single file
    build_tokenizer(os.path.join(folder, weights), pre).save_pretrained(target)


def continue_text(folder, text, tokens=1):
    """Returns the greedy continuation of `text`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        out = model.generate(**ids, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, ids["input_ids"].shape[1]:])
