"""docs/extending.md: its paths exist, and its lists for a method, a column and a cluster statistic
are complete. The examples of tests/extending are added to a copy of the tree, nothing else is
changed, and the copy is built once with the options of the build that is tested, and run.
"""

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from script_case import KVBENCH, ROOT, FolderCase, read_rows, read_text, write_text

PAGE = os.path.join(ROOT, "docs", "extending.md")
EXAMPLES = os.path.join(ROOT, "tests", "extending")
COPIED = ("CMakeLists.txt", "CMakePresets.json", "LICENSE", "README.md", "apps", "cmake", "configs", "docs", "lib",
          "packaging", "python", "scripts", "tests")
# Options of the tested build that its copy gets; the build that is copied has its own launcher.
OPTIONS = re.compile(r"(KVBENCH_\w+|CMAKE_(BUILD_TYPE|CXX_COMPILER|CXX_FLAGS|PREFIX_PATH|MAKE_PROGRAM|"
                     r"DISABLE_PRECOMPILE_HEADERS)|\w+_(DIR|ROOT))")
MODES = ("--layers", "0", "--sink", "4", "--recent", "16", "--queries", "8")


def sections(page):
    """{heading: text} of the page's second-level headings."""
    parts = re.split(r"^## (.+)$", page, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def paths(text):
    """Paths from the root that the text names as code or links to."""
    return (set(re.findall(r"`((?:[\w.<>-]+/)+[\w.<>-]*|[A-Z]+\.md)`", text))
            | {path.removeprefix("../") for path in re.findall(r"\]\((\.\./[^)#]+)", text)})


def hunks(text):
    """(file, old lines, new lines) of a patch of tests/extending.

    A hunk begins with `--- FILE`. Its lines begin with ` ` (stays), `-` (goes) or `+` (comes).
    """
    for part in re.split(r"^--- ", text, flags=re.M)[1:]:
        file, _, body = part.partition("\n")
        lines = body.splitlines(keepends=True)
        yield (file, "".join(line[1:] for line in lines if line[0] in " -"),
               "".join(line[1:] for line in lines if line[0] in " +"))


def cache_of(build):
    """{name: (type, value)} of a build's CMakeCache.txt."""
    found = re.findall(r"^([A-Za-z]\w*):(\w+)=(.*)$", read_text(os.path.join(build, "CMakeCache.txt")), re.M)
    return {name: (kind, value) for name, kind, value in found}


VERSION = r"schema version \*\*[0-9.]+\*\*"
OFFSET_TABLE = ("<!-- columns: offset.csv -->\n| column | unit | meaning |\n| --- | --- | --- |\n"
                "| `norm` | distance | norm of the mean row |\n")


# Unit tests that an example is tried with, as --gtest_filter has them.
METHOD_TESTS = "Stride.*:*EveryMethod.*/stride:AllMethods.Rows*:ScoringQueries.*"
COLUMN_TESTS = ("Schema.*:Summary*:ErrorFigures.*:Csv*:Merge.*:Row*:LayerErrorsTest.*:"
                "EvaluateTest.*:JobTest.*:RunTest.*:StreamJobTest.*:ContractTest.*")
STATISTIC_TESTS = "Offset.*:ClusterRun.*"
FILTERS = (METHOD_TESTS, COLUMN_TESTS, STATISTIC_TESTS)


def run(*command, cwd):
    """What the command prints; AssertionError where it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout


class PageTest(unittest.TestCase):
    def test_paths_exist(self):
        named = paths(read_text(PAGE))
        self.assertGreater(len(named), 30)
        for path in named:
            if path.startswith("build/"):
                continue
            # Of a file to make, the folder.
            there = os.path.dirname(path) if "<" in path else path
            self.assertTrue(os.path.exists(os.path.join(ROOT, there)), path)

    def test_every_step_of_ci_is_there(self):
        steps = set(re.findall(r"^ *step (\w+) ", read_text(os.path.join(ROOT, ".ci", "run")), re.M))
        self.assertGreater(len(steps), 8)
        self.assertEqual(set(re.findall(r"^\| `(\w+)` \| `", sections(read_text(PAGE))["CI failed"], re.M)), steps)


@unittest.skipUnless(KVBENCH, "KVBENCH names no program")
class AddTest(FolderCase):
    """A copy of the tree with all examples, built once: most of the time is the compiler's."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.build_of = os.path.dirname(os.path.realpath(KVBENCH))
        cls.cache = cache_of(cls.build_of)
        if os.path.realpath(cls.cache.get("kvbench_SOURCE_DIR", ("", ""))[1]) != os.path.realpath(ROOT):
            raise unittest.SkipTest(f"{KVBENCH} lies in no build of {ROOT}")
        cls.tree = tempfile.mkdtemp(dir=os.environ.get("TEST_TMPDIR"))
        cls.addClassCleanup(shutil.rmtree, cls.tree)
        cls.build = os.path.join(cls.tree, "build")
        for name in COPIED:
            if os.path.isdir(os.path.join(ROOT, name)):
                shutil.copytree(os.path.join(ROOT, name), os.path.join(cls.tree, name),
                                ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(os.path.join(ROOT, name), cls.tree)
        cls.changed = {}  # of each example
        cls.add("method", "stride.cpp", "lib/algorithms/methods/stride.cpp")
        cls.add("method", "test_stride.cpp", "tests/test_stride.cpp")
        cls.apply("method")
        cls.apply("column")
        cls.add("statistic", "offset.hpp", "lib/cluster/offset.hpp")
        cls.add("statistic", "offset.cpp", "lib/cluster/offset.cpp")
        cls.add("statistic", "test_offset.cpp", "tests/test_offset.cpp")
        cls.apply("statistic")
        cls.leave_out_tests()
        cls.make("kvbench", "kvbench_tests")
        run(os.path.join(cls.tree, "scripts", "update_schema_docs.sh"), cwd=cls.tree)
        cls.schema_page = read_text(os.path.join(cls.tree, "docs", "schema.md"))

    @classmethod
    def add(cls, example, file, path):
        if os.path.exists(os.path.join(cls.tree, path)):
            raise AssertionError(f"{path} is there already")
        cls.changed.setdefault(example, set()).add(path)
        shutil.copy(os.path.join(EXAMPLES, file), os.path.join(cls.tree, path))

    @classmethod
    def apply(cls, example):
        """The example's patch; each hunk must fit in one place."""
        for file, old, new in hunks(read_text(os.path.join(EXAMPLES, example + ".patch"))):
            path = os.path.join(cls.tree, file)
            text = read_text(path)
            version = re.search(r'schema_version = "(\d+)\.(\d+)"', text)
            if version:
                major, minor = version[1], int(version[2])
                old, new = (part.replace("{now}", f"{major}.{minor}")
                            .replace("{next}", f"{major}.{minor + 1}") for part in (old, new))
            if text.count(old) != 1:
                raise AssertionError(f"{example}.patch: {file} has {text.count(old)} places, not one, with\n{old}")
            write_text(path, text.replace(old, new))
            cls.changed.setdefault(example, set()).add(file)

    @classmethod
    def leave_out_tests(cls):
        """Removes from the copy the unit tests that are not run below: they are most of the compiler's time."""
        tests = os.path.join(cls.tree, "tests")
        for name in os.listdir(tests):
            if re.fullmatch(r"test_\w+\.cpp", name):
                text = read_text(os.path.join(tests, name))
                if not any(fnmatch.fnmatch(f"{suite}.{test}{'/stride' if kind == '_P' else ''}", pattern)
                           for kind, suite, test in re.findall(r"^TEST(_[FP])?\((\w+), (\w+)\)", text, re.M)
                           for pattern in ":".join(FILTERS).split(":")):
                    os.remove(os.path.join(tests, name))

    @classmethod
    def make(cls, *targets):
        """Configures and builds; objects that the change does not reach are those of the tested build."""
        launcher = [sys.executable, os.path.join(EXAMPLES, "borrow.py"), ROOT, cls.build_of,
                    cls.tree, *filter(None, [cls.cache.get("CMAKE_CXX_COMPILER_LAUNCHER", ("", ""))[1]])]
        options = [f"-D{name}:{kind}={value}" for name, (kind, value) in cls.cache.items()
                   if OPTIONS.fullmatch(name) and kind not in ("STATIC", "INTERNAL")]
        run("cmake", "-S", cls.tree, "-B", cls.build, "-G", cls.cache["CMAKE_GENERATOR"][1],
            *options, "-DCMAKE_CXX_COMPILER_LAUNCHER=" + ";".join(launcher), cwd=cls.tree)
        run("cmake", "--build", cls.build, "--target", *targets, "--parallel", str(os.cpu_count()), cwd=cls.tree)

    def expect_listed(self, example, heading, stem):
        """The page's section names every file that was changed."""
        named = {path.replace("<stem>", stem) for path in paths(sections(read_text(PAGE))[heading])}
        self.assertLessEqual(self.changed[example], named)

    def kvbench(self, *arguments):
        return run(os.path.join(self.build, "kvbench"), *arguments, cwd=self.folder)

    def unit_tests(self, names):
        run(os.path.join(self.build, "kvbench_tests"), "--gtest_filter=" + names, cwd=self.folder)

    def replay(self, algorithms):
        self.kvbench("synth", "-o", "t.h5", "--layers", "1", "--q-heads", "2", "--kv-heads", "1",
                     "--n", "96", "--d", "16")
        self.kvbench("replay", "t.h5", "-o", "out.csv", *MODES, "--algorithm", algorithms, "--budget",
                     "0.5,0.25")
        return read_rows(self.path("out.csv"))

    def test_a_method(self):
        self.expect_listed("method", "A method", "stride")
        self.unit_tests(METHOD_TESTS)
        listed = [line.split()[0] for line in self.kvbench("list").partition("\n\n")[0].splitlines()[1:]]
        self.assertEqual(listed.count("stride"), 1)
        self.assertIn("source      systematic sampling", self.kvbench("list", "stride"))
        rows = self.replay("stride,uniform")
        mine = [row for row in rows if row["algorithm"] == "stride"]
        self.assertEqual(len(mine), 4)  # two query heads, two budgets
        for row in mine:
            self.assertEqual(row["status"], "ok")
            self.assertLessEqual(float(row["middle_ratio"]), float(row["budget_requested"]))
            self.assertGreater(int(row["tokens_kept"]), 4 + 16)
            self.assertLess(float(row["rel_error"]), 1.0)
        self.assertEqual({row["params"] for row in mine}, {"T=auto;phase=0.5;tokens=auto"})

    def test_a_column(self):
        self.changed["column"].add("docs/schema.md")
        self.expect_listed("column", "A column", "")
        self.unit_tests(COLUMN_TESTS)
        before = read_text(os.path.join(ROOT, "docs", "schema.md"))
        page = re.sub(r"`offset\.csv`: .*?(?=`points\.csv`)", "", self.schema_page, flags=re.S)
        line = ("| `rel_error_p99` | fraction | 99th percentile over queries of \\|z-a\\| / \\|a\\| | "
                "not measured |  |\n")
        self.assertNotIn(line, before)
        versions = r"\*\*[0-9]+\.[0-9]+\*\*"  # the statistic raises that of cluster's tables
        self.assertEqual(re.sub(versions, "", page.replace(line, "")), re.sub(versions, "", before))
        self.assertNotEqual(re.search(VERSION, page)[0], re.search(VERSION, before)[0])
        rows = self.replay("uniform")
        self.assertEqual(list(rows[0])[-3:], ["index_bytes", "recall", "rel_error_p99"])
        for row in rows:
            self.assertIn(f"**{row['schema']}**", re.search(VERSION, page)[0])
            error = float(row["rel_error_p99"])
            self.assertGreaterEqual(error, float(row["rel_error_p95"]))
            self.assertLessEqual(error, float(row["rel_error_max"]))
        # Later steps read it as any other.
        self.assertIn("rel_error_p99", self.kvbench("summarize", "out.csv", "--metric", "rel_error_p99"))
        self.kvbench("verify", "out.csv")

    def test_a_statistic(self):
        self.expect_listed("statistic", "A cluster statistic", "offset")
        self.unit_tests(STATISTIC_TESTS)
        self.assertIn(OFFSET_TABLE, self.schema_page)
        self.kvbench("synth", "-o", "t.h5", "--layers", "2", "--q-heads", "2", "--kv-heads", "1", "--n", "96")
        self.kvbench("cluster", "t.h5", "-o", "clusters")
        rows = read_rows(self.path("clusters", "offset.csv"))
        self.assertEqual([(row["layer"], row["what"]) for row in rows],
                         [("0", "keys"), ("0", "values"), ("1", "keys"), ("1", "values")])
        for row in rows:
            self.assertGreater(float(row["norm"]), 0.0)
            self.assertTrue(0.0 < float(row["share"]) <= 1.0, row)
        with open(self.path("clusters", "cluster.json"), encoding="utf-8") as file:
            manifest = json.load(file)
        self.assertEqual(manifest["tables"]["offset.csv"], 4)
        header = read_text(os.path.join(ROOT, "lib", "replay", "cluster_run.hpp"))
        now = re.search(r'schema_version = "(.*)"', header)[1]
        self.assertEqual(manifest["schema"], f"1.{int(now.partition('.')[2]) + 1}")
