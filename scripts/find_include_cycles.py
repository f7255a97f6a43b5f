#!/usr/bin/env python3
"""Lists include cycles of lib/.

    scripts/find_include_cycles.py

A stem is foo.hpp with foo.cpp, foo.cu, ..., named by its path below lib/. It includes the stems in the
#include "module/foo.hpp" lines of its files. A cycle is a set of at least two stems that
include one another, directly or through others.

Prints a line per cycle, and its includes. Exit code: 0; 1, there is a cycle; 2, bad usage.
"""

import argparse
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)
SOURCES = (".hpp", ".h", ".cpp", ".cu", ".cuh", ".inc", ".in")


def graph_of(lib):
    """{stem: included stems}."""
    names = [os.path.relpath(os.path.join(folder, name), lib) for folder, _, files in os.walk(lib)
             for name in files if name.endswith(SOURCES)]
    graph = {os.path.splitext(name)[0]: set() for name in names}
    for name in names:
        stem = os.path.splitext(name)[0]
        with open(os.path.join(lib, name), encoding="utf-8") as file:
            targets = {os.path.splitext(target)[0] for target in INCLUDE.findall(file.read())}
        graph[stem] |= targets & graph.keys() - {stem}
    return graph


def reachable(graph, start):
    seen = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - seen
        seen |= new
        todo += new
    return seen


def cycles(graph):
    """Sorted tuples of stems that reach each other."""
    reach = {stem: reachable(graph, stem) for stem in graph}
    return sorted({tuple(sorted(other for other in reach[stem] if stem in reach[other]))
                   for stem in graph if stem in reach[stem]})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=ROOT, metavar="DIR", help="source tree")
    options = parser.parse_args()
    lib = os.path.join(options.root, "lib")
    if not os.path.isdir(lib):
        parser.error(f"{options.root} has no lib/")
    graph = graph_of(lib)
    found = cycles(graph)
    for cycle in found:
        print(f"cycle of {len(cycle)}: {','.join(cycle)}")
        for stem in cycle:
            print(f"  {stem} includes {', '.join(sorted(graph[stem] & set(cycle)))}")
    print(f"find_include_cycles: {len(graph)} stems, {len(found)} cycles")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
