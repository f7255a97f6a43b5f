"""Every program of scripts/ says its help where torch and transformers are not installed, and those
that need them say how to install them."""

import os
import subprocess
import sys
import unittest

from script_case import SCRIPTS, FolderCase, missing, read_text

PROGRAMS = sorted(name for name in os.listdir(SCRIPTS) if name.endswith(".py"))
NEED_TORCH = ("dump_traces.py", "make_model.py", "score_model.py")
PACKAGES = missing("numpy", "pandas", "matplotlib", "scipy", "h5py", "sklearn")


class HelpTest(FolderCase):
    def start(self, name, *arguments, flags=()):
        """The program where torch and what comes with it cannot be imported."""
        for module in ("torch", "transformers", "gguf", "tokenizers"):
            self.write_file(f"{module}.py", f"raise ImportError('blocked', name='{module}')\n")
        return subprocess.run(
            [sys.executable, *flags, os.path.join(SCRIPTS, name), *arguments], text=True,
            env={**os.environ, "PYTHONPATH": self.folder, "PYTHON": "/bin/false"},
            capture_output=True, check=False, stdin=subprocess.DEVNULL)

    def expect_help(self, name, *flags):
        done = self.start(name, "--help", flags=flags)
        self.assertEqual((done.returncode, done.stderr), (0, ""), name)
        self.assertIn("usage: ", done.stdout)
        self.assertIn(name, done.stdout)

    @unittest.skipIf(PACKAGES, f"{sys.executable} lacks {', '.join(PACKAGES)}")
    def test_every_program_says_its_help(self):
        self.assertGreater(len(PROGRAMS), 25)
        for name in PROGRAMS:
            with self.subTest(name):
                self.expect_help(name)

    def test_those_for_models_need_no_package_for_it(self):
        for name in NEED_TORCH:
            with self.subTest(name):
                self.expect_help(name, "-S")

    def test_a_wrong_word_is_said_before_torch_is_missed(self):
        for name in NEED_TORCH:
            done = self.start(name, "--no-such-option", flags=("-S",))
            self.assertEqual(done.returncode, 2)
            self.assertNotIn("torch", done.stderr)

    @unittest.skipIf(missing("numpy", "h5py"), f"{sys.executable} lacks numpy or h5py")
    def test_they_say_what_to_install(self):
        for name, words in (
                ("dump_traces.py", ["--model", "m", "--prompts", "p.txt", "-o", "t.h5"]),
                ("score_model.py", ["--model", "m", "--trace", "t.h5", "--caches", "c.h5", "-o",
                                    "s.csv"])):
            done = self.start(name, *words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), name)
            self.assertEqual(done.stderr.count("\n"), 1)
            for text in (f"{name}: ", "cannot import torch", "pip install torch 'transformers>=4.56'",
                         "`make model`"):
                self.assertIn(text, done.stderr)

    def test_the_programs_for_models_are_all_listed(self):
        self.assertEqual(NEED_TORCH, tuple(
            name for name in PROGRAMS if any(f"from kvbench.{part}" in read_text(
                os.path.join(SCRIPTS, name)) for part in ("dump.", "score.", "model "))))


if __name__ == "__main__":
    unittest.main()
