"""Splits the error of compressed caches by ingredient: tokens, weights, values, bits, known queries.

    kvbench replay t.h5 --config configs/ablation.toml -o t.csv
    kvbench-study ablate t.layers.csv --csv ablation.csv --markdown ablation.md --figures ablation

Reads OUT.layers.csv of the entries of configs/ablation.toml, which differ in one ingredient. A
comparison is the error (`residual_rel_error`) with an ingredient over the error without it, at equal
bytes, or, for bits, at equal tokens: below 1 the ingredient helps. Those of an oracle say what perfect
knowledge of the queries would gain.

The unit is the source (column `source` of the reference's store, or the records'; otherwise the
prompt). The ratio is the geometric mean over sources of the ratio of means over layers, with its 95 %
studentised bootstrap interval, or with fewer than 8 sources the minimum and maximum.
"""

import math
from dataclasses import dataclass

import numpy as np

from kvbench import command, units
from kvbench import tables as kt
from kvbench.budgets.tables import ratio_text
from kvbench.comparison import scores as kcs
from kvbench.comparison.tables import markdown_table, write_table, write_text
from kvbench.text import counted

METRIC = "residual_rel_error"
COLUMNS = ["comparison", "size", "layer", "sources", "error", "error_without", "ratio", "ratio_low", "ratio_high"]
KEY = ["source", "layer", "size"]


@dataclass(frozen=True)
class Variant:
    """Rows of an algorithm whose parameters include these."""

    algorithm: str
    params: tuple = ()

    def of(self, frame):
        rows = frame[frame["algorithm"] == self.algorithm]
        wanted = set(self.params)
        return rows[np.array([wanted <= set(kt.parse_params(text).items()) for text in rows["params"]], bool)]

    def __str__(self):
        return self.algorithm + "".join(f"{';' if i else ':'}{name}={value}"
                                        for i, (name, value) in enumerate(self.params))


def fitted(algorithm, keys="h2o", weights="fitted", values="fitted"):
    return Variant(algorithm, (("keys", keys), ("values", values), ("weights", weights)))


PAST = fitted("attention-matching")
# name: (with, without), in the order of the tables.
COMPARISONS = {
    "weights fitted": (PAST, fitted("attention-matching", weights="one")),
    "values fitted": (PAST, fitted("attention-matching", values="kept")),
    "both fitted": (PAST, Variant("h2o")),
    "oracle's tokens, nothing fitted": (Variant("oracle"), Variant("h2o")),
    "oracle's tokens": (fitted("attention-matching", "oracle"), PAST),
    "oracle's fit": (fitted("oracle-matching"), PAST),
    "oracle's tokens and fit": (fitted("oracle-matching", "oracle"), PAST),
    "four bits": (Variant("h2o@quant-kivi"), Variant("h2o")),
}
BITS = "four bits"  # compared at equal T, all others at equal budgets
# Curves of the figure.
SHOWN = {"h2o": Variant("h2o"), "h2o, fitted": PAST, "oracle": Variant("oracle"),
         "oracle, fitted": fitted("attention-matching", "oracle"), "h2o, oracle's fit": fitted("oracle-matching"),
         "oracle, oracle's fit": fitted("oracle-matching", "oracle")}


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("layers", nargs="+", metavar="OUT.layers.csv")
    parser.add_argument("--records", **units.SOURCES)
    parser.add_argument("--csv", metavar="FILE.csv", help="a row per comparison, size and layer")
    parser.add_argument("--markdown", metavar="FILE", help="report [stdout]")
    parser.add_argument("--figures", metavar="STEM", help="STEM.png and STEM.pdf: errors by layer")
    options = parser.parse_args(arguments)
    if not (options.csv or options.markdown or options.figures):
        options.markdown = "-"
    return options


def load(options):
    """Returns rows of METRIC with columns `source` and `size`: the budget, or T of rows without one."""
    frame = kcs.read(options.layers, METRIC)
    frame["source"] = units.sources_of(frame, options.records, options.layers[0], own_source=True)
    halvings = frame["params"].map(lambda text: kt.parse_params(text).get("T", ""))
    frame["size"] = [f"T={t}" if math.isnan(budget) else f"{budget:g}"
                     for budget, t in zip(frame["budget_requested"], halvings)]
    return frame


def errors(frame, variant, path, sizes=None):
    """Returns means over a source's prompts [source, layer, size] of a variant's rows."""
    rows = variant.of(frame)
    if sizes is not None:
        rows = rows[rows["size"].isin(sizes)]
    if rows.empty:
        raise kt.CsvError(f"{path}: no rows of {variant}, expected those of configs/ablation.toml")
    several = rows.groupby([*KEY, "trace", "prompt"])["params"].nunique()
    if several.max() > 1:
        raise kt.CsvError(f"{path}: {several.max()} settings of {variant} at {several.idxmax()[2]}, expected one")
    return rows.groupby([*KEY, "trace", "prompt"])[METRIC].mean().groupby(KEY).mean()


def ratio_row(one, other):
    """Returns the columns of two errors [source] of the same sources."""
    logs = np.log(one / other)
    low, high = kcs.extent(logs)
    return {"sources": len(logs), "error": float(one.mean()), "error_without": float(other.mean()),
            "ratio": math.exp(logs.mean()), "ratio_low": math.exp(low), "ratio_high": math.exp(high)}


def compare(frame, path):
    """Returns a dict of COLUMNS per comparison, size and layer; layer `all`: the mean over layers."""
    out = []
    for name, (one, other) in COMPARISONS.items():
        sizes = {size for size in frame["size"] if size.startswith("T=") == (name == BITS)}
        both = errors(frame, one, path, sizes).to_frame("one").join(
            errors(frame, other, path, sizes).rename("other"), how="inner")
        if both.empty:
            raise kt.CsvError(f"{path}: {one} and {other} have no source, layer and size in common")
        for size, part in both.groupby(level="size", sort=False):
            part = part.droplevel("size")
            if not (part > 0).all(axis=None):
                raise kt.CsvError(f"{path}: an error of {one} or {other} at {size} is 0")
            whole = part.groupby(level="source").mean()
            out.append({"comparison": name, "size": size, "layer": "all", **ratio_row(
                whole["one"].to_numpy(), whole["other"].to_numpy())})
            for layer, rows in part.groupby(level="layer"):
                out.append({"comparison": name, "size": size, "layer": int(layer), **ratio_row(
                    rows["one"].to_numpy(), rows["other"].to_numpy())})
    return out


def sizes_of(rows):
    """Returns sizes of rows, by falling bytes."""
    return sorted({row["size"] for row in rows}, key=lambda size: float(size[2:]) if size.startswith("T=")
                  else -float(size))


def report(rows):
    """Returns the comparisons over all layers as tables, and their range over layers."""
    every = [row for row in rows if row["layer"] == "all"]
    sources = max(row["sources"] for row in every)
    out = [f"Error (`{METRIC}`) with an ingredient over the error without it, {counted(sources, 'source')}: "
           "geometric mean and " + ("its 95 % interval" if sources >= kcs.FEWEST else "range")
           + " over sources of the ratio of means over layers. Below 1 the ingredient helps. At equal bytes; bits at "
           "equal tokens, 1/2^T of the middle's.", ""]
    layers = [row for row in rows if row["layer"] != "all"]
    groups = {}
    for row in layers:
        groups.setdefault((row["comparison"], row["size"]), []).append(row["ratio"])
    ranges = {key: f"{min(some):.2f} to {max(some):.2f}" for key, some in groups.items()}
    means = {(row["comparison"], row["size"]): ratio_text(row) for row in every}
    for cells, title in ((means, ""), (ranges, "Least and largest ratio of a layer:")):
        out += [title, ""] if title else []
        for bits in (False, True):
            names = [name for name in COMPARISONS if (name == BITS) == bits]
            sizes = sizes_of([row for row in every if row["comparison"] in names])
            out += [*markdown_table(["comparison", *sizes], [
                [name, *(cells.get((name, size), "-") for size in sizes)] for name in names]), ""]
    return "\n".join(out)


def main(arguments=None):
    options = parse_arguments(arguments)
    frame = load(options)
    rows = compare(frame, options.layers[0])
    if options.csv:
        write_table(options.csv, COLUMNS, rows)
    if options.markdown:
        write_text(options.markdown, report(rows))
    if options.figures:
        from kvbench_study.ablate import figure  # slow import

        curves = {name: errors(frame, variant, options.layers[0]) for name, variant in SHOWN.items()}
        figure.draw_to(options.figures, curves)


if __name__ == "__main__":
    command.run_main(main)
