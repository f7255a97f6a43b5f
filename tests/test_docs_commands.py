"""Pages name only programs that exist. Those of docs/figures.md, docs/dump.md and docs/cli.md run as
they stand, in order, on the sample.

Blocks marked `sh` run in a folder that holds links to the source tree's data, scripts and configs,
with the program under test as build/kvbench; build and scripts are on the PATH, as figures.md says.
Output stays in that folder. Blocks marked `bash` need a model, other machines or minutes: of these
only the files that they name are looked for.
"""

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from script_case import KVBENCH, ROOT

from kvbench import programs

sys.path.append(os.path.join(ROOT, "studies", "reference"))
from kvbench_study import programs as study  # noqa: E402

# Everything that a block writes, by option: a command that wrote nothing must not pass.
WRITTEN = re.compile(r"(?:^|\s)(?:-o|--output)\s+([\w./${}-]+)")


def blocks(text):
    """(language, first line's number, text) of each fenced block."""
    out = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        out.append((match[1], text.count("\n", 0, match.start()) + 2, match[2]))
    return out


class Page:
    """The tests of a page; what is derived from it says which."""

    name = ""
    commands = ()  # that must be run
    named_files = 0  # at least
    anchors = 0  # links into pages, at least
    programs = ()  # that some blocks need, besides those of the repository

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(ROOT, "docs", cls.name), encoding="utf-8") as file:
            cls.page = file.read()

    def test_there_is_something_to_run(self):
        # A fence that is spelled otherwise would quietly leave everything out.
        run = [text for language, _, text in blocks(self.page) if language == "sh"]
        joined = "\n".join(run)
        for command in self.commands:
            self.assertIn(command, joined)
        self.assertEqual(self.page.count("```"), 2 * len(blocks(self.page)))
        languages = {language for language, _, _ in blocks(self.page)}
        self.assertLessEqual(languages, {"sh", "bash", "text", "toml"})

    def test_files_that_it_names_exist(self):
        commands = "\n".join(text for _, _, text in blocks(self.page))
        named = set(re.findall(r"\b((?:scripts|python|configs|data)/[\w/]+\.(?:py|sh|sbatch|toml|h5))", commands))
        named |= {os.path.normpath(os.path.join("docs", link))
                  for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", self.page)}
        self.assertGreaterEqual(len(named), self.named_files)
        absent = sorted(name for name in named if not os.path.exists(os.path.join(ROOT, name)))
        self.assertEqual(absent, [])

    def test_links_into_pages_find_their_headings(self):
        links = re.findall(r"\]\(([^)#:]+\.md)#([^)]+)\)", self.page)
        self.assertGreaterEqual(len(links), self.anchors)
        for page, anchor in links:
            with open(os.path.join(ROOT, "docs", page), encoding="utf-8") as file:
                headings = re.findall(r"^#+ (.+)$", file.read(), re.MULTILINE)
            self.assertIn(anchor, [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-")
                                   for h in headings])

    def test_commands_run_as_written(self):
        if not KVBENCH:
            self.skipTest("KVBENCH names no program")
        try:
            import h5py  # noqa: F401  (what the scripts of the page need)
            import matplotlib  # noqa: F401
            import pandas  # noqa: F401
        except ImportError as error:
            self.skipTest(f"{sys.executable} has no {error.name}")
        with tempfile.TemporaryDirectory() as folder:
            for name in ("data", "scripts", "python", "configs"):
                os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))
            os.mkdir(os.path.join(folder, "build"))
            os.symlink(os.path.abspath(KVBENCH), os.path.join(folder, "build", "kvbench"))
            environment = self.environment(folder)
            for language, line, text in blocks(self.page):
                if language != "sh":
                    continue
                with self.subTest(line=line):
                    for name in self.programs:
                        if name in text and shutil.which(name) is None:
                            self.skipTest(f"no {name} here")
                    result = subprocess.run(
                        ["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=environment,
                        capture_output=True, text=True, check=False)
                    self.assertEqual(result.returncode, 0, f"docs/{self.name}:{line}: "
                                                           f"{result.stderr[-2000:]}")
                    self.assertNotIn("Traceback", result.stderr)
                    self.expect_files(folder, text)

    def environment(self, folder):
        """The first `python3` has no packages, as on many machines; $PYTHON is this one, which has.
        A script in its place, since links confuse venvs."""
        tools = os.path.join(folder, "bin")
        os.mkdir(tools)
        python = os.path.join(tools, "python3")
        with open(python, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
        os.chmod(python, 0o755)
        inherited = {name: value for name, value in os.environ.items()
                     if name not in ("KVBENCH", "PYTHON")}
        return {**inherited, "PYTHON": sys.executable, "PATH": os.pathsep.join(
            (tools, os.path.join(folder, "build"), os.path.join(folder, "scripts"), os.environ["PATH"])),
                "MPLBACKEND": "Agg", "PYTHONDONTWRITEBYTECODE": "1"}

    def expect_files(self, folder, text):
        for name in WRITTEN.findall(text):
            stem = os.path.join(folder, re.sub(r"\$i|\{\}", "1", name))
            made = [stem] if "." in os.path.basename(name) else [stem, stem + ".png"]
            self.assertTrue(any(os.path.exists(path) for path in made), f"{name} was not made")
            for path in made:
                if os.path.isfile(path):
                    self.assertGreater(os.path.getsize(path), 0, path)


class ProgramsOfPagesTest(unittest.TestCase):
    """Of all pages, results included; CHANGELOG.md tells of programs of former versions."""

    def test_programs_that_pages_name_exist(self):
        found, absent = 0, []
        known = {front.name: front.programs for front in (programs.COMMANDS, study.COMMANDS)}
        for page in (path for folder in (".", "docs", "data", "results", "studies")
                     for path in glob.glob(os.path.join(ROOT, folder, "*.md" if folder == "." else "**/*.md"),
                                           recursive=True) if os.path.basename(path) != "CHANGELOG.md"):
            with open(page, encoding="utf-8") as file:
                text = file.read()
            scripts = set(re.findall(r"(?<![\w/.-])scripts/[\w/]+\.(?:py|sh|sbatch)", text))
            named = set(re.findall(r"^    (?:\S*python3? )?(?:scripts/|studies/reference/)?(kvbench-(?:py|study)) "
                                   r"((?:plot )?[a-z][a-z-]*)", text, re.M))
            found += len(scripts) + len(named)
            absent += [(os.path.relpath(page, ROOT), name) for name in sorted(scripts)
                       if not os.path.exists(os.path.join(ROOT, name))]
            absent += [(os.path.relpath(page, ROOT), front, name) for front, name in sorted(named)
                       if name not in known[front]]
            absent += [(os.path.relpath(page, ROOT), line) for line in re.findall(
                r"^ +\S*python3? kvbench-py .*", text, re.M)]  # a file that is in scripts/
        self.assertEqual(absent, [])
        self.assertGreater(found, 50)


class FiguresTest(Page, unittest.TestCase):
    name = "figures.md"
    commands = ("kvbench info", "kvbench replay", "kvbench cluster", "kvbench summarize", "kvbench verify",
                "kvbench-py plot ")
    named_files = 5


class DumpTest(Page, unittest.TestCase):
    name = "dump.md"
    commands = ("kvbench-py convert", "kvbench info")
    named_files = 4
    anchors = 1


class CliTest(Page, unittest.TestCase):
    name = "cli.md"
    commands = ("parallel --joblog", "kvbench merge", "--extend", "kvbench evaluate")
    named_files = 10
    anchors = 8
    programs = ("parallel",)


if __name__ == "__main__":
    unittest.main()
