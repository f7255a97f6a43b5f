"""scripts/draw_rooms.py, and that docs/architecture.md shows the includes of the tree as it is."""

import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SCRIPT = os.path.join(ROOT, "scripts", "draw_rooms.py")
sys.path.insert(0, os.path.join(ROOT, "scripts"))
import draw_rooms  # noqa: E402

CHECK = """  rank["apps"] = 0
  rank["replay"] = 1
  rank["trace"] = rank["report"] = 2
  rank["core"] = 3
    if (rank[target] == rank[room]) bad = 1
"""
FILES = {
    "scripts/check_includes.sh": CHECK,
    "docs/architecture.md": "Before.\n\n<!-- rooms -->\nold\n<!-- end -->\nAfter.\n",
    "apps/main.cpp": '#include <vector>\n#include "replay/run.hpp"\n#include "main.hpp"\n',
    "lib/replay/run.cpp": '#include "replay/run.hpp"\n# include "trace/reader.hpp"\n'
                          '// #include "report/not.hpp"\n#include "core/types.hpp"\n',
    "lib/replay/deep/other.cu": '#include "trace/reader.hpp"\n#include "trace/caches.hpp"\n',
    "lib/trace/reader.hpp": '#include "core/types.hpp"\n',
    "lib/trace/notes.txt": '#include "report/csv.hpp"\n',
    "lib/report/csv.hpp": '#include "core/error.hpp"\n#include "core/types.hpp"\n',
}
TABLE = """| room | includes | headers |
| --- | --- | --- |
| `apps` | `replay` | 1: run |
| `replay` | `trace` | 2: caches, reader |
| `replay` | `core` | 1: types |
| `report` | `core` | 2: error, types |
| `trace` | `core` | 1: types |
"""


def run_it(*options, code=0):
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True,
                          check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


class TreeTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name, text in FILES.items():
            path = os.path.join(self.root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)

    def page(self):
        with open(os.path.join(self.root, "docs/architecture.md"), encoding="utf-8") as file:
            return file.read()

    def test_table(self):
        self.assertIn("is out of date", run_it("--root", self.root, "--check", code=1))
        run_it("--root", self.root)
        self.assertEqual(self.page(),
                         f"Before.\n\n<!-- rooms -->\n{TABLE}<!-- end -->\nAfter.\n")
        run_it("--root", self.root, "--check")
        with open(os.path.join(self.root, "lib/trace/reader.hpp"), "a", encoding="utf-8") as file:
            file.write('#include "core/error.hpp"\n')
        run_it("--root", self.root, "--check", code=1)

    def test_same_bytes(self):
        pictures = []
        for name in ("a.svg", "b.svg"):
            path = os.path.join(self.root, name)
            run_it("--root", self.root, "--picture", path)
            with open(path, "rb") as file:
                pictures.append(file.read())
        self.assertIn(b"</svg>", pictures[0])
        self.assertEqual(pictures[0], pictures[1])

    def test_page_without_a_block(self):
        with open(os.path.join(self.root, "docs/architecture.md"), "w", encoding="utf-8") as file:
            file.write("Nothing.\n")
        self.assertIn("expected one block", run_it("--root", self.root, code=1))


class ProjectTest(unittest.TestCase):
    def test_page_is_current(self):
        run_it("--check")

    def test_nothing_overlaps(self):
        rank, edges = draw_rooms.ranks(ROOT), draw_rooms.graph(ROOT)
        boxes, lanes = draw_rooms.place(edges, rank)
        self.assertEqual(set(boxes), set(rank))
        self.assertEqual(set(lanes), set(edges))
        self.assertLessEqual(set(rank), set(draw_rooms.TEXT), "a room has no text in its box")
        rooms = sorted(boxes)
        for i, a in enumerate(rooms):
            for b in rooms[:i]:
                apart = (boxes[a][2] != boxes[b][2] or boxes[a][1] < boxes[b][0]
                         or boxes[b][1] < boxes[a][0])
                self.assertTrue(apart, f"{a} and {b}")
        for (source, target), x in lanes.items():
            self.assertLess(rank[source], rank[target])
            for room in (source, target):
                self.assertTrue(boxes[room][0] < x < boxes[room][1], f"{source} -> {target}")
            for (other, end), place in lanes.items():
                if (other, end) != (source, target) and rank[other] < rank[target] \
                        and rank[source] < rank[end]:
                    self.assertGreater(abs(place - x), 0.4, f"{source} -> {target}, {other} -> {end}")


if __name__ == "__main__":
    unittest.main()
