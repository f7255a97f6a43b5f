"""Every program says its help where torch and transformers are not installed, and those that need them
say how to install them."""

import os
import subprocess
import sys
import unittest

from script_case import SCRIPTS, FolderCase, missing

from kvbench.programs import PROGRAMS

TOOLS = sorted(name for name in os.listdir(SCRIPTS) if name.endswith(".py"))
NEED_TORCH = [name for name, program in PROGRAMS.items() if "torch" in program.needs]
PACKAGES = missing("numpy", "pandas", "matplotlib", "scipy", "h5py", "sklearn")


class HelpTest(FolderCase):
    def start(self, name, *arguments, flags=()):
        """The program where torch and what comes with it cannot be found."""
        blocker = ("import importlib.util, sys\nfind = importlib.util.find_spec\nblocked = {'torch', "
                   "'transformers', 'gguf', 'tokenizers'}\nimportlib.util.find_spec = lambda name, *rest: "
                   "None if name in blocked else find(name, *rest)\n")
        script, *words = name.split()
        code = (f"{blocker}import runpy\nsys.argv = {[script, *words, *arguments]!r}\n"
                f"runpy.run_path({os.path.join(SCRIPTS, script)!r}, run_name='__main__')")
        return subprocess.run([sys.executable, *flags, "-c", code], text=True, capture_output=True,
                              check=False, stdin=subprocess.DEVNULL)

    def expect_help(self, name, *flags):
        done = self.start(name, "--help", flags=flags)
        self.assertEqual((done.returncode, done.stderr), (0, ""), name)
        self.assertRegex(done.stdout, rf"usage: (scripts/)?{name}")

    @unittest.skipIf(PACKAGES, f"{sys.executable} lacks {', '.join(PACKAGES)}")
    def test_every_program_says_its_help(self):
        for name in (*TOOLS, *(f"kvbench-py {name}" for name in PROGRAMS)):
            with self.subTest(name):
                self.expect_help(name)

    def test_those_for_models_need_no_package_for_it(self):
        self.assertLessEqual({"dump", "score"}, set(NEED_TORCH))
        for name in NEED_TORCH:
            with self.subTest(name):
                self.expect_help(f"kvbench-py {name}", "-S")

    def test_a_wrong_word_is_said_before_torch_is_missed(self):
        for name in NEED_TORCH:
            done = self.start(f"kvbench-py {name}", "--no-such-option", flags=("-S",))
            self.assertEqual(done.returncode, 2)
            self.assertNotIn("has no torch", done.stderr)

    @unittest.skipIf(missing("numpy", "h5py"), f"{sys.executable} lacks numpy or h5py")
    def test_they_say_what_to_install(self):
        for name, words in (
                ("dump", ["--model", "m", "p.txt", "-o", "t.h5"]),
                ("score", ["--model", "m", "t.h5", "--caches", "c.h5", "-o", "s.csv"])):
            done = self.start(f"kvbench-py {name}", *words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), name)
            self.assertEqual(done.stderr, f"kvbench-py {name}: {sys.executable} has no torch, transformers: "
                                          "pip install torch 'transformers>=4.56'\n")
