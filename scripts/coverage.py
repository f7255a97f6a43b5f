#!/usr/bin/env python3
"""Which lines of lib/ the tests ran, by room, from the counts of a build with KVBENCH_COVERAGE.

  scripts/coverage.py BUILD_DIR [--least PERCENT] [--jobs N]

Prints a line per room and the files with the most lines that nothing ran, and writes BUILD_DIR/report:
index.html with every source, coverage.txt with the numbers of such lines. Exit code 1 where fewer than
PERCENT of all lines ran. Run by `make coverage`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHOWN = 10
# Run only in the process that surveys a file (lib/trace/survey.hpp): it ends by _exit or is killed,
# and has no right to write counts. TraceHostile and TraceMutations test them.
IN_THE_SURVEY = ("survey_walk.cpp", "survey_dataset.cpp", "survey_driver.cpp")


def share(covered, total):
    return 100.0 * covered / total if total else 100.0


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD_DIR")
    parser.add_argument("--least", type=float, default=0.0, metavar="PERCENT", help="[0]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    options = parser.parse_args(arguments)
    if shutil.which("gcovr") is None:
        print("coverage.py: gcovr: no such program; scripts/bootstrap.sh test installs it",
              file=sys.stderr)
        return 2
    report = os.path.join(options.build, "report")
    os.makedirs(report, exist_ok=True)
    summary = os.path.join(report, "summary.json")
    words = ["gcovr", "--root", ROOT, "--filter", "lib/", "-j", str(options.jobs),
             "--json-summary", summary, "--txt", os.path.join(report, "coverage.txt"),
             "--html-details", os.path.join(report, "index.html")]
    for name in IN_THE_SURVEY:
        words += ["--exclude", "lib/trace/" + name.replace(".", r"\.")]
    counts = os.path.join(options.build, "CMakeFiles", "kvbench_lib.dir")
    done = subprocess.run([*words, counts], cwd=ROOT, check=False, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout + f"coverage.py: gcovr ended with {done.returncode}", file=sys.stderr)
        return 3
    with open(summary, encoding="utf-8") as file:
        files = json.load(file)["files"]
    if not files:
        print(f"coverage.py: {counts}: no counts, expected those of a build with KVBENCH_COVERAGE=ON "
              "whose tests ran", file=sys.stderr)
        return 2
    rooms = {}
    for one in files:
        room = "/".join(one["filename"].split("/")[:2])
        covered, total = rooms.get(room, (0, 0))
        rooms[room] = covered + one["line_covered"], total + one["line_total"]
    rooms["lib"] = tuple(map(sum, zip(*rooms.values())))
    for room, (covered, total) in sorted(rooms.items()):
        print(f"{room:16} {covered:6} of {total:6} lines  {share(covered, total):5.1f} %")
    print("most lines that no test runs:")
    for one in sorted(files, key=lambda f: f["line_covered"] - f["line_total"])[:SHOWN]:
        if one["line_covered"] < one["line_total"]:
            print(f"{one['line_total'] - one['line_covered']:6}  {one['filename']}")
    print(f"without {', '.join(IN_THE_SURVEY)} and CUDA sources; the report: {report}/index.html")
    if share(*rooms["lib"]) < options.least:
        print(f"coverage.py: {share(*rooms['lib']):.2f} % of the lines of lib/ ran, expected "
              f"{options.least:g} %", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
