"""Tables of kvbench-py compare: CSV, Markdown, LaTeX."""

import csv
import math
import sys

from kvbench.outputs import opened
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


def csv_files(path):
    """Returns PATH, and PATH's stem with .layers, .tests and .prompts."""
    return [path, *(f"{path.removesuffix('.csv')}.{name}.csv" for name in ("layers", "tests", "prompts"))]


def write_csv(path, comparisons):
    """Writes csv_files(path)."""
    path, of_layers, of_tests, of_prompts = csv_files(path)
    write_table(path, COLUMNS, [row for c in comparisons for row in c.rows])
    write_table(of_layers, LAYER_COLUMNS, [row for c in comparisons for row in c.layers])
    write_table(of_tests, TEST_COLUMNS, [c.tests for c in comparisons if c.tests])
    prompts = []
    for c in comparisons:
        for label in c.values.columns:
            ranks = c.ranks.get(label, [math.nan] * len(c.values))
            prompts += [{"budget": c.budget, "method": label, "prompt": unit, "value": float(value),
                         "rank": float(rank)}
                        for unit, value, rank in zip(c.values.index, c.values[label], ranks)]
    write_table(of_prompts, PROMPT_COLUMNS, prompts)


def write_text(path, text):
    if path == "-":
        sys.stdout.write(printable_lines(text))
        return
    with opened(path) as file:
        file.write(text)


def number(value, digits):
    return "-" if value is None or math.isnan(value) else f"{value:.{digits}f}"


def significant(value, digits, sign=""):
    """Returns a value with so many significant digits, at least those before the point; sign: `+` shows it."""
    if value is None or math.isnan(value):
        return "-"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2]) if value and math.isfinite(value) else 0
    if exponent < -4:
        return f"{value:{sign}.{digits - 1}e}"
    return f"{value:{sign}.{max(0, digits - 1 - exponent)}f}"


def interval(low, high, digits, form=significant):
    if low is None or math.isnan(low):
        return "-"
    return f"[{form(low, digits)}, {form(high, digits)}]"


def chance(p):
    """Formats p with two digits, never zero."""
    if p is None or math.isnan(p):
        return "-"
    return f"{p:.2g}" if p >= 1e-4 else "<.0001"


def count(value):
    """Formats wins, which may be shared."""
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"


def titles_of(options, full):
    """Returns column titles. full: with medians, wins and the numbers of better and worse units."""
    percent = f"{100 * options.level:g} %"
    titles = ["method", "mean", percent, *(["median"] if full else []), "mean rank", *(["wins"] if full else [])]
    if options.to:
        titles += [f"minus {options.to}", percent, *(["better/worse"] if full else []), "p (Holm)", "verdict"]
    return titles


def cells_of(row, options, full):
    """Returns the text cells of a method's row under titles_of."""
    digits = options.digits
    cells = [row["method"], significant(row["mean"], digits), interval(row["low"], row["high"], digits),
             *([significant(row["median"], digits)] if full else []), significant(row.get("mean_rank"), 2),
             *([count(row.get("wins"))] if full else [])]
    if options.to and "difference" in row:
        cells += [significant(row["difference"], digits, "+"),
                  interval(row["difference_low"], row["difference_high"], digits),
                  *([f"{row['better']}/{row['worse']}"] if full else []), chance(row["p_holm"]), row["verdict"]]
    elif options.to:
        cells += ["-"] * (5 if full else 4)
    return cells


def heads_and_rows(comparisons, options, full=True):
    """Returns column titles and text cells of a table of some budgets; full: see titles_of."""
    lacking = any(row["prompts"] < len(found.values) for found in comparisons for row in found.rows)
    return ([*titles_of(options, full), *([options.by + "s"] if lacking else [])],
            [[*cells_of(row, options, full), *([str(row["prompts"])] if lacking else [])]
             for found in comparisons for row in found.rows])


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
        yield some, [[row["method"], *(significant(means.get((row["method"], layer)), options.digits)
                                       for layer in some)] for row in found.rows]


def sized(found):
    """Returns `0.125 (0.35 of the cache, 2.9x)`."""
    return found.budget + (f" ({found.size})" if found.size else "")


def markdown_table(titles, rows):
    lines = ["| " + " | ".join(titles) + " |", "| --- |" + " ---: |" * (len(titles) - 1)]
    for cells in rows:
        first = cells[0].replace("|", "\\|")
        lines.append("| " + " | ".join([f"`{first}`", *cells[1:]]) + " |")
    return lines


def short(comparisons, options):
    """Returns one table of all budgets, and the notes, each once."""
    titles, rows = heads_and_rows(comparisons, options, full=False)
    sizes = any(found.size for found in comparisons)
    titles[1:1] = ["budget", *(["of the cache"] if sizes else [])]
    each = [found for found in comparisons for _ in found.rows]
    for cells, found in zip(rows, each):
        cells[1:1] = [found.budget, *([found.size.replace(" of the cache", "") or "-"] if sizes else [])]
    notes = {}
    for found in comparisons:
        for note in found.notes:
            notes.setdefault(note, []).append(found.budget)
    lines = [intro(comparisons, options), "", *markdown_table(titles, rows), ""]
    for note, some in notes.items():
        lines.append(f"- {note}" if len(some) == len(comparisons) else f"- budget {', '.join(some)}: {note}")
    return "\n".join(lines).rstrip("\n") + "\n"


def markdown(comparisons, options):
    if not options.by_layer:
        return short(comparisons, options)
    lines = [intro(comparisons, options), ""]
    for found in comparisons:
        lines += [f"## Budget {sized(found)}: {counted(len(found.values), options.by)}", ""]
        lines += markdown_table(*heads_and_rows([found], options)) + [""]
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
        lines += [f"% Budget {sized(found)}, {counted(len(found.values), options.by)}"]
        lines += ["% " + line for line in words_of_tests(found, options) + found.notes]
        lines += latex_table(*heads_and_rows([found], options))
        for layers, rows in layer_blocks(found, options) if options.by_layer else ():
            lines += [f"% Budget {found.budget}, means by layer"]
            lines += latex_table(["method", *map(str, layers)], rows)
    return "\n".join(lines)
