"""scripts/find_include_cycles.py: strongly connected stems, what may be one, exit codes."""

import os

from script_case import FolderCase, call, write_text

import find_include_cycles

FILES = {"core/a.hpp": "b", "core/b.cpp": "c", "core/b.hpp": "", "core/c.cuh": "a", "core/d.hpp": "a",
         "replay/x.hpp": "y", "replay/y.inc": "x", "replay/alone.cpp": "alone"}


class FindIncludeCyclesTest(FolderCase):
    def setUp(self):
        super().setUp()
        for name, target in FILES.items():
            path = self.path(os.path.join("lib", name))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            folder = os.path.dirname(name)
            write_text(path, "#pragma once\n#include <map>\n" + (
                f'#  include "{folder}/{target}.hpp"\n// #include "core/d.hpp"\n' if target else ""))

    def find(self, *arguments):
        return call(find_include_cycles.main, "find_include_cycles.py", "--root", self.path(""), *arguments)

    def test_cycles_are_listed(self):
        done = self.find()
        self.assertEqual(done.code, 1)
        self.assertEqual(done.out.splitlines(), [
            "cycle of 3: core/a,core/b,core/c",
            "  core/a includes core/b", "  core/b includes core/c", "  core/c includes core/a",
            "cycle of 2: replay/x,replay/y",
            "  replay/x includes replay/y", "  replay/y includes replay/x",
            "find_include_cycles: 7 stems, 2 cycles that are not allowed"])

    def test_a_cycle_may_be_allowed(self):
        some = self.find("--allow", "core/a,core/b,core/c")
        self.assertEqual(some.code, 1)
        self.assertIn("cycle of 3 (allowed): core/a", some.out)
        self.assertEqual(self.find("--allow", "core/a,core/b", "--allow", "replay/x,replay/y").code, 1)
        both = self.find("--allow", "core/a,core/b,core/c,core/d", "--allow", "replay/x,replay/y")
        self.assertEqual(both.code, 0)
        self.assertTrue(both.out.endswith("find_include_cycles: 7 stems, 0 cycles that are not allowed\n"))
