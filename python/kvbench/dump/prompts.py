"""Prompts of kvbench-py dump: read, tokenised and truncated."""

import json
import os
import re

import numpy as np
from transformers import AutoTokenizer

from kvbench.text import parse_json
from kvbench.trace.writer import TraceError


def load(loader, what, args, **options):
    """Returns the result of `from_pretrained`. Raises TraceError for any exception."""
    try:
        return loader(args.model, revision=args.revision,
                      trust_remote_code=args.trust_remote_code, **options)
    except MemoryError:
        raise
    except Exception as error:  # model files and remote code may raise anything
        first = str(error).strip().split("\n")[0] or type(error).__name__
        raise TraceError(f"{args.model}: its {what} cannot be loaded: {first}") from None


def read_lines(path):
    """Yields (line number, object) of a JSONL file, without blank lines."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    yield number, parse_json(line)
                except ValueError as error:
                    what = (f"{error.msg}, column {error.colno}"
                            if isinstance(error, json.JSONDecodeError) else error)
                    raise TraceError(f"{path}:{number}: not JSON ({what}), expected one object per "
                                     "line") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: not UTF-8") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None


def record_text(record, where, field, template):
    """Returns the text of a JSONL record by `--field` and `--template`."""
    def get(name):
        if name not in record:
            raise TraceError(f"{where}: no field `{name}`, it has {', '.join(record) or 'none'}")
        value = record[name]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    if template is not None:
        return re.sub(r"\{(\w+)\}", lambda match: get(match[1]), template)
    if field is None and "text" not in record and "context" in record:
        # LongBench: summarisation tasks have an empty input.
        return "\n\n".join(filter(None, (get("context"), record.get("input", ""))))
    return get(field or "text")


def read_file(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError:
        raise TraceError(f"{path}: not UTF-8") from None
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None


def read_texts(args):
    """Returns [(record's `id` or None, text_id, text)] of --prompts, filtered by --set and
    --ids.
    """
    template = args.template
    if template is not None and template.startswith("@"):
        template = read_file(template[1:])
    out = []
    for path in args.prompts:
        name = os.path.basename(path)
        if not path.endswith((".jsonl", ".json")):
            for value, option in ((args.field, "field"), (args.template, "template"),
                                  (args.set, "set"), (args.ids, "ids")):
                if value is not None:
                    raise TraceError(f"{path}: --{option} needs a .jsonl file")
            out.append((None, name, read_file(path)))
            continue
        for number, record in read_lines(path):
            where = f"{path}:{number}"
            if not isinstance(record, dict):
                raise TraceError(f"{where}: got {type(record).__name__}, expected an object")
            text_id = str(record.get("_id", record.get("id", f"{name}:{number}")))
            if (args.ids is not None and text_id not in args.ids
                    or args.set is not None and record.get("set") != args.set):
                continue
            own = str(record["id"]) if "id" in record and "_id" not in record else None
            out.append((own, text_id, record_text(record, where, args.field, template)))
            if len(out) == args.max_prompts:
                return out
    return out[:args.max_prompts]


def check_chosen(args, texts):
    """Rejects --ids or --set without a matching record."""
    files = ", ".join(args.prompts)
    absent = [one for one in args.ids or () if one not in {text_id for _, text_id, _ in texts}]
    if absent and (args.max_prompts is None or len(texts) < args.max_prompts):
        of_set = f" in set {args.set}" if args.set is not None else ""
        raise TraceError(f"{files}: --ids: no record {', '.join(absent)}{of_set}")
    if not texts and args.set is not None:
        raise TraceError(f"{files}: --set: no record has the set {args.set}")


def prompt_names(ids):
    """Returns the prompts' names in the trace: their ids if all are valid, otherwise p0, p1, ..."""
    fit = all(one and "/" not in one and "\0" not in one and one != "." for one in ids)
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
        ids = record.get("input_ids") if isinstance(record, dict) else record
        if not (isinstance(ids, list) and ids and all(type(i) is int for i in ids)):
            raise TraceError(f"{args.token_ids}:{number}: expected a list of token ids, or an "
                             "object with such a list as `input_ids`")
        out.append((None, f"{name}:{number}", ids))
    return out


def check_tokenizer(args):
    """Rejects a folder without a tokenizer, since some releases of transformers make one up."""
    if os.path.isdir(args.model) and not any(
            re.search("token|vocab|spiece|merges", name) for name in os.listdir(args.model)):
        raise TraceError(f"{args.model}: its tokenizer cannot be loaded: the folder has none")


def read_prompts(args, vocabulary):
    """Returns [(name, text_id, token ids)], truncated. vocabulary: number of tokens; token ids:
    int64.
    """
    if args.prompts:
        path = ", ".join(args.prompts)
        check_tokenizer(args)
        tokenizer = load(AutoTokenizer.from_pretrained, "tokenizer", args)
        texts = read_texts(args)
        check_chosen(args, texts)
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
