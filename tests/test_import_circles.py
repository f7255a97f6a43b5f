"""python/kvbench and the study have no circle of imports, and the package imports nothing of the study.
Imports in functions count like those of modules; those for types alone (`if TYPE_CHECKING`) do not."""

import ast
import glob
import graphlib
import os
import unittest

from script_case import ROOT, read_text

# Package: the folder that holds it.
PACKAGES = {"kvbench": os.path.join(ROOT, "python"), "kvbench_study": os.path.join(ROOT, "studies", "reference")}


def modules():
    """{dotted name: path} of the packages' files."""
    out = {}
    for package, top in PACKAGES.items():
        for path in glob.glob(os.path.join(top, package, "**", "*.py"), recursive=True):
            name = os.path.relpath(path, top).removesuffix(".py").removesuffix(os.sep + "__init__")
            out[name.replace(os.sep, ".")] = path
    return out


def statements(tree):
    """All nodes but those below `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node = ast.Module(node.orelse, [])
        yield node
        yield from statements(node)


def imported(text, known):
    """Those of the `known` modules that a source imports. A name of a package is that package's."""
    out = set()
    for node in statements(ast.parse(text)):
        if isinstance(node, ast.Import):
            out |= {alias.name for alias in node.names} & set(known)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError(f"line {node.lineno}: a relative import")
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            out |= {name if name in known else node.module for name in names} & set(known)
    return out


class ImportCirclesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        known = modules()
        cls.graph = {name: imported(read_text(path), known) for name, path in known.items()}

    def test_the_packages_have_none(self):
        for package in PACKAGES:
            self.assertGreater(len([name for name in self.graph if name.startswith(package + ".")]), 40, package)
        self.assertIn("kvbench.errors", self.graph["kvbench.trace.writer"])
        graphlib.TopologicalSorter(self.graph).prepare()  # CycleError names those that import each other

    def test_the_package_does_not_know_the_study(self):
        for name, others in self.graph.items():
            if name.partition(".")[0] == "kvbench":
                self.assertEqual([other for other in others if other.startswith("kvbench_study")], [], name)
