"""Tables of kvbench-py compare: CSV, Markdown, LaTeX."""

import csv
import math
import sys

from kvbench.command import opened
from kvbench.text import counted, printable_lines

COLUMNS = ["budget", "method", "prompts", "mean", "low", "high", "median", "mean_rank", "wins",
           "to", "pairs", "difference", "difference_low", "difference_high", "relative", "better",
           "worse", "p", "p_holm", "verdict"]
LAYER_COLUMNS = ["budget", "method", "layer", "prompts", "mean", "median", "difference"]
PROMPT_COLUMNS = ["budget", "method", "prompt", "value", "rank"]
TEST_COLUMNS = ["budget", "prompts", "methods", "chi2", "p_chi2", "f", "p", "critical_difference", "alpha"]
LAYERS_PER_TABLE = 10  # columns per page


def cell(value):
    """CSV field: round-trip numbers, empty for None."""
    if value is None or isinstance(value, float) and math.isnan(value):
        return ""
    return repr(float(value)) if isinstance(value, float) else value


def write_table(path, columns, rows):
    with opened(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([cell(row.get(column)) for column in columns] for row in rows)


def write_csv(path, comparisons):
    """Writes PATH and PATH's stem with .layers, .prompts and .tests."""
    stem = path.removesuffix(".csv")
    write_table(path, COLUMNS, [row for c in comparisons for row in c.rows])
    write_table(f"{stem}.layers.csv", LAYER_COLUMNS, [row for c in comparisons for row in c.layers])
    write_table(f"{stem}.tests.csv", TEST_COLUMNS, [c.tests for c in comparisons if c.tests])
    prompts = []
    for c in comparisons:
        for label in c.values.columns:
            ranks = c.ranks.get(label, [math.nan] * len(c.values))
            prompts += [{"budget": c.budget, "method": label, "prompt": unit, "value": float(value),
                         "rank": float(rank)}
                        for unit, value, rank in zip(c.values.index, c.values[label], ranks)]
    write_table(f"{stem}.prompts.csv", PROMPT_COLUMNS, prompts)


def write_text(path, text):
    if path == "-":
        sys.stdout.write(printable_lines(text))
        return
    with opened(path) as file:
        file.write(text)


def number(value, digits):
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def chance(p):
    """Formats p with two digits, never zero."""
    if p is None or math.isnan(p):
        return "-"
    return f"{p:.2g}" if p >= 1e-4 else "<.0001"


def span(low, high, digits):
    if low is None or math.isnan(low):
        return "-"
    return f"[{low:.{digits}f}, {high:.{digits}f}]"


def count(value):
    """Formats wins, which may be shared."""
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"


def heads_and_rows(found, options):
    """Returns column titles and text cells of a budget's table."""
    percent = f"{100 * options.level:g} %"
    titles = ["method", "mean", percent, "median", "mean rank", "wins"]
    if options.to:
        titles += [f"minus {options.to}", percent, "better/worse", "p (Holm)", "verdict"]
    if any(row["prompts"] < len(found.values) for row in found.rows):
        titles.append(options.by + "s")
    rows = []
    for row in found.rows:
        digits = options.digits
        cells = [row["method"], number(row["mean"], digits), span(row["low"], row["high"], digits),
                 number(row["median"], digits), number(row.get("mean_rank"), 2),
                 count(row.get("wins"))]
        if options.to and "difference" in row:
            cells += [f"{row['difference']:+.{digits}f}",
                      span(row["difference_low"], row["difference_high"], digits),
                      f"{row['better']}/{row['worse']}", chance(row["p_holm"]), row["verdict"]]
        elif options.to:
            cells += ["-"] * 5
        if titles[-1] == options.by + "s":
            cells.append(str(row["prompts"]))
        rows.append(cells)
    return titles, rows


def words_of_tests(found, options):
    tests = found.tests
    if not tests or math.isnan(tests["chi2"]):
        return []
    f = "no bound" if math.isinf(tests["f"]) else f"{tests['f']:.2f}"
    p = chance(tests["p"])
    return [f"Friedman's test of {tests['methods']} methods at {counted(tests['prompts'], options.by)}: chi2 = "
            f"{tests['chi2']:.2f}, F = {f}, p {p if p[0] == '<' else '= ' + p}. Nemenyi's critical "
            f"difference at level {tests['alpha']:g}: {tests['critical_difference']:.2f} ranks."]


def intro(comparisons, options):
    units = max(len(c.values) for c in comparisons)
    better = "larger" if options.higher_better else "smaller"
    kinds = {"t": "studentised bootstrap", "bca": "BCa bootstrap"}
    text = (f"{options.metric}, {better} is better; {counted(units, options.by)}, each a mean over "
            f"{'prompts, ' if options.by == 'source' else ''}layers, heads and seeds. Intervals: "
            f"{100 * options.level:g} %, {kinds[options.interval]} over {options.by}s, "
            f"{options.resamples} resamples, seed {options.seed}.")
    if options.to:
        text += (f" Differences are a method minus {options.to} at the same {options.by}; p: Wilcoxon's "
                 "signed-rank test, exact, Holm's correction over the methods of the budget.")
    return text


def layer_blocks(found, options):
    """Yields (layers, rows of text cells), a few layers per table."""
    layers = sorted({row["layer"] for row in found.layers})
    means = {(row["method"], row["layer"]): row["mean"] for row in found.layers}
    for at in range(0, len(layers), LAYERS_PER_TABLE):
        some = layers[at:at + LAYERS_PER_TABLE]
        yield some, [[row["method"], *(number(means.get((row["method"], layer)), options.digits)
                                       for layer in some)] for row in found.rows]


def markdown_table(titles, rows):
    lines = ["| " + " | ".join(titles) + " |", "| --- |" + " ---: |" * (len(titles) - 1)]
    for cells in rows:
        first = cells[0].replace("|", "\\|")
        lines.append("| " + " | ".join([f"`{first}`", *cells[1:]]) + " |")
    return lines


def markdown(comparisons, options):
    lines = [intro(comparisons, options), ""]
    for found in comparisons:
        lines += [f"## Budget {found.budget}: {counted(len(found.values), options.by)}", ""]
        lines += markdown_table(*heads_and_rows(found, options)) + [""]
        lines += [line + "\n" for line in words_of_tests(found, options)]
        lines += [f"- {note}" for note in found.notes] + ([""] if found.notes else [])
        lines += ["Means by layer:", ""]
        for layers, rows in layer_blocks(found, options):
            lines += markdown_table(["method", *map(str, layers)], rows) + [""]
    return "\n".join(lines).rstrip("\n") + "\n"


def escaped(text):
    out = text.replace("\\", "\\textbackslash ")
    for sign in "&%$#_{}":
        out = out.replace(sign, "\\" + sign)
    return out.replace("<", "$<$").replace(">", "$>$").replace("~", "\\textasciitilde ") \
        .replace("^", "\\textasciicircum ")


def latex_table(titles, rows):
    lines = ["\\begin{tabular}{l" + "r" * (len(titles) - 1) + "}", "\\toprule",
             " & ".join(map(escaped, titles)) + " \\\\", "\\midrule"]
    for cells in rows:
        lines.append(" & ".join([f"\\texttt{{{escaped(cells[0])}}}", *map(escaped, cells[1:])]) + " \\\\")
    return lines + ["\\bottomrule", "\\end{tabular}", ""]


def latex(comparisons, options):
    """Returns one tabular (package booktabs) per budget, with comments."""
    lines = ["% " + intro(comparisons, options), ""]
    for found in comparisons:
        lines += [f"% Budget {found.budget}, {counted(len(found.values), options.by)}"]
        lines += ["% " + line for line in words_of_tests(found, options) + found.notes]
        lines += latex_table(*heads_and_rows(found, options))
        for layers, rows in layer_blocks(found, options):
            lines += [f"% Budget {found.budget}, means by layer"]
            lines += latex_table(["method", *map(str, layers)], rows)
    return "\n".join(lines)
