"""python/kvbench/trace/values.py: digests, checksums and chunks of what is read from traces and
caches files; damage is one line."""

import struct
import sys
import unittest

from script_case import FolderCase, missing, read_bytes, write_bytes

MISSING = missing("h5py", "numpy")
if not MISSING:
    import h5py
    import numpy as np

    from kvbench import caches as kc
    from kvbench.trace import values as kv
    from kvbench.trace import writer as kt

LAYER = "prompts/p/layers/3"


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
class TraceValuesTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.trace = self.path("t.h5")

    def write(self, dtype="float16", gzip=0):
        """Two KV heads, four of queries, 2500 tokens: three chunks a head."""
        self.arrays = {name: np.random.default_rng(at).normal(size=shape).astype(np.float16)
                       for at, (name, shape) in enumerate({"q": (4, 9, 8), "k": (2, 2500, 8),
                                                           "v": (2, 2500, 6)}.items())}
        with kt.TraceWriter(self.trace, "m", "s", dtype=dtype, gzip=gzip) as writer:
            writer.begin_prompt("p", 2500, token_ids=np.arange(2500))
            writer.begin_layer(3, 4, 2, 9, 8, 6)
            for name, array in self.arrays.items():
                writer.write(name, 0, 0, array)

    def read(self):
        for head in range(2):
            kc.read_head(self.trace, "p", 3, head)

    def refused(self, *texts, read=None):
        with self.assertRaises(kt.TraceError) as caught:
            (read or self.read)()
        said = str(caught.exception)
        self.assertTrue(said.startswith(f"{self.trace}: "), said)
        self.assertNotIn("\n", said)
        for text in texts:
            self.assertIn(text, said)

    def patch(self, old, new):
        """Bytes that stand in the file once."""
        data = read_bytes(self.trace)
        self.assertEqual(data.count(old), 1)
        write_bytes(self.trace, data.replace(old, new))

    def replace(self, name, fill, **options):
        """The dataset again, with other options, without its attribute."""
        with h5py.File(self.trace, "r+") as file:
            values = file[name][()]
            del file[name]
            fill(file.create_dataset(name, values.shape, values.dtype, **options), values)

    def test_groups_name_their_members(self):
        self.write()
        with h5py.File(self.trace) as file:
            for group, names in (("/", ["prompts"]), ("prompts", ["p"]), ("prompts/p/layers", ["3"]),
                                 ("prompts/p", ["layers", "token_ids"]), (LAYER, ["k", "q", "v"])):
                self.assertEqual(list(file[group].attrs["members"]), names)
        for where, name in (("prompts", "p"), ("prompts/p/layers", "3")):
            self.write()
            with h5py.File(self.trace, "r+") as file:
                file[where].move(name, name + "4")
            self.refused(f"/{where}/{name}: is missing", read=lambda: kc.trace_heads(self.trace))

    def test_whole_traces_are_read(self):
        for dtype in ("float16", "bfloat16", "float32"):
            for gzip in (0, 4):
                self.write(dtype, gzip)
                head = kc.read_head(self.trace, "p", 3, np.int64(1))
                expected = kc.round_to(self.arrays["k"][1], dtype).astype(np.float32)
                self.assertTrue((head.k == expected).all())
                self.assertEqual((head.q.shape, head.v.shape), ((2, 9, 8), (2500, 6)))
                with h5py.File(self.trace) as file:
                    self.assertEqual(kv.read_values(file["prompts/p/token_ids"]).tolist(), list(range(2500)))

    def test_changed_values(self):
        for name, where in (("k", "head 1"), ("v", "head 1"), ("q", "head 2")):
            self.write(gzip=4)
            with h5py.File(self.trace, "r+") as file:
                data = file[f"{LAYER}/{name}"]
                expected = data.attrs["sha256"][int(where[-1])]
                data[int(where[-1]), 8, 1] += 1
            self.refused(f"{LAYER}/{name}: {where}: its SHA-256 is ", f", expected {expected} "
                         "(attribute sha256): the values were changed")
            kc.read_head(self.trace, "p", 3, 0)  # its values are as they were
        with h5py.File(self.trace, "r+") as file:
            file["prompts/p/token_ids"][7] = 8
        with h5py.File(self.trace) as file:
            self.refused("prompts/p/token_ids: its SHA-256 is",
                         read=lambda: kv.read_values(file["prompts/p/token_ids"]))

    def test_attributes_that_are_no_digests(self):
        good = ["0" * 64] * 2
        for value, text in ((7, "got int64, expected 2 strings, one per head"),
                            (h5py.Empty("f4"), "got Empty, expected 2 strings"),
                            (good[0], "got 1, expected 2 strings"), (good * 2, "got 4, expected 2 strings"),
                            (["0" * 64, "0" * 63], f"got `{'0' * 63}`, expected 64 of the digits"),
                            (["0" * 64, "A" * 64], f"got `{'A' * 64}`, expected 64 of the digits"),
                            (["0" * 64, "0" * 64 + "\n"], f"got `{'0' * 64}`, expected 64 of"),
                            (["0" * 64, "\x9b\u202e" * 500], f"got `{'??' * 40}`")):
            self.write()
            with h5py.File(self.trace, "r+") as file:
                file[f"{LAYER}/k"].attrs["sha256"] = value
            with self.subTest(text=text):
                self.refused(f"{LAYER}/k: attribute sha256: {text}")
        self.write()
        with h5py.File(self.trace, "r+") as file:
            file["prompts/p/token_ids"].attrs["sha256"] = good
            self.refused("prompts/p/token_ids: attribute sha256: got 2, expected one string",
                         read=lambda: kv.read_values(file["prompts/p/token_ids"]))

    def test_what_other_writers_write(self):
        """Strings of fixed length, big-endian values, chunks of several heads, neither chunks nor digests."""
        for dtype, options, digest in ((None, {}, "S"), (">f2", {}, h5py.string_dtype()),
                                       (None, {"chunks": (2, 900, 5)}, None), (None, {}, None)):
            self.write()
            with h5py.File(self.trace, "r+") as file:
                values, digests = file[f"{LAYER}/k"][()], file[f"{LAYER}/k"].attrs["sha256"]
                del file[f"{LAYER}/k"]
                data = file.create_dataset(f"{LAYER}/k", data=values.astype(dtype or values.dtype), **options)
                if digest == "S":
                    data.attrs["sha256"] = np.array(digests.tolist(), "S")
                elif digest:
                    data.attrs.create("sha256", digests, dtype=digest)
            self.assertTrue((kc.read_head(self.trace, "p", 3, 1).k == self.arrays["k"][1]).all())

    def test_flipped_bits_and_damaged_gzip(self):
        self.write()
        row = self.arrays["k"][1, 2000].tobytes()
        self.patch(row, row[:-1] + bytes([row[-1] ^ 1]))
        self.refused(f"{LAYER}/k: cannot be read: ")
        self.write(gzip=4)
        with h5py.File(self.trace) as file:
            chunk = file[f"{LAYER}/v"].id.read_direct_chunk((0, 1024, 0))[1]
        self.patch(chunk, chunk[:50] + b"\0" * 50 + chunk[100:])
        self.refused(f"{LAYER}/v: cannot be read: ")

    def test_files_that_are_cut_short_or_of_another_kind(self):
        self.write()
        data = read_bytes(self.trace)
        for bad in (b"", b"a,b\n1,2\n", *(data[:len(data) * part // 100] for part in (1, 10, 50, 90, 99))):
            write_bytes(self.trace, bad)
            self.refused()
            self.refused(read=lambda: kc.CacheReader(self.trace))

    def test_missing_chunks(self):
        def some(places):
            def fill(data, values):
                for head, row in places:
                    data[head, row:row + 1024] = values[head, row:row + 1024]
            return fill

        def shrunk(data, values):
            data[()] = values
            data.resize((2, 2498, 8))  # which drops the last two of each head
            data.resize((2, 2500, 8))
        every = [(head, row) for head in range(2) for row in (0, 1024, 2048)]
        wide = {"chunks": (1, 1024, 8)}
        for name, fill, options, place, count in (
                *(("k", some(every[:at] + every[at + 2:]), {**wide, "compression": "gzip"}, [*every[at], 0],
                   f"({min(2, 6 - at)} of 6 are), expected all chunks in the file") for at in (0, 4, 5)),
                ("k", some([]), wide, [0, 0, 0], "(6 of 6 are)"),
                ("q", some([]), {"chunks": (1, 9, 8)}, [0, 0, 0], "(4 of 4 are)"),
                # A dataset that may grow; one chunk of many, found without a walk through the index for each.
                ("k", some(every[:4]), {**wide, "maxshape": (2, None, 8)}, [1, 1024, 0], "(2 of 6 are)"),
                ("k", shrunk, {"chunks": (1, 1, 8), "maxshape": (2, 2500, 8)}, [0, 2498, 0], "(4 of 5000 are)")):
            # Older and newer files have different indices of chunks.
            for latest in (False,) if "maxshape" in options else (False, True):
                self.trace = self.path("t.h5")
                self.write()
                if latest:
                    with h5py.File(self.trace) as old, h5py.File(self.path("new.h5"), "w", libver="latest") as new:
                        new.attrs.update(old.attrs)
                        old.copy("prompts", new)
                    self.trace = self.path("new.h5")
                self.replace(f"{LAYER}/{name}", fill, **options)
                with self.subTest(name, place=place, latest=latest):
                    self.refused(f"{LAYER}/{name}: chunk at {place} is missing {count}")

    def test_empty_chunks(self):
        """Of 0 bytes by the index; and of too few for a checksum, on which HDF5 1.10 crashes."""
        size = 1024 * 8 * 2
        for options, left in (({}, 0), ({"shuffle": True}, 0), ({"fletcher32": True}, 4)):
            self.write()
            self.replace(f"{LAYER}/k", lambda data, values: data.__setitem__((), values),
                         chunks=(1, 1024, 8), **options)
            # As the index has it: size, mask of filters, place of the chunk.
            key = struct.pack("<4Q", 1, 1024, 0, 0)
            self.patch(struct.pack("<2I", size + 4 * ("fletcher32" in options), 0) + key,
                       struct.pack("<2I", left, 0) + key)
            with self.subTest(options=options, left=left):
                if not options:
                    self.refused(f"{LAYER}/k: got {5 * size} bytes in its chunks, expected " f"{6 * size}")
                    continue
                self.refused(f"{LAYER}/k: chunk at [1, 1024, 0] has {left} bytes, expected its " "values")
                kc.read_head(self.trace, "p", 3, 0)  # has none of it

    def test_caches(self):
        self.write()
        path, inner = self.path("c.h5"), "0000-m/prompts/p/layers/3/0"
        with kc.CacheWriter(path, [self.trace], sink=2, recent=8, queries=5) as writer:
            writer.group("m").put("p", 3, 0, np.ones((6, 8)), np.ones((6, 6)))
        self.trace = path

        def read():
            with kc.CacheReader(path) as reader:
                return reader.groups[0].read("p", 3, 0)
        self.replace(f"{inner}/k", lambda data, values: data.__setitem__((), values), chunks=(2, 8), compression="gzip")
        self.assertTrue((read().k == 1).all())
        self.replace(f"{inner}/k", lambda data, values: data.__setitem__(slice(2), values[:2]), chunks=(2, 8))
        self.refused(f"{inner}/k: chunk at [2, 0] is missing (2 of 3 are), expected all", read=read)

    def test_the_layout_of_a_newer_hdf5(self):
        self.write()
        with h5py.File(self.trace) as file:
            header = h5py.h5o.get_info(file[f"{LAYER}/k"].id).addr
        with open(self.trace, "rb") as file:
            data = bytearray(file.read())
        # Object header: version 1, 16 bytes; messages of 8 bytes (type, size, ...) and their data.
        self.assertEqual(data[header], 1)
        at = header + 16
        while struct.unpack_from("<H", data, at)[0] != 8:  # the layout's
            at += 8 + struct.unpack_from("<H", data, at + 2)[0]
        self.assertIn(data[at + 8], (3, 4))
        data[at + 8] = 5
        write_bytes(self.trace, data)
        self.done("info", self.trace, code=2, says="/k: dataset cannot be opened (bad version number for layout "
                  "message: written by HDF5 2.0 with libver=latest; write the datasets again without it)")
