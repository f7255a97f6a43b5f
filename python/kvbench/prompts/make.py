"""Cuts source texts into prompts of equal length, as a list of them says. It made data/prompts/.

    kvbench-py prompts data/prompts/prompts.toml --texts TEXTS -o build/prompts \\
        --model build/models/smollm2-135m

The list (TOML) has `tokens`, the length; `[works.NAME]` with the file, its SHA-256 and what to say
of it; `commit`, from which sources `git:PATH` are read; and one `[[prompt]]` each with

    id, kind, set    as they stand in the output
    sources          files of TEXTS or git:PATH, joined by an empty line
    start            characters to leave out first [0]; the prompt begins with the next paragraph
    file             the output NAME.jsonl [the kind]
    unwrap           join the lines of each paragraph [false]

A prompt ends where it has exactly `tokens` tokens of the model's tokenizer. Two prompts that share
200 characters are refused. It needs the package `tokenizers`.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tomllib

from kvbench import ROOT
from kvbench.prompts import records as kp
from kvbench.text import one_line


def from_git(commit, path):
    result = subprocess.run(["git", "-C", ROOT, "show", f"{commit}:{path}"], capture_output=True,
                            check=False)
    if result.returncode:
        raise kp.PromptError(f"git:{path}: {result.stderr.decode().strip()}")
    return result.stdout.decode("utf-8")


def read_work(folder, works, name):
    """Text of a file and what to say of it."""
    work = works.get(name.removesuffix(".txt"))
    if work is None:
        raise kp.PromptError(f"{name}: not among the list's works")
    try:
        with open(os.path.join(folder, name), "rb") as file:
            content = file.read()
    except OSError as error:
        raise kp.PromptError(f"{name}: cannot be read: {error.strerror}") from None
    got = hashlib.sha256(content).hexdigest()
    if got != work["sha256"]:
        raise kp.PromptError(f"{name}: SHA-256 is {got}, expected {work['sha256']}")
    return content.decode("utf-8"), work["title"]


def unwrapped(text):
    """Lines of a paragraph joined; indented ones (verse, headings) stay."""
    out = []
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        lines = paragraph.split("\n")
        out.append(paragraph if any(line[:1].isspace() for line in lines) else " ".join(lines))
    return "\n\n".join(out)


def after_break(text, start):
    """The first paragraph's place at or after `start`."""
    if start == 0:
        return 0
    at = text.find("\n\n", start - 2)
    if at < 0:
        raise kp.PromptError(f"start: got {start}, expected a paragraph after it")
    return at + len(re.match(r"\n+", text[at:])[0])


def make(spec, entry, folder, tokens):
    """The record of one `[[prompt]]`."""
    parts, said = [], []
    for source in entry["sources"]:
        if source.startswith("git:"):
            text, what = from_git(spec["commit"], source[4:]), f"kvbench, {source[4:]}"
        else:
            text, what = read_work(folder, spec["works"], source)
        parts.append(text.strip("\n") + "\n")
        said.append(what)
    text = "\n".join(parts)
    begin = after_break(text, entry.get("start", 0))
    text = text[begin:]
    if entry.get("unwrap"):
        text = unwrapped(text)
    cut = kp.fit(text, spec["tokens"], tokens.count)
    if cut is None:
        raise kp.PromptError(f"{entry['id']}: its sources have {tokens.count(text)} tokens, "
                             f"expected at least {spec['tokens']}, and a cut of as many")
    record = {key: entry[key] for key in ("id", "kind", "set")}
    return {**record, "source": "; ".join(said), "start": begin, "tokens": spec["tokens"],
            "text": cut}


def check(records):
    """Refuses two prompts of one id, sets that there are not, and shared texts."""
    ids = [record["id"] for record in records]
    for record in records:
        if ids.count(record["id"]) > 1:
            raise kp.PromptError(f"{record['id']}: stands twice")
        if record["set"] not in kp.SETS:
            raise kp.PromptError(f"{record['id']}: set is {record['set']}, expected dev or test")
    shared = kp.shared_stretch({record["id"]: record["text"] for record in records})
    if shared:
        raise kp.PromptError(f"{shared[0]} and {shared[1]} share {len(shared[2])} characters: "
                             f"{shared[2][:60]!r}...")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", metavar="LIST.toml")
    parser.add_argument("--texts", default=".", metavar="FOLDER", help="where the works are")
    parser.add_argument("--model", required=True, metavar="FOLDER", help="its tokenizer counts")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER")
    args = parser.parse_args(arguments)
    try:
        with open(args.list, "rb") as file:
            spec = tomllib.load(file)
        tokens = kp.Tokens(args.model)
        files = {}
        for entry in spec["prompt"]:
            record = make(spec, entry, args.texts, tokens)
            files.setdefault(entry.get("file", entry["kind"]), []).append(record)
        check([record for records in files.values() for record in records])
        os.makedirs(args.output, exist_ok=True)
        for name, records in files.items():
            kp.write_jsonl(os.path.join(args.output, f"{name}.jsonl"), records)
            print(f"{name}.jsonl: {len(records)} prompts of {spec['tokens']} tokens")
    except (kp.PromptError, tomllib.TOMLDecodeError, OSError) as error:
        print(one_line(f"kvbench-py prompts: {error}"), file=sys.stderr)
        return 2
    except RecursionError:
        print(one_line(f"kvbench-py prompts: {args.list}: nested too deeply"), file=sys.stderr)
        return 2
    except KeyError as error:
        print(one_line(f"kvbench-py prompts: {args.list}: no {error}"), file=sys.stderr)
        return 2
    return 0
