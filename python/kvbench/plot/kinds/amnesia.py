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
with the least attention on tokens not held at the smallest budget; --all draws all, --algorithm
the named ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench.plot import choice as kc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk
from kvbench.plot import layers as kl

PANELS = {"amnesia_count": "activated tokens\nnot held", "amnesia_mass": "attention\non them"}
HEAVY = "heavy hitters / tokens of the middle"
PAPERS_SHARE = 0.4  # in the paper's claim
MAX_COLUMNS = 6  # layers side by side
NEEDED = ["sink", "recent", "n_tokens", "tokens_kept", *PANELS]


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
            raise kt.CsvError(f"{path}: parameter heavy_ratio: got `{text}`, expected a number") from None
    # The methods round the heavy part down to whole tokens.
    heavy = np.floor(kept * np.array(shares) + 1e-9)
    return (heavy / middle).where((middle > 0) & (kept >= 0))


def load(rows, algorithms=(), layers=(), by_layer=False, pool=False):
    """Returns one row per (layer, label, x, column): mean, sd. layer is kl.ALL for all together."""
    frame = kfr.measured_rows(rows, NEEDED, algorithms, layers, pool)
    path = kt.source_of(frame)
    frame["x"] = heavy_share(frame, path)
    if frame["x"].isna().all():
        raise kt.CsvError(f"{path}: no row has a middle that tokens are kept of")
    frame = frame[frame["x"].notna()].copy()
    kt.add_labels(frame, ignore=("T", "tokens"))
    # A budget is one point, though prompts of other lengths round it to other shares.
    keys = ["label", "params", "budget_requested"] + (["layer"] if by_layer else [])
    out = kt.pd.concat([kfr.points(frame, keys, column, "all", x="x").assign(column=column)
                        for column in PANELS], ignore_index=True)
    if not by_layer:
        out["layer"] = kl.ALL
    return kfr.keep(kt.finite_points(out), frame)


@kf.in_style
def draw(table, highlight=()):
    """Returns a figure with counts above, attention below; a column per layer, or an overview of many."""
    def prepare(axes, _):
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)

    many = table["layer"].nunique() > MAX_COLUMNS
    parts = [kl.Part(table[table["column"] == column], name.replace("\n", " ") if many else name, log=False,
                     prepare=prepare) for column, name in PANELS.items()]
    return kl.sweep(parts, HEAVY, highlight=highlight, band=True, stacked=True, height=1.6, columns=MAX_COLUMNS,
                    tick="{:.2g}".format)


def measured(table):
    parts = []
    for label, rows in table.groupby("label", sort=False):
        ends = []
        xs = rows["x"].unique()
        for x in sorted({xs.min(), xs[np.abs(xs - PAPERS_SHARE).argmin()], xs.max()}):
            count, mass = (rows.loc[(rows["x"] == x) & (rows["column"] == column), "mean"].mean() for column in PANELS)
            ends.append(f"{count:.3g} tokens with {mass:.3g} of attention at a share of {x:.3g}")
        parts.append(f"{label} " + ", ".join(ends))
    return "Measured: " + "; ".join(parts) + "."


@kk.kind()
def amnesia(rows: pd.DataFrame, *, algorithm: kk.Names = (), all: bool = False, layers: Sequence[int] = (),
            by_layer: bool = False, highlight: kk.Names = (), pool: bool = False, title: str = "",
            model: str = "") -> kf.Picture:
    """Returns amnesia over the share of heavy hitters: counts above, attention below.

    rows: of `kvbench replay`, columns of kvbench.plot.frame.measured_rows and NEEDED. Raises CsvError.
    """
    table = load(rows, algorithm, layers, by_layer, pool)
    mass = table[table["column"] == "amnesia_mass"]
    drawn, chosen = kc.pick(mass, "budget_requested", (all, algorithm, highlight), what="amnesia_mass")
    picture = draw(table[table["label"].isin(drawn["label"])], highlight)
    bars = kl.spread_text(picture, "Bands: standard deviation over heads and seeds.")
    return kfr.finish(picture, table.attrs["facts"], chosen + bars, measured(table), title, model)
