"""Arrays to convert, and what tests of kvbench-py convert share."""

import json
import os
import sys
import unittest

try:
    import h5py
except ImportError:
    raise unittest.SkipTest(f"{sys.executable} has no h5py") from None
import numpy as np
from script_case import FolderCase, call, write_bytes

from kvbench import command
from kvbench.convert import main as convert_traces

HQ, HKV, N, NQ, D, DV = 4, 2, 11, 5, 8, 6
SHAPES = {"q": (HQ, NQ, D), "k": (HKV, N, D), "v": (HKV, N, DV)}
PATTERNS = ["--q", "layer_{layer}.q", "--k", "layer_{layer}.k", "--v", "layer_{layer}.v"]
PLAIN = [*PATTERNS, "--axes", "head token dim"]
KEYS = ["--k", "layer_{layer}.k", "--axes", "head token dim"]


def layer(seed, dtype=np.float16):
    """{"q"|"k"|"v": [head, token, dim]}; no value stands twice in an array."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in SHAPES.items()}


def write_safetensors(path, arrays):
    """By the format's description; `arrays`: {name: (dtype's name, array)}."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, (dtype, array) in arrays.items():
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    write_bytes(path, len(text).to_bytes(8, "little") + text + b"".join(blobs))


class ConvertCase(FolderCase):
    """The script in this process, its trace in `self.out`."""

    def setUp(self):
        super().setUp()
        self.out = self.path("out.h5")

    def run_script(self, *arguments):
        return call(lambda: command.run_main(convert_traces.main), "kvbench-py convert", *arguments)

    def convert(self, *arguments):
        """Must end with 0; returns what it said on stderr."""
        result = self.run_script(*arguments, "-o", self.out, "--overwrite")
        self.assertEqual(result.code, 0, result.err)
        return result.err

    def refuse(self, words, *arguments):
        """One line, exit code 2, and no file left behind."""
        if os.path.exists(self.out):
            os.remove(self.out)
        result = self.run_script(*arguments, "-o", self.out)
        self.assertEqual(result.code, 2, result.err)
        self.assertEqual(len(result.err.splitlines()), 1, result.err)
        self.assertTrue(result.err.startswith("kvbench-py convert: "), result.err)
        self.assertIn(words, result.err)
        self.assertFalse([name for name in os.listdir(self.folder) if name.startswith("out")])

    def expect(self, layers, prompt="p0", dtype="float16"):
        """The trace's layers of a prompt are exactly these, bit by bit."""
        with h5py.File(self.out) as file:
            self.assertEqual(file.attrs["dtype"], dtype)
            group = file[f"prompts/{prompt}/layers"]
            self.assertEqual(set(group), {str(index) for index in layers})
            for index, tensors in layers.items():
                self.assertEqual(set(group[str(index)]), set(tensors))
                for name, want in tensors.items():
                    got = group[str(index)][name][...]
                    self.assertEqual(got.dtype, want.dtype)
                    np.testing.assert_array_equal(got.view(np.uint8), np.ascontiguousarray(want)
                                                  .view(np.uint8), f"{prompt} {index} {name}")

    def npz(self, layers, name="in.npz", save=np.savez):
        path = self.path(name)
        save(path, **{f"layer_{i}.{role}": a for i, tensors in layers.items() for role, a in tensors.items()})
        return path
