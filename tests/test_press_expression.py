"""The text of a press (python/kvbench/press/expression.py): what is read, and what is refused. No torch."""

import unittest

from script_case import missing

from kvbench.press.classes import CLASSES, check, scores_of
from kvbench.press.expression import DEEPEST, LONGEST, Expression, PressError, build, parse


def read(text):
    return parse(text, CLASSES)


class Inner:
    def __init__(self, compression_ratio=0.0, window_size=64):
        assert 0 <= compression_ratio < 1, "a ratio is below 1"
        self.compression_ratio, self.window_size = compression_ratio, window_size


class Outer:
    def __init__(self, press, alpha_safeguard=0.2):
        self.press, self.alpha_safeguard = press, alpha_safeguard


KINDS = {"SnapKVPress": Inner, "AdaKVPress": Outer, "ComposedPress": Outer}


class ReadTest(unittest.TestCase):
    def test_what_is_written_reads_the_same(self):
        for text in ("AdaKVPress(SnapKVPress(0.5,window_size=32))", "ComposedPress([KnormPress(0.3),ThinKPress(0.5)])",
                     "PerLayerCompressionPress(KnormPress(),compression_ratios=[0.25,0.5])"):
            self.assertEqual(str(read(text)), text)
            self.assertEqual(read(f" {text} ".replace(",", ", ")), read(text))
        self.assertEqual(read("KVzapPress(0.5,model_type='mlp')"), Expression("KVzapPress", 0.5, {"model_type": "mlp"}))

    def test_refused(self):
        deep = "ChunkPress(" * DEEPEST + "KnormPress(0.5)" + ")" * DEEPEST
        for text, words in (
                ("__import__('os')", "kvpress has no press __import__"),
                ("__import__('os').system('true')", "presses, numbers, texts and lists alone"),
                *((text, "presses, numbers, texts and lists alone") for text in (
                    "kvpress.SnapKVPress(0.5)", "lambda: 1", "SnapKVPress(1 - 0.5)", "SnapKVPress(*[0.5])",
                    "SnapKVPress(0.5 if 1 else 2)")),
                ("[KnormPress(0.5) for x in [1]]", "alone"), ("SnapKVPress(f'{1}')", "alone"),
                ("SnapKVPress({1: 2})", "alone"), ("SnapKVPress(-'a')", "alone"),
                ("SnapKVPress(b'x')", "value of type bytes"), ("SnapKVPress(1j)", "type complex"),
                ("SnapKVPress(**{'a': 1})", "got `**`"), ("SnapKVPress(0.5, 32)", "by name"),
                ("SnapKVPress(a=1, a=2)", "got a twice"), ("SnapKVPress", "expected its arguments"),
                ("SnapKV", "did you mean SnapKVPress?"), ("SnapKVpres(0.5)", "did you mean SnapKVPress?"),
                ("snapkv(0.5)", "did you mean SnapKVPress?"), ("Zzz(0.5)", "kvpress has no press Zzz"),
                ("0.5", "not a press"), ("[KnormPress(0.5)]", "not a press"), ("", "cannot be read"),
                ("SnapKVPress(", "cannot be read"), ("SnapKVPress(0.5); x = 1", "cannot be read"),
                ("SnapKVPress(0.5)\0", "cannot be read"), (deep, "within each other"),
                ("(" * 900 + ")" * 900, "cannot be read"), ("K" * (LONGEST + 1), "at most 2000")):
            with self.assertRaises(PressError, msg=text) as caught:
                read(text)
            self.assertIn(words, str(caught.exception))
            self.assertEqual(len(str(caught.exception).splitlines()), 1, text)

    def test_refused_presses(self):
        for text, words in (("KeyRerotationPress(KnormPress(0.5))", "new positions"),
                            ("AdaKVPress(ScorerPress(0.5))", "abstract base class"),
                            ("DMSPress(KnormPress(),decoding=True)", "while the model decodes")):
            with self.assertRaisesRegex(PressError, words):
                check(read(text))
        check(read("PrefillDecodingPress(prefilling_press=KnormPress(0.5))"))

    def test_scores(self):
        for text, scores in (("KnormPress(0.5)", "none"), ("SnapKVPress(0.5)", "past"),
                             ("ChunkPress(KnormPress(0.5))", "none"), ("ThinKPress(0.5)", "past"),
                             ("ComposedPress([KnormPress(0.5),SnapKVPress(0.5)])", "past")):
            self.assertEqual(scores_of(read(text)), scores, text)


class BuildTest(unittest.TestCase):
    def test_a_number_is_the_ratio_and_a_press_the_first_parameter(self):
        got = build(read("AdaKVPress(SnapKVPress(0.5,window_size=8),alpha_safeguard=-1)"), KINDS)
        self.assertEqual((got.press.compression_ratio, got.press.window_size, got.alpha_safeguard), (0.5, 8, -1))
        got = build(read("ComposedPress([SnapKVPress(0.5),SnapKVPress()])"), KINDS)
        self.assertEqual([one.compression_ratio for one in got.press], [0.5, 0.0])

    def test_refused(self):
        for text, words in (("SnapKVPress(0.5,windowsize=3)", "did you mean window_size?"),
                            ("SnapKVPress(0.5,compression_ratio=0.5)", "compression_ratio twice"),
                            ("SnapKVPress(1.5)", "a ratio is below 1"), ("AdaKVPress()", "rejects it")):
            with self.assertRaisesRegex(PressError, words.replace("?", r"\?")):
                build(read(text), KINDS)


class ImportTest(unittest.TestCase):
    @unittest.skipUnless(missing("kvpress"), "kvpress is there")
    @unittest.skipIf(missing("h5py", "numpy"), "no h5py")
    def test_as_press_says_what_is_missing(self):
        from kvbench.press.adapter import as_press
        with self.assertRaisesRegex(PressError, "pip install 'kvpress"):
            as_press("snapkv", 0.5)
