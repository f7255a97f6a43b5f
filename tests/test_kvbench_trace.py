"""python/kvbench/trace/writer.py: what TraceWriter writes and refuses and leaves behind: parts, rotary tables,
projections, extra queries and scores, filters and checksums, bfloat16 as in torch; what `kvbench info` and a
replay make of extra queries.
Environment: KVBENCH, the program; without it, it is not run.
"""

import hashlib
import json
import os
import re
import sys
import unittest

from script_case import ROOT, FolderCase, missing, read_bytes, read_rows, write_bytes, write_text

MISSING = missing("h5py", "numpy")
if not MISSING:
    import h5py
    import numpy as np

    from kvbench.api.trace import read_trace
    from kvbench.trace import writer as kt

    ROPE, WEIGHT, NORMS = np.ones((517, 2), np.float32), np.ones((7, 12), np.float16), np.ones(3)

N, QUERIES, D = 60, 8, 8  # of traces with extra queries
PROMPT = N - QUERIES


def sha256(values):
    return hashlib.sha256(values.tobytes()).hexdigest()


def filters(data):
    """Names of a dataset's filters, in the order in which they are written."""
    plist = data.id.get_create_plist()
    return [plist.get_filter(at)[3].decode() for at in range(plist.get_nfilters())]


def changed(array, place, value):
    out = np.array(array)
    out[place] = value
    return out


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
class TraceWriterTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.trace = self.path("t.h5")

    def write(self, fill=lambda writer: None, parts="qkv", **options):
        """A prompt `a` of 5 tokens, layer 0: 2 query heads of 3 queries, 1 KV head, keys of 4, values of 6."""
        with kt.TraceWriter(self.trace, "m", "s", created="2026-01-02", **options) as writer:
            writer.begin_prompt("a", 5)
            writer.begin_layer(0, 2, 1, 3, 4, 6, **{f"with_{x}": x in parts for x in "qkv"})
            for name, shape in (("q", (2, 3, 4)), ("k", (1, 5, 4)), ("v", (1, 5, 6))):
                if name in parts:
                    writer.write(name, 0, 0, np.ones(shape, np.float32))
            fill(writer)

    def refused(self, cases, **options):
        """cases: (what is said, what is written); nothing is left behind."""
        for text, fill in cases:
            with self.subTest(text), self.assertRaises(kt.TraceError) as caught:
                self.write(fill, **options)
            self.assertIn(text, str(caught.exception))
            self.assertEqual(os.listdir(self.folder), [])

    def test_refusals(self):
        def rows(array, head=0, start=0):
            def fill(writer):
                writer.begin_layer(1, 2, 1, 3, 4, 6)
                writer.write("q", head, start, array)
            return fill

        def late(act):
            return lambda w: (w.end_prompt(), act(w))
        self.refused([
            ("a/layers/1/q: head 0, row 1 was never written", rows(np.ones((1, 4)))),
            ("got shape (1, 3, 5), expected [heads, rows, 4]", rows(np.ones((3, 5)))),
            ("expected them within (2, 3, 4)", rows(np.ones((3, 4)), 0, 1)),
            ("is written twice", lambda w: w.write("k", 0, 2, np.ones((1, 4), np.float32))),
            ("got 70000.0, expected a finite float16", rows(np.full((1, 4), 7e4))),
            ("expected floating point", rows(np.ones((1, 4), int))),
            ("duplicate layer", lambda w: w.begin_layer(0, 2, 1, 3, 4, 6)),
            ("multiple of the 2 KV heads", lambda w: w.begin_layer(2, 3, 2, 3, 4, 6)),
            ("nq: got 6", lambda w: w.begin_layer(2, 2, 2, 6, 4, 6)),
            ("fisher", lambda w: w.begin_layer(2, 2, 2, 3, 4, 6, fisher=-1.0)),
            ("prompts/a: duplicate prompt", lambda w: w.begin_prompt("a", 5)),
            ("prompts/b: no layer was written", lambda w: w.begin_prompt("b", 5)),
            ("expected UTF-8", lambda w: w.begin_prompt("a\udcff", 5)),
            ("a layer before its prompt", late(lambda w: w.set_attribute(0, "a", 1))),
            ("a layer before its prompt", late(lambda w: w.share_cache(1, 0))),
            ("a layer before its prompt", late(lambda w: w.drop_layer(0)))])
        for value in (np.nan, np.inf):
            for dtype in kt.STORED:
                self.refused([(f"head 1, row 2, element 3: got {value}",
                               rows(changed(np.ones((2, 3, 4), np.float32), (1, 2, 3), value)))], dtype=dtype)
        self.refused([("expected a finite bfloat16", rows(np.full((1, 4), 3.4e38, np.float32)))], dtype="bfloat16")
        self.refused([("rope: got `pre`", lambda w: None)], rope="pre")

    def test_refusals_of_rotary_tables(self):
        def put(cos, sin=None, layout="half", layers=None):
            return lambda w: (w.begin_layer(2, 1, 1, 5, 4, 4, with_q=False, with_v=False),
                              w.write("k", 0, 0, np.ones((5, 4), np.float32), 2),
                              w.write_rope(cos, cos if sin is None else sin, layout, layers))
        self.refused([
            ("rope: layout: got `both`, expected half or interleaved", put(ROPE, layout="both")),
            ("rope/sin: got shape (517, 1), expected", put(ROPE, ROPE[:, :1])),
            ("rope/cos: got shape (517,), expected", put(ROPE[:, 0])),
            ("rope/cos: got shape (517, 0), expected", put(ROPE[:, :0])),
            ("rope/cos: expected finite", put(changed(ROPE, (slice(None), 1), np.nan))),
            ("rope/cos: expected finite floating point", put(ROPE.astype(int))),
            ("rope: got 516 positions, expected at least 517: prompt a and 512", put(ROPE[1:])),
            ("rope: got 6 channels that turn, layer 0 has keys of 4", put(np.ones((517, 3)))),
            ("rope: has no table for layer 2", put(ROPE, layers=[0]))])
        self.refused([("got tables for `none`", put(ROPE))], rope="none")

    def test_refusals_of_projections_and_norms(self):
        def put(array, **options):
            return lambda w: w.write_o_proj(array, **options)

        def norms(*calls):
            return lambda w: [w.write_residual_norm(*call) for call in calls]
        self.refused([
            ("a/layers/0/o_proj: got shape (7, 13), expected [hidden, 2 * 6]", put(np.ones((7, 13), np.float16))),
            ("got shape (0, 12)", put(WEIGHT[:0])), ("got shape (7,)", put(WEIGHT[:, 0])),
            ("got elements of type float64, expected float16 or float32", put(WEIGHT.astype(float))),
            ("got elements of type uint16", put(WEIGHT.view(np.uint16))),
            ("is written twice", lambda w: [w.write_o_proj(WEIGHT) for _ in range(2)]),
            ("layer 3: `o_proj` before the layer was begun", put(WEIGHT, layer=3)),
            ("residual_norm: got shape (4,) from row 0, expected rows within 3", norms((0, np.ones(4)))),
            ("from row 1", norms((1, NORMS))), ("from row -1", norms((-1, NORMS))),
            ("row 1 is written twice", norms((0, NORMS[:2]), (1, NORMS[:2]))),
            ("residual_norm: head 0, row 2 was never written", norms((0, NORMS[:2]))),
            *(("row 2: got ", norms((0, NORMS[:1]), (1, np.array([1.0, value])))) for value in
              (np.nan, np.inf, -1.0, 1e39))])
        self.refused([("got elements of type float16, expected bfloat16", put(WEIGHT))], dtype="bfloat16")
        self.refused([("the layer has no v", put(WEIGHT))], parts="qk")
        self.refused([("the layer has no q", norms((0, NORMS)))], parts="kv")
        for value in (np.nan, -np.inf):
            bad = changed(WEIGHT.astype(np.float32), (6, 11), value)
            self.refused([("row 6, column 11: expected finite values", put(bad))])
            self.refused([("row 6, column 11: expected finite values",
                           put((bad.view(np.uint32) >> 16).astype(np.uint16)))], dtype="bfloat16")

    def test_a_failed_write_keeps_what_was_there(self):
        self.write()
        before = read_bytes(self.trace)
        with self.assertRaises(ValueError):
            self.write(lambda w: int("x"))
        self.assertEqual(read_bytes(self.trace), before)
        self.assertEqual(os.listdir(self.folder), ["t.h5"])

    def test_a_second_run_leaves_the_first_alone(self):
        def second(writer):
            with self.assertRaisesRegex(kt.TraceError, "t.h5: another run writes it, and holds the lock .*t.h5.lock"):
                self.write()
        self.write(second)
        self.assertEqual(os.listdir(self.folder), ["t.h5"])
        write_text(self.trace + ".lock", "")  # of a killed run
        self.write()
        self.assertEqual(os.listdir(self.folder), ["t.h5"])
        write_text(self.trace + ".lock", "precious")
        with self.assertRaisesRegex(kt.TraceError, "t.h5.lock: is there, and is no lock"):
            self.write()
        self.assertEqual(sorted(os.listdir(self.folder)), ["t.h5", "t.h5.lock"])

    def test_only_traces_and_unfinished_ones_are_replaced(self):
        part = self.trace + ".tmp"

        def there():
            return {name: read_bytes(self.path(name)) for name in os.listdir(self.folder)}

        def refused(said):
            before = there()
            with self.assertRaisesRegex(kt.TraceError, said):
                self.write()
            self.assertEqual(there(), before)
        for content in ("", "\0" * 4096, "\x89HDF\r\n\x1a\n and no more"):
            write_bytes(part, content.encode("latin-1"))
            self.write()
            self.assertEqual(os.listdir(self.folder), ["t.h5"])
        write_text(part, "precious")
        refused("t.h5.tmp: is there, and is no unfinished file")
        os.remove(part)
        write_text(self.trace, "precious")
        refused("t.h5: is there, and is not a trace")
        with h5py.File(self.trace, "w") as file:
            file["precious"] = [1, 2]
        refused("t.h5: is there, and is not a trace")
        os.remove(self.trace)
        os.mkfifo(part)
        with self.assertRaisesRegex(kt.TraceError, "t.h5.tmp: cannot be written: is no regular file"):
            self.write()

    def test_partial_layers_and_those_that_were_dropped(self):
        def fill(writer):
            for layer in (3, 4):
                writer.begin_layer(layer, 1, 1, 1, 2, 2, with_q=False, with_v=False)
                writer.write("k", 0, 3, np.zeros((2, 2), np.float16))
                writer.write("k", 0, 0, np.zeros((3, 2), np.float16))
            writer.drop_layer(4)
        self.write(fill)
        with h5py.File(self.trace) as file:
            layers = file["prompts/a/layers"]
            self.assertEqual((list(layers), list(layers["3"])), (["0", "3"], ["k"]))
            self.assertEqual(layers["0/k"].chunks, (1, 5, 4))
            self.assertIn("sha256", layers["0/v"].attrs)

    def test_tables_projections_and_norms_come_back(self):
        cos, sin = np.full((600, 2), 0.5), np.full((600, 2), -0.5, np.float32)
        weight = np.arange(7 * 12, dtype=np.float32).reshape(7, 12)

        def fill(writer):
            writer.write_rope(cos, sin, "interleaved")
            writer.write_o_proj(weight)
            writer.write_residual_norm(2, np.array([0.0]))
            writer.write_residual_norm(0, np.array([1.0, 2.5]))
        self.write(fill, gzip=0)
        with h5py.File(self.trace) as file:
            self.assertEqual((file["rope"].attrs["layout"], file["rope/cos"].dtype), ("interleaved", np.float32))
            self.assertTrue((file["rope/cos"][:] == 0.5).all() and (file["rope/sin"][:] == -0.5).all())
            layer = file["prompts/a/layers/0"]
            self.assertTrue((layer["o_proj"][:] == weight).all())
            self.assertEqual(layer["o_proj"].dtype, np.float32)
            self.assertEqual(layer["residual_norm"][:].tolist(), [1.0, 2.5, 0.0])
        self.write(lambda w: (w.write_rope(cos, sin, "half", [2, 7]), w.write_rope(sin, cos, "interleaved", [0])))
        with h5py.File(self.trace) as file:
            self.assertEqual(sorted(file["rope"]), ["0", "2", "7"])
            self.assertEqual(file["rope/7"].attrs["layout"], "half")
            self.assertTrue((file["rope/7/cos"][:] == 0.5).all() and (file["rope/0/cos"][:] == -0.5).all())

    def everything(self, dtype, gzip):
        """A trace with all datasets that there are; its open file."""
        rng = np.random.default_rng(3)
        table, weight = np.cos(np.ones((2000 + 512, 2))), rng.normal(size=(12, 7)).T
        weight = weight.astype({"bfloat16": np.float32}.get(dtype, dtype))
        with kt.TraceWriter(self.trace, "m", "s", dtype=dtype, gzip=gzip) as writer:
            writer.write_rope(table, -table, "half", [0, 5])
            for prompt in "ab":
                writer.begin_prompt(prompt, 2000, token_ids=np.arange(2000))
                for layer in (0, 5):
                    writer.begin_layer(layer, 2, 2, 1500, 4, 6)
                # In turns and in any order: a digest must not depend on it.
                for layer in (5, 0):
                    for part, head, row, shape in (("k", 1, 700, (1300, 4)), ("k", 0, 0, (2, 700, 4)),
                                                   ("k", 0, 700, (1300, 4)), ("q", 0, 0, (2, 1500, 4)),
                                                   ("v", 0, 0, (2, 2000, 6))):
                        writer.write(part, head, row, rng.normal(size=shape), layer)
                    writer.write_residual_norm(3, np.ones(1497), layer)
                    writer.write_residual_norm(0, np.ones(3), layer)
                    if prompt == "a":
                        writer.write_o_proj(weight, layer)
                    else:
                        self.assertTrue(writer.share_o_proj("a", layer))
        file = h5py.File(self.trace)
        self.addCleanup(file.close)
        return file

    def test_every_dataset_has_checksums(self):
        for dtype, gzip in (("float16", 4), ("bfloat16", 1), ("float32", 0)):
            found = {}

            def see(name, data, found=found):
                if isinstance(data, h5py.Dataset):
                    found[name] = data
            with self.everything(dtype, gzip) as file:
                file.visititems(see)
                # visititems sees one of several links: those of /rope, and of o_proj.
                self.assertEqual(len(found), 2 + 2 + 4 * 4 + 2)
                for name, data in found.items():
                    with self.subTest(dtype=dtype, name=name):
                        self.assertEqual(filters(data), ["shuffle", "deflate", "fletcher32"]
                                         if gzip else ["fletcher32"])
                        self.assertLessEqual(data.chunks[data.ndim == 3], 1024)
                        self.assertEqual(data.dtype.newbyteorder("<"), data.dtype)
                        if name[-1] in "qkv":
                            self.assertEqual(data.attrs["sha256"].tolist(), [sha256(head) for head in data[()]])
                        else:
                            self.assertEqual(data.attrs["sha256"], sha256(data[()]))
                            self.assertIsInstance(data.attrs["sha256"], str)
                self.assertEqual(file["prompts/b/layers/5/o_proj"].attrs["sha256"],
                                 file["prompts/a/layers/5/o_proj"].attrs["sha256"])
                kind = h5py.check_string_dtype(found["prompts/a/layers/0/k"].attrs.get_id("sha256").dtype)
                self.assertEqual((kind.encoding, kind.length), ("utf-8", None))
            if dtype != "float32":
                done = self.program("info", self.trace)
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_more_heads_than_an_attribute_holds(self):
        with kt.TraceWriter(self.trace, "m", "s") as writer:
            writer.begin_prompt("a", 1)
            writer.begin_layer(0, 4500, 4500, 1, 1, 1, with_q=False, with_v=False)
            writer.write("k", 0, 0, np.ones((4500, 1, 1)))
        with h5py.File(self.trace) as file:
            self.assertNotIn("sha256", file["prompts/a/layers/0/k"].attrs)

    def test_names_that_hdf5_cannot_hold(self):
        with kt.TraceWriter(self.trace, "m\udcff", "s\0") as writer:
            writer.begin_prompt("a", 1, text_id="\ud800")
            writer.begin_layer(0, 1, 1, 1, 1, 1, with_q=False, with_v=False)
            writer.write("k", 0, 0, np.ones((1, 1)))
        with h5py.File(self.trace) as file:
            self.assertEqual((file.attrs["model"], file.attrs["source"], file["prompts/a"].attrs["text_id"]),
                             ("m?", "s?", "?"))


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
class ExtraTest(FolderCase):
    """Extra queries and scores."""

    WINDOWS = ("--sink", "4", "--recent", "12", "--queries", str(QUERIES))

    def setUp(self):
        super().setUp()
        self.trace = self.path("t.h5")
        self.random = np.random.default_rng(3)

    def normal(self, *shape):
        return self.random.normal(size=shape).astype(np.float32)

    def write(self, fill, dtype="float16"):
        with kt.TraceWriter(self.trace, "m", "s", created="2026-01-02", dtype=dtype) as writer:
            writer.begin_prompt("a", N)
            for layer in (0, 2):
                writer.begin_layer(layer, 4, 2, N, D, D)
                for name, heads in (("q", 4), ("k", 2), ("v", 2)):
                    writer.write(name, 0, 0, self.normal(heads, N, D))
                fill(writer, layer)

    def segment(self, m):
        return self.normal(4, m, D), self.normal(2, m, D), np.arange(PROMPT, PROMPT + m)

    def usual(self, writer, layer):
        writer.write_extra("repeat", *self.segment(9), PROMPT, (0, 30), np.arange(1, 10, dtype=np.float64))
        writer.write_extra("repeat", *self.segment(11), PROMPT, (30, PROMPT))
        writer.write_extra("question-a", *self.segment(5), PROMPT)
        if layer == 2:
            writer.write_extra("second", *self.segment(3), PROMPT)
        writer.write_scores("gate.v1", self.normal(2, N), PROMPT)

    def test_round_trip(self):
        for dtype in kt.STORED:
            parts, scores = self.segment(9), self.normal(2, N)

            def fill(writer, _, parts=parts, scores=scores):
                writer.write_extra("repeat", *parts, PROMPT, (0, 30), np.arange(9.0))
                writer.write_extra("repeat", *self.segment(2))
                writer.write_scores("gate", scores)
            self.write(fill, dtype)
            trace = read_trace(self.trace)
            for head in range(2):
                first, second = trace.extra("a", 2, head, "repeat")
                for got, expected in ((first.q, parts[0][2 * head:2 * head + 2]), (first.k, parts[1][head])):
                    if dtype == "bfloat16":
                        expected = kt.from_bfloat16(kt.to_bfloat16(expected))
                    np.testing.assert_array_equal(got, expected.astype(
                        np.float32 if dtype == "bfloat16" else dtype).astype(np.float32))
                np.testing.assert_array_equal(first.position, parts[2])
                np.testing.assert_array_equal(first.residual_norm, np.arange(9.0))
                self.assertEqual((first.prefix, first.about), (PROMPT, (0, 30)))
                self.assertEqual((second.prefix, second.about, second.residual_norm), (None, None, None))
                np.testing.assert_array_equal(trace.scores("a", 2, head, "gate"), scores[head])
            with self.assertRaisesRegex(kt.TraceError, "not in the trace"):
                trace.extra("a", 0, 0, "x")

    def test_refusals(self):
        q, k, position = self.segment(4)
        scores = self.normal(2, N)
        for text, arguments, options in (
                ("name: got `a b`", ("a b", q, k, position), {}),
                ("repeat/0/q: got shape", ("repeat", q[:3], k, position), {}),
                ("repeat/0/k: got shape", ("repeat", q, k[:, :3], position), {}),
                ("repeat/0/position: expected 4 integers", ("repeat", q, k, position[:3]), {}),
                ("repeat/0/position", ("repeat", q, k, position[::-1]), {}),
                ("repeat/0/position", ("repeat", q, k, position - PROMPT - 1), {}),
                ("prefix: got 61", ("repeat", q, k, position, N + 1), {}),
                ("about: got [3, 53)", ("repeat", q, k, position, PROMPT, (3, PROMPT + 1)), {}),
                ("residual_norm: got shape", ("repeat", q, k, position), {"residual_norm": [1.0]}),
                ("residual_norm: row 1: got -1.0, expected finite", ("repeat", q, k, position),
                 {"residual_norm": [1.0, -1, 1, 1]}),
                ("repeat/0/q: head 1, row 2, element 3", ("repeat", changed(q, (1, 2, 3), np.nan), k, position), {}),
                ("expected floating point of shape (2, 60)", ("s", scores[:, 1:]), {}),
                ("head 1, token 5", ("s", changed(scores, (1, 5), np.inf)), {}), ("scores/x/y", ("x/y", scores), {})):
            def fill(writer, _, arguments=arguments, options=options):
                (writer.write_scores if len(arguments) == 2 else writer.write_extra)(*arguments, **options)
            with self.assertRaisesRegex(kt.TraceError, re.escape(text)):
                self.write(fill)

    def test_info_shows_sets_and_scores(self):
        self.write(self.usual)
        text = self.done("info", self.trace)
        for words in ("extra repeat: 20 queries in 2 segments", "extra second: 3 queries in 1 segment",
                      "scores gate.v1"):
            self.assertIn(words, text)
        first, second = json.loads(self.done("info", "--json", self.trace))[0]["prompts"][0]["layers"]
        self.assertEqual([one["name"] for one in second["extra"]], ["question-a", "repeat", "second"])
        self.assertEqual(first["extra"][1]["segments"][1], {
            "queries": 11, "prefix": 52, "first": 30, "last": 52, "residual_norm": False})
        self.assertEqual(first["scores"], [{"name": "gate.v1", "prefix": 52}])
        with h5py.File(self.trace, "r+") as file:
            del file["prompts/a/layers/2/extra/repeat/1/position"]
        self.done("info", self.trace, code=2, says="layers/2/extra/repeat/1/position: is missing")

    def test_replay(self):
        self.write(self.usual)
        out = self.path("out.csv")
        self.done("replay", self.trace, "-o", out, *self.WINDOWS, "--config",
                  os.path.join(ROOT, "configs", "second_question.toml"))
        rows = read_rows(out)
        self.assertEqual({row["status"] for row in rows}, {"ok"})
        self.assertEqual({row["scoring_queries"] for row in rows
                          if row["algorithm"] == "snapkv" and "ref=question-a" in row["params"]}, {"5"})
