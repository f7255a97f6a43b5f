"""kvbench-py cluster against hand calculations."""

import os

from script_case import FolderCase, read_rows, run_program

HEAD = "trace,prompt,layer,kv_head,what,"
# By (prompt, layer, head): radius of 1 and of 2 centres, alpha at delta .5 of the first, p50.
HEADS = {("a", 0, 0): (4.0, 2.0, 0.5, 1.0), ("a", 0, 1): (8.0, 2.0, 0.7, 3.0),
         ("a", 3, 0): (1.0, 1.0, 1.0, 5.0), ("a", 3, 1): (1.0, 0.5, 1.0, 7.0),
         ("b", 0, 0): (2.0, 0.5, 0.2, 2.0), ("b", 0, 1): (2.0, 0.5, 0.4, 2.0),
         ("b", 3, 0): (2.0, 2.0, float("nan"), 8.0), ("b", 3, 1): (2.0, 1.0, 1.0, 8.0)}


class ClusterTableTest(FolderCase):
    def setUp(self):
        super().setUp()
        for prompt in "ab":
            os.mkdir(self.path(prompt))
            mine = {key: value for key, value in HEADS.items() if key[0] == prompt}
            at = [(f"{p}.h5,{p},{layer},{head},", value) for (p, layer, head), value in mine.items()]
            self.write(prompt, "coverage", HEAD + "k,radius,radius_rel,center", [
                f"{key}keys,{k},{value[k - 1]},{value[k - 1] / value[0]},0"
                for key, value in at for k in (1, 2)])
            self.write(prompt, "growth", HEAD + "delta,alpha,r2", [
                f"{key}keys,{value[0] / 2},{value[2]},1" for key, value in at])
            self.write(prompt, "norms", "trace,prompt,layer,head,what,min,p25,p50,p75,p95,max", [
                f"{key}queries,0,0,{value[3]},9,10,{value[3] * 4}" for key, value in at])

    def write(self, prompt, name, head, rows):
        self.write_file(os.path.join(prompt, name + ".csv"), "\n".join([head, *rows]) + "\n")

    def run_script(self, *folders):
        return run_program("kvbench-py cluster", *folders, "-o", self.path("out.csv"))

    def test_by_hand(self):
        done = self.run_script(self.path("a"), self.path("b"))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = {(r["figure"], r["what"], r["x"], r["layer"]): r for r in read_rows(self.path("out.csv"))}
        for key, mean, sd in (
                # a: (.5 + .25)/2 = .375; b: .25.
                (("radius_rel", "keys", "2", "0"), 0.3125, 0.125 / 2**0.5),
                # a: (.375 + .75)/2 = .5625; b: (.25 + .75)/2 = .5.
                (("radius_rel", "keys", "2", "all"), 0.53125, 0.0625 / 2**0.5),
                (("alpha", "keys", "0.5", "0"), 0.45, 0.3 / 2**0.5),  # .6 and .3
                (("norm_p50", "queries", "", "0"), 2.0, 0.0),
                (("norm_p50", "queries", "", "all"), 4.5, 1 / 2**0.5),  # 4 and 5
                (("norm_max", "queries", "", "3"), 28.0, 8 / 2**0.5)):  # 24 and 32
            with self.subTest(key=key):
                row = found[key]
                self.assertEqual(row["prompts"], "2")
                # Six digits are written.
                self.assertAlmostEqual(float(row["mean"]), mean, delta=2e-6 * mean)
                self.assertAlmostEqual(float(row["sd"]), sd, delta=2e-6 * max(sd, 1))
        # One head of b has no exponent: neither has a mean over it.
        for layer in ("3", "all"):
            self.assertEqual((found["alpha", "keys", "0.5", layer]["mean"],
                              found["alpha", "keys", "0.5", layer]["sd"]), ("", ""))

    def test_an_output_that_is_a_folder(self):
        os.mkdir(self.path("out.csv"))
        done = self.run_script(self.path("a"))
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1))
