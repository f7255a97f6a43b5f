"""`counted` of caches files, the tokens that A of an A@Q holds: files of the program read and written
anew in Python. What is refused: test_kvbench_caches.py."""

import unittest

from script_case import KVBENCH, FolderCase, missing, read_rows

NEEDED = missing("numpy", "h5py")
if not NEEDED:
    import numpy as np

    from kvbench import caches as kc

WINDOWS = {"sink": 4, "recent": 24, "queries": 8}
MODES = [text for name, value in WINDOWS.items() for text in (f"--{name}", str(value))]
# Of an entry, as GroupWriter.put takes it.
PARTS = ("k", "v", "log_weight", "token", "k_den", "log_weight_den", "counted")


@unittest.skipIf(NEEDED, f"packages are missing: {NEEDED}")
@unittest.skipUnless(KVBENCH, "KVBENCH names no program")
class CountedTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.trace = self.path("t.h5")
        self.done("synth", "-o", self.trace, "--layers", "2", "--q-heads", "4", "--kv-heads", "2",
                  "--n", "160", "--d", "16")

    def export(self, *algorithms):
        """The program's rows and its caches file."""
        self.done("replay", self.trace, "-o", self.path("own.csv"), *MODES, "--budget", "0.25", "--export-caches",
                  self.path("own.h5"), *(word for name in algorithms for word in ("--algorithm", name)))
        return read_rows(self.path("own.csv")), self.path("own.h5")

    def copy(self, path, change=lambda parts: None):
        """A caches file written anew from what the reader found in another, each entry changed."""
        out = self.path("copy.h5")
        with kc.CacheReader(path) as reader, kc.CacheWriter(out, self.trace, **WINDOWS) as writer:
            for group in reader.groups:
                to = writer.group(group.algorithm, group.params, group.budget, group.seed, group.scores, group.scope)
                for prompt in group.prompts():
                    for layer, head in group.heads(prompt):
                        entry = group.read(prompt, layer, head)
                        parts = {name: getattr(entry, name) for name in PARTS} | entry.attributes
                        change(parts)
                        to.put(prompt, layer, head, **parts)
        return out

    def evaluate(self, path):
        self.done("evaluate", self.trace, "--caches", path, "-o", self.path("again.csv"), "--overwrite")
        return read_rows(self.path("again.csv"))

    def test_what_the_program_wrote_survives(self):
        rows, path = self.export("h2o@quant-kivi", "h2o", "quant-rotated")
        def entries(path):
            with kc.CacheReader(path) as reader:
                return {group.algorithm: group.read(*group.prompts(), 1, 0) for group in reader.groups}
        stored = entries(path)
        entry = stored["h2o@quant-kivi"]
        self.assertGreater(len(entry.counted), 40)  # above a quarter of the middle's 132
        self.assertEqual((len(entry.counted), entry.counted.dtype), (len(entry.k), np.int64))
        self.assertEqual(entry.attributes["quantised"], len(entry.k))
        self.assertTrue((np.diff(entry.counted) > 0).all())
        self.assertTrue(4 <= entry.counted[0] and entry.counted[-1] < 136)
        self.assertIsNone(stored["h2o"].counted)
        self.assertIsNone(stored["quant-rotated"].counted)

        copy = self.copy(path)
        self.assertEqual(entries(copy)["h2o@quant-kivi"].counted.tolist(), entry.counted.tolist())
        figures = ("algorithm", "layer", "q_head", "tokens_kept", "bytes", "rel_error", "mass_kept",
                   "amnesia_count", "status")
        picked = [[row[name] for name in figures] for row in rows]
        self.assertEqual([[row[name] for name in figures] for row in self.evaluate(copy)], picked)

        # Without them the tokens in fewer bits count as lost.
        lost = self.evaluate(self.copy(path, lambda parts: parts.pop("counted")))
        for before, after in zip(rows, lost):
            self.assertEqual(before["rel_error"], after["rel_error"])
            if before["algorithm"] == "h2o@quant-kivi":
                self.assertGreater(float(before["mass_kept"]), float(after["mass_kept"]))
            else:
                self.assertEqual(before["mass_kept"], after["mass_kept"])
