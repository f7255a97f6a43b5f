"""One language of options: in kvbench, kvbench-py and kvbench-study an option of one name takes one kind of value."""

import argparse
import collections
import os
import re
import sys
import unittest

from script_case import KVBENCH, ROOT, FolderCase, missing

sys.path.append(os.path.join(ROOT, "studies", "reference"))

MISSING = missing("numpy", "pandas", "matplotlib", "scipy", "h5py", "sklearn")
# Options that are still apart: numbers or files of what is made, and what to choose from what is there.
APART = {"kvbench synth": {"--prompts", "--layers", "--kv-heads"}, "kvbench cluster": {"--k"},
              "kvbench verify": {"--trace"}, "kvbench-py policy": {"--prompts"}}
# Kinds of values, by what stands in the help for one; the first that matches.
KINDS = (("flag", ""), ("indices", r"N\|A:B.*"), ("names", "NAME|METHOD|LABEL|NAME,.*KEY=VALUES.*"), ("ids", "ID"),
         ("budgets", "RHO"), ("numbers", "N|M|X|D|S|G|SHARE|TOKENS|THETA|LEVEL|0..9|DEGREES"),
         ("paths", r".*(FILE|STEM|FOLDER|DIR|PROGRAM|KVBENCH)|[A-Za-z0-9-]*(\.[A-Za-z0-9]+)+"))


def kind_of(metavar):
    """The kind of value that a metavar stands for: `FILE`, `ID,...`, `float32|float64`."""
    text = re.sub(r",?\.\.\.$", "", metavar)
    for name, pattern in KINDS:
        if re.fullmatch(pattern, text):
            return name
    if text == "COLUMN":
        return "words"
    words = re.split(r"[|,]", text)
    return "words" if len(words) > 1 and all(re.fullmatch(r"[A-Za-z0-9:\[\]_.-]+", word) for word in words) else text


def options_of(parser):
    """[(option, metavar)] of a parser's long options."""
    for action in parser._actions:
        metavar = action.metavar[-1] if isinstance(action.metavar, tuple) else action.metavar
        if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
            metavar = ""
        elif metavar is None:
            metavar = "|".join(map(str, action.choices)) if action.choices else action.dest.upper()
        for option in action.option_strings:
            if option.startswith("--") and not option.startswith("--no-"):
                yield option, metavar


class OptionNamesTest(FolderCase):
    def of_the_program(self):
        """{command: [(option, metavar)]} of kvbench, from its help."""
        names = re.findall(r"^  ([a-z]+) ", self.program("--help").stdout.partition("Subcommands:")[2], re.M)
        return {f"kvbench {name}": re.findall(r"^  (?:-\w, )?(--[a-z][\w-]*)(?:,--[\w-]+)*(?: (\S+))?",
                                              self.program(name, "--help-all").stdout, re.M) for name in names}

    @unittest.skipIf(MISSING, f"lacks {', '.join(MISSING)}")
    def test_a_name_has_one_kind_of_value(self):
        from kvbench import completion, programs
        from kvbench_study import programs as study

        found = self.of_the_program() if KVBENCH else {}
        for commands in (programs.COMMANDS, study.COMMANDS):
            parsers = completion.parsers_of(commands)
            self.assertLessEqual(set(commands.programs), set(parsers))
            found |= {f"{commands.name} {name}": list(options_of(parser)) for name, parser in parsers.items()}
        kinds = collections.defaultdict(lambda: collections.defaultdict(list))
        for name, options in found.items():
            for option, metavar in options:
                if metavar == "TEXT" or option in APART.get(name, ()):  # TEXT: CLI11's word for any
                    continue
                kinds[option][kind_of(metavar)].append(f"{name} {option} {metavar}")
        for option, by_kind in kinds.items():
            with self.subTest(option):
                self.assertEqual(len(by_kind), 1, dict(by_kind))
