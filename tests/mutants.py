#!/usr/bin/env python3
"""Mistakes that are put into the device code, one at a time, and must be seen by the tests on the
emulated device. Prints a line for each; exit status 1 where one was missed.

    tests/mutants.py BUILD [WORD ...]

BUILD: a built folder (Ninja). WORD: only mutants that it is part of.

The tree is not touched: a mutant is compiled from a copy in front of lib/.
"""

import concurrent.futures
import os
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TARGET = "kvbench_emulated_tests"
SECONDS = 200  # a test that hangs has seen it
SYNC = "__syncthreads();"

# What, the file in lib/gpu, what stands there, what takes its place, the tests that must see it.
MUTANTS = [
    ("missing sync", "attend.cu", f"{SYNC}\n      add_products(q", "add_products(q", "Attention"),
    ("missing sync", "attend.cu", f"add_products(w, v, tile.rows, sum);\n      {SYNC}",
     "add_products(w, v, tile.rows, sum);", "Attention"),
    ("missing sync", "products.cuh", f"    {SYNC}\n    KVB_UNROLL", "    KVB_UNROLL", "Balance*:*Facility*:*Nearest"),
    ("missing sync", "rows.cu", f"{SYNC}\n    if (joins[i])", "if (joins[i])", "Rows"),
    ("missing sync", "team.cuh", f"      f(i);\n    }}\n    {SYNC}", "      f(i);\n    }", "Team"),
    ("missing sync", "block.cuh", f"result = x;\n  }}\n  {SYNC}", "result = x;\n  }", "*"),
    ("transposed layout", "attend.cu", "k[x % kDepth][x / kDepth] =", "k[x / kWidth][x % kWidth] =", "Attention"),
    ("transposed layout", "products.cuh", "y[r] = b[t][tile_column(r)]", "y[r] = b[t][tile_row(r)]",
     "Balance*:*Facility*:*Nearest"),
    ("sum for maximum", "attend.cu", "shift = block_reduce<kThreads>(shift, Max());",
     "shift = block_reduce<kThreads>(shift, Plus());", "Attention"),
    ("sum for maximum", "team.cuh", "return block_reduce<kThreads>(own, Max());",
     "return block_reduce<kThreads>(own, Plus());", "Team"),
    ("missing wait", "cuda.cuh", '"copying from the device", device_->ordinal());\n'
     "      device_->wait();", '"copying from the device", device_->ordinal());', "*"),
    ("missing wait", "rows.cu", "points_{matrix_.data(), nullptr, rows.rows, rows.cols} {\n"
     "  device_.wait();", "points_{matrix_.data(), nullptr, rows.rows, rows.cols} {", "Rows"),
    ("missing wait", "rows.cu", "static_cast<Index>(rows.size()), cols} {\n  device_.wait();",
     "static_cast<Index>(rows.size()), cols} {", "Rows"),
    ("off by one", "attend.cu", "s * kSlab < query.seen", "s * kSlab + 1 < query.seen", "Attention"),
    ("off by one", "attend.cu", "i < query.seen ? (", "i <= query.seen ? (", "Attention"),
    ("off by one", "rows.cu", "if (now.clusters == to.max_clusters)", "if (now.clusters > to.max_clusters)", "Rows"),
    ("race", "team.cuh", "once([&] { count = 0; });", "if (threadIdx.x == 0) { count = 0; }", "Team"),
    ("race", "team.cuh", f"const Index all = count;\n    {SYNC}", "const Index all = count;", "Team"),
    ("race", "team.cuh", f"const double out = sum;\n    {SYNC}", "const double out = sum;", "Team"),
    ("race", "rows.cu", "    own[lane][r] = acc[r];\n  }\n  __syncwarp();", "    own[lane][r] = acc[r];\n  }", "Rows"),
    ("race", "rows.cu", "    acc[r] = own[r][lane];\n  }\n  __syncwarp();", "    acc[r] = own[r][lane];\n  }", "Rows"),
    ("wrong stream", "cuda.cuh", "pointers, 0,\n                                 "
     "cudaStreamPerThread)", "pointers, 0,\n                                 nullptr)", "*"),
    ("wrong stream", "cuda.cuh", "cudaMemcpyHostToDevice,\n                            "
     "cudaStreamPerThread)", "cudaMemcpyHostToDevice,\n                            nullptr)", "*"),
    ("leaked allocation", "cuda.cuh", "      device_->release(data_);", "", "*"),
]


def command_of(build, target):
    """The command line that makes it, as a list."""
    lines = subprocess.run(["ninja", "-C", build, "-t", "commands", "-s", target],
                           check=True, capture_output=True, text=True).stdout
    line = [part for part in lines.splitlines() if not part.startswith("ninja:")][-1]
    return [word for word in shlex.split(line) if word not in ("&&", ":", "ccache")]


def objects_with(build, file):
    """The tests' objects that include the file."""
    deps = subprocess.run(["ninja", "-C", build, "-t", "deps"], check=True, capture_output=True, text=True).stdout
    for part in deps.split("\n\n"):
        name = part.split(":")[0]
        if f"/{TARGET}.dir/" in name and re.search(rf"/lib/gpu/{re.escape(file)}$", part, re.M):
            yield name


def compiled(build, folder, file, name):
    """Compiles one object with the mutant in front of lib/; its new path."""
    command = command_of(build, name)
    out = os.path.join(folder, name.replace("/", "_"))
    command[command.index("-o") + 1] = out
    at = command.index("-MD")
    del command[at:at + 5]  # -MD -MT x -MF x
    first = next(i for i, word in enumerate(command) if word.startswith("-I"))
    command[first:first] = [f"-I{folder}"]
    command += ["-Wno-error"]
    # Files that say "gpu/..." find the copy; a .cu file itself is included by its wrapper.
    run = subprocess.run(command, cwd=build, capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(f"{file}: the mutant does not compile\n{run.stderr[-2000:]}")
    return out


def seen(build, file, old, new, tests):
    """Whether the tests fail with the mutant."""
    with open(os.path.join(ROOT, "lib", "gpu", file), encoding="utf-8") as source:
        text = source.read()
    if text.count(old) == 0:
        raise SystemExit(f"{file}: has no `{old}`")
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "gpu"))
        with open(os.path.join(folder, "gpu", file), "w", encoding="utf-8") as copy:
            copy.write(text.replace(old, new))
        names = list(objects_with(build, file))
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            made = dict(zip(names, pool.map(lambda n: compiled(build, folder, file, n), names)))
        link = [made.get(word, word) for word in command_of(build, TARGET)]
        program = os.path.join(folder, "tests")
        link[link.index("-o") + 1] = program
        subprocess.run(link, cwd=build, check=True)
        filters = f"*{tests}*-GpuReplay.*:GpuStreams.*:GpuCluster.*"
        try:
            return subprocess.run([program, "--gtest_brief=1", "--gtest_fail_fast",
                                   f"--gtest_filter={filters}"], capture_output=True,
                                  timeout=SECONDS, env={**os.environ, "TEST_TMPDIR": folder}
                                  ).returncode != 0
        except subprocess.TimeoutExpired:
            return True


def main():
    build = os.path.abspath(sys.argv[1])
    missed = 0
    for what, file, old, new, tests in MUTANTS:
        if not any(word in f"{what} {file}" for word in sys.argv[2:] or [""]):
            continue
        found = seen(build, file, old, new, tests)
        missed += not found
        gone = " ".join(old.split())
        print(f"{'seen  ' if found else 'MISSED'}  {what:18} {file:14} {gone}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
