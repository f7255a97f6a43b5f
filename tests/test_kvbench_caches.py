"""python/kvbench/caches: caches files written and read, refusals; tables of scores. Without torch."""

import os
import unittest

from script_case import FolderCase, read_bytes, read_text, write_bytes, write_text

try:
    import h5py
    import numpy as np

    from kvbench import caches as kc
    from kvbench.score.table import COLUMNS, Table
    from kvbench.trace import writer as kt
except (ImportError, SystemExit):
    h5py = None

N, D, DV, HEADS, GROUP = 30, 4, 6, 2, 3
WINDOWS = {"sink": 2, "recent": 8, "queries": 5}


@unittest.skipIf(h5py is None, "h5py is missing")
class CachesTest(FolderCase):
    def setUp(self):
        super().setUp()
        self.rng = np.random.default_rng(1)
        self.trace = self.make_trace("t.h5")

    def make_trace(self, name, dtype="float32", prompts=("a", "b"), **options):
        path = self.path(name)
        with kt.TraceWriter(path, "m", "s", created="2026-01-02", dtype=dtype) as writer:
            for prompt in prompts:
                writer.begin_prompt(prompt, N)
                for layer in (3, 10):
                    writer.begin_layer(layer, HEADS * GROUP, HEADS, 9, D, DV, **options)
                    for part, shape in (("q", (HEADS * GROUP, 9, D)), ("k", (HEADS, N, D)), ("v", (HEADS, N, DV))):
                        writer.write(part, 0, 0, self.rng.normal(0, 1, shape))
        return path

    def write(self, fill, name="c.h5", traces=None, **options):
        path = self.path(name)
        with kc.CacheWriter(path, traces or [self.trace], **WINDOWS | options) as writer:
            fill(writer)
        return path

    def refused(self, text, fill, **options):
        with self.assertRaises(kt.TraceError) as caught:
            self.write(fill, "refused.h5", **options)
        self.assertIn(text, str(caught.exception))
        self.assertNotIn("\n", str(caught.exception))
        self.assertEqual([name for name in os.listdir(self.folder) if "refused" in name], [])

    def entry(self, count=5, **more):
        return {"k": self.rng.normal(0, 1, (count, D)), "v": self.rng.normal(0, 1, (count, DV))} | more

    def test_prompts_of_a_trace_as_a_text(self):
        path = self.make_trace("t.h5", prompts=("x-1", "x-12", "y"))
        for text, names in (("x-12", ["x-12"]), ("x-12,y", ["x-12", "y"])):
            self.assertEqual(list(dict.fromkeys(name for name, *_ in kc.trace_heads(path, text))), names)

    def test_heads_of_a_trace(self):
        for dtype in ("float16", "bfloat16", "float32"):
            path = self.make_trace(f"{dtype}.h5", dtype, prompts=("x",), scale=0.3)
            self.assertEqual(kc.trace_heads(path), [("x", layer, head) for layer in (3, 10) for head in range(HEADS)])
            head = kc.read_head(path, "x", 10, 1)
            with h5py.File(path) as file:
                layer = file["prompts/x/layers/10"]
                for name, own in (("k", head.k), ("v", head.v), ("q", head.q[0])):
                    data = layer[name][{"q": 3}.get(name, 1)]
                    if dtype == "bfloat16":
                        data = (data.astype(np.uint32) << 16).view(np.float32)
                    self.assertTrue((own == data.astype(np.float32)).all())
                    self.assertEqual(own.dtype, np.float32)
                self.assertTrue((kc.read_head(file, "x", 10, 1).q == head.q).all())
            self.assertEqual((head.q.shape, head.scale, head.dtype), ((GROUP, 9, D), 0.3, dtype))
        self.assertEqual(kc.read_head(self.trace, "a", 3, 0).scale, 0.5)
        self.assertIsNone(kc.read_head(self.trace, "a", 3, 0, with_q=False).q)
        for path, place, text in ((self.trace, ("z", 3, 0), "prompts/z/layers/3: not in the trace"),
                                  (self.trace, ("a", 4, 0), "prompts/a/layers/4: not in the trace"),
                                  (self.trace, ("a", 3, 2), "KV head: got 2, expected 0 to 1"),
                                  (self.path("none.h5"), ("a", 3, 0), "no such file")):
            with self.assertRaisesRegex(kt.TraceError, text):
                kc.read_head(path, *place)

    def test_what_is_written_is_read(self):
        head = kc.read_head(self.trace, "b", 3, 1)
        kept = np.array([7, 4, 21])
        made = self.entry(4, log_weight=[0, -np.inf, 1, 2], k_den=np.zeros((0, D)))

        def fill(writer):
            first = writer.group("m+x", {"z": 1, "b": "u"}, budget=0.25, seed=3, scores="none", scope="layer")
            first.put("b", 3, 1, head.k[kept], head.v[kept], token=kept, aux_bytes=7, compress_ms=1.5, diag="a=1")
            first.put("a", 10, 0, **made, counted=[])  # as if it were not there
            writer.group("m+x", "b=u;z=1", budget=0.5).put("a", 3, 0, infeasible="too few bytes")
        path = self.write(fill)
        with kc.CacheReader(path) as reader:
            self.assertEqual((reader.protocol, reader.sink, reader.recent, reader.queries), ("prefill", 2, 8, 5))
            self.assertEqual(reader.traces, {kc.file_sha256(self.trace)})
            first, second = reader.groups
            self.assertEqual(first.key, ("m+x", "b=u;z=1", 0.25, 3))
            self.assertEqual((first.scores, first.scope), ("none", "layer"))
            self.assertEqual((second.key, second.scores), (("m+x", "b=u;z=1", 0.5, 0), "past"))
            self.assertEqual((first.prompts(), first.heads("a")), (["a", "b"], [(10, 0)]))
            entry = first.read("b", 3, 1, (D, DV))
            self.assertTrue((entry.k == head.k[kept]).all() and (entry.v == head.v[kept]).all())
            self.assertEqual(entry.token.tolist(), [7, 4, 21])
            self.assertEqual(entry.attributes, {"aux_bytes": 7, "compress_ms": 1.5, "diag": "a=1"})
            self.assertIsNone(entry.log_weight)
            entry = first.read("a", 10, 0)
            self.assertTrue((entry.k == made["k"].astype(np.float32)).all())
            self.assertEqual(entry.log_weight.tolist(), [0, -np.inf, 1, 2])
            self.assertEqual((entry.k_den.shape, entry.counted), ((0, D), None))
            self.assertEqual(second.read("a", 3, 0).infeasible, "too few bytes")
            self.assertIsNone(second.read("a", 3, 0).k)
            self.assertIsNone(first.read("a", 3, 0))
        self.assertEqual(sorted(os.listdir(self.folder)), ["c.h5", "t.h5"])

    def test_elements_are_rounded_to_the_traces_type(self):
        # Ties to even: 1 + 2^-8 and 1 + 3 * 2^-8 lie between bfloat16's neighbours, as 1 + 2^-11
        # does between float16's.
        values = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, -3.14159])
        expected = {"float16": [1 + 2**-8, 1 + 3 * 2**-8, 1, -3.140625], "bfloat16": [1, 1 + 2**-6, 1, -3.140625],
                    "float32": [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, float(np.float32(-3.14159))]}
        for dtype, rounded in expected.items():
            got = kc.round_to(values, dtype)
            self.assertEqual(got.astype(float).tolist(), rounded, dtype)
            self.assertEqual(got.dtype, np.float16 if dtype == "float16" else np.float32)
            trace = self.make_trace(f"{dtype}.h5", dtype)
            k, v = np.tile(values, (2, 1)), np.zeros((2, DV))

            def fill(writer):
                writer.group("rows").put("a", 3, 0, k, v)
                writer.group("codes").put("a", 3, 0, k, v, payload_bytes=9)
            with kc.CacheReader(self.write(fill, f"{dtype}.c.h5", [trace])) as reader:
                rows, codes = (group.read("a", 3, 0) for group in reader.groups)
                self.assertEqual(rows.k[1].astype(float).tolist(), rounded)
                self.assertTrue((codes.k[1] == values.astype(np.float32)).all())
        self.assertTrue(np.isinf(kc.round_to(1e6, "float16")))
        trace = self.path("float16.h5")
        self.refused("k[1, 2]: got inf, expected a finite float32", lambda w: w.group("m").put(
            "a", 3, 0, np.where(np.arange(8).reshape(2, 4) == 6, 1e6, 1), np.zeros((2, DV))),
            traces=[trace])

    def test_shards_join(self):
        def part(prompt, budget=0.5):
            return lambda w: w.group("m", budget=budget).put(prompt, 3, 0, **self.entry())
        one, two = self.write(part("a"), "1.h5"), self.write(part("b"), "2.h5")
        with kc.CacheReader([one, two, self.write(part("b", 0.25), "3.h5")]) as reader:
            self.assertEqual([group.prompts() for group in reader.groups], [["a", "b"], ["b"]])
            self.assertEqual(reader.groups[0].read("b", 3, 0).k.shape, (5, D))
        for other, text in (
                (self.write(part("a"), "4.h5"), "0000-m/prompts/a/layers/3/0: is also in"),
                (self.write(part("b"), "5.h5", sink=3), "sink: got 3, expected 2, as")):
            with self.assertRaisesRegex(kt.TraceError, text):
                kc.CacheReader([one, other])

    def test_a_run_that_fails_leaves_what_was_there(self):
        path = self.write(lambda w: w.group("m").put("a", 3, 0, **self.entry()))
        before = read_bytes(path)
        with self.assertRaises(ZeroDivisionError):
            self.write(lambda w: 1 / 0)
        self.assertEqual(read_bytes(path), before)
        self.assertEqual(sorted(os.listdir(self.folder)), ["c.h5", "t.h5"])

    def test_the_writer_refuses(self):
        def put(prompt="a", layer=3, head=0, **entry):
            return lambda w: w.group("m").put(prompt, layer, head, **{**self.entry(), **entry})
        where = "refused.h5: 0000-m/prompts/a/layers/3/0: "
        bad = self.entry()["k"]
        bad[2, 1] = np.nan
        for text, fill in (
                (where + "k[2, 1]: got nan, expected a finite float32", put(k=bad)),
                (where + "k: shape: got [5, 3], expected [B, 4]", put(k=np.ones((5, 3)))),
                (where + "k: shape: got [4], expected [B, 4]", put(k=np.ones(4))),
                (where + "v: rows: got 4, expected 5", put(v=np.ones((4, DV)))),
                (where + "v: got nothing", put(v=None)),
                (where + "k: elements: got int64", put(k=np.ones((5, 4), int))),
                (where + "k_den: shape: got [2, 5]", put(k_den=np.ones((2, 5)))),
                (where + "log_weight: shape: got [4], expected [5]", put(log_weight=np.ones(4))),
                (where + "log_weight[1]: got inf, expected a float32 or -inf", put(log_weight=[0.0, np.inf, 0, 0, 0])),
                (where + "log_weight_den: shape: got [5], expected [2]",
                 put(k_den=np.ones((2, 4)), log_weight_den=np.ones(5))),
                (where + "token: elements: got float64", put(token=np.ones(5))),
                (where + "token: got 9 twice", put(token=[8, 9, 9, -1, -1])),
                (where + "token: got -2", put(token=[8, 9, -2, -1, -1])),
                (where + "token: got 1, expected a position of the middle, 2 to 21", put(token=[1, 2, 3, 4, 5])),
                *((where + f"counted: got {text}", put(counted=counted, quantised=3)) for counted, text in (
                    ([9, 8], "[9, 8], expected ascending positions"), ([8, 8], "[8, 8], expected ascending"),
                    ([-1, 8], "[-1, 8], expected ascending"), ([8.0], "float64 of shape [1], expected integers"),
                    ([[8]], "int64 of shape [1, 1], expected integers"),
                    (range(2, 6), "4 tokens, expected at most the 3 quantised"),
                    ([1], "1, expected a position of the middle, 2 to 21"), ([22], "22, expected a position"))),
                (where + "counted: got 8, expected no position that token holds exactly",
                 put(counted=[8], quantised=3, token=[8, -1, -1, -1, -1])),
                (where + "attribute: got `auxbytes`", put(auxbytes=3)),
                (where + "aux_bytes: got 2.5, expected an integer", put(aux_bytes=2.5)),
                (where + "got k, v, expected nothing", put(infeasible="no")),
                ("prompts/z/layers/3/0: not in the trace", put("z")),
                ("KV head: got 2, expected 0 to 1", put(head=2)),
                ("algorithm: got `a b`", lambda w: w.group("a b")),
                ("m: params: got `x`, expected key=value", lambda w: w.group("m", "x")),
                ("params: got `x=1;x=2`, expected each key once", lambda w: w.group("m", "x=1;x=2")),
                ("budget: got 1.5", lambda w: w.group("m", budget=1.5)),
                ("scores: got `some`", lambda w: w.group("m", scores="some")),
                ("duplicate group", lambda w: [w.group("m", budget=0.5) for _ in range(2)]),
                ("duplicate entry", lambda w: [g.put("a", 3, 0, **self.entry())
                                            for g in [w.group("m")] for _ in range(2)])):
            with self.subTest(text=text):
                self.refused(text, fill)

        def nothing(writer):
            raise AssertionError("must not begin")
        self.refused("protocol: got `both`", nothing, protocol="both")
        self.refused("recent 4, queries 5, expected", nothing, recent=4)
        self.refused("no such file", nothing, traces=[self.path("none.h5")])
        self.refused("prompt a is in two", nothing, traces=[self.trace, self.make_trace("again.h5")])
        self.refused("expected one type", nothing, traces=[self.trace, self.make_trace("half.h5", "float16", ("c",))])

    def test_the_reader_refuses(self):
        path = self.write(lambda w: w.group("m").put("a", 3, 0, **self.entry(
            token=np.arange(2, 7), log_weight=np.zeros(5)), aux_bytes=3))
        good = read_bytes(path)

        inner, where = "0000-m/prompts/a/layers/3/0", "0000-m/prompts/a/layers/3/0: "

        def put(place, name, value):
            """An attribute; None: without it."""
            return lambda f: f[place].attrs.__delitem__(name) if value is None else f[place].attrs.__setitem__(
                name, value)

        def replace(name, data):
            def act(file):
                if name in file[inner]:
                    del file[inner][name]
                file[inner][name] = data
            return act
        last_inf = np.where(np.arange(5 * DV).reshape(5, DV) == 5 * DV - 1, np.inf, 0)
        opened = (
            ("format: got other, expected kvbench-caches", put("/", "format", "other")),
            ("version: got 2, expected 1", put("/", "version", 2)),
            ("protocol: got both", put("/", "protocol", "both")),
            ("queries: got 0, expected an integer of at least 1", put("/", "queries", 0)),
            ("sink: got -1", put("/", "sink", -1)), ("sink: got None", put("/", "sink", None)),
            ("recent: got 4, expected at least queries, 5", put("/", "recent", 4)),
            ("trace_sha256: got nothing", put("/", "trace_sha256", None)),
            ("0000-m: algorithm: got nothing", put("0000-m", "algorithm", None)),
            ("0000-m: budget: got 2", put("0000-m", "budget", 2.0)))
        read = (
            (where + "k: got nothing, expected a dataset", lambda f: f[inner].__delitem__("k")),
            (where + "v[4, 5]: got inf", replace("v", last_inf)),
            (where + "k[0, 0]: got 1e+300, expected a finite float32", replace("k", np.full((5, D), 1e300))),
            (where + f"token: got {2 ** 63}, expected a position", replace("token", np.full(5, 2 ** 63, np.uint64))),
            (where + f"counted: got [{2 ** 63}]", replace("counted", np.full(1, 2 ** 63, np.uint64))),
            (where + "aux_bytes: got -1", put(inner, "aux_bytes", -1)),
            ("0/k: got a group", lambda f: (f[inner].__delitem__("k"), f.create_group(inner + "/k"))))
        for text, act in (*opened, *read):
            write_bytes(path, good)
            with h5py.File(path, "r+") as file:
                act(file)
            with self.subTest(text=text), self.assertRaises(kt.TraceError) as caught:
                with kc.CacheReader(path) as reader:
                    self.assertIn((text, act), read)
                    reader.groups[0].read("a", 3, 0, (D, DV))
            self.assertIn(text, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))
        with self.assertRaises(kt.TraceError):
            kc.CacheReader([])

    def test_other_writers_strings_and_types(self):
        # Strings of fixed length, one sum instead of an array, doubles, further names.
        path = self.path("other.h5")
        with h5py.File(path, "w") as file:
            file.attrs.update({"format": np.bytes_("kvbench-caches"), "version": np.int32(1),
                               "protocol": np.bytes_("prefill"), "sink": 2, "recent": 8,
                               "queries": 5, "trace_sha256": np.bytes_("AB" * 32), "more": "x"})
            file["notes"] = [1, 2]
            group = file.create_group("anything")
            group.attrs["algorithm"] = np.bytes_("m")
            group.attrs["note"] = "y"
            inner = group.create_group("prompts/a/layers/3/0")
            inner["k"] = np.ones((2, D))
            inner["v"] = np.ones((2, DV), np.float16)
            inner["token"] = np.array([4, 5], np.uint8)
            inner["note"] = 3
            inner.parent["note"] = 3
        with kc.CacheReader(path) as reader:
            self.assertEqual(reader.traces, {"ab" * 32})
            group, = reader.groups
            self.assertEqual(group.key, ("m", "", None, 0))
            entry = group.read("a", 3, 0)
            self.assertEqual((entry.k.dtype, entry.v.dtype, entry.token.dtype), (np.float32, np.float32, np.int64))
            self.assertEqual(entry.attributes, {})

    def test_fields_with_commas_and_line_ends_survive(self):
        path = self.path("s.csv")
        row = {name: None for name in COLUMNS} | {"prompt": "a", "answer": 'say "x",\nor y\r\nz',
                                                  "kl": 0.1, "seed": 0, "status": "ok"}
        with Table(path) as table:
            table.write(row)
        with Table(path, resume=True) as table:
            self.assertEqual(table.done, {("", "a", "", "", "", "0")})
            self.assertEqual(table.read()[0]["answer"], row["answer"])
            self.assertEqual(table.read()[0]["kl"], "0.1")
            # A form feed and a line separator end no line of a table.
            table.write(row | {"prompt": "d", "answer": "x\x0cy\u2028z"})
            self.assertEqual(table.read()[1]["answer"], "x\x0cy\u2028z")
            table.write(row | {"prompt": "b", "status": "failed: x"})
        # Half a row, within a quoted field of two lines.
        with open(path, "a", encoding="utf-8", newline="") as file:
            file.write(',c,,,,0,,,,,,,,,,"half\n')
        with Table(path, resume=True) as table:
            self.assertEqual(table.done, {("", name, "", "", "", "0") for name in "ad"})
            self.assertEqual(len(table.read()), 2)

    def test_only_tables_of_scores_are_overwritten_by_scores(self):
        path = write_text(self.path("s.csv"), "precious\n")
        with self.assertRaisesRegex(kt.TraceError, "s.csv: not a table of kvbench-py score"):
            Table(path, overwrite=True)
        self.assertEqual(read_text(path), "precious\n")
        for text in ("", ",".join(COLUMNS[:-1]) + "\n", ",".join(COLUMNS) + "\n"):
            write_text(path, text)
            with Table(path, overwrite=True) as table:
                table.write({"status": "ok"})
            self.assertEqual(len(read_text(path).splitlines()), 2)
