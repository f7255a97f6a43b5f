"""What packages and pages repeat of each other: the version, the Python packages that are needed, the
commands of the recipes in packaging/, the list of pages in the README."""

import fnmatch
import glob
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import types
import unittest
from unittest import mock

from script_case import KVBENCH, ROOT, read_text


def text(*parts):
    return read_text(os.path.join(ROOT, *parts))


class VersionTest(unittest.TestCase):
    def setUp(self):
        self.project = tomllib.loads(text("pyproject.toml"))
        own = self.project["tool"]["scikit-build"]["metadata"]["version"]
        self.version = re.search(own["regex"], text(own["input"]))["value"]

    def test_there_is_one_place(self):
        self.assertRegex(self.version, r"^\d+\.\d+\.\d+$")
        self.assertNotIn("version", self.project["project"])
        self.assertEqual(self.project["project"]["dynamic"], ["version"])
        self.assertIn(f"version: {self.version}\n", text("CITATION.cff"))
        self.assertIn(self.version, text("CHANGELOG.md"))
        # conda reads it there.
        pattern = re.search(r'regex_pattern="(.*?)"', text("packaging", "conda", "meta.yaml"))[1]
        self.assertEqual(re.search(pattern, text("CMakeLists.txt"))[1], self.version)

    def test_the_program_says_it(self):
        if not KVBENCH:
            self.skipTest("KVBENCH names no program")
        done = subprocess.run([KVBENCH, "--version"], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout.split()[:2], ["kvbench", self.version])


class BackendTest(unittest.TestCase):
    def test_it_has_every_hook(self):
        """pip refuses `pip install -e .` where the hooks of PEP 660 are absent."""
        kinds = ("wheel", "editable", "sdist")
        hooks = {f"{what}_{kind}" for what in ("build", "get_requires_for_build") for kind in kinds}
        hooks |= {"prepare_metadata_for_build_wheel", "prepare_metadata_for_build_editable"}
        inner = types.SimpleNamespace(**{hook: mock.Mock(return_value=hook) for hook in hooks})
        modules = {"scikit_build_core": types.SimpleNamespace(build=inner), "scikit_build_core.build": inner}
        spec = importlib.util.spec_from_file_location("backend", os.path.join(ROOT, "packaging", "build_backend.py"))
        backend = importlib.util.module_from_spec(spec)
        with mock.patch.dict(sys.modules, modules):
            spec.loader.exec_module(backend)
        self.assertEqual({hook for hook in hooks if not callable(getattr(backend, hook, None))}, set())
        self.assertEqual(backend.build_editable("wheels"), "build_editable")


class RequirementsTest(unittest.TestCase):
    def test_the_file_has_what_the_package_and_its_extra_need(self):
        project = tomllib.loads(text("pyproject.toml"))["project"]
        wanted = project["dependencies"] + project["optional-dependencies"]["plot"]
        lines = [line for line in text("requirements.txt").splitlines() if not line.startswith("#")]
        self.assertEqual(lines, wanted)

    def test_one_least_release_of_transformers_is_said(self):
        extra = tomllib.loads(text("pyproject.toml"))["project"]["optional-dependencies"]["dump"]
        (least,) = [one.split(">=")[1] for one in extra if one.startswith("transformers>=")]
        for path in ("Makefile", "python/kvbench/programs.py", "docs/dump.md"):
            with self.subTest(path):
                self.assertEqual(set(re.findall(r"transformers *>= *([0-9.]*[0-9])", text(path))), {least})


def groups():
    """Of packages, which scripts/bootstrap.sh installs."""
    return set(re.findall(r"^([a-z]+)=\(", text("scripts", "bootstrap.sh"), re.MULTILINE))


class RecipesOfPackagesTest(unittest.TestCase):
    """Containers and conda cannot be tried everywhere; what they name must exist."""

    def test_make_targets_groups_and_presets_exist(self):
        self.assertRegex(text("Makefile"), r"(?m)^static:.*## ")
        presets = {preset["name"]: preset.get("cacheVariables") for preset in
                   json.loads(text("CMakePresets.json"))["configurePresets"]}
        for name in ("Dockerfile", "kvbench.def"):
            with self.subTest(name):
                recipe = text("packaging", name)
                self.assertEqual(re.findall(r"\bmake ([a-z-]+)", recipe), ["static"])
                self.assertLessEqual({*re.findall(r"bootstrap\.sh ([a-z]+)", recipe)}, groups())
                folders = re.findall(r"--install build/([a-z]+) --component program", recipe)
                self.assertEqual(folders, ["static"])
                self.assertEqual(presets[folders[0]]["KVBENCH_STATIC"], "FULL")
        self.assertIn("set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME program)", text("CMakeLists.txt"))

    def test_docker_is_given_all_of_the_commit(self):
        # Else git in the container misses files, and the program calls itself modified.
        done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            self.skipTest("no git repository")
        rules = text(".dockerignore").split()
        for path in done.stdout.split():
            ways = ["/".join(path.split("/")[:i + 1]) for i in range(path.count("/") + 1)]
            fits = [rule for rule in rules for way in ways
                    if fnmatch.fnmatchcase(way, rule.removeprefix("!").removeprefix("**/"))
                    and way.count("/") == rule.count("/")]
            self.assertTrue(not fits or fits[-1].startswith("!"), f"{path}: {fits}")

    @unittest.skipIf(shutil.which("cmake") is None, "no cmake")
    def test_the_definition_copies_all_that_the_build_needs(self):
        block = re.search(r"^%files\n(.*?)\n\n", text("packaging", "kvbench.def"), re.MULTILINE | re.DOTALL)[1]
        copied = dict(line.split() for line in block.splitlines())
        self.assertEqual(set(copied.values()), {"/src/"})
        self.assertNotIn("build", copied)
        with tempfile.TemporaryDirectory() as folder:
            for name in copied.keys() - {".git"}:
                path = os.path.join(ROOT, name)
                copy = shutil.copytree if os.path.isdir(path) else shutil.copy
                copy(path, os.path.join(folder, name))
            done = subprocess.run(["cmake", "--preset", "static"], cwd=folder, capture_output=True,
                                  text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            # What stands beside the program is missed only when it is installed.
            script = read_text(os.path.join(folder, "build", "static", "cmake_install.cmake"))
            beside = {os.path.relpath(name, folder) for name in
                      re.findall(rf'"({re.escape(folder)}/(?!build/)[^"]+\.md)"', script)}
            self.assertEqual(beside, {"README.md", "CHANGELOG.md"})
            self.assertLessEqual(beside, copied.keys())


class DevelopmentTest(unittest.TestCase):
    def test_ruff_has_one_version(self):
        (version,) = re.findall(r"ruff==([0-9.]+)", text("scripts", "bootstrap.sh"))
        self.assertEqual(re.findall(r"ruff==([0-9.]+)", text(".pre-commit-config.yaml")), [version])

    def test_the_workflow_makes_targets(self):
        (targets,) = re.findall(r"target: \[(.+)\]", text(".github", "workflows", "test.yml"))
        for target in targets.split(", "):
            self.assertRegex(text("Makefile"), rf"(?m)^{target}:.*## ")


def anchors(page):
    """What a page's headings are linked by."""
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
            for heading in re.findall(r"^#+ (.+)$", page, re.MULTILINE)]


class PagesTest(unittest.TestCase):
    def test_the_readme_lists_every_page(self):
        pages = {os.path.basename(path) for path in glob.glob(os.path.join(ROOT, "docs", "*.md"))}
        listed = set(re.findall(r"^\| \[docs/(\S+\.md)\]", text("README.md"), re.MULTILINE))
        self.assertEqual(listed, pages)

    def test_the_readme_lists_every_method(self):
        stems = re.findall(r"^KVBENCH_METHOD\((\w+)\)", text("lib", "algorithms", "methods.inc"), re.MULTILINE)
        rows = re.search(r"^\| family \|.*\n(?:\|.*\n)+", text("README.md"), re.MULTILINE)[0]
        self.assertEqual(sorted(re.findall(r"`(\S+)`", rows)), sorted(stem.replace("_", "-") for stem in stems))

    def test_links_between_pages_lead_somewhere(self):
        for path in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md",
                     *glob.glob(os.path.join("docs", "*.md"), root_dir=ROOT),
                     *glob.glob(os.path.join("studies", "**", "*.md"), root_dir=ROOT, recursive=True)]:
            for link, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)]*))?\)", text(path)):
                with self.subTest(page=path, link=link, anchor=anchor):
                    target = os.path.normpath(os.path.join(os.path.dirname(path), link)) if link else path
                    self.assertTrue(os.path.exists(os.path.join(ROOT, target)))
                    if anchor:
                        self.assertIn(anchor, anchors(text(target)))

    def test_traces_have_the_sums_that_their_pages_say(self):
        for folder, name in (("data", "sample.h5"), ("tests/data", "small.h5")):
            with open(os.path.join(ROOT, folder, name), "rb") as file:
                own = hashlib.sha256(file.read()).hexdigest()
            found = re.findall(rf"^\| `{name}` \|.*\| `(\w{{64}})` \|$", text(folder, "README.md"), re.MULTILINE)
            self.assertEqual(found, [own], folder)
