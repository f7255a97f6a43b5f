"""Compiler launcher of tests/test_extending.py: takes an object from another build of the tree.

    borrow.py TREE BUILD COPY COMPILER ARGUMENTS...

TREE was built in BUILD; COPY is a copy of TREE in which some files differ. The object of a source
is taken from BUILD where the source and all that it includes are equal in both trees and older than
the object. All else is compiled. A unit that CMake makes of several sources is known by their names.
"""

import filecmp
import os
import re
import shutil
import subprocess
import sys

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)
FOLDERS = ("lib", "apps", "tests")  # what the compiler searches behind the source's own


def sources_of(source, root):
    """The source, or those of a unit, relative to the root."""
    if not os.path.basename(source).startswith("unity_"):
        return [os.path.relpath(source, root)]
    with open(source, encoding="utf-8") as file:
        return [os.path.relpath(name, root) for name in INCLUDE.findall(file.read())]


def included(sources, root):
    """The sources and all files of the tree that they include, relative to the root."""
    found, waiting = set(), [*sources]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        with open(os.path.join(root, path), encoding="utf-8") as file:
            names = INCLUDE.findall(file.read())
        for name in names:
            places = [os.path.normpath(os.path.join(folder, name))
                      for folder in (os.path.dirname(path), *FOLDERS)]
            waiting += [place for place in places if os.path.isfile(os.path.join(root, place))][:1]
    return found


def object_of(source, output, tree, build, copy):
    """The object in BUILD to take, or None."""
    if not os.path.realpath(source).startswith(copy + os.sep) or os.path.isabs(output):
        return None
    if output.endswith(".gch"):  # valid only with the paths that it was made with as macros
        return None
    other = os.path.join(build, output)
    if not os.path.isfile(other):
        return None
    made = os.stat(other).st_mtime
    sources = sources_of(source, copy)
    if os.path.basename(source).startswith("unity_"):
        unit = os.path.join(build, os.path.relpath(source, os.getcwd()))
        if not os.path.isfile(unit) or sources_of(unit, tree) != sources:
            return None
    for path in included(sources, copy):
        first = os.path.join(tree, path)
        if (not os.path.isfile(first) or os.stat(first).st_mtime > made
                or not filecmp.cmp(first, os.path.join(copy, path), shallow=False)):
            return None
    return other


def main():
    tree, build, copy, *command = sys.argv[1:]
    if "-c" in command and "-o" in command:
        source, output = (command[command.index(flag) + 1] for flag in ("-c", "-o"))
        other = object_of(source, output, tree, build, copy)
        if other:
            shutil.copyfile(other, output)
            if "-MF" in command:
                with open(command[command.index("-MF") + 1], "w", encoding="utf-8") as file:
                    file.write(f"{output}: {source}\n")
            return 0
    # Optimization would take half of the time.
    return subprocess.call([*command, "-O0"])


if __name__ == "__main__":
    sys.exit(main())
