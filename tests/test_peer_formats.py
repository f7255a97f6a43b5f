"""quant-format against ggml's formats in the package gguf, and fp8 against torch.float8_e4m3fn.

kvbench replays a trace of float32 and exports what its caches decode to. gguf codes and decodes the same rows.
mxfp4: gguf gives ties to the smaller magnitude, kvbench to the even code, so rows are compared that have no tie.

Skipped, aloud, by a Python without the packages (`make test-dump` has them). Environment: KVBENCH, the program.
"""

import sys
import unittest

from script_case import FolderCase, missing

MISSING = missing("gguf", "h5py", "numpy")
if not MISSING:
    import numpy as np
    from gguf import GGMLQuantizationType, quants

    import kvbench
    from kvbench.caches.reader import CacheReader

TOKENS, SINK, RECENT, WIDTH = 300, 4, 24, 64
GGML = ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4")


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
class FormatsPeerTest(FolderCase):
    def rows(self):
        """Keys and values [TOKENS, WIDTH] of magnitudes from 1e-3 to 1e3, with rows of zeros and of one number."""
        generator = np.random.default_rng(5)
        sizes = 10 ** generator.uniform(-3, 3, (2, TOKENS, 1))
        k, v = (generator.normal(0.3, 1, (2, TOKENS, WIDTH)) * sizes).astype(np.float32)
        k[SINK], k[SINK + 1], v[SINK + 2] = 0, 2.5, -1
        return k, v

    def decoded(self, k, v, setting):
        """(keys, values) of the middle as a cache of `setting` decodes to."""
        trace, caches = self.path("t.h5"), self.path("caches.h5")
        q = np.ones((1, TOKENS, WIDTH), np.float32)
        kvbench.write_trace(trace, {"p0": [(q, k[None], v[None])]}, model="m", source="s", dtype="float32")
        self.done("replay", trace, "-o", self.path("out.csv"), "--overwrite", "--sink", str(SINK), "--recent",
                  str(RECENT), "--queries", str(RECENT), "--export-caches", caches, "--overwrite",
                  "--algorithm", f"quant-format:{setting}")
        with CacheReader(caches) as reader:
            entry = reader.groups[0].read("p0", 0, 0)
        self.assertEqual(entry.k.shape, (TOKENS - RECENT - SINK, WIDTH))
        return entry.k, entry.v

    def test_blocks_are_gguf_s(self):
        k, v = self.rows()
        for name in GGML:
            peer = GGMLQuantizationType[name.upper()]
            ours = self.decoded(k, v, f"k_type={name};v_type={name}")
            for rows, made in zip((k, v), ours, strict=True):
                middle = rows[SINK:TOKENS - RECENT]
                coded = quants.quantize(middle, peer)
                self.assertEqual(coded.shape[-1], row_bytes(name), name)
                np.testing.assert_array_equal(made, quants.dequantize(coded, peer), name)

    @unittest.skipIf(missing("torch"), "needs torch")
    def test_fp8_is_torch_s(self):
        import torch

        k, v = self.rows()
        for scale in ("one", "head", "token"):
            ours = self.decoded(k, v, f"k_type=fp8;v_type=fp8;fp8_scale={scale}")
            for rows, made in zip((k, v), ours, strict=True):
                middle = rows[SINK:TOKENS - RECENT]
                most = np.abs(middle).max(axis=None if scale == "head" else 1, keepdims=True)
                by = np.ones((1, 1), np.float32) if scale == "one" else most / np.float32(448)
                with np.errstate(invalid="ignore"):
                    scaled = np.where(by == 0, np.float32(0), middle / by)
                # torch makes NaN of what is beyond 448.
                coded = torch.from_numpy(scaled.clip(-448, 448)).to(torch.float8_e4m3fn).to(torch.float32).numpy()
                np.testing.assert_array_equal(made, coded * by, scale)


def row_bytes(name):
    """Bytes of a row of WIDTH channels, by hand."""
    return WIDTH // 32 * {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "mxfp4": 17}[name]


if __name__ == "__main__":
    unittest.main()
