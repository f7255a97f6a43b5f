"""Python files that a step or a report runs; their digests decide whether it is still valid."""

import ast
import glob
import os

from kvbench import programs as package
from kvbench_study import programs as study
from kvbench_study.reference import plan as rp

HERE = "studies/reference"
# Package: its folder.
FOLDERS = {"kvbench": "python/kvbench", "kvbench_study": f"{HERE}/kvbench_study"}


def of_reports():
    """Returns sorted paths from the root of all files that a report may run: all but this runner's."""
    return sorted(path for pattern in (f"{folder}/**/*.py" for folder in FOLDERS.values())
                  for path in glob.glob(pattern, root_dir=rp.ROOT, recursive=True)
                  if not path.startswith(f"{FOLDERS['kvbench_study']}/reference/"))


def named(words):
    """Returns files of a command's scripts, and of the program behind `kvbench-py` or `kvbench-study`;
    paths from the root.
    """
    files = [word for word in words if word.endswith(".py")]
    for commands in (package.COMMANDS, study.COMMANDS):
        if commands.name in words:
            name, _ = commands.find(list(words[words.index(commands.name) + 1:]))
            files.append(f"{FOLDERS[commands.package]}/{commands.programs[name].module.replace('.', '/')}.py")
    return files


def imported(script):
    """Returns files that a script imports from its folder or from our packages, as paths from the
    root.
    """
    with open(os.path.join(rp.ROOT, script), encoding="utf-8") as file:
        try:
            tree = ast.parse(file.read())
        except SyntaxError:  # running it reports the error
            return []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    # Importing a.b runs a as well.
    stems = [os.path.join(*name.split(".")[:depth]) for name in names
             for depth in range(1, name.count(".") + 2)]
    paths = [os.path.join(folder, stem + end) for stem in stems
             for folder in (os.path.dirname(script), "python", HERE) for end in (".py", "/__init__.py")]
    return [path for path in dict.fromkeys(paths) if os.path.isfile(os.path.join(rp.ROOT, path))]
