"""studies/reference/kvbench-study site: the pages of the committed results, and what a browser makes of them."""

import csv
import gzip
import html.parser
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

from study_case import KVBENCH, STUDY, FolderCase, read_text, run_study, write_text

from kvbench.plot.palette import COLORS, place
from kvbench_study.folders import NotOurs
from kvbench_study.site import curves
from kvbench_study.site import main as site
from kvbench_study.site.main import digits
from kvbench_study.site.results import parse_method

REFERENCE = os.path.join(STUDY, "results")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# Appended to the page: what a reader does, and what is then on the screen.
READER = """<pre id="seen"></pre><script>
const seen = [];
const look = () => seen.push({
  count: at("count").textContent,
  heads: [...document.querySelectorAll("th")].filter((th) => !th.hidden).map((th) => th.dataset.name),
  sorted: [...document.querySelectorAll("th")].filter((th) => th.getAttribute("aria-sort") !== "none")
    .map((th) => th.dataset.name + " " + th.getAttribute("aria-sort")),
  rows: [...document.querySelectorAll("tbody tr")].map((tr) => [...tr.children].map((td) => td.textContent)),
  wide: document.documentElement.scrollWidth > document.documentElement.clientWidth});
const aside = () => {
  const table = document.querySelector(".wide");
  table.scrollLeft = 10000;
  const left = document.querySelector("tbody td").getBoundingClientRect().left;
  return {scrolled: table.scrollLeft, left: left - table.getBoundingClientRect().left};
};
const choose = (id, value) => {
  at(id).value = value;
  at(id).dispatchEvent(new Event("input"));
};
look();
document.querySelector('th[data-name="mass_kept"] button').click();
document.querySelector('th[data-name="mass_kept"] button').click();
look();
choose("setup", "");
choose("budget", "");
choose("queries", "none");
choose("text", "QUANT");
look();
choose("queries", "");
choose("text", "");
choose("family", "merging");
look();
seen.push(aside());
at("seen").textContent = JSON.stringify(seen);
</script>"""


class Links(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found += [value for name, value in attributes if name in ("href", "src")]


@unittest.skipUnless(os.access(KVBENCH, os.X_OK), "no program")
class SiteTest(FolderCase):
    """made: a site of the committed results, for tests that read it."""

    @classmethod
    def setUpClass(cls):
        cls.made = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.made)
        done = run_study("site", "-o", os.path.join(cls.made, "site"), "--kvbench", KVBENCH)
        if done.returncode:
            raise AssertionError(done.stderr)

    def site(self, *parts):
        return os.path.join(self.made, "site", *parts)

    def make(self, *arguments, expected=0):
        done = run_study("site", "-o", self.path("site"), "--kvbench", KVBENCH, *arguments)
        self.assertEqual(done.returncode, expected, done.stderr)
        return done

    def rows(self):
        text = read_text(self.site("results.js"))
        return json.loads(re.match(r"const RESULTS = (.*?);\nconst", text, re.DOTALL)[1])

    def test_pages_hold_the_committed_figures(self):
        rows = self.rows()
        sums = {}
        for stage in ("judged", "others"):
            path = os.path.join(REFERENCE, "models", "smollm2-135m", "store", stage + ".csv.gz")
            with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
                for line in csv.DictReader(file):
                    own = sums.setdefault((line["algorithm"], line["budget_requested"]), [0, 0, 0.0])
                    ok = line["status"] == "ok"
                    own[0] += ok
                    own[1] += not ok
                    own[2] += float(line["rel_error"]) if ok else 0.0
        self.assertGreater(len(sums), 100)
        for (method, budget), (count, infeasible, total) in sums.items():
            found, = (r for r in rows if r["setup"] == "smollm2-135m, prefill"
                      and (r["method"], r["budget"]) == (method, float(budget) if budget else None))
            self.assertEqual(found["rows"], count)
            self.assertEqual(found["notes"], f"{infeasible} rows infeasible" if infeasible else "")
            if count:  # sums of up to 7020 doubles in another order
                self.assertAlmostEqual(found["rel_error"], total / count, delta=1e-12 * total / count)
            else:
                self.assertIsNone(found["rel_error"])
        pages = {r["page"] for r in rows}
        self.assertEqual({f"methods/{name}" for name in os.listdir(self.site("methods"))}, pages)
        balancekv = read_text(self.site("methods", "balancekv.html"))
        for words in ("Algorithm 2 and section 4.1", "self-balancing", "<svg ", "value_bias_rel"):
            self.assertIn(words, balancekv)

    def test_every_commit_of_a_setup_is_named(self):
        with open(os.path.join(REFERENCE, "models", "smollm2-135m", "store", "records.json"), encoding="utf-8") as file:
            known = json.load(file)
        parts = [part for stage in ("judged", "others") for one in known[stage].values() for part in one["parts"]]
        wanted = {re.search(r"\((\w{12})", part["program"])[1] for part in parts}
        self.assertGreater(len(wanted), 1)
        line, = (line for line in re.findall("<li>.*?</li>", read_text(self.site("index.html")))
                 if line.startswith("<li>smollm2-135m, prefill"))
        named = re.findall(r"<code>(\w+)</code>", line)
        self.assertEqual((set(named), len(named)), (wanted, len(wanted)))
        first = min(parts, key=lambda part: part["begin"])
        self.assertIn(named[0], first["program"])

    def test_reads_have_rows_by_setting(self):
        path = os.path.join(REFERENCE, "models", "smollm2-135m-retrieval", "store", "read.csv.gz")
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            lines = list(csv.DictReader(file))
        for label, params in (("topk union=group", "tokens=auto;union=group"),
                              ("magicpig bits=6", "bits=6;tables=auto"),
                              ("quest union=head page=16", "min_pages=3;page=16;pages=auto;union=head")):
            for budget in ("0.25", "0.125"):
                own = [line for line in lines if (line["params"], line["budget_requested"]) == (params, budget)
                       and label.split()[0] == line["algorithm"]]
                row, = (r for r in self.rows() if r["setup"] == "smollm2-135m-retrieval, retrieval"
                        and (r["method"], r["budget"]) == (label, float(budget)))
                self.assertEqual(row["rows"], len(own))
                for metric in ("rel_error", "recall", "read_ratio", "mass_kept"):
                    self.assertAlmostEqual(row[metric], sum(float(line[metric]) for line in own) / len(own), 12, metric)
        self.assertIsNone(next(r for r in self.rows() if r["method"] == "snapkv")["recall"])
        page = read_text(self.site("methods", "quest.html"))
        self.assertIn("the middle's bytes read", page)
        self.assertIn("smollm2-135m-retrieval, retrieval union=head page=16", page)

    def test_nothing_is_fetched_and_every_link_leads_somewhere(self):
        for folder, _, names in os.walk(self.site()):
            for name in names:
                text = read_text(os.path.join(folder, name))
                self.assertNotIn("http:", text, name)
                self.assertNotRegex(text, r"https:(?!//(?:www\.)?(?:arxiv|github))", name)
                for link in Links(text).found if name.endswith(".html") else ():
                    self.assertTrue(os.path.isfile(os.path.join(folder, link)), f"{name}: {link}")

    @unittest.skipIf(BROWSER is None, "no chromium to open the page with")
    def test_a_reader_sorts_and_chooses(self):
        shutil.copytree(self.site(), self.path("site"))
        index = self.path("site", "index.html")
        write_text(index, read_text(index).replace("</body>", READER + "</body>"))
        for width in (390, 1280):
            done = subprocess.run(
                [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900",
                 f"--user-data-dir={self.path('profile')}", "--dump-dom", "file://" + index],
                capture_output=True, text=True, check=False, timeout=1200)
            found = re.search(r'<pre id="seen">(.*?)</pre>', done.stdout, re.DOTALL)
            self.assertTrue(found, done.stderr[-2000:])
            first, sorted_, chosen, merging, aside = json.loads(html.unescape(found[1]))
            self.assertFalse(first["wide"])  # only the table scrolls sideways
            self.assertEqual(first["sorted"], ["rel_error ascending"])
            self.assertNotIn("budget", first["heads"])
            errors = [float(row[first["heads"].index("rel_error")]) for row in first["rows"]
                      if row[first["heads"].index("rel_error")] != "–"]
            self.assertEqual(errors, sorted(errors))
            self.assertGreater(len(errors), 25)
            self.assertEqual(first["count"], f"{len(first['rows'])} rows")
            self.assertEqual(first["rows"][-1][1], "–")  # infeasible
            self.assertEqual(sorted_["sorted"], ["mass_kept descending"])
            masses = [float(row[sorted_["heads"].index("mass_kept")]) for row in sorted_["rows"]
                      if row[sorted_["heads"].index("mass_kept")] != "–"]
            self.assertEqual(masses, sorted(masses, reverse=True))
            names = {row[0] for row in chosen["rows"]}
            self.assertTrue("quant-kivi" in names and all("quant" in name for name in names), names)
            self.assertEqual(chosen["heads"][:3], ["method", "setup", "budget"])
            names = {row[0] for row in merging["rows"]}
            self.assertTrue({"d2o", "kmeans", "count-merge"} <= names, names)
            self.assertFalse({"h2o", "uniform", "quant-kivi"} & names, names)
            self.assertNotIn("family", merging["heads"])
            self.assertEqual(aside["left"], 0)  # the methods' names stay when the table scrolls
            if width == 390:
                self.assertGreater(aside["scrolled"], 0)
            for row in first["rows"]:  # three significant digits, the trailing zeros too
                digits = row[first["heads"].index("rel_error")].partition("e")[0].lstrip("0.")
                self.assertIn(len(digits.replace(".", "")), (0, 1) if digits == "–" else (3,), row)

    def test_a_page_of_the_users_is_not_replaced(self):
        write_text(self.path("index.html"), "<title>My page</title>")
        with self.assertRaisesRegex(NotOurs, "index.html is there"):
            site.write(self.folder, [], {})
        self.assertEqual(os.listdir(self.folder), ["index.html"])
        self.assertEqual(read_text(self.path("index.html")), "<title>My page</title>")
        write_text(self.path("index.html"), site.page("kvbench: reference results", ""))
        self.assertTrue(site.is_site(self.folder))

    def test_refusals(self):
        for arguments, words in ((["--results", self.path("none")], "none: no such folder"),
                                 (["--results", self.folder], "holds no reference results"),
                                 (["--kvbench", "/none/kvbench"], "/none/kvbench: cannot be run")):
            done = self.make(*arguments, expected=2)
            self.assertRegex(done.stderr, f"^kvbench-study site: .*{words}.*\n$")
            self.assertFalse(os.path.exists(self.path("site")))
        store = self.path("models", "m", "store")
        shutil.copytree(os.path.join(REFERENCE, "models", "smollm2-135m-streams", "store"), store)
        write_text(os.path.join(store, "stream.csv.gz"), "algorithm\nx\n")
        self.assertIn("stream.csv.gz",
                      self.make("--results", self.folder, expected=2).stderr)


class PartsTest(unittest.TestCase):
    def test_scale(self):
        x = curves.Scale([0.1, 10.0], 0.0, 100.0)
        self.assertAlmostEqual(x(1.0), 50.0)
        self.assertLess(x(10.0), 100.0)
        self.assertEqual(x.ticks(), [0.1, 0.2, 0.5, 1, 2, 5, 10])

    def test_a_curve_of_no_point(self):
        self.assertIsNone(curves.svg({"a": [(0.1, 0.2)], "b": []}, "b", [0.1]))
        self.assertIsNone(curves.svg({"a": [(0.1, 0.2)]}, "b", [0.1]))
        self.assertIn(">a</text>", curves.svg({"a": [(0.1, 0.2)]}, "a", [0.1]))

    def test_a_method_has_its_colour_of_all_figures(self):
        for name, of in (("h2o", "h2o"), ("bumblebee-stream", "bumblebee"), ("h2o+balancekv", "h2o")):
            picture = curves.svg({name: [(0.1, 0.2), (0.2, 0.1)], "a": [(0.1, 0.3)]}, name, [0.1])
            self.assertIn(f'stroke="{COLORS[place(of)]}"', picture)

    def test_three_significant_digits(self):
        self.assertEqual([digits(v) for v in (0.12, 2, 0, None, 0.0625, 123.4, 4.8e-16)],
                         ["0.120", "2.00", "0", "–", "0.0625", "123", "4.80e-16"])

    def test_what_the_program_says(self):
        method = parse_method("a", "a: keeps a\n  source      A, 2026\n  size        fixed\n"
                                   "  parameters\n    T  halvings\n       default 1\n")
        self.assertEqual((method.does, method.fields),
                         ("keeps a", {"source": "A, 2026", "size": "fixed"}))
        self.assertEqual(method.parameters, "parameters\n  T  halvings\n     default 1")


if __name__ == "__main__":
    unittest.main()
