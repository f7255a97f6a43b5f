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

from script_case import KVBENCH, ROOT, missing, read_text

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


# Pages whose blocks run; what they must show. A fence that is spelled otherwise would leave everything out.
PAGES = {
    "figures.md": ("kvbench info", "kvbench replay", "kvbench cluster", "kvbench summarize", "kvbench verify",
                   "kvbench-py plot "),
    "dump.md": ("kvbench-py convert", "kvbench info"),
    "cli.md": ("parallel --joblog", "kvbench merge", "--extend", "kvbench evaluate"),
}


@unittest.skipUnless(KVBENCH, "KVBENCH names no program")
@unittest.skipIf(missing("h5py", "matplotlib", "pandas"), f"{sys.executable} lacks h5py, matplotlib or pandas")
class CommandsTest(unittest.TestCase):
    def test_blocks_run(self):
        for name, shown in PAGES.items():
            with self.subTest(name):
                self.run_page(name, shown)

    def run_page(self, name, shown):
        page = read_text(os.path.join(ROOT, "docs", name))
        self.assertEqual(page.count("```"), 2 * len(blocks(page)))
        self.assertLessEqual({language for language, _, _ in blocks(page)}, {"sh", "bash", "text", "toml"})
        for command in shown:
            self.assertIn(command, "\n".join(text for language, _, text in blocks(page) if language == "sh"))
        with tempfile.TemporaryDirectory() as folder:
            for part in ("data", "scripts", "python", "configs"):
                os.symlink(os.path.join(ROOT, part), os.path.join(folder, part))
            os.mkdir(os.path.join(folder, "build"))
            os.symlink(os.path.abspath(KVBENCH), os.path.join(folder, "build", "kvbench"))
            environment = self.environment(folder)
            for language, line, text in blocks(page):
                if language != "sh":
                    continue
                with self.subTest(line=line):
                    if "parallel " in text and shutil.which("parallel") is None:
                        self.skipTest("no parallel here")
                    result = subprocess.run(
                        ["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=environment,
                        capture_output=True, text=True, check=False)
                    self.assertEqual(result.returncode, 0, f"docs/{name}:{line}: {result.stderr[-2000:]}")
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
            text = read_text(page)
            scripts = set(re.findall(r"(?<![\w/.-])scripts/[\w/]+\.(?:py|sh|sbatch)", text))
            for _, _, block in blocks(text):
                scripts |= set(re.findall(r"\b(?:python|configs|data)/[\w/]+\.(?:py|toml|h5)", block))
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
