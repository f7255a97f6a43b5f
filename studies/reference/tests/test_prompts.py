"""data/prompts/ as its README promises, and the scripts that make it, by lengths in characters or
words; lengths in tokens and the files' remaking where the model's tokenizer is (`make model`)."""

import json
import os
import random
import unittest

from study_case import ROOT, STUDY, FolderCase, call, missing, program

from kvbench_study.prompts import make as make_prompts
from kvbench_study.prompts import needles as make_needles
from kvbench_study.prompts import records as kp

PROMPTS = os.path.join(STUDY, "prompts")
PROSE = os.path.join(ROOT, "data", "prompts", "prose.jsonl")  # the demo trace is of one of these
KINDS = ("prose", "verse", "code", "technical")
MODEL = os.path.join(ROOT, "build", "models", "smollm2-135m")
TOKENIZER = (not missing("tokenizers")
             and os.path.isfile(os.path.join(MODEL, "tokenizer.json")))
LONGEST_SHARED = 200


def records():
    return {name: kp.read_jsonl(PROSE if name == "prose" else os.path.join(PROMPTS, f"{name}.jsonl"))
            for name in (*KINDS, "needles")}


class Committed(unittest.TestCase):
    def setUp(self):
        self.files = records()
        self.all = [record for file in self.files.values() for record in file]

    def test_kinds_sets_and_ids(self):
        plain = [r for name in KINDS for r in self.files[name]]
        self.assertEqual((len(plain), len(self.files["needles"])), (16, 16))
        for name in KINDS:
            self.assertEqual({r["kind"] for r in self.files[name]}, {name})
            self.assertEqual(sum(r["kind"] == name for r in self.files["needles"]), 4)
        development = [r["id"] for r in self.all if r["set"] == "dev"]
        self.assertEqual(len(development), 6)
        self.assertEqual({r["kind"] for r in self.all if r["set"] == "dev"}, set(KINDS))
        self.assertEqual({r["set"] for r in self.all}, set(kp.SETS))
        self.assertEqual(len({r["id"] for r in self.all}), 32)
        with open(os.path.join(PROMPTS, "README.md"), encoding="utf-8") as file:
            page = file.read()
        for one in development:
            self.assertIn(f"`{one}`", page)
        self.assertEqual({r["tokens"] for r in self.all}, {4096})

    def test_no_text_is_shared(self):
        texts = {r["id"]: r["text"] for r in self.all}
        self.assertIsNone(kp.shared_stretch(texts, LONGEST_SHARED))
        # And it would be seen: a stretch of one set's text in a text of the other.
        taken = texts["prose-1"][5003:5003 + LONGEST_SHARED]
        first, second, stretch = kp.shared_stretch(
            {**texts, "code-2": texts["code-2"] + taken}, LONGEST_SHARED)
        self.assertEqual(({first, second}, stretch), ({"prose-1", "code-2"}, taken))

    def test_needles_say_where_they_are(self):
        depths = {}
        for r in self.files["needles"]:
            begin, end = r["needle_chars"]
            needle = make_needles.NEEDLE.format(key=r["answer"])
            self.assertEqual(r["text"][begin:end], needle)
            self.assertEqual(r["text"].count(r["answer"]), 2)  # both in the needle
            self.assertEqual(r["text"][slice(*r["question_chars"])], make_needles.QUESTION)
            self.assertTrue(r["text"].endswith(make_needles.QUESTION))
            # As near as a paragraph, plus what the question takes of the length.
            self.assertLess(abs(begin / len(r["text"]) - r["depth"]), make_needles.NEAR + 0.01)
            depths.setdefault(r["kind"], []).append(r["depth"])
        self.assertEqual({kind: sorted(of) for kind, of in depths.items()},
                         dict.fromkeys(KINDS, [0.1, 0.3, 0.5, 0.7]))
        self.assertEqual(len({r["answer"] for r in self.files["needles"]}), 16)

    @unittest.skipUnless(TOKENIZER, "no tokenizer of SmolLM2: make model, make test-dump")
    def test_lengths_in_tokens(self):
        tokens = kp.Tokens(MODEL)
        for r in self.all:
            spans = tokens.spans(r["text"])
            self.assertEqual(len(spans), r["tokens"], r["id"])
            if "needle_tokens" in r:
                first, last = r["needle_tokens"]
                text = r["text"][spans[first][0]:spans[last - 1][1]]
                self.assertIn(make_needles.NEEDLE.format(key=r["answer"]), text)
                self.assertLess(len(text), len(make_needles.NEEDLE) + 5)


class Fit(unittest.TestCase):
    def test_a_cut_of_just_as_many(self):
        text = "one two three four five six"
        words = lambda s: len(s.split())  # noqa: E731
        self.assertEqual(kp.fit(text, 3, words), "one two three")
        self.assertEqual(kp.fit(text, 6, words), text)
        self.assertIsNone(kp.fit(text, 7, words))
        self.assertEqual(kp.fit(text, 4, words, lambda cut: cut + " end"), "one two three end")
        self.assertEqual(kp.fit("abcdef", 4, len), "abcd")  # no word ends: in a word

    def test_shared_stretches(self):
        a = "".join(random.Random(1).choices("abcdefgh ", k=1000))
        for at in (0, 1, 99, 137, 800):
            other = "-" * 53 + a[at:at + 200] + "-" * 41
            self.assertEqual(kp.shared_stretch({"a": a, "b": other}), ("a", "b", a[at:at + 200]))
            self.assertIsNone(kp.shared_stretch({"a": a, "b": other}, 201))
        self.assertIsNone(kp.shared_stretch({"a": a}))


class Run(FolderCase):
    def run_script(self, module, *arguments):
        done = call(lambda: module.main(list(arguments)), program(module))
        return done.code, done.err

    def test_needles_by_characters(self):
        text = "\n\n".join(f"Paragraph {i} says that {i} times {i} is {i * i}." for i in range(60))
        path = self.write_file("t.jsonl", "".join(
            json.dumps({"id": f"a{i}", "kind": "prose", "text": text}) + "\n" for i in range(4)))

        def run(name, *options):
            code, said = self.run_script(make_needles, path, "-o", self.path(name), "--chars",
                                         "1500", *options)
            self.assertEqual(code, 0, said)
            return kp.read_jsonl(self.path(name))
        out = run("n.jsonl", "--depth", "0,0.25,0.5,1", "--seed", "3")
        for record, depth in zip(out, (0, 0.25, 0.5, 1)):
            self.assertEqual((len(record["text"]), record["depth"]), (1500, depth))
            begin, end = record["needle_chars"]
            self.assertEqual(record["text"][begin:end],
                             make_needles.NEEDLE.format(key=record["answer"]))
            # A paragraph of its own, between whole ones.
            self.assertEqual(record["text"][end:end + 2], "\n\n")
            self.assertIn(record["text"][max(0, begin - 2):begin], ("", "\n\n"))
            self.assertLess(abs(begin - depth * (1500 - 120)), 60)
            self.assertEqual(record["kind"], "prose")
            self.assertNotIn("tokens", record)
        self.assertEqual(out, run("again.jsonl", "--depth", "0,0.25,0.5,1", "--seed", "3"))
        keys = [r["answer"] for r in out]
        self.assertEqual(len(set(keys)), 4)
        self.assertNotEqual(keys, [r["answer"] for r in run("o.jsonl", "--seed", "4")])
        # The key is the record's own, whoever stands beside it.
        self.write_file("t.jsonl", json.dumps({"id": "a2", "text": text}) + "\n")
        self.assertEqual(run("one.jsonl", "--seed", "3")[0]["answer"], keys[2])

    def test_a_passkey_that_the_text_has_is_not_taken(self):
        key = make_needles.passkey(0, "a", "")
        self.assertRegex(key, "^[1-9][0-9]{4}$")
        self.assertNotEqual(make_needles.passkey(0, "a", f"see {key}."), key)

    def test_refusals(self):
        path = self.write_file("t.jsonl", '{"id": "a", "text": "too short"}\n')
        for words, arguments in (
                ("a: 134 characters with needle and question, expected at least 500",
                 [path, "--chars", "500"]),
                ("shares from 0 to 1", [path, "--chars", "500", "--depth", "2"]),
                ("--tokens needs --model", [path]),
                ("none.jsonl: cannot be read", ["none.jsonl", "--chars", "5"]),
                ("expected an object with a `text`",
                 [self.write_file("x.jsonl", "[1]\n"), "--chars", "5"]),
                ("x2.jsonl:1: its text has half of a surrogate pair",
                 [self.write_file("x2.jsonl", '{"text": "a\\ud800"}\n'), "--chars", "5"]),
                ("no texts", [self.write_file("e.jsonl", ""), "--chars", "5"])):
            code, said = self.run_script(make_needles, *arguments, "-o", self.path("n.jsonl"))
            self.assertEqual(code, 2, words)
            self.assertIn(words, said)
            self.assertFalse(os.path.exists(self.path("n.jsonl")))

    def test_prompts_of_works(self):
        work = "\n\n".join(f"Line one of {i},\nline two of {i}."
                           + ("" if i % 3 else f"\n    indented {i}") for i in range(40)) + "\n"
        self.write_file("work.txt", work)
        words = type("Words", (), {"count": staticmethod(lambda text: len(text.split()))})
        spec = {"tokens": 25, "works": {"work": {"title": "A work", "sha256": make_prompts.sha256(work)}}}
        entry = {"id": "a", "kind": "prose", "set": "dev", "sources": ["work.txt"], "start": 100}

        places = make_prompts.WorkReader(self.folder)

        def make(**changes):
            (_, record), = make_prompts.make(spec, {**entry, **changes}, places, words)
            return record
        record = make()
        self.assertEqual(work[record["start"] - 2:record["start"]], "\n\n")
        self.assertTrue(100 <= record["start"] < 160)
        self.assertTrue(work[record["start"]:].startswith(record["text"]))
        self.assertEqual(words.count(record["text"]), 25)
        self.assertEqual((record["source"], record["tokens"]), ("A work", 25))
        joined = make(unwrap=True, start=0)["text"]
        self.assertIn("Line one of 1, line two of 1.\n\n", joined)
        self.assertIn("line two of 0.\n    indented 0", joined)
        with self.assertRaisesRegex(kp.PromptError, "expected at least 25"):
            make(start=len(work) - 80)
        with self.assertRaisesRegex(kp.PromptError, "not among the list's works"):
            make(sources=["other.txt"])
        self.write_file("work.txt", work + "x")
        with self.assertRaisesRegex(kp.PromptError, "SHA-256"):
            make()
        long = "".join(chr(97 + i * i % 26) for i in range(300))
        for words, one, two in (("duplicate id", {}, {"id": "a"}), ("share 300", {}, {}),
                                ("set is other", {"set": "other"}, {})):
            base = {"set": "dev", "text": long, "tokens": 9}
            with self.assertRaisesRegex(kp.PromptError, words):
                make_prompts.check([{"id": "a", **base, **one}, {"id": "b", **base, **two}])

    @unittest.skipUnless(TOKENIZER, "no tokenizer of SmolLM2: make model, make test-dump")
    def test_the_projects_own_prompts_are_made_again(self):
        with open(os.path.join(PROMPTS, "prompts.toml"), encoding="utf-8") as file:
            head, *entries = file.read().split("[[prompt]]")
        own = [entry for entry in entries if '"git:' in entry]
        self.assertEqual(len(own), 16)
        path = self.write_file("own.toml", "[[prompt]]".join([head, *own]))
        code, said = self.run_script(make_prompts, path, "--model", MODEL, "-o", self.folder)
        if "git:" in said:
            self.skipTest(f"the commit is not here: {said.strip()}")
        self.assertEqual(code, 0, said)
        for name in ("code", "technical"):
            self.assertEqual(kp.read_jsonl(self.path(f"{name}.jsonl")), records()[name])
        code, said = self.run_script(make_needles, self.path("haystacks.jsonl"), "--model", MODEL,
                                     "-o", self.path("needles.jsonl"))
        self.assertEqual(code, 0, said)
        # Depths take turns over all sixteen, so only texts planted at the same depth are the same.
        made = {r["id"]: r for r in kp.read_jsonl(self.path("needles.jsonl"))}
        same = [r for r in records()["needles"]
                if r["id"] in made and made[r["id"]]["depth"] == r["depth"]]
        self.assertGreater(len(same), 0)
        for r in same:
            self.assertEqual(made[r["id"]], r)


if __name__ == "__main__":
    unittest.main()
