"""The models of kvbench-study model as they were made: where build/models holds them and torch is there
(`make models`, `make test-dump`)."""

import os
import sys
import unittest

from study_case import ROOT, missing

from kvbench_study.model import convert as mc
from kvbench_study.model import main as mm
from kvbench_study.model.table import MODELS

MISSING = missing("torch", "transformers")


def folder_of(name):
    return os.path.join(ROOT, MODELS[name].folder)


def real(name):
    """Skips where the model is not there."""
    def skip(case):
        case = unittest.skipUnless(mm.is_whole(folder_of(name)),
                                   f"{MODELS[name].folder} is not there: make models")(case)
        return unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}; see make "
                               "test-dump")(case)
    return skip


class RealCase:
    NAME = ""
    CONTINUES = {}
    BEFORE = []  # tokens before every text

    def test_it_continues_as_it_should(self):
        model = MODELS[self.NAME]
        self.assertEqual(mc.continue_text(folder_of(self.NAME), model.question), model.answer)
        for text, answer in self.CONTINUES.items():
            self.assertEqual(mc.continue_text(folder_of(self.NAME), text), answer)

    def test_it_is_plain_float32(self):
        from transformers import AutoConfig
        config = AutoConfig.from_pretrained(folder_of(self.NAME))
        self.assertFalse(hasattr(config, "quantization_config"))
        self.assertEqual(str(config.dtype).removeprefix("torch."), "float32")
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.assertEqual((config.num_hidden_layers, config.num_attention_heads,
                          config.num_key_value_heads, width), MODELS[self.NAME].shape)

    def tokenizer(self):
        from transformers import AutoTokenizer
        return AutoTokenizer.from_pretrained(folder_of(self.NAME))

    def test_the_tokenizer_loses_nothing(self):
        tokenizer = self.tokenizer()
        text = "The capital of France is 48213.\n\n\tint main() { return x; caf\u00e9 \u201cso\u201d  }  \n  end"
        ids = tokenizer(text)["input_ids"]
        self.assertEqual(ids[:len(self.BEFORE)], self.BEFORE)
        ids = ids[len(self.BEFORE):]
        self.assertEqual(tokenizer.decode(ids), text)
        self.assertEqual((ids[:5], ids[5:11]), (self.WORDS, self.NUMBER))
        self.assertEqual(len(tokenizer), self.VOCABULARY)


@real("smollm2-135m")
class RealSmolLM2(RealCase, unittest.TestCase):
    NAME = "smollm2-135m"
    # Not more: from here on the original and this Q4_1 copy may differ.
    CONTINUES = {"One, two, three, four,": " five"}
    # From the model's own vocabulary: " capital" is 3575, "4" 36, "8" 40.
    WORDS, NUMBER, VOCABULARY = [504, 3575, 282, 4649, 314], [216, 36, 40, 34, 33, 35], 49152

    def test_special_tokens(self):
        tokenizer = self.tokenizer()
        self.assertEqual((tokenizer.bos_token, tokenizer.eos_token), ("<|im_start|>", "<|im_end|>"))
        self.assertEqual(tokenizer("<|im_end|>")["input_ids"], [2])


class QwenCase(RealCase):
    # From the model's own vocabulary: " capital" is 6722, "4" 19, "8" 23.
    CONTINUES = {"One, two, three, four,": " five"}
    WORDS, NUMBER, VOCABULARY = [785, 6722, 315, 9625, 374], [220, 19, 23, 17, 16, 18], 151936

    def test_special_tokens(self):
        tokenizer = self.tokenizer()
        self.assertEqual((tokenizer.pad_token, tokenizer.eos_token), ("<|endoftext|>", "<|im_end|>"))
        self.assertEqual(tokenizer("<|im_end|>x<|fim_prefix|>")["input_ids"], [151645, 87, 151659])
        # One token wherever it stands, and text all the same.
        self.assertEqual(tokenizer("a<tool_call>")["input_ids"], [64, 151657])
        self.assertIn("<tool_call>", tokenizer.decode([64, 151657], skip_special_tokens=True))
        # A letter and its accent are the letter with the accent.
        self.assertEqual(tokenizer("e\u0301")["input_ids"], tokenizer("\u00e9")["input_ids"])


@real("qwen2.5-coder-0.5b")
class RealQwenHalf(QwenCase, unittest.TestCase):
    NAME = "qwen2.5-coder-0.5b"


@real("qwen2.5-coder-1.5b")
class RealQwen(QwenCase, unittest.TestCase):
    NAME = "qwen2.5-coder-1.5b"


@real("gemma3-270m")
class RealGemma(RealCase, unittest.TestCase):
    NAME = "gemma3-270m"
    BEFORE = [2]  # <bos>
    CONTINUES = {"One, two, three, four,": " five"}
    # From the model's own vocabulary: " capital" is 5279, "4" 236812, "8" 236828.
    WORDS, NUMBER = [818, 5279, 529, 7001, 563], [236743, 236812, 236828, 236778, 236770, 236800]
    VOCABULARY = 262144

    def test_it_splits_words_as_the_authors(self):
        tokenizer = self.tokenizer()
        # Runs of spaces and of line ends are one token each.
        self.assertEqual(tokenizer.tokenize("a  b\n\nc"), ["a", "  ", "b", "\n\n", "c"])
        # What the vocabulary lacks is spelled in bytes.
        self.assertEqual(tokenizer.tokenize("\U00010330")[0], "<0xF0>")
        self.assertEqual(tokenizer("<eos>x")["input_ids"][1], 1)


if __name__ == "__main__":
    unittest.main()
