"""Contextual amnesia against the heavy-hitter ratio (KVReviver, figure 2).

The paper keeps a share of the tokens as heavy hitters of H2O or SnapKV, without their recent part,
and counts how often other tokens get attention above 0.5 %. Here, per query head: the number of
distinct tokens that the cache does not hold exactly and that some evaluated query attends to with
more than 0.005 (upper panel, `amnesia_count`), and their attention, mean over queries (lower panel,
`amnesia_mass`). Rows: configs/kvreviver_amnesia.toml.

x: heavy hitters over tokens of the middle. Heavy hitters are the kept tokens of the middle, times
heavy_ratio for an algorithm with that parameter (the rest of h2o's are its recent part). Mean over
prompts and heads (without --by-layer: and layers) per seed, then over seeds; bands: standard
deviation over heads and seeds (n - 1), clipped at 0. At most ten lines: the references and those
with the least attention on tokens not held at the smallest budget; --all draws all, --algorithms
the named ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvbench import command
from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import guest as kg
from kvbench.plot import layers as kl
from kvbench.plot import style as ks

PANELS = {
    "amnesia_count": "activated tokens\nnot held",
    "amnesia_mass": "attention\non them",
}
HEAVY = "heavy hitters / tokens of the middle"
PAPERS_SHARE = 0.4  # in the paper's claim
MAX_COLUMNS = 6  # layers side by side

NEEDED = [*kt.HEAD_COLUMNS, "sink", "recent", "seed", "n_tokens",
          "budget_requested", "tokens_kept", *PANELS]


def heavy_share(frame, path):
    """Returns heavy hitters over tokens of the middle, per row; NaN without a middle."""
    windows = frame["sink"] + frame["recent"]
    middle = frame["n_tokens"] - windows
    kept = frame["tokens_kept"] - windows
    shares = []
    for params in frame["params"]:
        text = kt.parse_params(params).get("heavy_ratio", "1")
        try:
            shares.append(float(text))
        except ValueError:
            raise kt.CsvError(f"{path}: parameter heavy_ratio: got `{text}`, expected a "
                              "number") from None
    # The methods round the heavy part down to whole tokens.
    heavy = np.floor(kept * np.array(shares) + 1e-9)
    return (heavy / middle).where((middle > 0) & (kept >= 0))


def load(paths, algorithms=(), layers=(), by_layer=False, pool=False):
    """Returns one row per (layer, label, x, column): mean, sd. layer is -1 for all together."""
    frame = kt.read_results(paths, NEEDED)
    frame = kt.pick_algorithms(frame, algorithms, paths[0])
    frame = kt.pick_numbers(frame, "layer", layers, paths[0])
    frame = kt.measured_rows(frame, paths[0], pool)
    frame["x"] = heavy_share(frame, paths[0])
    if frame["x"].isna().all():
        raise kt.CsvError(f"{paths[0]}: no row has a middle that tokens are kept of")
    frame = frame[frame["x"].notna()].copy()
    kt.add_labels(frame, ignore=("T", "tokens"))
    # A budget is one point, though prompts of other lengths round it to other shares.
    keys = ["label", "params", "budget_requested"] + (["layer"] if by_layer else [])
    frame = kt.full_points(frame, keys, paths[0])
    tables = []
    for column in PANELS:
        table = kt.mean_and_sd(frame, keys, column, spread="all")
        table["x"] = frame.groupby(keys, dropna=False, sort=False)["x"].mean().to_numpy()
        table["column"] = column
        tables.append(table)
    out = kt.pd.concat(tables, ignore_index=True)
    if not by_layer:
        out["layer"] = -1.0
    return kfr.keep(kt.finite_points(out), frame)


def draw_panel(axes, part, styles):
    for label, style in styles.items():
        points = part[part["label"] == label].sort_values("x")
        xs, means = points["x"], points["mean"]
        sds = points["sd"].fillna(0.0)
        axes.plot(xs, means, ms=3.5, linewidth=1.2, **style)
        axes.fill_between(xs, np.maximum(means - sds, 0.0), means + sds, color=style["color"],
                          alpha=0.15, linewidth=0)
    set_axes(axes)


def set_axes(axes):
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)


@kf.in_style
def draw(table, highlight=()):
    """Returns a figure with counts above, attention below; a column per layer, or an overview of many."""
    layers = sorted(table["layer"].unique())
    styles = ks.styles(table["label"], highlight)
    if len(layers) > MAX_COLUMNS:
        parts = [kl.Part(table[table["column"] == column], name.replace("\n", " "), log=False)
                 for column, name in PANELS.items()]
        return kl.overview(parts, styles, HEAVY, lambda axes, _: set_axes(axes),
                           tick="{:.2g}".format, highlight=highlight)
    figure, grid = kf.panels(2, len(layers), sharex=True, height=1.6 if len(layers) > 1 else 1.5)
    for row, (column, name) in enumerate(PANELS.items()):
        for axes, layer in zip(grid[row], layers):
            draw_panel(axes, table[(table["layer"] == layer) & (table["column"] == column)],
                       styles)
            if row == 0 and layer >= 0:
                axes.set_title(f"layer {int(layer)}")
        grid[row, 0].set_ylabel(name)
    figure.align_ylabels(grid[:, 0])
    figure.supxlabel(HEAVY, fontsize=kf.FONT_SIZE)
    kf.legend_above(figure, [kf.line_handle(style, label) for label, style in styles.items()])
    return figure


def measured(table):
    parts = []
    for label, rows in table.groupby("label", sort=False):
        ends = []
        xs = rows["x"].unique()
        for x in sorted({xs.min(), xs[np.abs(xs - PAPERS_SHARE).argmin()], xs.max()}):
            count, mass = (rows.loc[(rows["x"] == x) & (rows["column"] == column), "mean"].mean()
                           for column in PANELS)
            ends.append(f"{count:.3g} tokens with {mass:.3g} of attention at a share of {x:.3g}")
        parts.append(f"{label} " + ", ".join(ends))
    return "Measured: " + "; ".join(parts) + "."


@kg.public
def figure(tables: list[str], *, algorithms: kg.Names = (), all: bool = False,
           layers: Sequence[int] = (), by_layer: bool = False, highlight: kg.Names = (),
           pool: bool = False, title: str = "", model: str = "") -> kf.Picture:
    """Returns the figure of rows of `kvbench replay`; arguments are the program's options. Raises
    CsvError.
    """
    wanted = kc.Wanted(all, kg.name_list(algorithms), kg.name_list(highlight))
    table = load(tables, wanted.algorithms, layers, by_layer, pool)
    ks.check_highlight(table["label"], wanted.highlight, tables[0])
    mass = table[table["column"] == "amnesia_mass"]
    labels, chosen = kc.choose(mass.assign(size=mass["budget_requested"]), wanted, "amnesia_mass")
    picture = draw(table[table["label"].isin(labels)], wanted.highlight)
    bars = kl.spread_text(picture, "Bands: standard deviation over heads and seeds.")
    return kfr.finish(picture, table.attrs["facts"], chosen + bars, measured(table), title, model)


def parse_arguments(arguments=None):
    parser = command.argument_parser(
        __doc__, take=("--algorithms", "--all", "--layers", "--highlight", "--pool"))
    parser.add_argument("--by-layer", action="store_true",
                        help="one column of panels per layer; of more than six the mean over "
                             "layers, and maps of layer against ratio")
    return parser.parse_args(arguments)


def main():
    kg.run(figure, parse_arguments())
