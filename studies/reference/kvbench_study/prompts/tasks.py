"""Makes tasks with a known answer from texts: keys and facts to find, a variable to follow, words to count,
two instructions to obey.

    kvbench-study tasks build/prompts/smollm2-135m/prose.jsonl -o tasks.jsonl --tokens 4096 \\
        --model build/models/smollm2-135m --questions questions.jsonl

Each input record, {"id": ..., "text": ...}, becomes one record per task: the text with lines
planted into its first three quarters, and a question at the end:

    one-key    one line has a code; the question asks for it. Wrong: three other codes four-keys
    four lines have codes; the question asks for one of them. Wrong: the other three variable   two
    chains of three assignments; the question asks for the last value of one.
               Wrong: the other chain's number, and two other numbers
    count      four words are planted 18, 3, 2 and 1 times; the question asks for the most frequent.
               Wrong: the other three
    fact       four sentences say where four people found work; the question asks for one of them.
               Wrong: the other three countries
    first-rule, second-rule
               two instructions say how to answer two questions; one of these is asked. The text before
               the question is the same in both tasks. Wrong: the other answer, and two other words

The text is cut to exactly --tokens tokens of the model's tokenizer; with --chars N to N characters,
without a tokenizer. All choices depend on --seed, the task and the record's id only; planted text
does not occur in the input. Only records of --set [test] or without a set are used.

New fields: task; question; answer; wrong; planted, [begin, end) of each planted line in the text;
question_chars; seed, tokens. `filler` is the input's id; the output's is FILLER-TASK. Answers and
wrong answers follow the text after one space, and are equally long: codes and numbers have five
digits, words and countries one token each (with --chars: five letters). The question is part of the text;
`--scores past` hides it from methods. --questions writes records {id, text} of the questions, for
`kvbench-py dump --extra text:FILE`.
"""

import argparse
import hashlib
import sys

from kvbench import command
from kvbench.text import one_line
from kvbench_study.prompts import records as kp
from kvbench_study.prompts.needles import position_near

FIRST, LAST = 0.04, 0.75  # share of the text where lines may be planted
# Before the question; later ones are tried if no cut fits, since numbers and code leave gaps in the
# possible lengths.
RULES = ("\n\n", "\n\n***\n\n", "\n", "\n\n---\n\n", "\n\n* * *\n\n", "\n\n* * * *\n\n")
COLOURS = ("amber", "azure", "coral", "crimson", "ebony", "emerald", "indigo", "ivory", "lilac", "maroon",
           "olive", "purple", "scarlet", "silver", "turquoise", "violet")
THINGS = ("anchor", "balloon", "basket", "candle", "compass", "drum", "feather", "hammer", "kettle", "ladder",
          "lantern", "mirror", "pillow", "ribbon", "saddle", "trumpet")
# Five letters, and one token after a space in English vocabularies.
WORDS = ("apple", "beach", "bread", "chair", "cloud", "dance", "dress", "fruit", "grass", "heart", "horse",
         "knife", "lemon", "metal", "mouse", "music", "ocean", "paint", "piano", "plate", "queen", "river",
         "salad", "sheep", "shirt", "smoke", "snake", "storm", "sugar", "tiger", "tooth", "tower", "train",
         "uncle", "wheel", "whale")
COUNTS = (18, 3, 2, 1)
COUNTRIES = ("Benin", "Chile", "China", "Egypt", "Gabon", "Ghana", "Haiti", "India", "Italy", "Japan", "Kenya",
             "Libya", "Malta", "Nepal", "Qatar", "Spain", "Sudan", "Syria", "Tibet", "Wales", "Yemen")
PEOPLE = ("Agnes Thorne", "Bertil Holm", "Clara Voss", "Dora Lind", "Edmund Pike", "Felix Marsh", "Greta Olsen",
          "Hugo Farrow", "Irene Wells", "Jonas Kemp", "Lydia Frost", "Martin Shaw", "Nora Quill", "Oscar Blythe")
ASKED = ("the name of the ship", "the sign of the day", "the word on the door", "the colour of the flag",
         "the title of the song", "the name of the horse")


class Choices:
    """Random choices from a seed and a name, the same on every machine and version of Python."""

    def __init__(self, *names):
        self.prefix, self.drawn = "/".join(map(str, names)), 0

    def number(self, below):
        digest = hashlib.sha256(f"{self.prefix}/{self.drawn}".encode()).digest()
        self.drawn += 1
        return int.from_bytes(digest[:8], "big") % below

    def share(self):
        return self.number(1 << 32) / (1 << 32)

    def shuffled(self, items):
        out = list(items)
        for at in range(len(out) - 1, 0, -1):
            other = self.number(at + 1)
            out[at], out[other] = out[other], out[at]
        return out

    def codes(self, count, text):
        """Returns different numbers of five digits that do not occur in the text."""
        out = []
        for _ in range(1000):
            code = str(10000 + self.number(90000))
            if code not in text and code not in out:
                out.append(code)
                if len(out) == count:
                    return out
        raise kp.PromptError("no five digits are left that the text has not")

    def names(self, count, text):
        """Returns pairs of a colour and a thing that do not occur in the text."""
        lower = text.lower()
        out = []
        for colour, thing in zip(self.shuffled(COLOURS), self.shuffled(THINGS)):
            if f"{colour} {thing}" not in lower and thing not in [name.split()[1] for name in out]:
                out.append(f"{colour} {thing}")
        if len(out) < count:
            raise kp.PromptError(f"the text has all but {len(out)} of the names, expected {count} to be left")
        return out[:count]

    def spread(self, count):
        """Returns ascending depths from FIRST to LAST, one in each equal part."""
        part = (LAST - FIRST) / count
        return [FIRST + part * (at + self.share()) for at in range(count)]


def absent(choices, candidates, text, single, count):
    """Returns `count` of the candidates, one token each after a space, that the text has not."""
    lower = text.lower()
    out = [word for word in choices.shuffled(candidates) if word.lower() not in lower and single(" " + word)]
    if len(out) < count:
        raise kp.PromptError(f"{len(out)} words are left that the text has not, expected {count}")
    return out[:count]


# --- Tasks: what is planted, [(depth, line)], the question, the answer, wrong ones -----------------


def one_key(choices, text, single):
    codes, (name,) = choices.codes(4, text), choices.names(1, text)
    return (list(zip(choices.spread(1), [f"The code of the {name} is {codes[0]}."])),
            f"What is the code of the {name}? The code of the {name} is", codes[0], codes[1:])


def four_keys(choices, text, single):
    codes, names = choices.codes(4, text), choices.names(4, text)
    lines = [f"The code of the {name} is {code}." for name, code in zip(names, codes)]
    asked = choices.number(4)
    return (list(zip(choices.spread(4), lines)),
            f"What is the code of the {names[asked]}? The code of the {names[asked]} is",
            codes[asked], [code for code in codes if code != codes[asked]])


def variable(choices, text, single):
    """The lines of the two chains alternate."""
    values = choices.codes(4, text)
    letters = choices.shuffled("ABCDEFGHJKLMNPQRSTUVWXYZ")
    names = [f"VAR_{one}{two}" for one, two in zip(letters[::2], letters[1::2])]
    chains = (names[:3], names[3:6])
    lines = []
    for at in range(3):
        for chain, value in zip(chains, values):
            lines.append(f"{chain[at]} = {value if at == 0 else chain[at - 1]}.")
    asked = choices.number(2)
    last = chains[asked][2]
    return (list(zip(choices.spread(6), lines)),
            f"Which number does {last} hold in the end? The number that {last} holds is",
            values[asked], [value for value in values if value != values[asked]])


def count(choices, text, single):
    words = absent(choices, WORDS, text, single, len(COUNTS))
    drawn = choices.shuffled([word for word, times in zip(words, COUNTS) for _ in range(times)])
    lines = [f"The signal says: {word}." for word in drawn]
    return (list(zip(choices.spread(len(lines)), lines)),
            "Which word did the signal say most often? The signal says:", words[0], words[1:])


def fact(choices, text, single):
    countries = absent(choices, COUNTRIES, text, single, 4)
    people = absent(choices, PEOPLE, text, lambda word: True, 4)
    lines = [f"In the end {person} found work in {country} and never came back."
             for person, country in zip(people, countries)]
    asked = choices.number(4)
    return (list(zip(choices.spread(4), lines)),
            f"Where did {people[asked]} find work? In the end {people[asked]} found work in",
            countries[asked], [country for country in countries if country != countries[asked]])


def rule(choices, text, single, asked):
    """asked: 0, the first of the two instructions; 1, the second."""
    words = absent(choices, WORDS, text, single, 4)
    things = choices.shuffled(ASKED)[:2]
    lines = [f"Instruction: when someone asks for {thing}, answer with the word {word}."
             for thing, word in zip(things, words)]
    return (list(zip(choices.spread(2), lines)),
            f"Someone asks for {things[asked]}. Following the instruction, answer with the word",
            words[asked], [word for word in words if word != words[asked]])


TASKS = {"one-key": one_key, "four-keys": four_keys, "variable": variable, "count": count, "fact": fact,
         "first-rule": lambda *given: rule(*given, 0), "second-rule": lambda *given: rule(*given, 1)}
# Tasks that make the same choices, so that their prompts differ in the question alone.
DRAWN_AS = {"first-rule": "rules", "second-rule": "rules"}


# --- Records -----------------------------------------------------------------------------------


def line_positions(text, planted, question, size, counted):
    """Returns the position of each line, near its depth in the part of the text that is likely to
    be kept.

    Positions do not depend on the cut, so that a longer cut has more tokens.
    """
    added = counted(RULES[0] + question + "".join("\n\n" + line for _, line in planted))
    left = text[:max(0, round(len(text) * min(1, (size - added) / counted(text))))]
    out = []
    for depth, _ in planted:
        out.append(max(position_near(left, depth), *out[-1:], 0))
    return out


def plant(text, positions, planted, question, rule=RULES[0]):
    """Returns the text with each line as a paragraph at its position, and the question at the
    end.
    """
    parts = [text[begin:end].strip("\n").rstrip() for begin, end in zip([0, *positions], [*positions, len(text)])]
    lines = [line for _, line in planted]
    paragraphs = [one for part, *line in zip(parts, [*lines, ""]) for one in (part, *line) if one]
    return "\n\n".join(paragraphs) + rule + question


def make(record, task, seed, size, tokens=None):
    """Returns the output record of one text and task. size: in tokens, or characters if `tokens` is
    None.
    """
    text, name = record["text"], str(record.get("id", ""))
    counted = tokens.count if tokens else len
    single = (lambda word: tokens.count(word) == 1) if tokens else (lambda word: True)
    try:
        planted, question, answer, wrong = TASKS[task](Choices(seed, DRAWN_AS.get(task, task), name), text, single)
    except kp.PromptError as error:
        raise kp.PromptError(f"{name}, {task}: {error}") from None
    positions = line_positions(text, planted, question, size, counted)
    for rule in RULES:
        whole = kp.fit(text, size, counted,
                       lambda cut, rule=rule: plant(cut, positions, planted, question, rule))
        if whole is not None:
            break
    else:
        unit = "tokens" if tokens else "characters"
        got = counted(plant(text, positions, planted, question))
        raise kp.PromptError(f"{name}, {task}: {got} {unit} with what is planted, expected at least "
                             f"{size}, and a cut of as many")
    spans, begin = [], 0
    for _, line in planted:
        begin = whole.index(line, begin)
        spans.append([begin, begin + len(line)])
        begin += len(line)
    ask = len(whole) - len(question)
    kept = {key: value for key, value in record.items() if key not in ("text", "tokens", "id", "start")}
    return {"id": f"{name}-{task}", **kept, "filler": name, "task": task, "question": question,
            "answer": answer, "wrong": wrong, "seed": seed, "planted": spans,
            "question_chars": [ask, len(whole)], **({"tokens": size} if tokens else {}), "text": whole}


def task_list(text):
    names = text.split(",")
    for name in names:
        if name not in TASKS:
            raise argparse.ArgumentTypeError(f"got `{name}`, expected {', '.join(TASKS)}")
    return names


def main(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("texts", nargs="+", metavar="TEXTS.jsonl")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.jsonl")
    parser.add_argument("--tasks", type=task_list, default=list(TASKS), metavar="TASK,...",
                        help=f"which [{','.join(TASKS)}]")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--tokens", type=command.positive, default=4096, metavar="N", help="length [4096]")
    size.add_argument("--chars", type=command.positive, metavar="N", help="length in characters instead")
    parser.add_argument("--model", metavar="MODEL", help="model whose tokenizer counts")
    parser.add_argument("--set", default="test", metavar="SET", help="only records of this set [test]")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of all choices [0]")
    parser.add_argument("--questions", metavar="FILE.jsonl", help="the questions alone, with the same ids")
    args = parser.parse_args(arguments)
    if not args.chars and not args.model:
        parser.error("--tokens needs --model FOLDER, whose tokenizer counts")
    try:
        tokens = None if args.chars else kp.Tokens(args.model)
        records = [record for path in args.texts for record in kp.read_jsonl(path)
                   if record.get("set", args.set) == args.set]
        if not records:
            raise kp.PromptError(f"{', '.join(args.texts)}: no texts of set {args.set}")
        out = [make(record, task, args.seed, args.chars or args.tokens, tokens)
               for record in records for task in args.tasks]
        kp.write_jsonl(args.output, out)
        if args.questions:
            kp.write_jsonl(args.questions, [{"id": r["id"], "text": r["question"]} for r in out])
    except (kp.PromptError, OSError) as error:
        print(one_line(f"kvbench-study tasks: {error}"), file=sys.stderr)
        return 2
    print(f"{args.output}: {len(out)} prompts, {len(args.tasks)} tasks over {len(records)} texts")
    return 0
