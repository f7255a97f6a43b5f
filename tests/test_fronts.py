"""`kvbench-py`: every program of the package is one of its names; scripts/ holds tools of the repository."""

import os
import re
import subprocess
import sys
import tomllib
import unittest
from unittest import mock

from script_case import ROOT, SCRIPTS, FolderCase, call, missing, read_text

import kvbench
from kvbench import __main__ as entry
from kvbench import programs

FRONT = os.path.join(SCRIPTS, "kvbench-py")


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
        for name, program in programs.PROGRAMS.items():
            self.assertRegex(done.out, rf"(?m)^  {name} +{re.escape(program.about)}$")
        self.assertLess(max(map(len, done.out.splitlines())), 100)
        self.assertEqual(call(lambda: entry.run([]), "kvbench-py").code, 2)
        for words, says in ((["plots"], "kvbench-py: got `plots`, expected a program: "),
                            (["plot"], "kvbench-py plot: expected one of amnesia, "),
                            (["plot", "erorr"], "kvbench-py plot: got `erorr`, expected one of ")):
            done = call(lambda words=words: entry.run(words), "kvbench-py")
            self.assertEqual((done.code, done.out, done.err.count("\n")), (2, "", 1))
            self.assertTrue(done.err.startswith(says), done.err)
        done = call(lambda: entry.run(["plot", "--help"]), "kvbench-py")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(re.findall(r"^  (plot \S+) ", done.out, re.M),
                         [name for name in programs.PROGRAMS if name.startswith("plot ")])

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
