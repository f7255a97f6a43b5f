"""Python files that a step or a report runs; their digests decide whether it is still valid."""

import ast
import glob
import os

from kvbench.programs import PROGRAMS, find_program
from kvbench.reference import plan as rp


def of_reports():
    """Returns sorted paths from the root of all files that a report may run."""
    return sorted(path for pattern in ("scripts/*.py", "python/kvbench/**/*.py")
                  for path in glob.glob(pattern, root_dir=rp.ROOT, recursive=True)
                  if "/reference" not in path)


def named(words):
    """Returns files of a command's scripts, and of the program behind `kvbench-py`; paths from the
    root.
    """
    files = [word for word in words if word.endswith(".py")]
    if "kvbench-py" in words:
        name, _ = find_program(list(words[words.index("kvbench-py") + 1:]))
        files.append("python/kvbench/" + PROGRAMS[name].module.replace(".", "/") + ".py")
    return files


def imported(script):
    """Returns files that a script imports from its folder or from our package, as paths from the
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
             for folder in (os.path.dirname(script), "python") for end in (".py", "/__init__.py")]
    return [path for path in dict.fromkeys(paths) if os.path.isfile(os.path.join(rp.ROOT, path))]
