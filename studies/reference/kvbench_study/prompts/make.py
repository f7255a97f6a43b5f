"""Cuts source texts into prompts of equal length, by a list. It made the prompts of studies/reference/prompts.

    kvbench-study prompts studies/reference/prompts/sources.toml --texts studies/reference/prompts/works \\
        --cache build/sources --model build/models/smollm2-135m -o build/prompts/smollm2-135m

The list (TOML) has `tokens`, the length; `[works.NAME]` with the description and location of a
work; `commit`, of sources `git:PATH`; and one `[[prompt]]` each with

    id, kind, set    of the output [the first work's name, kind and set]
    sources          works (NAME of a package, NAME.txt in TEXTS) or git:PATH, joined by an empty
    line start            characters to skip [0]; the prompt begins with the next paragraph, or the
    next line
                     of a tabular work
    file             the output NAME.jsonl [the kind]
    unwrap           join the lines of each paragraph [false]
    lengths          further prompts of the same text with these lengths, in long.jsonl [none], up
    to the
                     model's context length

A work has `title`, `sha256` and, in a package, the fields of archives.py. With `set` (dev or test)
all its prompts must be of this set, and have its name as `work`: no work is in both. `kind` is that
of its prompts; `tabular`: its paragraphs are lines.

A prompt has exactly `tokens` tokens of the model's tokenizer. Two prompts that share 200 characters
are rejected, except for longer ones of one text. Needs the package `tokenizers`. Arguments after
`--` go to pip download.
"""

import os
import re
import subprocess
import sys
import tomllib

from kvbench import command
from kvbench.hashing import sha256
from kvbench.text import one_line, parse_json
from kvbench_study import ROOT
from kvbench_study.prompts import archives
from kvbench_study.prompts import records as kp


def from_git(commit, path):
    result = subprocess.run(["git", "-C", ROOT, "show", f"{commit}:{path}"], capture_output=True,
                            check=False)
    if result.returncode:
        raise kp.PromptError(f"git:{path}: {result.stderr.decode().strip()}")
    return result.stdout.decode("utf-8")


class WorkReader:
    """Locations of works.

    texts     folder of text files
    cache     folder of archives
    pip_args  further arguments of pip download
    """

    def __init__(self, texts, cache="build/sources", pip_args=(), download=archives.download):
        self.texts, self.cache, self.pip_args, self.download = texts, cache, pip_args, download

    def read(self, works, name):
        """Returns the text and description of a work."""
        work = works.get(name.removesuffix(".txt"))
        if work is None:
            raise kp.PromptError(f"{name}: not among the list's works")
        if "package" in work:
            return archives.work_text(name, work, self.cache, self.pip_args, self.download), work["title"]
        try:
            with open(os.path.join(self.texts, name), "rb") as file:
                content = file.read()
        except OSError as error:
            raise kp.PromptError(f"{name}: cannot be read: {error.strerror}") from None
        got = sha256(content)
        if got != work["sha256"]:
            raise kp.PromptError(f"{name}: SHA-256 is {got}, expected {work['sha256']}")
        return content.decode("utf-8"), work["title"]


def unwrapped(text):
    """Joins the lines of a paragraph; indented ones (verse, headings) are kept."""
    out = []
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        lines = paragraph.split("\n")
        out.append(paragraph if any(line[:1].isspace() for line in lines) else " ".join(lines))
    return "\n\n".join(out)


def after_break(text, start, end="\n\n"):
    """Returns the start of the first paragraph at or after `start`; with end="\\\
    ", of the first line.
    """
    if start == 0:
        return 0
    at = text.find(end, start - len(end))
    if at < 0:
        raise kp.PromptError(f"start: got {start}, expected a paragraph after it")
    return at + len(re.match(r"\n+", text[at:])[0])


# Upper bound of characters per token.
MOST_PER_TOKEN = 64


def defaults(spec, entry):
    """Returns the entry with the first work's name, kind and set. Raises PromptError if a work is of another
    set.
    """
    works = spec.get("works", {})
    named = [(name.removesuffix(".txt"), works.get(name.removesuffix(".txt"), {}))
             for name in entry["sources"] if not name.startswith("git:")]
    out = dict(entry)
    if named:
        name, first = named[0]
        out = {"id": name, **{key: first[key] for key in ("kind", "set") if key in first}, **entry}
    for name, work in named:
        if "set" in work and work["set"] != out["set"]:
            raise kp.PromptError(f"{out['id']}: set is {out['set']}, but all of {name} is {work['set']}")
    return out


def texts_of(spec, entry, reader):
    """Returns (text from its start on, its description, the start) of one `[[prompt]]`."""
    parts, said, tabular = [], [], False
    for source in entry["sources"]:
        if source.startswith("git:"):
            text, what = from_git(spec["commit"], source[4:]), f"kvbench, {source[4:]}"
        else:
            text, what = reader.read(spec["works"], source)
            tabular |= spec["works"][source.removesuffix(".txt")].get("tabular", False)
        parts.append(text.strip("\n") + "\n")
        said.append(what)
    text = "\n".join(parts)
    begin = after_break(text, entry.get("start", 0), "\n" if tabular else "\n\n")
    return text[begin:], "; ".join(said), begin


def make(spec, entry, reader, tokens, longest=None):
    """Returns the records of one `[[prompt]]`: of `tokens` tokens, then of its `lengths` up to
    `longest`.
    """
    entry = defaults(spec, entry)
    text, said, begin = texts_of(spec, entry, reader)
    if entry.get("unwrap"):
        text = unwrapped(text)
    first = entry["sources"][0].removesuffix(".txt")
    out = []
    for length in (spec["tokens"], *entry.get("lengths", ())):
        longer = length != spec["tokens"]
        if longer and longest is not None and length > longest:
            continue
        part = text[:MOST_PER_TOKEN * length]
        cut = kp.fit(part, length, tokens.count)
        if cut is None:
            raise kp.PromptError(f"{entry['id']}: its sources have {tokens.count(part)} tokens, "
                                 f"expected at least {length}, and a cut of as many")
        record = {key: entry[key] for key in ("id", "kind", "set")}
        if longer:
            record["id"] += f"-{length // 1024}k"
        if "set" in spec.get("works", {}).get(first, {}):
            record["work"] = first
        out.append({**record, "source": said, "start": begin, "tokens": length, "text": cut})
    return out


def check(records):
    """Rejects duplicate ids, unknown sets and shared texts."""
    ids = [record["id"] for record in records]
    for record in records:
        if ids.count(record["id"]) > 1:
            raise kp.PromptError(f"{record['id']}: duplicate id")
        if record["set"] not in kp.SETS:
            raise kp.PromptError(f"{record['id']}: set is {record['set']}, expected dev or test")
    # The longer prompts of a text begin with it.
    shared = kp.shared_stretch({record["id"]: record["text"] for record in records
                                if record["tokens"] == records[0]["tokens"]})
    if shared:
        raise kp.PromptError(f"{shared[0]} and {shared[1]} share {len(shared[2])} characters: "
                             f"{shared[2][:60]!r}...")


def longest_context(folder):
    """Returns a model's context length; None if its folder does not say."""
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            return parse_json(file.read()).get("max_position_embeddings")
    except (OSError, ValueError):
        return None


def main(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.usage = "%(prog)s [OPTIONS] LIST.toml [-- PIP_ARG ...]"
    parser.add_argument("list", metavar="LIST.toml")
    parser.add_argument("--texts", default=".", metavar="FOLDER", help="folder of text files")
    parser.add_argument("--cache", default="build/sources", metavar="FOLDER",
                        help="folder of packages [build/sources]")
    parser.add_argument("--model", required=True, metavar="MODEL", help="model whose tokenizer counts")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER")
    # argparse would reject arguments after a `--` that follows options.
    words = sys.argv[1:] if arguments is None else list(arguments)
    at = words.index("--") if "--" in words else len(words)
    args, pip_args = parser.parse_args(words[:at]), words[at + 1:]
    try:
        with open(args.list, "rb") as file:
            spec = tomllib.load(file)
        tokens, longest = kp.Tokens(args.model), longest_context(args.model)
        reader = WorkReader(args.texts, args.cache, pip_args)
        files, all_records = {}, []
        for entry in spec["prompt"]:
            for record in make(spec, entry, reader, tokens, longest):
                longer = record["tokens"] != spec["tokens"]
                name = "long" if longer else entry.get("file", record["kind"])
                files.setdefault(name, []).append(record)
                all_records.append(record)
        check(all_records)
        os.makedirs(args.output, exist_ok=True)
        for name, records in files.items():
            kp.write_jsonl(os.path.join(args.output, f"{name}.jsonl"), records)
            lengths = ", ".join(map(str, sorted({record["tokens"] for record in records})))
            print(f"{name}.jsonl: {len(records)} prompts of {lengths} tokens")
    except (kp.PromptError, OSError) as error:
        print(one_line(f"kvbench-study prompts: {error}"), file=sys.stderr)
        return 2
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        print(one_line(f"kvbench-study prompts: {args.list}: {error}"), file=sys.stderr)
        return 2
    except RecursionError:
        print(one_line(f"kvbench-study prompts: {args.list}: nested too deeply"), file=sys.stderr)
        return 2
    except KeyError as error:
        print(one_line(f"kvbench-study prompts: {args.list}: no {error}"), file=sys.stderr)
        return 2
    except (AttributeError, TypeError) as error:
        print(one_line(f"kvbench-study prompts: {args.list}: expected the form of studies/reference/prompts/README.md: "
                       f"{error}"), file=sys.stderr)
        return 2
    return 0
