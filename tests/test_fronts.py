"""`kvbench-py`: every program of the package is one of its names; scripts/ holds tools of the repository; helps, and
options of all programs."""

import argparse
import collections
import os
import re
import subprocess
import sys
import tomllib
import unittest
from unittest import mock

from script_case import KVBENCH, ROOT, SCRIPTS, FolderCase, call, missing, read_text

import kvbench
from kvbench import __main__ as entry
from kvbench import programs

sys.path.append(os.path.join(ROOT, "studies", "reference"))

FRONT = os.path.join(SCRIPTS, "kvbench-py")
TOOLS = sorted(name for name in os.listdir(SCRIPTS) if name.endswith(".py"))
NEED_TORCH = [name for name, program in programs.PROGRAMS.items() if "torch" in program.needs]
PACKAGES = missing("numpy", "pandas", "matplotlib", "scipy", "h5py", "sklearn")
# Options that are still apart: numbers or files of what is made, and what to choose from what is there.
APART = {"kvbench synth": {"--prompts", "--layers", "--kv-heads"}, "kvbench cluster": {"--k"},
         "kvbench verify": {"--trace"}, "kvbench-py policy": {"--prompts"}}
# Kinds of values, by what stands in the help for one; the first that matches.
KINDS = (("flag", ""), ("indices", r"N\|A:B.*"), ("names", "NAME|METHOD|LABEL|NAME,.*KEY=VALUES.*"), ("ids", "ID"),
         ("budgets", "RHO"), ("numbers", "N|M|X|D|S|G|SHARE|TOKENS|THETA|LEVEL|0..9|DEGREES"),
         ("paths", r".*(FILE|STEM|FOLDER|DIR|PROGRAM|KVBENCH)|[A-Za-z0-9-]*(\.[A-Za-z0-9]+)+"))


def python_files(folder):
    return {os.path.relpath(os.path.join(at, name), ROOT)
            for at, _, names in os.walk(os.path.join(ROOT, folder)) for name in names
            if name.endswith(".py")}


class ProgramsTest(FolderCase):
    def start(self, *words, front=FRONT, **environment):
        """The script, as a user starts it."""
        kept = {key: value for key, value in os.environ.items()
                if key not in ("PYTHON", "PYTHONPATH", "VIRTUAL_ENV")}
        return subprocess.run([front, *words], cwd=self.folder, env={**kept, **environment},
                              capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)

    def test_every_main_is_a_program(self):
        mains = {path for path in python_files("python")
                 if re.search(r"^(def main\(|@kk\.kind\()", read_text(os.path.join(ROOT, path)), re.MULTILINE)}
        named = {f"python/kvbench/{program.module.replace('.', '/')}.py" for program in programs.PROGRAMS.values()}
        self.assertEqual(mains - {"python/kvbench/__main__.py"}, named)
        for program in programs.PROGRAMS.values():
            if program.options:
                self.assertIn("def parse_arguments(", read_text(os.path.join(
                    ROOT, "python", "kvbench", *program.options.split(".")) + ".py"))

    def test_the_page_lists_the_tools_of_the_repository(self):
        named = re.search(r"tools of the repository: (.*?)\.\n\n", read_text(
            os.path.join(ROOT, "docs", "extending.md")), re.S)[1]
        self.assertEqual(set(re.findall(r"`(.+?)`", named)), set(python_files("scripts")))

    def test_the_package_installs_it(self):
        with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
            scripts = tomllib.load(file)["project"]["scripts"]
        self.assertEqual(scripts, {programs.NAME: "kvbench.__main__:main"})

    def test_help_and_unknown_names(self):
        done = call(lambda: entry.run(["--help"]), "kvbench-py")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(re.findall(rf"(?m)^  ({'|'.join(programs.PROGRAMS)}) +\S", done.out), [*programs.PROGRAMS])
        self.assertEqual(call(lambda: entry.run([]), "kvbench-py").code, 2)
        for words, says in ((["plots"], "kvbench-py: got `plots`, expected a program: "),
                            (["plot"], "kvbench-py plot: expected one of amnesia, "),
                            (["plot", "erorr"], "kvbench-py plot: got `erorr`, expected one of ")):
            done = call(lambda words=words: entry.run(words), "kvbench-py")
            self.assertEqual((done.code, done.out, done.err.count("\n")), (2, "", 1))
            self.assertTrue(done.err.startswith(says), done.err)

    @unittest.skipIf(missing("pandas", "matplotlib", "scipy"), "packages are missing")
    def test_completion(self):
        text = call(lambda: entry.run(["completion", "bash"]), "kvbench-py").out
        for words, expected in (("pl", "plot"), ("plot pa", "pareto"), ("policy choose --va", "--vary"),
                                ("policy choose --vary m", "methods"), ("compare --interval b", "bca"),
                                ("compare out", ""), ("--ver", "--version"), ("completion z", "zsh")):
            line = f"COMP_WORDS=(kvbench-py {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _kvbench_py\n"
            done = subprocess.run(["bash", "-uc", text + line + 'echo "${COMPREPLY[@]-}"'], capture_output=True,
                                  text=True, check=False)
            self.assertEqual((done.stdout, done.stderr), (expected + "\n", ""), words)

    def test_the_version(self):
        version = re.search(r"^version: (\S+)$", read_text(os.path.join(ROOT, "CITATION.cff")), re.M)[1]
        done = call(lambda: entry.run(["--version"]), "kvbench-py")
        self.assertEqual((done.code, done.out, kvbench.__version__), (0, f"kvbench-py {version}\n", version))
        with mock.patch.object(kvbench, "ROOT", self.folder), \
                mock.patch("importlib.metadata.version", return_value="1.2.3") as of:
            self.assertEqual(kvbench.__version__, "1.2.3")
        of.assert_called_once_with("kvbench")

    def test_errors_of_options_are_one_line(self):
        for name in programs.PROGRAMS:
            done = call(lambda name=name: entry.run([*name.split(), "--nope"]), "kvbench-py")
            self.assertEqual((done.code, done.out, done.err.count("\n")), (2, "", 1), done.err)
            self.assertTrue(done.err.startswith(f"kvbench-py {name}: "), done.err)

    @unittest.skipIf(missing("pandas", "matplotlib"), "no pandas, no matplotlib")
    def test_from_any_folder_and_by_a_link(self):
        os.symlink(FRONT, self.path("kv"))
        words = ["plot", "norms", "none.csv", "-o", "x"]
        for done in (self.start(*words, PYTHON=sys.executable),
                     self.start(*words, front=self.path("kv"), PYTHON=sys.executable),
                     self.start(FRONT, *words, front=sys.executable)):
            self.assertEqual((done.returncode, done.stderr),
                             (2, "kvbench-py plot norms: none.csv: no such file\n"))

    def test_the_script_knows_which_programs_run_a_model(self):
        script = read_text(os.path.join(SCRIPTS, "find_python.sh"))
        cases = dict(re.findall(r"^    ([a-z| ]+)\) needed=\(([a-z0-9 ]+)\) ;;$", script, re.M))
        known = {name: tuple(modules.split()) for names, modules in cases.items() for name in names.split(" | ")}
        self.assertEqual(known, {name: program.needs for name, program in programs.PROGRAMS.items()
                                 if "torch" in program.needs})


class HelpTest(FolderCase):
    """Every program says its help where torch and transformers are not installed, and those that need them say how to
    install them."""

    def start(self, name, *arguments, flags=()):
        """The program where torch and what comes with it cannot be found."""
        blocker = ("import importlib.util, sys\nfind = importlib.util.find_spec\nblocked = {'torch', "
                   "'transformers', 'gguf', 'tokenizers'}\nimportlib.util.find_spec = lambda name, *rest: "
                   "None if name in blocked else find(name, *rest)\n")
        script, *words = name.split()
        code = (f"{blocker}import runpy\nsys.argv = {[script, *words, *arguments]!r}\n"
                f"runpy.run_path({os.path.join(SCRIPTS, script)!r}, run_name='__main__')")
        return subprocess.run([sys.executable, *flags, "-c", code], text=True, capture_output=True,
                              check=False, stdin=subprocess.DEVNULL)

    @unittest.skipIf(PACKAGES, f"{sys.executable} lacks {', '.join(PACKAGES)}")
    def test_every_program_says_its_help(self):
        self.assertLessEqual({"dump", "score"}, set(NEED_TORCH))
        for name in (*TOOLS, *(f"kvbench-py {name}" for name in programs.PROGRAMS)):
            with self.subTest(name):
                # Those for models need no package for it.
                flags = ["-S"] if name.removeprefix("kvbench-py ") in NEED_TORCH else []
                done = self.start(name, "--help", flags=flags)
                self.assertEqual(done.returncode, 0, done.stderr)  # a slow machine says how long it takes
                self.assertRegex(done.stdout, rf"usage: (scripts/)?{name}")

    def test_a_wrong_word_is_said_before_torch_is_missed(self):
        for name in NEED_TORCH:
            done = self.start(f"kvbench-py {name}", "--no-such-option", flags=("-S",))
            self.assertEqual(done.returncode, 2)
            self.assertNotIn("has no torch", done.stderr)

    @unittest.skipIf(missing("numpy", "h5py"), f"{sys.executable} lacks numpy or h5py")
    def test_they_say_what_to_install(self):
        for name, words in (
                ("dump", ["--model", "m", "p.txt", "-o", "t.h5"]),
                ("score", ["--model", "m", "t.h5", "--caches", "c.h5", "-o", "s.csv"])):
            done = self.start(f"kvbench-py {name}", *words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), name)
            self.assertEqual(done.stderr, f"kvbench-py {name}: {sys.executable} has no torch, transformers: "
                                          "pip install torch 'transformers>=4.56'\n")


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
    """In kvbench, kvbench-py and kvbench-study an option of one name takes one kind of value."""

    def of_the_program(self):
        """{command: [(option, metavar)]} of kvbench, from its help."""
        names = re.findall(r"^  ([a-z]+) ", self.program("--help").stdout.partition("Subcommands:")[2], re.M)
        return {f"kvbench {name}": re.findall(r"^  (?:-\w, )?(--[a-z][\w-]*)(?:,--[\w-]+)*(?: (\S+))?",
                                              self.program(name, "--help-all").stdout, re.M) for name in names}

    @unittest.skipIf(PACKAGES, f"lacks {', '.join(PACKAGES)}")
    def test_a_name_has_one_kind_of_value(self):
        from kvbench import completion
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
