"""Cuts source texts into prompts of equal length, by a list. It made the prompts of studies/reference/prompts.

    kvbench-study prompts studies/reference/prompts/sources.toml --texts studies/reference/prompts/works \\
        --cache build/sources --model build/models/smollm2-135m -o build/prompts/smollm2-135m

The list (TOML) has `tokens`, the length; `[works.NAME]` with the description and location of a
work; `commit`, of sources `git:PATH`; and one `[[prompt]]` each with

    id, kind, set    of the output [the first work's name, kind and set]
    sources          works (NAME of a package, NAME.txt in TEXTS) or git:PATH, joined by an empty line
    start            characters to skip [0]; the prompt begins with the next paragraph, or the next
                     line of a tabular work
    file             the output NAME.jsonl [the kind]
    unwrap           join the lines of each paragraph [false]
    lengths          further prompts of the same text with these lengths, in long.jsonl [none], up to
                     the model's context length
    windows          prompts of the same length from one text [1]: each begins with the first paragraph
                     (line) after the one before, in windows.jsonl, named ID-w2, ID-w3, ...

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


def after_break(text, start, end="\n\n", name="start"):
    """Returns the start of the first paragraph at or after `start`; with end="\\n", of the first
    line.
    """
    if start == 0:
        return 0
    at = text.find(end, start - len(end))
    if at < 0:
        raise kp.PromptError(f"{name}: got {start}, expected a paragraph after it")
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


def cut_of(text, length, tokens, name):
    """Returns the text's begin of exactly `length` tokens."""
    part = text[:MOST_PER_TOKEN * length]
    cut = kp.fit(part, length, tokens.count)
    if cut is None:
        raise kp.PromptError(f"{name}: its sources have {tokens.count(part)} tokens, expected at least {length}, "
                             "and a cut of as many")
    return cut


def make(spec, entry, reader, tokens, longest=None):
    """Returns (file, record) of one `[[prompt]]`: of `tokens` tokens, of its `lengths` up to `longest`, and of
    its further windows.
    """
    entry = defaults(spec, entry)
    text, said, begin = texts_of(spec, entry, reader)
    works = spec.get("works", {})
    first = entry["sources"][0].removesuffix(".txt")
    if entry.get("unwrap"):
        text = unwrapped(text)
    common = {key: entry[key] for key in ("kind", "set")}
    if "set" in works.get(first, {}):
        common["work"] = first

    def record(suffix, start, length, cut):
        return {"id": entry["id"] + suffix, **common, "source": said, "start": start, "tokens": length, "text": cut}

    size = spec["tokens"]
    cut = cut_of(text, size, tokens, entry["id"])
    out = [(entry.get("file", entry["kind"]), record("", begin, size, cut))]
    for length in entry.get("lengths", ()):
        if longest is None or length <= longest:
            out.append(("long", record(f"-{length // 1024}k", begin, length,
                                       cut_of(text, length, tokens, entry["id"]))))
    at = 0  # of the text, whose paragraphs may be unwrapped
    for number in range(2, entry.get("windows", 1) + 1):
        name = f"{entry['id']}-w{number}"
        at = after_break(text, at + len(cut), "\n" if works.get(first, {}).get("tabular") else "\n\n", name)
        cut = cut_of(text[at:], size, tokens, name)
        out.append(("windows", record(f"-w{number}", begin + at, size, cut)))
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
            for name, record in make(spec, entry, reader, tokens, longest):
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
