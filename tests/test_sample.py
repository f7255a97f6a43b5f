"""The traces in the repository are those that their pages describe: the pages state their SHA-256."""

import hashlib
import os
import re
import unittest

from script_case import ROOT, read_text


class SampleTest(unittest.TestCase):
    def test_files_have_the_sums_that_the_pages_say(self):
        for folder, name in (("data", "sample.h5"), ("tests/data", "small.h5")):
            with open(os.path.join(ROOT, folder, name), "rb") as file:
                own = hashlib.sha256(file.read()).hexdigest()
            page = read_text(os.path.join(ROOT, folder, "README.md"))
            self.assertEqual(re.findall(rf"^\| `{name}` \|.*\| `(\w{{64}})` \|$", page, re.MULTILINE), [own], folder)
