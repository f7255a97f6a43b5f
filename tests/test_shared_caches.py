"""Layers of a trace that share another's cache: written, checked, shown and counted once.

Environment: KVBENCH, the program; without it, it is not run.
"""

import json
import os
import sys
import unittest

from script_case import FolderCase, missing, read_rows

MISSING = missing("h5py", "numpy")
if not MISSING:
    import h5py
    import numpy as np

    from kvbench.errors import TraceError
    from kvbench.trace import writer as kt

TOKENS, WIDTH = 40, 8


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
class SharedCacheTest(FolderCase):
    def write(self, shared, last=2 * WIDTH):
        """A trace of four layers of 4 query and 2 KV heads, some of which share: {layer: owner}. last:
        the last one's width."""
        path = self.path("t.h5")
        random = np.random.default_rng(3)
        with kt.TraceWriter(path, "m", "s") as writer:
            writer.begin_prompt("p", TOKENS)
            for layer in range(4):
                width = last if layer == 3 else WIDTH
                writer.begin_layer(layer, 4, 2, TOKENS, width, width)
                for name, heads in (("q", 4), ("k", 2), ("v", 2)):
                    writer.write(name, 0, 0, random.normal(size=(heads, TOKENS, width)).astype(np.float16))
            for layer, owner in shared.items():
                writer.share_cache(layer, owner)
        return path

    def test_what_the_writer_refuses(self):
        for shared, expected in (({0: 1}, "expected an earlier layer"), ({1: 1}, "expected an earlier layer"),
                                 ({1: 7}, "expected an earlier layer"),
                                 ({1: 0, 2: 1}, "got 1, expected an earlier layer of the prompt with a cache"),
                                 ({3: 0}, "layers/3: shares_cache_of: layer 0 has k of (2, 40, 8), expected")):
            with self.assertRaises(TraceError) as caught:
                self.write(shared)
            self.assertIn(expected, str(caught.exception))

    def test_what_the_program_refuses(self):
        for layer, owner, expected in (
                (1, 2, "/prompts/p/layers/1: attribute shares_cache_of is 2, expected an earlier layer of "
                       "the prompt that has a cache of its own"),
                (0, 0, "/prompts/p/layers/0: attribute shares_cache_of is 0, expected an earlier"),
                (1, 7, "attribute shares_cache_of is 7, expected an earlier"),
                (2, 1, "/prompts/p/layers/2: attribute shares_cache_of is 1, expected an earlier"),
                (3, 0, "/prompts/p/layers/3: attribute shares_cache_of is 0, a layer of [kv_heads, n, d, dv] "
                       "= [2, 40, 8, 8], expected [2, 40, 16, 16]")):
            path = self.write({1: 0} if layer == 2 else {})
            with h5py.File(path, "r+") as file:
                file[f"prompts/p/layers/{layer}"].attrs["shares_cache_of"] = owner
            for arguments in (("info", path), ("replay", path, "-o", self.path("o.csv"), "--algorithm", "exact")):
                self.done(*arguments, code=2, says=expected)

    def test_info(self):
        path = self.write({1: 0, 2: 0})
        text = self.program("info", path).stdout
        # Layers 0 and 3 of 2 heads: 40 x (8 + 8) and 40 x (16 + 16) numbers of 2 bytes.
        self.assertIn("cache: 7.5 KiB (7680 bytes), without layers 1, 2, which share those of others", text)
        self.assertRegex(text, r"layer .* cache of ")
        layers = json.loads(self.program("info", "--json", path).stdout)[0]["prompts"][0]["layers"]
        self.assertEqual([layer["shares_cache_of"] for layer in layers], [None, 0, 0, None])
        self.assertNotIn("cache", self.program("info", self.write({})).stdout)

    def replay(self, path, *options, says=""):
        self.done("replay", path, "-o", self.path("o.csv"), "--overwrite", "--sink", "2", "--recent", "8", "--queries",
                  "8", *options, says=says)
        return read_rows(self.path("o.csv"))

    def test_a_replay_takes_a_cache_once(self):
        path = self.write({1: 0, 2: 0})
        exact = ("--algorithm", "exact")
        rows = self.replay(path, *exact, says="note: layers 1,2 share the caches of others and are left out; --layers "
                           "takes them")
        self.assertEqual({row["layer"] for row in rows}, {"0", "3"})
        # 4 query heads, rows of 40 x 16 and 40 x 32 numbers.
        self.assertEqual(sum(int(row["full_bytes"]) for row in rows), 4 * (1280 + 2560))
        self.assertEqual({row["layer"] for row in self.replay(path, *exact, "--layers", "0,2")}, {"0", "2"})
        # A budget over all layers is of the caches that there are: as without the layers that share.
        path = self.write({1: 0, 2: 0}, WIDTH)
        pyramid = ("--algorithm", "pyramidkv", "--budget", "0.5")
        with_shared, alone = self.replay(path, *pyramid), self.replay(path, *pyramid, "--layers", "0,3")
        for name in ("layer", "tokens_kept", "bytes", "full_bytes", "rel_error"):
            self.assertEqual([row[name] for row in with_shared], [row[name] for row in alone], name)

    def test_cluster_takes_a_cache_once(self):
        path, out = self.write({1: 0, 2: 0}), self.path("c")
        self.done("cluster", path, "-o", out)
        tables = [name for name in os.listdir(out) if name.endswith(".csv")]
        self.assertTrue(tables)
        for name in tables:
            self.assertEqual({row["layer"] for row in read_rows(os.path.join(out, name))}, {"0", "3"}, name)
