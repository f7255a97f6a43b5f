#!/usr/bin/env python3
"""Measures the line coverage of lib/ by the unit tests and fuzz programs.

  scripts/coverage.py BUILD_DIR [--least PERCENT] [--jobs N]

Runs the programs of CMake's target `counted` in BUILD_DIR. Prints the coverage per module and the files
with the most uncovered lines, and writes BUILD_DIR/coverage: index.html with every source, coverage.txt
with the uncovered lines. Exit code 1 if a test failed or the coverage is below PERCENT. Run by
`make coverage`.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHOWN = 10
# Run only in the survey process (lib/trace/survey.hpp), which ends by _exit or a signal and cannot write
# counts. TraceHostile and TraceMutations test them.
SURVEY_SOURCES = ("survey_walk.cpp", "survey_dataset.cpp")
FUZZ_INPUTS = "20000"


def share(covered, total):
    return 100.0 * covered / total if total else 100.0


def commands(build, jobs):
    """(command, additional environment) of each program; the unit tests run in `jobs` parts."""
    def program(name):
        return os.path.join(os.path.abspath(build), name)

    for part in range(jobs):
        yield ([program("kvbench_tests_counted"), "--gtest_brief=1"],
               {"GTEST_TOTAL_SHARDS": str(jobs), "GTEST_SHARD_INDEX": str(part)})
    yield [program("fuzz_run_survey_counted"), FUZZ_INPUTS, "tests/data/small.h5"], {}
    yield (["bash", "tests/fuzz/caches.sh", program("fuzz_run_caches_counted"), FUZZ_INPUTS],
           {"KVBENCH": program("kvbench")})


def memory_folder():
    """A folder in memory, since runs wait for the disk after each table; None without 2 GB."""
    memory = "/dev/shm"
    return memory if os.path.isdir(memory) and shutil.disk_usage(memory).free > 2e9 else None


def run_all(build, jobs):
    """Whether all programs succeeded. Prints the output of failed ones to stderr."""
    good = True
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        running = []
        for i, (words, environment) in enumerate(commands(build, jobs)):
            said = os.path.join(folder, f"{i}.log")
            with open(said, "wb") as log:
                # Waiting threads must not spin: the programs run in parallel.
                running.append((words, said, subprocess.Popen(
                    words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT,
                    env={**os.environ, "OMP_WAIT_POLICY": "passive", "TMPDIR": folder,
                         "TEST_TMPDIR": folder, **environment})))
        for words, said, process in running:
            if process.wait() != 0:
                with open(said, encoding="utf-8", errors="replace") as log:
                    print(log.read() + f"coverage.py: {words[0]} ended with {process.returncode}",
                          file=sys.stderr)
                good = False
    return good


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", metavar="BUILD_DIR")
    parser.add_argument("--least", type=float, default=0.0, metavar="PERCENT",
                        help="least coverage of lib/ [0]")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N",
                        help="parallel programs [all cores]")
    options = parser.parse_args(arguments)
    if shutil.which("gcovr") is None:
        print("coverage.py: gcovr: no such program; run scripts/bootstrap.sh test",
              file=sys.stderr)
        return 2
    counts = pathlib.Path(options.build, "CMakeFiles", "kvbench_lib_counted.dir")
    if not counts.is_dir():
        print(f"coverage.py: {counts}: no such folder, expected a build of the target `counted`",
              file=sys.stderr)
        return 2
    # Of sources that were renamed or removed: gcovr would stop at their old lines.
    if shutil.which("ninja") and os.path.exists(os.path.join(options.build, "build.ninja")):
        subprocess.run(["ninja", "-C", options.build, "-t", "cleandead"], check=True, stdout=subprocess.DEVNULL)
    for notes in counts.rglob("*.gcno"):
        if not notes.with_suffix(".o").exists():
            notes.unlink()
    for old in counts.rglob("*.gcda"):
        old.unlink()
    if not run_all(options.build, options.jobs):
        return 1
    report = os.path.join(options.build, "coverage")
    os.makedirs(report, exist_ok=True)
    summary = os.path.join(report, "summary.json")
    # gcov derives counts of lines from their neighbours; they are negative where threads lost counts.
    words = ["gcovr", "--root", ROOT, "--filter", "lib/", "-j", str(options.jobs),
             "--gcov-ignore-parse-errors", "--json-summary", summary,
             "--txt", os.path.join(report, "coverage.txt"),
             "--html-details", os.path.join(report, "index.html")]
    for name in SURVEY_SOURCES:
        words += ["--exclude", "lib/trace/" + name.replace(".", r"\.")]
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
    print(f"excluded: {', '.join(SURVEY_SOURCES)}, CUDA sources; report: {report}/index.html")
    if not modules["lib"][1] or share(*modules["lib"]) < options.least:
        print(f"coverage.py: got a coverage of {share(*modules['lib']):.2f} %, expected at least "
              f"{options.least:g} %", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
