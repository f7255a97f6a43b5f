"""Makes a static site of the committed reference results.

  kvbench-study site [-o FOLDER] [--results FOLDER] [--kvbench PROGRAM]

FOLDER/index.html has a table of all methods with sorting and filters; each method has a page with
its source, departures, curves and parameters. Pages work offline. Needs the standard library, and
the program for its descriptions of methods.
"""

import html
import json
import os
import shutil
import sys

from kvbench import command
from kvbench.text import one_line
from kvbench_study import ROOT, STUDY
from kvbench_study.folders import NotOurs, claim_folder
from kvbench_study.site import curves
from kvbench_study.site.results import SiteError, read_methods, read_results

HERE = os.path.dirname(os.path.abspath(__file__))
COLUMNS = [("method", "method", True), ("setup", "model, protocol", True), ("budget", "budget", False),
           ("rel_error", "relative error", False), ("sd", "its sd", False),
           ("mass_kept", "mass kept", False), ("log_z_error", "error of log Z", False),
           ("middle_ratio", "middle ratio", False), ("read_ratio", "read ratio", False),
           ("recall", "recall", False), ("rows", "rows", False),
           ("family", "family", True), ("queries", "queries", True), ("notes", "notes", True)]
QUERIES = {"none": "none", "scoring": "before the evaluated", "evaluated": "the evaluated (an oracle)",
           "extra": "a set of further ones in the trace", "stored": "those of another program, if any"}


def page(title, body, up=""):
    return (f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(title)}</title>\n"
            f'<link rel="stylesheet" href="{up}style.css">\n</head>\n<body>\n{body}\n</body>\n</html>\n')


def digits(value):
    """Formats three significant digits, as table.js does; a dash for None."""
    if value is None:
        return "–"
    return f"{value:#.3g}".rstrip(".") if value else "0"


def setup_name(setup):
    return f"{setup.folder}, {setup.protocol}"


def select(name, label, values, chosen):
    options = "".join(f'<option value="{html.escape(str(value))}"'
                      f'{" selected" if value == chosen else ""}>{html.escape(str(text))}</option>'
                      for value, text in values)
    return f'<label>{label}<select id="{name}">{options}</select></label>'


def index(results, methods):
    setups = {setup_name(r.setup): r.setup for r in results}
    budgets = sorted({r.budget for r in results if r.budget is not None}, reverse=True)
    families = sorted({methods[r.method].fields.get("family", "") for r in results} - {""})
    first = next(iter(setups))
    usual = 0.125 if 0.125 in budgets else budgets[0]
    heads = "".join(f'<th data-name="{name}" class="{"text" if text else ""}">'
                    f'<button type="button">{label}</button></th>' for name, label, text in COLUMNS)
    about = "".join(f"<li>{html.escape(name)}: {html.escape(s.model)}; {html.escape(s.about)}. kvbench "
                    + (", ".join(f"<code>{commit[:12]}</code>" for commit in s.commits) or "unknown") + "</li>"
                    for name, s in setups.items())
    return page("kvbench: reference results", f"""<h1>kvbench: reference results</h1>
<p>How far the attention output moves when the KV cache is compressed, by method and budget. A budget is a
share of the middle's bytes, held or (retrieval) read by a query; the first and the most recent tokens stay.
Lower errors are better; a mean runs over all layers, heads, prompts and seeds. A click on a column's name
sorts.</p>
<div class="choices">
{select("setup", "model, protocol", [("", "all"), *((s, s) for s in setups)], first)}
{select("budget", "budget", [("", "all"), *((b, f"{b:g}") for b in budgets)], usual)}
{select("family", "family", [("", "all"), *((f, f) for f in families)], "")}
{select("queries", "queries that the method sees", [("", "all"), *QUERIES.items()], "")}
<label>method<input id="text" type="search" placeholder="name or word"></label>
</div>
<p class="soft" id="count" aria-live="polite"></p>
<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody id="rows"></tbody></table></div>
<h2>What was measured</h2>
<ul>{about}</ul>
<p>Relative error: the length of the difference of estimate and exact output over that of the exact output,
of all evaluated queries of a query head; its sd runs over the rows. Mass kept: true attention on
tokens that are held exactly.
Middle ratio: bytes held of the middle, everything counted. Read ratio: bytes of it that a query reads.
Recall: the share of a query's heaviest tokens that it read. {len(methods)} methods.</p>
<script src="results.js"></script>
<script src="table.js"></script>""")


def data(results, methods):
    rows = [{"method": r.label, "page": f"methods/{r.method}.html", "does": methods[r.method].does,
             "setup": setup_name(r.setup), "budget": r.budget, "sd": r.sd, "rows": r.rows,
             "family": methods[r.method].fields.get("family", ""),
             "queries": methods[r.method].fields.get("queries", ""), "notes": r.notes, **r.means}
            for r in results]
    columns = [{"name": name, "text": text} for name, _, text in COLUMNS]
    return (f"const RESULTS = {json.dumps(rows, indent=0, allow_nan=False)};\n"
            f"const COLUMNS = {json.dumps(columns)};\n")


def lines_of(results, setup):
    """Returns {label: points} of one setup; of methods with one setting per budget."""
    out = {}
    for r in results:
        x, y = r.share(), r.means["rel_error"]
        if r.setup == setup and r.budget is not None and x and y:
            out.setdefault(r.label, []).append((x, y))
    return out


def best_label(method, results, setup, lines):
    """Returns the setting of a method that has most points, of several that with the least error."""
    own = dict.fromkeys(r.label for r in results if r.setup == setup and r.method == method)
    return min((label for label in own if label in lines), default=method,
               key=lambda label: (-len(lines[label]), sum(y for _, y in lines[label])))


def method_page(method, results, order):
    figures = []
    for setup in order:
        lines = lines_of(results, setup)
        drawn = best_label(method.name, results, setup, lines)
        picture = curves.svg(lines, drawn,
                             sorted({r.budget for r in results if r.setup == setup and r.budget}),
                             "read" if setup.protocol == "retrieval" else "held")
        if picture:
            figures.append(f"<figure><figcaption>{html.escape(setup_name(setup))}: "
                           f"{html.escape(setup.model)}; {html.escape(setup.about)}. "
                           f"Drawn: {html.escape(drawn)}; grey: all others.</figcaption>{picture}"
                           "</figure>")
    facts = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
                    for name, text in method.fields.items())
    own = [r for r in results if r.method == method.name]
    rows = "".join(
        f'<tr><td class="text">{html.escape(setup_name(r.setup))}'
        f'{html.escape(r.label.removeprefix(r.method))}</td>'
        f"<td>{'–' if r.budget is None else f'{r.budget:g}'}</td>"
        + "".join(f"<td>{digits(v)}</td>" for v in (r.means["rel_error"], r.sd, r.means["mass_kept"],
                                                    r.share()))
        + f'<td class="text">{html.escape(r.notes)}</td></tr>' for r in own)
    params = "".join(f"<li><code>{html.escape(p)}</code></li>"
                     for p in dict.fromkeys(r.params for r in own) if p)
    return page(f"{method.name}: kvbench", f"""<p><a href="../index.html">all methods</a></p>
<h1>{html.escape(method.name)}</h1>
<p>{html.escape(method.does)}</p>
<dl>{facts}</dl>
{"".join(figures) or "<p>No curve: it has no budget, or no error above rounding.</p>"}
<div class="wide"><table><thead><tr><th class="text">model, protocol</th><th>budget</th>
<th>relative error</th><th>its sd</th><th>mass kept</th><th>share of bytes</th><th class="text">notes</th>
</tr></thead><tbody>{rows}</tbody></table></div>
<h2>Settings of these rows</h2>
{f"<ul>{params}</ul>" if params else "<p>None.</p>"}
<h2>Parameters</h2>
<pre>{html.escape(method.parameters)}</pre>""", up="../")


def is_site(folder):
    """Returns whether an earlier version, without the mark, made this folder."""
    try:
        with open(os.path.join(folder, "index.html"), encoding="utf-8") as file:
            return "<title>kvbench: reference results</title>" in file.read(500)
    except (OSError, UnicodeDecodeError):
        return False


def write(folder, results, methods):
    claim_folder(folder, is_site)
    os.makedirs(os.path.join(folder, "methods"), exist_ok=True)
    setups = {setup_name(r.setup): r.setup for r in results}
    files = {"index.html": index(results, methods), "results.js": data(results, methods)}
    for method in methods.values():
        files[f"methods/{method.name}.html"] = method_page(method, results, setups.values())
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    for name in ("style.css", "table.js"):
        shutil.copyfile(os.path.join(HERE, name), os.path.join(folder, name))


def main(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("-o", "--output", default=os.path.join(ROOT, "build", "site"), metavar="FOLDER")
    parser.add_argument("--results", default=os.path.join(STUDY, "results"),
                        metavar="FOLDER")
    parser.add_argument("--kvbench", default=os.environ.get("KVBENCH")
                        or os.path.join(ROOT, "build", "kvbench"), metavar="PROGRAM")
    options = parser.parse_args(arguments)
    try:
        results = read_results(options.results)
        methods = read_methods(options.kvbench, dict.fromkeys(r.method for r in results))
        write(options.output, results, methods)
    except (SiteError, NotOurs, OSError) as error:
        print(one_line(f"kvbench-study site: {error}"), file=sys.stderr)
        return 3 if isinstance(error, OSError) else 2
    print(f"site: {os.path.join(options.output, 'index.html')}")
    return 0
