"""kvbench-study tasks: what is planted and where, answers, refusals; by lengths in characters or words, and
in tokens where a model's tokenizer is (`make models`)."""

import json
import os
import re
import unittest

from study_case import ROOT, STUDY, FolderCase, call, missing, program

from kvbench_study.prompts import records as kp
from kvbench_study.prompts import tasks as pt

TEXT = "\n\n".join(f"Paragraph {at} tells of {at} times {at}, which makes {at * at} in all."
                   for at in range(120))
CODE = "\n".join(f"    x{at} = f(x{at - 1})  # line {at}" for at in range(1, 200))
MODELS = [os.path.join(ROOT, "build", "models", name) for name in ("smollm2-135m", "qwen2.5-coder-0.5b")]
MODELS = [folder for folder in MODELS if os.path.isfile(os.path.join(folder, "tokenizer.json"))]


def made(task, text=TEXT, seed=0, size=5000, **record):
    return pt.make({"id": "a", "kind": "prose", "set": "test", "text": text, **record}, task, seed, size)


def flat(text):
    """The text without what stands between its words and the question."""
    return " ".join(re.sub(r"\n\n[*-][* -]+", " ", text).split())


class Every(unittest.TestCase):
    def test_a_record_says_what_is_in_it(self):
        for task in pt.TASKS:
            for text in (TEXT, CODE):
                for seed in range(5):
                    r = made(task, text, seed, 4500, work="w", source="s", start=3, tokens=9)
                    self.assertEqual((r["id"], r["filler"], r["task"], r["set"], r["work"], r["seed"]),
                                     (f"a-{task}", "a", task, "test", "w", seed))
                    self.assertNotIn("start", r)
                    self.assertNotIn("tokens", r)
                    self.assertEqual(len(r["text"]), 4500)
                    self.assertTrue(r["text"].endswith(r["question"]))
                    self.assertEqual(r["text"][slice(*r["question_chars"])], r["question"])
                    # The answer is not said by the question, and follows it after a space.
                    self.assertNotIn(r["answer"], r["question"])
                    self.assertRegex(r["question"], r"[\w:]$")
                    self.assertEqual(len(r["wrong"]), 3)
                    self.assertEqual(len({r["answer"], *r["wrong"]}), 4)
                    self.assertEqual({len(word) for word in (r["answer"], *r["wrong"])}, {5})

    def test_planted_lines_are_paragraphs_in_the_first_three_quarters(self):
        for task, lines in (("one-key", 1), ("four-keys", 4), ("variable", 6), ("count", 24), ("fact", 4),
                            ("first-rule", 2), ("second-rule", 2)):
            for seed in range(8):
                r = made(task, seed=seed)
                self.assertEqual(len(r["planted"]), lines)
                ends = [0]
                for begin, end in r["planted"]:
                    self.assertGreaterEqual(begin, ends[-1])
                    self.assertIn(r["text"][max(0, begin - 2):begin], ("", "\n\n"))
                    self.assertRegex(r["text"][begin:end],
                                     r"^(The code of|VAR_|The signal says|In the end|Instruction:).*\.$")
                    self.assertEqual(r["text"][end:end + 2], "\n\n")
                    ends.append(end)
                self.assertLess(ends[-1] / 5000, pt.LAST + 0.06)

    def test_without_what_is_planted_it_is_the_text(self):
        for task in pt.TASKS:
            r = made(task)
            rest = r["text"][:r["question_chars"][0]]
            for begin, end in reversed(r["planted"]):
                rest = rest[:begin] + rest[end:]
            self.assertGreater(len(rest), 3000)
            self.assertTrue(flat(TEXT).startswith(flat(rest)), task)

    def test_choices_follow_from_seed_task_and_id(self):
        def choice(task, **changes):
            r = made(task, **changes)
            return r["answer"], r["wrong"], r["planted"], r["question"]
        for task in pt.TASKS:
            self.assertEqual(choice(task), choice(task))
            self.assertNotEqual(choice(task), choice(task, seed=1))
            self.assertNotEqual(choice(task), choice(task, id="b"))
        # Known values: other machines and versions of Python make the same.
        self.assertEqual(pt.Choices(0, "x").codes(3, ""), ["41335", "70208", "52089"])
        self.assertEqual("".join(pt.Choices(0, "x").shuffled("abcdef")), "aecbfd")


class Tasks(unittest.TestCase):
    def test_one_key(self):
        for seed in range(6):
            r = made("one-key", seed=seed)
            (begin, end), = r["planted"]
            self.assertIn(f" is {r['answer']}.", r["text"][begin:end])
            name = re.match("The code of the (.*) is", r["text"][begin:end])[1]
            self.assertTrue(r["question"].endswith(f"The code of the {name} is"))
            self.assertEqual(r["text"].count(r["answer"]), 1)
            for wrong in r["wrong"]:
                self.assertNotIn(wrong, r["text"])

    def one_of_four(self, task, planted, question):
        """planted: pattern of a name and its answer; question: pattern of the name asked for."""
        asked = set()
        for seed in range(12):
            r = made(task, seed=seed)
            found = dict(re.findall(planted, r["text"]))
            self.assertEqual(len(found), 4)
            name = re.fullmatch(question, r["question"])[1]
            self.assertEqual(found[name], r["answer"])
            self.assertEqual(set(r["wrong"]), set(found.values()) - {r["answer"]})
            asked.add(list(found).index(name))
        self.assertGreater(len(asked), 2)  # not always the same of the four

    def test_four_keys(self):
        self.one_of_four("four-keys", r"The code of the (\w+ \w+) is (\d{5})\.",
                         r"What is the code of the (.*)\? The code of the \1 is")

    def test_fact(self):
        self.one_of_four("fact", r"In the end (\w+ \w+) found work in (\w+) and never",
                         r"Where did (.*) find work\? In the end \1 found work in")

    def test_variable(self):
        for seed in range(12):
            r = made("variable", seed=seed)
            held = {}
            for begin, end in r["planted"]:
                name, value = re.fullmatch(r"(\w+) = (\w+)\.", r["text"][begin:end]).groups()
                self.assertNotIn(name, held)
                held[name] = held.get(value, value)
            self.assertEqual(len(held), 6)
            name = re.search(r"that (\w+) holds is$", r["question"])[1]
            self.assertEqual(held[name], r["answer"])
            self.assertEqual(name, list(held)[4 + (list(held)[5] == name)])  # a chain's last
            self.assertEqual({*held.values()} - {r["answer"]}, {r["wrong"][0]})

    def test_count(self):
        for seed in range(6):
            r = made("count", seed=seed)
            said = re.findall(r"The signal says: (\w+)\.", r["text"])
            times = {word: said.count(word) for word in said}
            self.assertEqual([times[word] for word in (r["answer"], *r["wrong"])], list(pt.COUNTS))
        self.assertGreater(len({made("count", seed=seed)["answer"] for seed in range(6)}), 1)

    def test_rules(self):
        for seed in range(6):
            first, second = (made(task, seed=seed) for task in ("first-rule", "second-rule"))
            rules = re.findall(r"Instruction: when someone asks for (.*), answer with the word (\w+)\.", first["text"])
            self.assertEqual(len(rules), 2)
            # The two prompts differ in the question alone; where they are cut depends on its length.
            self.assertEqual(rules, re.findall(r"asks for (.*), answer with the word (\w+)\.", second["text"]))
            for r, (thing, word) in zip((first, second), rules):
                self.assertIn(f"Someone asks for {thing}.", r["question"])
                self.assertEqual(r["answer"], word)
                self.assertEqual(len({*r["wrong"]} & {word for _, word in rules}), 1)

    def test_what_the_text_has_is_not_taken(self):
        r = made("one-key")
        name = re.search("The code of the (.*) is$", r["question"])[1]
        again = made("one-key", text=f"A {name.upper()} and {r['answer']}.\n\n" + TEXT)
        self.assertNotIn(name, again["question"])
        self.assertNotEqual(again["answer"], r["answer"])
        r = made("count")
        again = made("count", text=f"One {r['answer']}s.\n\n" + TEXT)
        self.assertNotIn(r["answer"], (again["answer"], *again["wrong"]))


class Run(FolderCase):
    def run_tasks(self, *arguments):
        return call(lambda: pt.main(list(arguments)), program(pt))

    def test_files(self):
        path = self.write_file("t.jsonl", "".join(
            json.dumps({"id": name, **more, "text": TEXT}) + "\n" for name, more in
            (("a", {"set": "test"}), ("b", {"set": "dev"}), ("c", {}))))
        out, questions = self.path("o.jsonl"), self.path("q.jsonl")
        done = self.run_tasks(path, "-o", out, "--chars", "3000", "--tasks", "count,one-key",
                              "--questions", questions)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(done.out, f"{out}: 4 prompts, 2 tasks over 2 texts\n")
        records = kp.read_jsonl(out)
        self.assertEqual([r["id"] for r in records], ["a-count", "a-one-key", "c-count", "c-one-key"])
        self.assertEqual([(r["id"], r["question"]) for r in records],
                         [(r["id"], r["text"]) for r in kp.read_jsonl(questions)])
        done = self.run_tasks(path, "-o", out, "--chars", "3000", "--set", "dev", "--seed", "4")
        self.assertEqual([r["filler"] for r in kp.read_jsonl(out)], ["b"] * len(pt.TASKS) + ["c"] * len(pt.TASKS))
        # A record is its own, whoever stands beside it.
        again = pt.make({"id": "b", "set": "dev", "text": TEXT}, "count", 4, 3000)
        self.assertIn(again, kp.read_jsonl(out))

    def test_refusals(self):
        short = self.write_file("s.jsonl", '{"id": "a", "text": "too short"}\n')
        full = self.write_file("f.jsonl", json.dumps({"id": "a", "text": " ".join(pt.WORDS) + TEXT}) + "\n")
        dev = self.write_file("d.jsonl", json.dumps({"id": "a", "set": "dev", "text": TEXT}) + "\n")
        for words, arguments in (
                ("a, one-key: ", [short, "--chars", "500"]), ("expected at least 500", [short, "--chars", "500"]),
                ("a, count: 0 words are left", [full, "--chars", "3000", "--tasks", "count"]),
                ("no texts of set test", [dev, "--chars", "3000"]),
                ("--tokens needs --model", [dev]),
                ("got `sum`, expected one-key, four-keys", [dev, "--chars", "9", "--tasks", "sum"]),
                ("none.jsonl: cannot be read", ["none.jsonl", "--chars", "5"])):
            done = self.run_tasks(*arguments, "-o", self.path("n.jsonl"))
            self.assertEqual(done.code, 2, words)
            self.assertIn(words, done.err)
            self.assertFalse(os.path.exists(self.path("n.jsonl")))

    @unittest.skipIf(missing("tokenizers") or not MODELS, "no tokenizer: make models, make test-dump")
    def test_lengths_in_tokens(self):
        with open(os.path.join(STUDY, "prompts", "works", "federalist.txt"), encoding="utf-8") as file:
            text = file.read()[:12000]
        answers = {}
        for folder in MODELS:
            tokens = kp.Tokens(folder)
            for task in pt.TASKS:
                r = pt.make({"id": "a", "text": text}, task, 0, 2048, tokens)
                self.assertEqual((tokens.count(r["text"]), r["tokens"]), (2048, 2048))
                # Right and wrong answers have as many tokens, and those of the text are kept.
                whole = tokens.count(r["text"])
                self.assertEqual({tokens.count(f"{r['text']} {word}") - whole
                                  for word in (r["answer"], *r["wrong"])}, {6 if r["answer"].isdigit() else 1})
                answers.setdefault(folder, []).append((r["answer"], r["wrong"]) if task != "fact" else "by vocabulary")
        self.assertEqual([*answers.values()], [answers[MODELS[0]]] * len(MODELS))


if __name__ == "__main__":
    unittest.main()
