#!/usr/bin/env python3
"""Reports the line coverage of lib/ by the tests that ran in a build.

  scripts/coverage.py BUILD_DIR [--least PERCENT] [--jobs N]

BUILD_DIR: a build with KVBENCH_COVERAGE (CMake's preset `asan`) whose tests have run. Prints the coverage
per module and the files with the most uncovered lines, and writes BUILD_DIR/coverage: index.html with
every source, coverage.txt with the uncovered lines. Exit code 1 if the coverage is below PERCENT. Run by
`make coverage`.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHOWN = 10


def share(covered, total):
    return 100.0 * covered / total if total else 100.0


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD_DIR")
    parser.add_argument("--least", type=float, default=0.0, metavar="PERCENT",
                        help="least coverage of lib/ [0]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N",
                        help="parallel processes of gcov [all cores]")
    options = parser.parse_args(arguments)
    if shutil.which("gcovr") is None:
        print("coverage.py: gcovr: no such program; run scripts/bootstrap.sh test",
              file=sys.stderr)
        return 2
    counts = pathlib.Path(options.build, "CMakeFiles", "kvbench_lib.dir")
    if next(counts.rglob("*.gcda"), None) is None:
        print(f"coverage.py: {counts}: no counts, expected a build with KVBENCH_COVERAGE whose tests have run",
              file=sys.stderr)
        return 2
    # Of sources that were renamed or removed: gcovr would stop at their old lines.
    if shutil.which("ninja") and os.path.exists(os.path.join(options.build, "build.ninja")):
        subprocess.run(["ninja", "-C", options.build, "-t", "cleandead"], check=True, stdout=subprocess.DEVNULL)
    for notes in counts.rglob("*.gcno"):
        if not notes.with_suffix(".o").exists():
            notes.unlink()
    report = os.path.join(options.build, "coverage")
    os.makedirs(report, exist_ok=True)
    summary = os.path.join(report, "summary.json")
    # gcov derives counts of lines from their neighbours; they are negative where threads lost counts.
    words = ["gcovr", "--root", ROOT, "--filter", "lib/", "-j", str(options.jobs),
             "--gcov-ignore-parse-errors", "--json-summary", summary,
             "--txt", os.path.join(report, "coverage.txt"),
             "--html-details", os.path.join(report, "index.html")]
    done = subprocess.run([*words, str(counts)], cwd=ROOT, check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout + f"coverage.py: gcovr ended with {done.returncode}", file=sys.stderr)
        return 3
    with open(summary, encoding="utf-8") as file:
        files = json.load(file)["files"]
    modules = {}
    for one in files:
        module = "/".join(one["filename"].split("/")[:2])
        covered, total = modules.get(module, (0, 0))
        modules[module] = covered + one["line_covered"], total + one["line_total"]
    modules["lib"] = tuple(map(sum, zip(*modules.values()))) or (0, 0)
    for module, (covered, total) in sorted(modules.items()):
        print(f"{module:16} {covered:6} of {total:6} lines  {share(covered, total):5.1f} %")
    print("files with the most uncovered lines:")
    for one in sorted(files, key=lambda f: f["line_covered"] - f["line_total"])[:SHOWN]:
        if one["line_covered"] < one["line_total"]:
            print(f"{one['line_total'] - one['line_covered']:6}  {one['filename']}")
    print(f"excluded: CUDA sources; report: {report}/index.html")
    if not modules["lib"][1] or share(*modules["lib"]) < options.least:
        print(f"coverage.py: got a coverage of {share(*modules['lib']):.2f} %, expected at least "
              f"{options.least:g} %", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
