"""What kvbench-py dump --extra and --add-scores put beside a prompt: token ids of segments and arrays
(no torch needed); with torch, that a segment's queries and keys are those of a prompt that goes on
with it.
"""

import itertools
import json
import sys
import unittest

from dump_models import MISSING as NO_MODEL
from dump_models import TOKENS, DumpCase
from script_case import FolderCase, missing, read_bytes, write_bytes, write_text

MISSING = missing("h5py", "numpy")
if not MISSING:
    import numpy as np

    from kvbench.dump import extra_texts as et
    from kvbench.errors import TraceError
    from kvbench.trace import writer as kt
if not NO_MODEL:
    import h5py


def encode(text):
    """One id for each character, none of them a prompt's in these tests."""
    return [1000 + ord(one) for one in text]


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
class ExtraTextsTest(FolderCase):
    def test_repeat_is_the_prompt_in_chunks_behind_an_instruction(self):
        ids = np.arange(100)
        one, = et.repeat_segments(ids, 80, encode, chunk=80)
        self.assertEqual(one.about, (0, 80))
        self.assertEqual(one.ids.tolist(), encode("\n\nRepeat the previous context exactly.\n") + list(range(80)))
        first, second, third = et.repeat_segments(ids, 80, encode, chunk=37)
        self.assertEqual([s.about for s in (first, second, third)], [(0, 37), (37, 74), (74, 80)])
        self.assertEqual(first.ids.tolist()[-37:], list(range(37)))
        instruction = encode("\n\nRepeat the part of the previous context exactly, starting with")
        self.assertEqual(second.ids.tolist(), instruction + list(range(29, 37)) + encode("\n") + list(range(37, 74)))
        self.assertEqual(third.ids.tolist(), instruction + list(range(66, 74)) + encode("\n") + list(range(74, 80)))
        self.assertEqual(len(et.repeat_segments(ids, 80, encode)), 1)
        # A chunk shorter than what is repeated of it.
        self.assertEqual(et.repeat_segments(ids, 8, encode, chunk=4)[1].ids.tolist()[-9:],
                         [0, 1, 2, 3] + encode("\n") + [4, 5, 6, 7])

    def records(self, name, *records):
        return write_text(self.path(name), "".join(json.dumps(one) + "\n" for one in records))

    def test_texts_belong_to_prompts_by_id_or_in_order(self):
        named = et.parse_extra("text:" + self.records(
            "question-a.jsonl", {"id": "b", "text": "B1"}, {"id": "a", "text": "A"},
            {"id": "b", "text": "B2"}))
        self.assertEqual(named.name, "question-a")
        self.assertEqual(named.texts(0, "b", "x"), ["B1", "B2"])
        self.assertEqual(named.texts(1, "p1", "a"), ["A"])
        with self.assertRaisesRegex(TraceError, "no record has the id c"):
            named.texts(0, "c", "d")
        ordered = et.parse_extra("text:" + self.records("q.jsonl", {"text": "0"}, {"text": "1"}))
        self.assertEqual(ordered.texts(1, "x", "y"), ["1"])
        with self.assertRaisesRegex(TraceError, "2 records, expected one for each prompt"):
            ordered.texts(2, "x", "y")
        self.assertEqual(et.parse_extra("repeat"), "repeat")
        lines = et.parse_extra("text:" + write_text(self.path("l.jsonl"), '{"text": "a\u2028b"}\n'))
        self.assertEqual(lines.texts(0, "x", "y"), ["a\u2028b"])

    def test_refusals(self):
        for text, expected in (
                ("again", "expected repeat or text:FILE.jsonl"), ("text:", "expected repeat"),
                ("text:" + self.path("no.jsonl"), "cannot be read"),
                ("text:" + self.records("a b.jsonl", {"text": "x"}), "becomes the set's"),
                ("text:" + self.records("e.jsonl"), "no records"),
                ("text:" + self.records("t.jsonl", {"question": "x"}), "t.jsonl:1: expected an object"),
                ("text:" + self.records("s.jsonl", {"text": "\ud800"}), "s.jsonl:1: its text has half"),
                ("text:" + self.records("m.jsonl", {"text": "x"}, {"id": 1, "text": "y"}), "1 of 2"),
                ("text:" + write_text(self.path("j.jsonl"), "{\n"), "j.jsonl:1: not JSON")):
            with self.assertRaises(TraceError) as caught:
                et.parse_extra(text)
            self.assertIn(expected, str(caught.exception))
            self.assertNotIn("\n", str(caught.exception))

    def test_scores_of_an_npz(self):
        trace, scores = self.path("t.h5"), np.arange(10, dtype=np.float64).reshape(2, 5)
        np.savez(self.path("s.npz"), **{"a/0": scores, "prefix": 3})
        one = et.StoredScores("gate=" + self.path("s.npz"))
        with kt.TraceWriter(trace, "m", "s") as writer:
            writer.begin_prompt("a", 5)
            writer.begin_layer(0, 2, 2, 5, 4, 4)
            for name in "qkv":
                writer.write(name, 0, 0, np.ones((2, 5, 4), np.float32))
            one.write(writer, "a", [0])
            with self.assertRaisesRegex(TraceError, "no array a/1"):
                one.write(writer, "a", [1])
        from kvbench.trace.extra_heads import read_scores
        self.assertEqual(read_scores(trace, "a", 0, 1, "gate").tolist(), [5, 6, 7, 8, 9])
        for text in ("gate", "a b=x.npz", "gate=", "gate=x.npy"):
            with self.assertRaisesRegex(TraceError, "expected NAME=FILE.npz"):
                et.StoredScores(text)
        np.savez_compressed(self.path("s.npz"), **{"a/0": np.random.default_rng(1).normal(size=(2, 300)).round(1)})
        whole = read_bytes(self.path("s.npz"))
        for damaged in (b"no", whole[:200], whole[:300] + bytes([255] * 8) + whole[308:]):  # zip, and what it holds
            with self.assertRaisesRegex(TraceError, "cannot be read"):
                et.StoredScores("gate=" + write_bytes(self.path("x.npz"), damaged))


class DumpExtraTest(DumpCase):
    EVALUATED = 8
    MORE = [5, 9, 11, 13, 40]
    # Products of other shapes sum in another order, as with --chunk (test_dump_traces.py).
    TOLERANCE = 1e-5

    def dumped(self, config, *options):
        """The trace with the set `more`, and that of a prompt that goes on with it."""
        model, prefix = self.words_model(f"words-{config}", config), TOKENS - self.EVALUATED
        texts = self.file("more.jsonl", json.dumps({"text": " ".join(f"w{one}" for one in self.MORE)}) + "\n")
        common = ("--dtype", "float32", "--o-proj", *options)
        path = self.dump(model, "--extra", "text:" + texts, "--extra", "repeat", "--evaluated",
                         str(self.EVALUATED), *common)
        whole = self.file("whole.jsonl", json.dumps(self.ids[:prefix].tolist() + self.MORE) + "\n")
        return path, self.dump(model, *common, prompts=("--token-ids", whole))

    def test_a_segment_is_the_prompt_going_on(self):
        prefix = TOKENS - self.EVALUATED
        selections = (), ("--layers", "0,1"), ("--kv-heads", "1"), ("--chunk", "16")
        # Olmo2: a norm lies behind the projection.
        for config, options in itertools.product(("llama", "Olmo2Config"), selections):
            with self.subTest(config=config, options=options):
                path, whole = self.dumped(config, *options)
                with h5py.File(path) as got, h5py.File(whole) as expected:
                    layers = got["prompts/p0/layers"]
                    self.assertEqual(sorted(layers), sorted(expected["prompts/p0/layers"]))
                    for layer, group in layers.items():
                        self.assertEqual(list(group["extra/repeat"]), ["0"])
                        about = group["extra/repeat/0"].attrs
                        self.assertEqual([about[name] for name in ("prefix", "first", "last")], [prefix, 0, prefix])
                        segment, other = group["extra/more/0"], expected[layers[layer].name]
                        self.assertEqual(segment.attrs["prefix"], prefix)
                        self.assertNotIn("first", segment.attrs)
                        np.testing.assert_array_equal(segment["position"], prefix + np.arange(len(self.MORE)))
                        for name in ("q", "k"):
                            self.assert_close(segment[name][()], other[name][:, prefix:],
                                              self.TOLERANCE, f"{name} of layer {layer}")
                        self.assert_close(segment["residual_norm"][()], other["residual_norm"][prefix:], self.TOLERANCE)

    def test_refusals(self):
        model = ("--model", self.words_model(), "--token-ids", self.ids_file)
        self.expect_error("expected more than the 256 evaluated ones", *model, "--extra", "repeat")
        self.expect_error("the name repeat comes twice", *model, "--extra", "repeat", "--extra", "repeat")
        self.expect_error("its tokenizer cannot be loaded", "--model", self.model("llama"),
                          "--token-ids", self.ids_file, "--extra", "repeat")
