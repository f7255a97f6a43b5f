"""Prompts of kvbench-py dump: read, tokenised and truncated."""

import json
import logging
import os
import re

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from kvbench.records import read_file, read_lines
from kvbench.text import encodable
from kvbench.trace.writer import TraceError


def silence():
    """Silences transformers and the libraries below it."""
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)


def load(loader, what, args, **options):
    """Returns the result of `from_pretrained`. Raises TraceError for any exception."""
    if (os.path.isabs(args.model) or args.model.startswith(".")) and not os.path.isdir(args.model):
        raise TraceError(f"{args.model}: no such folder")
    try:
        return loader(args.model, revision=args.revision, trust_remote_code=args.trust_remote_code, **options)
    except MemoryError:
        raise
    except Exception as error:  # model files and remote code may raise anything
        first = str(error).strip().split("\n")[0] or type(error).__name__
        raise TraceError(f"{args.model}: its {what} cannot be loaded: {first}") from None


def device_type(device):
    """Returns the type of --device, such as `cpu`. Raises TraceError for a name that torch does not know."""
    try:
        return torch.device(device).type
    except RuntimeError:
        raise TraceError(f"--device: got `{device}`, expected cpu, cuda, cuda:1, ...") from None


def load_weights(args, dtype, attention):
    """Returns the model in evaluation mode on --device, in the torch type `dtype`, with this attention."""
    device_type(args.device)
    # Not `model.to(dtype)`, which would round the rotary frequencies.
    model = load(AutoModelForCausalLM.from_pretrained, "model", args, dtype=dtype, attn_implementation=attention)
    try:
        model = model.to(args.device)
    except (RuntimeError, AssertionError) as error:
        raise OSError(f"--device {args.device}: {str(error).splitlines()[0]}") from None
    return model.eval().requires_grad_(False)


def record_text(record, where, field, template):
    """Returns the text of a JSONL record by `--field` and `--template`."""
    def get(name):
        if name not in record:
            raise TraceError(f"{where}: no field `{name}`, it has {', '.join(record) or 'none'}")
        value = record[name]
        if value is None or isinstance(value, (list, dict)):
            raise TraceError(f"{where}: field `{name}` is {json.dumps(value)[:40]}, expected a text")
        return value if isinstance(value, str) else json.dumps(value)

    if template is not None:
        return re.sub(r"\{(\w+)\}", lambda match: get(match[1]), template)
    if field is None and "text" not in record and "context" in record:
        # LongBench: summarisation tasks have an empty input.
        return "\n\n".join(filter(None, (get("context"), "input" in record and get("input"))))
    return get(field or "text")


def read_records(args):
    """Yields (record's `id` or None, text_id, where, record or a text file's text) of the files, filtered by --set."""
    for path in args.files:
        name = os.path.basename(path)
        if not path.lower().endswith((".jsonl", ".json")):
            for value, option in ((args.field, "field"), (args.template, "template"),
                                  (args.set, "set"), (args.prompts, "prompts")):
                if value is not None:
                    raise TraceError(f"{path}: --{option} needs a .jsonl file")
            yield None, name, path, read_file(path)
            continue
        for number, record in read_lines(path):
            where = f"{path}:{number}"
            if not isinstance(record, dict):
                raise TraceError(f"{where}: got {type(record).__name__}, expected an object")
            if args.set is not None and record.get("set") != args.set:
                continue
            text_id = str(record.get("_id", record.get("id", f"{name}:{number}")))
            own = str(record["id"]) if "id" in record and "_id" not in record else None
            yield own, text_id, where, record


def read_texts(args):
    """Returns [(record's `id` or None, text_id, text)] of the files, filtered by --set and --prompts."""
    template = args.template
    if template is not None and template.startswith("@"):
        template = read_file(template[1:])
    records = read_records(args)
    if args.prompts is not None:
        records = list(records)
        wanted = wanted_ids(args, {text_id for _, text_id, *_ in records})
    out = []
    for own, text_id, where, record in records:
        if args.prompts is not None and text_id not in wanted:
            continue
        text = record if isinstance(record, str) else record_text(record, where, args.field, template)
        if not encodable(text):
            raise TraceError(f"{where}: its text has half of a surrogate pair, expected Unicode")
        out.append((own, text_id, text))
        if len(out) == args.max_prompts:
            break
    if not out and args.set is not None:
        raise TraceError(f"{', '.join(args.files)}: --set: no record has the set {args.set}")
    return out


def wanted_ids(args, known):
    """Returns the set of --prompts. Rejects ids that no record has."""
    absent = [one for one in args.prompts if one not in known]
    if absent:
        of_set = f" in set {args.set}" if args.set is not None else ""
        raise TraceError(f"{', '.join(args.files)}: --prompts: no record {', '.join(absent)}{of_set}")
    return set(args.prompts)


def prompt_names(ids):
    """Returns the prompts' names in the trace: their ids if all are valid, otherwise p0, p1, ..."""
    fit = all(one and "/" not in one and "\0" not in one and one != "." and encodable(one) for one in ids)
    if fit and len(set(ids)) == len(ids):
        return ids
    return [f"p{i}" for i in range(len(ids))]


def read_ids(args):
    """Returns [(None, text_id, token ids)] of --token-ids."""
    name = os.path.basename(args.token_ids)
    out = []
    for number, record in read_lines(args.token_ids):
        if len(out) == args.max_prompts:
            break
        where = f"{args.token_ids}:{number}"
        ids = record.get("input_ids") if isinstance(record, dict) else record
        if not is_integers(ids) or not ids:
            raise TraceError(f"{where}: expected a list of token ids, or an object with such a list as `input_ids`")
        if isinstance(record, dict):
            ids = without_padding(record, where)
        out.append((None, f"{name}:{number}", ids))
    return out


def is_integers(value):
    return isinstance(value, list) and all(type(one) is int for one in value)


def without_padding(record, where):
    """Returns the `input_ids` that `attention_mask` keeps. Rejects all but one text, padded on a side."""
    ids = record["input_ids"]
    mask, positions = record.get("attention_mask"), record.get("position_ids")
    for name, value in (("attention_mask", mask), ("position_ids", positions)):
        if value is not None and not (is_integers(value) and len(value) == len(ids)):
            raise TraceError(f"{where}: `{name}`: expected {len(ids)} integers, one for each token id")
    kept = [at for at, seen in enumerate(mask or [1] * len(ids)) if seen == 1]
    if mask is not None and (set(mask) - {0, 1} or not kept or kept[-1] - kept[0] + 1 != len(kept)):
        raise TraceError(f"{where}: `attention_mask`: expected ones with zeros before or after")
    if positions is not None and [positions[at] for at in kept] != list(range(len(kept))):
        raise TraceError(f"{where}: `position_ids`: expected 0 to {len(kept) - 1}")
    return [ids[at] for at in kept]


def check_tokenizer(args):
    """Rejects a folder without a tokenizer, since some releases of transformers make one up."""
    if os.path.isdir(args.model) and not any(
            re.search("token|vocab|spiece|merges", name) for name in os.listdir(args.model)):
        raise TraceError(f"{args.model}: its tokenizer cannot be loaded: the folder has none")


def read_prompts(args, vocabulary):
    """Returns [(name, text_id, token ids)], truncated. vocabulary: number of tokens; token ids: int64."""
    if args.files:
        path = ", ".join(args.files)
        check_tokenizer(args)
        tokenizer = load(AutoTokenizer.from_pretrained, "tokenizer", args)
        texts = read_texts(args)
        prompts = [(own, text_id, tokenizer(text)["input_ids"]) for own, text_id, text in texts]
    else:
        path = args.token_ids
        prompts = read_ids(args)
    if not prompts:
        raise TraceError(f"{path}: no prompts")
    out = []
    for name, (_, text_id, ids) in zip(prompt_names([own for own, _, _ in prompts]), prompts):
        ids = np.asarray(ids, np.int64)
        if not ids.size:
            raise TraceError(f"{path}: {text_id}: no tokens")
        if ids.min() < 0 or ids.max() >= vocabulary:
            bad = ids.min() if ids.min() < 0 else ids.max()
            raise TraceError(f"{path}: {text_id}: token id {bad}, expected 0 to {vocabulary - 1}")
        out.append((name, text_id, truncate(ids, args.max_tokens, args.truncate)))
    return out


def truncate(ids, limit, where):
    """Returns at most `limit` ids: "right" keeps the first, "middle" the first and last halves."""
    if limit is None or len(ids) <= limit:
        return ids
    if where == "right":
        return ids[:limit]
    return np.concatenate([ids[:limit // 2], ids[len(ids) - (limit - limit // 2):]])
