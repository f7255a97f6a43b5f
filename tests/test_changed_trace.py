"""A trace that somebody writes to while it is replayed: the run says so, and nobody reads its rows."""

import json
import os
import subprocess
import time
import unittest

from script_case import KVBENCH, FolderCase, read_text

WINDOWS = ("--sink", "4", "--recent", "32", "--queries", "16")


@unittest.skipUnless(KVBENCH, "KVBENCH names no program")
class ChangedTrace(FolderCase):
    def kvbench(self, *words):
        return subprocess.run([KVBENCH, *words], cwd=self.folder, capture_output=True, text=True, check=False)

    def disturbed(self, change, *command):
        """The command's result; `change` runs when the first jobs are logged."""
        process = subprocess.Popen([KVBENCH, *command], cwd=self.folder, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        log = self.path(command[command.index("-o") + 1]) + ".log"
        while not os.path.exists(log) or os.path.getsize(log) < 20000:
            self.assertIsNone(process.poll(), "it ended before its rows were seen")
            time.sleep(0.01)
        change()
        _, said = process.communicate()
        return process.returncode, said

    def setUp(self):
        super().setUp()
        self.kvbench("synth", "-o", "t.h5", "--layers", "1", "--q-heads", "1", "--kv-heads", "1", "--n", "2048")
        # Thousands of jobs on one head, whose values are read before the first.
        self.command = ("replay", "t.h5", "-o", "out.csv", "--algorithm", "random-local", "--seeds",
                        "4000", "--budget", "0.25", "--threads", "1", *WINDOWS)

    def changed(self):
        return json.loads(read_text(self.path("out.csv.json")))["traces"][0]["changed"]

    def test_contents_change(self):
        def change():
            with open(self.path("t.h5"), "r+b") as file:
                text = file.read()
                file.seek(text.index(b"none"))  # the attribute rope, which is not read again
                file.write(b"post")

        code, said = self.disturbed(change, *self.command, "--keep-log")
        self.assertEqual(code, 2, said)
        self.assertIn("t.h5: was written to during the run", said)
        self.assertTrue(self.changed())
        for words in (("summarize", "out.csv"), ("verify", "out.csv"), (*self.command, "--resume"),
                      ("merge", "out.csv.log", "-o", "log.csv")):
            done = self.kvbench(*words)
            self.assertEqual(done.returncode, 2, words)
            self.assertRegex(done.stderr, r"out\.csv(\.log)?: the trace t\.h5 was written to during the run")

    def test_the_same_contents_again_or_another_file_of_that_name(self):
        """The run holds the old file: its rows are of that."""
        self.kvbench("synth", "-o", "other.h5", "--layers", "1", "--q-heads", "1", "--kv-heads", "1", "--n", "512")
        for change in (lambda: os.utime(self.path("t.h5")),
                       lambda: os.replace(self.path("other.h5"), self.path("t.h5"))):
            code, said = self.disturbed(change, *self.command, "--overwrite")
            self.assertEqual(code, 0, said)
            self.assertFalse(self.changed())
