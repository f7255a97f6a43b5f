"""scripts/find_include_cycles.py: strongly connected stems are listed."""

import os

from script_case import FolderCase, call, write_text

import find_include_cycles

FILES = {"core/a.hpp": "b", "core/b.cpp": "c", "core/b.hpp": "", "core/c.cuh": "a", "core/d.hpp": "a",
         "replay/x.hpp": "y", "replay/y.inc": "x", "replay/alone.cpp": "alone"}


class FindIncludeCyclesTest(FolderCase):
    def test_cycles_are_listed(self):
        for name, target in FILES.items():
            path, folder = self.path(os.path.join("lib", name)), os.path.dirname(name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            write_text(path, "#pragma once\n#include <map>\n" + (
                f'#  include "{folder}/{target}.hpp"\n// #include "core/d.hpp"\n' if target else ""))
        done = call(find_include_cycles.main, "find_include_cycles.py", "--root", self.folder)
        self.assertEqual(done.code, 1)
        self.assertEqual(done.out.splitlines(), [
            "cycle of 3: core/a,core/b,core/c",
            "  core/a includes core/b", "  core/b includes core/c", "  core/c includes core/a",
            "cycle of 2: replay/x,replay/y",
            "  replay/x includes replay/y", "  replay/y includes replay/x",
            "find_include_cycles: 7 stems, 2 cycles"])
