#!/usr/bin/env python3
"""clang-tidy over many sources at once: most of its time goes to the system's headers, which every
source includes again.

usage: scripts/tidy.py BUILD_DIR JOBS SOURCE...

BUILD_DIR holds compile_commands.json. Sources go in batches into one translation unit each; those
that give the same name to something of their own never share one. A batch with a finding, or one
that does not compile after all, is taken again source by source, and only that counts: what is
said is what clang-tidy says of each source alone. Two checks look at the unit's own file only, so
sources that give them something to look at are always taken alone.
Exit code: 0; 1 when a source has findings; 2, bad usage.
"""

import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys

BATCH = 8  # more would leave one job waiting for the other at the end
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Batches lie where no .clang-tidy may be found; the flags of GCC's own warnings are unknown to clang.
OPTIONS = [f"--config-file={ROOT}/.clang-tidy", "--quiet",
           "--extra-arg=-Wno-unknown-warning-option"]
# Sources of a batch are headers to clang-tidy: its usual filter, and they.
IN_BATCH = ["--header-filter=/(lib|apps)/[a-z_]+(/[a-z0-9_]+)?\\.(hpp|cuh|cpp)$"]
# misc-unused-using-decls and misc-unused-alias-decls.
MAIN_FILE_ONLY = re.compile(r"^\s*(using (typename )?[\w:]*::\w+;|namespace \w+ = )", re.MULTILINE)
NOISE = re.compile(r"^[0-9]+ warnings? (generated|treated).*\n?", re.MULTILINE)


def own_names(path):
    """Names that a source declares for itself alone: in the first column between `namespace {` and
    its end, which is how clang-format leaves them, and its macros."""
    names = set()
    inside = False
    with open(path, encoding="utf-8") as file:
        for line in file:
            macro = re.match(r"#\s*define (\w+)", line)
            if macro:
                names.add(macro[1])
            elif line.startswith("namespace {"):
                inside = True
            elif line.rstrip() == "}  // namespace":
                inside = False
            elif (inside or line.startswith("static ")) and re.match(r"(?!namespace|template)\w", line):
                found = re.match(r"(?:struct|class|enum class|enum|union|using) (\w+)", line) or \
                    re.search(r"(\w+)(?:\(|\[|\{| = |;)", line)
                if found:
                    names.add(found[1])
    return names


def is_single(path):
    with open(path, encoding="utf-8") as file:
        return MAIN_FILE_ONLY.search(file.read()) is not None


def batches_of(sources):
    """Lists of sources, no two of a list with a name in common."""
    batches = []  # [sources, their names]
    names = {source: own_names(source) for source in sources}
    single = [source for source in sources if is_single(source)]
    sources = [source for source in sources if source not in single]
    for source in sorted(sources, key=lambda each: (-len(names[each]), each)):
        for batch in batches:
            if len(batch[0]) < BATCH and not batch[1] & names[source]:
                batch[0].append(source)
                batch[1].update(names[source])
                break
        else:
            batches.append([[source], set(names[source])])
    return [batch[0] for batch in batches] + [[source] for source in single]


def write_batches(batches, commands, folder):
    """A unit for each batch, with all that any of its sources is compiled with; their paths."""
    os.makedirs(folder, exist_ok=True)
    units = []
    entries = []
    for number, batch in enumerate(batches):
        unit = os.path.join(folder, f"batch_{number}.cpp")
        with open(unit, "w", encoding="utf-8") as file:
            file.writelines(f'#include "{source}"  // NOLINT\n' for source in batch)
        words = []
        for source in batch:
            given = shlex.split(commands[source]["command"])
            given = given[:given.index("-o")]
            pairs = []
            for word in given[1:]:
                if pairs and pairs[-1] == ["-isystem"]:
                    pairs[-1].append(word)
                else:
                    pairs.append([word])
            words += [pair for pair in pairs if pair not in words]
        entries.append({"directory": commands[batch[0]]["directory"], "file": unit,
                        "arguments": ["c++", *(word for pair in words for word in pair), "-c", unit]})
        units.append(unit)
    with open(os.path.join(folder, "compile_commands.json"), "w", encoding="utf-8") as file:
        json.dump(entries, file)
    return units


def tidy(build, source, *options):
    """Whether clang-tidy passes the source, and all that it says."""
    result = subprocess.run(["clang-tidy", "-p", build, *OPTIONS, *options, source],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                            stdin=subprocess.DEVNULL)
    return result.returncode == 0, NOISE.sub("", result.stdout)


def main():
    if len(sys.argv) < 4 or sys.argv[1].startswith("-"):
        asked = sys.argv[1:] in (["--help"], ["-h"])
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    build = os.path.abspath(sys.argv[1])
    jobs = int(sys.argv[2])
    sources = [os.path.abspath(source) for source in sys.argv[3:]]
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        commands = {entry["file"]: entry for entry in json.load(file)}
    unknown = [source for source in sources if source not in commands]
    if unknown or not sources:
        print(f"tidy: {unknown[0] if unknown else 'nothing'}: not compiled in {build}")
        return 1
    batches = batches_of(sources)
    folder = os.path.join(build, "batches")
    many = [batch for batch in batches if len(batch) > 1]
    units = write_batches(many, commands, folder)
    clean = True
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        together = pool.map(lambda unit: tidy(folder, unit, *IN_BATCH)[0], units)
        alone = [source for batch, passed in zip(many, together) if not passed for source in batch]
        alone += [source for batch in batches if len(batch) == 1 for source in batch]
        for passed, said in pool.map(lambda source: tidy(build, source), alone):
            if not passed:
                clean = False
                print(said, end="", flush=True)
    print(f"tidy: {len(sources)} sources in {len(batches)} batches, {len(alone)} taken alone")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
