"""docs/new_kernel.md shows the files of the tree as they are. `test_new_kernel.py --update` writes
the files that it shows whole anew."""

import os
import re
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PAGE = os.path.join(ROOT, "docs", "new_kernel.md")
CHANGE = re.compile(r"^--- (/dev/null|a/\S+)\n\+\+\+ b/(\S+)\n@@.*\n((?:\+.*\n)+?)(?=---|```)",
                    re.M)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def changes(page):
    """(path, whether the file is new, its added lines) of every diff on the page."""
    for before, path, added in CHANGE.findall(page):
        yield path, before == "/dev/null", re.sub(r"^\+", "", added, flags=re.M)


def renewed(page):
    def block(match):
        before, path, _ = match.groups()
        if before != "/dev/null":
            return match.group(0)
        lines = read(os.path.join(ROOT, path)).splitlines()
        added = "".join(f"+{line}\n" for line in lines)
        return f"--- {before}\n+++ b/{path}\n@@ -0,0 +1,{len(lines)} @@\n{added}"
    return CHANGE.sub(block, page)


class NewKernel(unittest.TestCase):
    maxDiff = None

    def test_the_page_shows_the_tree(self):
        shown = list(changes(read(PAGE)))
        self.assertEqual(len(shown), 7)  # of eight files; the CPU's function is left out
        for path, new, added in shown:
            with self.subTest(path):
                text = read(os.path.join(ROOT, path))
                if new:
                    self.assertEqual(added, text)
                else:
                    self.assertIn(added, text)


if __name__ == "__main__":
    if sys.argv[1:] == ["--update"]:
        text = renewed(read(PAGE))
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(text)
    else:
        unittest.main()
