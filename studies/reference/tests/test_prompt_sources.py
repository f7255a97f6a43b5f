"""Works that lie in packages: archives that the test makes, texts of pages, what is refused; and the
committed list studies/reference/prompts/sources.toml. No network: the download is the test's own."""

import gzip
import io
import os
import tarfile
import tomllib
import unittest
import zipfile
from unittest import mock

from study_case import ROOT, STUDY, FolderCase, call, missing, program

from kvbench_study.prompts import archives as pa
from kvbench_study.prompts import make as pm
from kvbench_study.prompts import records as kp
from kvbench_study.prompts.html_text import html_text

LIST = os.path.join(STUDY, "prompts", "sources.toml")
WORKS = os.path.join(STUDY, "prompts", "works")
MODELS = {name: os.path.join(ROOT, "build", "models", name)
          for name in ("smollm2-135m", "qwen2.5-coder-0.5b")}
KINDS = ("prose", "technical", "code", "reference")


class Words:
    """A tokenizer whose tokens are words."""

    @staticmethod
    def count(text):
        return len(text.split())


def deb(files, compression="xz", data="data.tar.xz"):
    """Bytes of a .deb with these files, {name: bytes}; an odd member stands before them."""
    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode=f"w:{compression}") as archive:
        folder = tarfile.TarInfo("./usr")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in files.items():
            member = tarfile.TarInfo("./" + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    out = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0"), ("control.tar.xz/", b"x"), (data, inner.getvalue())):
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        out += header + content + b"\n" * (len(content) % 2)
    return out


def wheel(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


class Pages(unittest.TestCase):
    def test_paragraphs_lists_and_tables(self):
        page = ("<!DOCTYPE html><html><head><title>T</title><style>p{}</style></head><body>"
                "<nav><a href=x>Home</a></nav><h1>A &amp; B</h1>\n<p>One\n  two&nbsp;three<br>four</p>"
                "<ul><li>first<li>second</ul><script>if (a < b) {}</script>"
                "<table><tr><th>x</th><th>y</th></tr><tr><td>1</td><td>2</td></tr></table>"
                "<div>end</div><svg><text>no</text></svg></body></html>")
        self.assertEqual(html_text(page), "A & B\n\nOne two three\nfour\n\n- first\n- second\n\n"
                                          "x | y\n1 | 2\n\nend\n")

    def test_preformatted_text_stays(self):
        page = "<p>a   b</p><pre>if x:\n    y  =  1\n\tz\n</pre><p>c"
        self.assertEqual(html_text(page), "a b\n\nif x:\n    y  =  1\n    z\n\nc\n")

    def test_a_head_without_an_end(self):
        self.assertEqual(html_text("<head><title>T</title><body><p>text"), "text\n")

    def test_characters_of_ours_do_not_come_in(self):
        self.assertEqual(html_text("<p>a\0b</p>"), "ab\n")


class Archives(FolderCase):
    FILES = {"usr/share/doc/a/one.txt": b"first\r\nline\n\n", "usr/share/doc/a/two.txt.gz": gzip.compress(b"second\n"),
             "usr/share/doc/a/three.html": b"<p>third</p>", "usr/share/doc/a/latin.txt": "caf\u00e9".encode("latin-1")}
    ALL = ["usr/share/doc/a/one.txt", "usr/share/doc/a/two.txt.gz", "usr/share/doc/a/three.html"]

    def archive(self, name, content):
        with open(self.path(name), "wb") as file:
            file.write(content)
        return self.path(name)

    def test_both_kinds_are_read_alike(self):
        for name, content in (("a.deb", deb(self.FILES)), ("b.deb", deb(self.FILES, "gz", "data.tar.gz")),
                              ("a.whl", wheel(self.FILES))):
            path = self.archive(name, content)
            self.assertEqual(pa.read_text(path, self.ALL), "first\nline\n\nsecond\n\nthird\n")
            # In the order of the list, not of the archive.
            self.assertEqual(pa.read_text(path, self.ALL[::-1]), "third\n\nsecond\n\nfirst\nline\n")
            self.assertEqual(pa.read_text(path, ["usr/share/doc/a/latin.txt"], "latin-1"), "caf\u00e9\n")

    def test_what_cannot_be_read(self):
        good = self.archive("a.deb", deb(self.FILES))
        broken = deb({"a": b"x" * 5000}).replace(b"\xfd7zXZ", b"\xfd7zXX")
        for words, path, name in (
                ("none.txt: not in the package", good, "none.txt"),
                ("not in the package", good, "usr"),  # a folder is no file
                ("is no utf-8", good, "usr/share/doc/a/latin.txt"),
                ("not a .deb", self.archive("b.deb", b"text"), "a"),
                ("holds no data.tar", self.archive("c.deb", b"!<arch>\n"), "a"),
                ("cannot be read", self.archive("d.deb", broken), "a"),
                ("cannot be read", self.archive("a.whl", b"text"), "a"),
                ("cannot be unpacked", self.archive("e.deb", deb({"a.gz": b"text"})), "a.gz")):
            with self.assertRaisesRegex(kp.PromptError, words):
                pa.read_text(path, [name])


class Fetching(FolderCase):
    CONTENT = deb({"a.txt": b"text\n"})
    WORK = {"title": "A", "index": "debian", "package": "a-doc", "version": "1:2.0-1",
            "package_sha256": pa.sha256(CONTENT), "files": ["a.txt"], "sha256": pa.sha256(b"text\n")}

    def setUp(self):
        super().setUp()
        self.cache = self.path("cache")
        self.downloads = []

    def download(self, work, folder, pip_args, files=None):
        self.downloads.append((work["package"], *pip_args))
        for name, content in (files or {"a-doc_1%3a2.0-1_all.deb": self.CONTENT}).items():
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)

    def text(self, download=None, **changes):
        return pa.work_text("a", {**self.WORK, **changes}, self.cache, ["--index-url", "x"],
                            download or self.download)

    def test_once_and_kept(self):
        self.assertEqual(self.text(), "text\n")
        self.assertEqual(os.listdir(self.cache), ["a-doc_1%3a2.0-1.deb"])
        self.assertEqual(self.text(), "text\n")
        self.assertEqual(self.downloads, [("a-doc", "--index-url", "x")])
        with open(os.path.join(self.cache, "a-doc_1%3a2.0-1.deb"), "wb") as file:
            file.write(b"half")
        self.assertEqual(self.text(), "text\n")
        self.assertEqual(len(self.downloads), 2)

    def test_another_file_is_refused_and_not_kept(self):
        other = lambda *what: self.download(*what, {"a.deb": b"other"})  # noqa: E731
        with self.assertRaisesRegex(kp.PromptError, f"a.deb: SHA-256 is {pa.sha256(b'other')}, expected "
                                                    f"{self.WORK['package_sha256']} of a-doc 1:2.0-1"):
            self.text(other)
        for files in ({"a.txt": b""}, {"a.deb": b"", "b.deb": b""}):
            with self.assertRaisesRegex(kp.PromptError, "expected one .deb"):
                self.text(lambda *what, files=files: self.download(*what, files))
        self.assertEqual(os.listdir(self.cache), [])
        with self.assertRaisesRegex(kp.PromptError, "SHA-256 of the text is .*, expected 000"):
            self.text(sha256="000")
        with self.assertRaisesRegex(kp.PromptError, "index is ftp, expected debian or pypi"):
            self.text(index="ftp")

    def run_as(self, results):
        """What pa.download asks for, where the commands end as `results` says."""
        asked = []

        def run(command, **options):
            asked.append(command)
            code, out, err = results[command[0] if command[0].startswith("apt") else "pip"]
            return mock.Mock(returncode=code, stdout=out, stderr=err)
        return asked, mock.patch.object(pa.subprocess, "run", run)

    def test_what_clients_are_asked(self):
        asked, patch = self.run_as({"apt-get": (0, "", ""), "pip": (0, "", "")})
        with patch:
            pa.download(self.WORK, self.folder)
            pa.download({**self.WORK, "index": "pypi", "version": "2.0"}, self.folder, ["--no-cache-dir"])
        self.assertEqual(asked[0], ["apt-get", "download", "a-doc=1:2.0-1"])
        self.assertEqual(asked[1][1:4], ["-m", "pip", "download"])  # never install
        for word in ("--no-deps", "--only-binary", "--no-cache-dir", "a-doc==2.0"):
            self.assertIn(word, asked[1])

    def test_a_version_that_is_gone(self):
        _, patch = self.run_as({"apt-get": (100, "", "W: x\nE: Version '1:2.0-1' for 'a-doc' was not found\n"),
                                "apt-cache": (0, "a-doc:\n  Installed: (none)\n  Candidate: 1:2.1-1\n", "")})
        with patch, self.assertRaisesRegex(kp.PromptError, "a-doc: the mirror has version 1:2.1-1, expected "
                                                           "1:2.0-1: E: Version"):
            pa.download(self.WORK, self.folder)
        _, patch = self.run_as({"pip": (1, "", "ERROR: No matching distribution found for a-doc==9\n")})
        with patch, self.assertRaisesRegex(kp.PromptError, "a-doc: no version 9 from the index: ERROR: No match"):
            pa.download({**self.WORK, "index": "pypi", "version": "9"}, self.folder)
        with mock.patch.object(pa.subprocess, "run", side_effect=FileNotFoundError(2, "No such file")), \
                self.assertRaisesRegex(kp.PromptError, "apt-get cannot run"):
            pa.download(self.WORK, self.folder)


class Cutting(FolderCase):
    TEXT = "\n\n".join(f"Paragraph {at} of {at * at} words." for at in range(200)) + "\n"
    TABLE = "".join(f"{at};{at * at};row\n" for at in range(300))

    def setUp(self):
        super().setUp()
        self.content = wheel({"text.txt": self.TEXT.encode(), "table.csv": self.TABLE.encode()})
        work = {"index": "pypi", "package": "p", "version": "1", "package_sha256": pa.sha256(self.content)}
        self.spec = {"tokens": 20, "works": {
            "text": {**work, "title": "Text", "kind": "prose", "set": "dev", "files": ["text.txt"],
                     "sha256": pa.sha256(self.TEXT.encode())},
            "table": {**work, "title": "Table", "kind": "reference", "set": "test", "files": ["table.csv"],
                      "sha256": pa.sha256(self.TABLE.encode()), "tabular": True}}}
        self.places = pm.WorkReader(self.folder, self.path("cache"), download=self.download)

    def download(self, work, folder, pip_args):
        with open(os.path.join(folder, "p-1-py3-none-any.whl"), "wb") as file:
            file.write(self.content)

    def make(self, longest=None, **entry):
        return [record for _, record in pm.make(self.spec, entry, self.places, Words, longest)]

    def test_what_a_work_says_holds(self):
        record, = self.make(sources=["text"], start=40)
        self.assertEqual({key: record[key] for key in ("id", "kind", "set", "work", "source", "tokens")},
                         {"id": "text", "kind": "prose", "set": "dev", "work": "text", "source": "Text",
                          "tokens": 20})
        self.assertTrue(record["text"].startswith("Paragraph 2 "))
        record, = self.make(sources=["text"], id="b", kind="verse")
        self.assertEqual((record["id"], record["kind"]), ("b", "verse"))

    def test_no_work_is_in_both_sets(self):
        with self.assertRaisesRegex(kp.PromptError, "text: set is test, but all of text is dev"):
            self.make(sources=["text"], set="test")
        with self.assertRaisesRegex(kp.PromptError, "text: set is dev, but all of table is test"):
            self.make(sources=["text", "table"])

    def test_lines_of_a_table(self):
        record, = self.make(sources=["table"], start=100)
        self.assertEqual(self.TABLE[record["start"] - 1], "\n")
        self.assertTrue(100 <= record["start"] < 110)
        self.assertTrue(self.TABLE[record["start"]:].startswith(record["text"]))

    def test_longer_ones(self):
        out = self.make(sources=["text"], lengths=[40, 80], longest=40)
        self.assertEqual([(r["id"], r["tokens"], Words.count(r["text"])) for r in out],
                         [("text", 20, 20), ("text-0k", 40, 40)])
        self.assertTrue(out[1]["text"].startswith(out[0]["text"]))
        pm.check(out)  # their shared text is no fault
        self.assertEqual(len(self.make(sources=["text"], lengths=[40, 80])), 3)
        with self.assertRaisesRegex(kp.PromptError, "expected at least 8000"):
            self.make(sources=["text"], lengths=[8000])

    def test_windows_follow_each_other(self):
        for name, text, end in (("text", self.TEXT, "\n\n"), ("table", self.TABLE, "\n")):
            files, out = zip(*pm.make(self.spec, {"sources": [name], "windows": 3}, self.places, Words, None))
            self.assertEqual(files, (out[0]["kind"], "windows", "windows"))
            self.assertEqual([r["id"] for r in out], [name, f"{name}-w2", f"{name}-w3"])
            self.assertEqual({(r["source"], r["set"], r["tokens"]) for r in out},
                             {(out[0]["source"], out[0]["set"], 20)})
            for before, after in zip(out, out[1:]):
                self.assertEqual(text[after["start"]:after["start"] + len(after["text"])], after["text"])
                between = text[before["start"] + len(before["text"]):after["start"]]
                self.assertTrue(between.endswith(end))
                self.assertNotIn(end, between[:-len(end)])
            pm.check(list(out))
        with self.assertRaisesRegex(kp.PromptError, "text-w[0-9]+: got [0-9]+, expected a paragraph"):
            self.make(sources=["text"], windows=90)

    def test_a_list_as_a_program(self):
        spec = self.write_file("list.toml", f"""
tokens = 20
[works.text]
title = "Text"
kind = "prose"
set = "dev"
sha256 = "{pa.sha256(self.TEXT.encode())}"
[[prompt]]
sources = ["text.txt"]
lengths = [40, 9000]
""")
        self.write_file("text.txt", self.TEXT)
        self.write_file("config.json", '{"max_position_embeddings": 64}')
        for more in ((), ("--",), ("--", "--index-url", "x")):
            with mock.patch.object(kp, "Tokens", lambda folder: Words), \
                    mock.patch.object(pm, "WorkReader", wraps=pm.WorkReader) as places:
                done = call(lambda more=more: pm.main([spec, "--texts", self.folder, "--model", self.folder, "-o",
                                                       self.path("out"), *more]), program(pm))
            self.assertEqual((done.code, done.err), (0, ""))
            self.assertEqual(places.call_args[0][2], [*more[1:]])
        self.assertEqual(sorted(os.listdir(self.path("out"))), ["long.jsonl", "prose.jsonl"])
        self.assertEqual(done.out, "prose.jsonl: 1 prompts of 20 tokens\nlong.jsonl: 1 prompts of 40 tokens\n")


class Committed(unittest.TestCase):
    def setUp(self):
        with open(LIST, "rb") as file:
            self.spec = tomllib.load(file)
        self.works = self.spec["works"]

    def test_enough_sources_in_either_set(self):
        self.assertEqual(self.spec["tokens"], 4096)
        sets = {name: [w for w in self.works.values() if w["set"] == name] for name in kp.SETS}
        self.assertGreaterEqual(len(sets["dev"]), 8)
        self.assertGreaterEqual(len(sets["test"]), 16)
        for works in sets.values():
            self.assertEqual({w["kind"] for w in works}, set(KINDS))
        # A package is one source, of one set.
        packages = [w["package"] for w in self.works.values() if "package" in w]
        self.assertEqual(len(set(packages)), len(packages))

    def test_every_work_is_pinned_and_used_once(self):
        used = [name for entry in self.spec["prompt"] for name in entry["sources"]]
        self.assertEqual(sorted(name.removesuffix(".txt") for name in used), sorted(self.works))
        self.assertFalse([name for name in used if name.startswith("git:")])  # none of ours
        for name, work in self.works.items():
            for key in ("title", "licence", "sha256"):
                self.assertTrue(work[key], name)
            if "package" in work:
                self.assertIn(work["index"], pa.ENDINGS)
                self.assertRegex(work["package_sha256"], "^[0-9a-f]{64}$")
                self.assertTrue(work["version"] and work["files"])
            self.assertIn(name + ("" if "package" in work else ".txt"), used)
        long = [self.works[entry["sources"][0].removesuffix(".txt")] for entry in self.spec["prompt"]
                if entry.get("lengths")]
        self.assertGreaterEqual(len(long), 4)
        self.assertEqual({work["set"] for work in long}, {"test"})

    def test_works_that_are_here(self):
        here = [name for name, work in self.works.items() if "package" not in work]
        self.assertEqual(sorted(here), sorted(name.removesuffix(".txt") for name in os.listdir(WORKS)))
        places = pm.WorkReader(WORKS)
        for name in here:
            places.read(self.works, name + ".txt")  # raises where another file is there

    def test_the_page_has_every_source(self):
        with open(os.path.join(STUDY, "prompts", "README.md"), encoding="utf-8") as file:
            page = file.read()
        for name, work in self.works.items():
            row = next((line for line in page.splitlines() if line.startswith(f"| `{name}` |")), "")
            where = f"{work['package']} {work['version']}" if "package" in work else "works/"
            self.assertEqual(row, f"| `{name}` | {work['title']} | {work['kind']} | {work['set']} | {where} | "
                                  f"{work['licence']} |")

    @unittest.skipIf(missing("tokenizers"), "no tokenizers")
    def test_lengths_of_works_that_are_here(self):
        for name, folder in MODELS.items():
            if not os.path.isfile(os.path.join(folder, "tokenizer.json")):
                continue
            tokens = kp.Tokens(folder)
            for entry in self.spec["prompt"]:
                if entry["sources"] == ["federalist.txt"]:
                    for _, record in pm.make(self.spec, entry, pm.WorkReader(WORKS), tokens, 8192):
                        self.assertEqual(tokens.count(record["text"]), record["tokens"], name)


if __name__ == "__main__":
    unittest.main()
