"""Plants a passkey into texts, and asks for it at the end.

    kvbench-study needles texts.jsonl -o needles.jsonl --depth 0.1,0.3,0.5,0.7 --tokens 4096 \\
        --model build/models/smollm2-135m

Each input record, {"text": ...}, becomes one output record: the text up to a paragraph near the
depth, a line with the passkey, the rest of the text, and a question with the passkey as its answer.
The text is cut to exactly --tokens tokens of the model's tokenizer; with --chars N to N characters,
without a tokenizer. Depths take turns; 0 is before the text, 1 after it. The passkey, five digits
that do not occur in the text, depends on --seed and the record's id only.

New fields: answer; depth, as requested; needle_chars and question_chars, [begin, end) in the text;
with a tokenizer needle_tokens; seed, tokens. Other fields are the input's.
"""

import argparse
import hashlib
import re
import sys

from kvbench import command
from kvbench.text import one_line
from kvbench_study.prompts import records as kp

NEEDLE = "The passkey is {key}. Remember it: {key} is the passkey."
QUESTION = "What is the passkey that the text above mentions? The passkey is"
NEAR = 0.03  # share of the text: largest shift of a needle to the next paragraph
# Before the question. Tokens of several characters leave gaps in the possible lengths: the second
# is tried if the first fits no cut.
RULES = ("\n\n", "\n\n***\n\n")


def passkey(seed, name, text):
    """Returns five digits that do not occur in `text`, the same on every machine."""
    for attempt in range(1000):
        digest = hashlib.sha256(f"{seed}/{name}/{attempt}".encode()).digest()
        key = str(10000 + int.from_bytes(digest[:8], "big") % 90000)
        if key not in text:
            return key
    raise kp.PromptError(f"{name}: no five digits are left that the text has not")


def position_near(text, depth):
    """Returns a position near `depth`: before a paragraph, line, sentence or word."""
    want = round(depth * len(text))
    if want in (0, len(text)):
        return want
    for pattern in (r"\n\n+", r"\n", r"(?<=[.!?]) "):
        positions = [match.end() for match in re.finditer(pattern, text)]
        best = min(positions, key=lambda at: abs(at - want), default=-len(text))
        if abs(best - want) <= len(text) * NEAR:
            return best
    after = re.search(r"\s", text[want:])
    return want + after.end() if after else len(text)


def plant(text, depth, key, rule=RULES[0]):
    """Returns the text with the needle at `depth` and the question at the end."""
    at = position_near(text, depth)
    head = text[:at].rstrip() + "\n\n" if at else ""
    body = text[at:].strip("\n").rstrip()
    return head + NEEDLE.format(key=key) + ("\n\n" + body if body else "") + rule + QUESTION


def make(record, depth, seed, size, tokens=None):
    """Returns the output record of one text. size: in tokens, or characters if `tokens` is None."""
    text, name = record["text"], str(record.get("id", ""))
    key = passkey(seed, name, text)
    count = tokens.count if tokens else len
    for rule in RULES:
        whole = kp.fit(text, size, count, lambda cut, rule=rule: plant(cut, depth, key, rule))
        if whole is not None:
            break
    else:
        whole_count = count(plant(text, depth, key))
        unit = "tokens" if tokens else "characters"
        raise kp.PromptError(f"{name}: {whole_count} {unit} with needle and question, expected at "
                             f"least {size}, and a cut of as many")
    # The cut is unknown here, but planted text occurs once.
    needle = NEEDLE.format(key=key)
    begin, ask = whole.index(needle), len(whole) - len(QUESTION)
    out = {**{k: v for k, v in record.items() if k not in ("text", "tokens")}, "answer": key,
           "depth": depth, "seed": seed, "needle_chars": [begin, begin + len(needle)],
           "question_chars": [ask, len(whole)]}
    if tokens:
        spans = tokens.spans(whole)
        inside = [i for i, (a, b) in enumerate(spans) if b > begin and a < begin + len(needle)]
        out |= {"needle_tokens": [inside[0], inside[-1] + 1], "tokens": size}
    return {**out, "text": whole}


def depths(text):
    try:
        out = [float(part) for part in text.split(",")]
    except ValueError:
        out = [-1.0]
    if not all(0 <= depth <= 1 for depth in out):
        raise argparse.ArgumentTypeError(f"got `{text}`, expected shares from 0 to 1")
    return out


def main(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("texts", metavar="TEXTS.jsonl")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.jsonl")
    parser.add_argument("--depth", type=depths, default=[0.1, 0.3, 0.5, 0.7], metavar="SHARE,...",
                        help="taken in turn [0.1,0.3,0.5,0.7]")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--tokens", type=command.positive, default=4096, metavar="N", help="length [4096]")
    size.add_argument("--chars", type=command.positive, metavar="N", help="length in characters instead")
    parser.add_argument("--model", metavar="MODEL", help="model whose tokenizer counts")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the passkeys [0]")
    args = parser.parse_args(arguments)
    if not args.chars and not args.model:
        parser.error("--tokens needs --model FOLDER, whose tokenizer counts")
    try:
        tokens = None if args.chars else kp.Tokens(args.model)
        records = kp.read_jsonl(args.texts)
        out = [make(record, args.depth[i % len(args.depth)], args.seed, args.chars or args.tokens,
                    tokens) for i, record in enumerate(records)]
        if not out:
            raise kp.PromptError(f"{args.texts}: no texts")
        kp.write_jsonl(args.output, out)
    except (kp.PromptError, OSError) as error:
        print(one_line(f"kvbench-study needles: {error}"), file=sys.stderr)
        return 2
    print(f"{args.output}: {len(out)} prompts")
    return 0
