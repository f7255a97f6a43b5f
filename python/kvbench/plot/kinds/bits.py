"""Bits per number: error against bytes, tokens against bits, keys against values.

Rows of A@Q (the tokens that method A keeps, stored by quantizer Q), of quantizers alone, and of
plain methods with 16 bits. Means over prompts, layers and heads per seed, then over seeds.

--kind lines (default): error over the bytes held, a line per method and number of bits: colour by
method, marker and dash by bits. A panel per quantizer, with the plain methods in each; without
plain methods one panel. All tokens at 1, 2, ... bits (`exact@Q` and Q alone) are one line; a point
from a budget is separate. Bars: standard deviation over seeds.

--kind map: bits across, the kept share of the middle's tokens upwards, a panel per method and
quantizer. Cells are errors on one colour scale; lines join the cells of one budget. The column of
16 bits is the plain method, the top row all tokens.

--kind keys-values: bits of keys against bits of values, a panel per variant, at one budget
(--budget; default: the smallest) and for native sizes. Rows whose bits come from the budget are
skipped. A hatched cell has no measurement.

--kind formats: error over the bytes held of `quant-format`, all tokens: a line per type of values, a
marker per type of keys.

Bits are those of params (`k_bits`, `v_bits`, `bits`), or if these are auto, of `diag`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk
from kvbench.plot import layers as kl
from kvbench.plot import style as ks
from kvbench.plot.kinds import bits_formats as kbf
from kvbench.plot.kinds import bits_maps as kbm
from kvbench.plot.kinds import bits_rows as kb
from kvbench.plot.kinds import pareto

KINDS = ("lines", "map", "keys-values", "formats")
# Marker and dash of a number of bits; others take the next of SPARE.
BIT_STYLES = {16: ("o", "-"), 32: ("o", "-"), 8: ("s", (0, (6, 1.5))), 4: ("D", "--"), 3: ("^", "-."),
         2: ("v", ":"), 1: ("P", (0, (1, 3)))}
SPARE = [(marker, dash) for dash in ((0, (3, 1, 1, 1, 1, 1)), (0, (8, 2, 1, 2)))
         for marker in ("<", ">", "X", "*", "d", "p", "h")]
PANEL_HEIGHT = 3.6
LEGEND_HEIGHT = 0.9  # above full pages
MOST_PANELS = 6
BOUGHT = "from a budget"  # in a line's name: bits from the budget
WHOLE_DASHES = ("-", (0, (1, 1)))  # of lines of all tokens: explicit bits, bits from a budget
# Colours of all tokens in panels with methods: first variant, second, ...
ALONE = ("0.15", "0.5", "0.33", "0.65")


def load_lines(rows, y="rel_error", algorithms=(), layers=(), pool=False):
    """Returns one row per point: those of bits_rows.points with panel, line, bits (text), size."""
    table = kb.points(*kb.read(rows, y, algorithms, layers, pool), y)
    attrs = table.attrs
    unlike = table["whole"] & (table["k"] != table["v"])
    if unlike.any():
        kt.note(f"points of all tokens with other bits of keys than of values are left out: "
                f"{int(unlike.sum())}; --kind keys-values shows them")
    table = table[~unlike & (table["x"] > 0)].reset_index(drop=True)
    if table.empty:
        raise kt.CsvError(f"{kt.source_of(rows)}: no point has bytes and one number of bits; --kind "
                          "keys-values shows keys' bits against values'")
    alone = not (~table["whole"] & (table["quantizer"] != "")).any()
    table["panel"] = "" if alone else table["quantizer"]
    bought = table["whole"] & table["budget_requested"].notna()
    table["line"] = [
        method or " ".join(filter(None, [
            quantizer if alone else kb.ALL_TOKENS, extra, BOUGHT if budget else ""]))
        for method, quantizer, extra, budget in zip(table["method"], table["quantizer"],
                                                    table["extra"], bought)]
    table["bits"] = [kb.bits_text(k, v) for k, v in zip(table["k"], table["v"])]
    # A method that keeps all tokens at several budgets has one point.
    table["place"] = table["x"].round(4)
    table = table.sort_values("mean", kind="stable").drop_duplicates(
        ["panel", "line", "bits", "place"]).sort_index().reset_index(drop=True)
    table["size"] = table["budget_requested"].fillna(table["x"]).round(9)
    table.attrs = attrs
    return table


def bit_styles(table):
    """Returns {text of bits: marker and dash}, most bits first."""
    order = table[["bits", "k", "v"]].drop_duplicates("bits")
    order = order.assign(all=order["k"] + order["v"]).sort_values(["all", "k"], ascending=False)
    spare = iter(SPARE * len(order))
    out = {}
    for bits, k, v in zip(order["bits"], order["k"], order["v"]):
        marker, dash = BIT_STYLES[k] if k == v and k in BIT_STYLES else next(spare)
        out[bits] = {"marker": marker, "linestyle": dash}
    return out


def colours_of(table):
    """{line: colour}."""
    names = {line: line.removesuffix(" " + BOUGHT) for line in dict.fromkeys(table["line"])}
    styles = ks.styles(names.values())
    alone = [name for name in dict.fromkeys(names.values()) if name.startswith(kb.ALL_TOKENS)]
    return {line: ALONE[alone.index(name) % len(ALONE)] if name in alone else styles[name]["color"]
            for line, name in names.items()}


def panels_of(table):
    """Returns panel titles: one per quantizer; plain methods are in all panels."""
    return [name for name in dict.fromkeys(table["panel"]) if name] or [""]


@kf.in_style
def draw_lines(table, y="rel_error", path=""):
    """Returns the figure of load_lines, two panels side by side."""
    titles = panels_of(table)
    if len(titles) > MOST_PANELS:
        raise kt.CsvError(f"{path}: got {len(titles)} quantizers, expected at most {MOST_PANELS} "
                          "for one page; choose fewer with --algorithm")
    ncols = min(2, len(titles))
    nrows = math.ceil(len(titles) / ncols)
    height = min(PANEL_HEIGHT, (kf.BODY_HEIGHT - LEGEND_HEIGHT) / nrows)
    figure, grid = kf.panels(nrows, ncols, width=kf.PAGE_WIDTH, height=height, sharex=True, sharey=True)
    kl.hide_others(grid, [divmod(i, ncols) for i in range(len(titles))])
    looks, colours = bit_styles(table), colours_of(table)
    low, high = table["mean"].min() / 1.3, table["mean"].max() * 1.3
    for axes, title in zip(grid.flat, titles):
        axes.set(xscale="log", yscale="log", title=title)
        axes.set_xscale("log", base=2)
        part = table[table["panel"].isin(["", title])]
        for line in dict.fromkeys(part["line"]):
            draw_line(axes, part[part["line"] == line], colours[line], looks)
        axes.set_ylim(low, high)  # bars may exceed: a mean minus its sd can be below zero
        axes.set_xlim(table["x"].min() / 1.1, table["x"].max() * 1.1)
        pareto.set_x_axis(axes, "middle_ratio")
        kl.plain_log(axes.yaxis)
    figure.supxlabel(pareto.X_LABELS["middle_ratio"], fontsize=kf.FONT_SIZE)
    figure.supylabel(kfr.y_label(y), fontsize=kf.FONT_SIZE)
    handles = [kf.line_handle({"color": color, "linewidth": 2.2, "linestyle":
                               WHOLE_DASHES[line.endswith(BOUGHT)]}, line)
               for line, color in colours.items()]
    handles += [kf.line_handle({**look, "color": "0.3"}, kb.bits_name(bits)) for bits, look in looks.items()]
    kf.legend_above(figure, handles, handlelength=3.2)
    return figure


def draw_line(axes, points, color, looks):
    """Draws a method's lines, one per number of bits; all tokens are one line."""
    points = points.sort_values("x")
    more = {"linewidth": 1.0, "zorder": 4}
    if points["whole"].iloc[0]:
        dash, more = WHOLE_DASHES[points["line"].iloc[0].endswith(BOUGHT)], {"linestyle": "none", "zorder": 3}
        axes.plot(points["x"], points["mean"], color=color, linewidth=0.9, linestyle=dash, zorder=2)
    for bits, part in points.groupby("bits", sort=False):
        kf.plot_line(axes, part["x"], part["mean"], part["sd"], {**looks[bits], "color": color, **more})


def measured(table, y):
    asked = table[table["budget_requested"].notna()]
    parts = []
    for budget, part in sorted(asked.groupby("budget_requested")):
        best = part.loc[part["mean"].idxmin()]
        parts.append(f"{best['algorithm']} {kb.bits_name(best['bits'])} {best['mean']:.3g} at {budget:.3g}")
    return (f"Measured, least {y} of each budget: " + (", ".join(parts) or "no budget was asked for") + ".")


def lines(rows, y, given, layers, pool):
    """Returns (figure, its table, text on bars and lines, its numbers)."""
    table = load_lines(rows, y, given[1], layers, pool)
    chosen = table.assign(label=table["line"])
    drawn, said = kc.pick(chosen, "size", given, what=y, first=table.loc[table["whole"], "line"])
    bars = kfr.where_spread(drawn, "; bars: standard deviation over seeds")
    text = f"Lines: means over layers and heads{bars}. Colour: method; marker and dash: bits. {said}"
    return draw_lines(drawn, y, kt.source_of(rows)), table, text, measured(table, y)


@kk.kind(kind=KINDS, y=kt.ERROR_LABELS)
def bits(rows: pd.DataFrame, *, kind: str = "lines", y: str = "rel_error", budget: float | None = None,
         algorithm: kk.Names = (), all: bool = False, layers: Sequence[int] = (), pool: bool = False,
         title: str = "", model: str = "") -> kf.Picture:
    """Returns error by bits, tokens and bytes: lines, a map, or formats of engines (`kind`).

    rows: of `kvbench replay` with quantizers, columns of kvbench.plot.frame.measured_rows, sizes and diag
    (bits_rows.read). Raises CsvError, also if no row has a number of bits.
    """
    if budget is not None and kind != "keys-values":
        raise kt.CsvError(f"--budget: --kind {kind} shows all of them; expected --kind keys-values")
    if kind == "lines":
        made, table, text, found = lines(rows, y, (all, algorithm, []), layers, pool)
    elif kind == "map":
        made, table, text, found = kbm.tokens_map(rows, y, algorithm, layers, pool)
    elif kind == "formats":
        made, table, text, found = kbf.formats(rows, y, algorithm, layers, pool)
    else:
        made, table, text, found = kbm.keys_values(rows, y, budget, algorithm, layers, pool)
    return kfr.finish(made, table.attrs["facts"], text, found, title, model)
