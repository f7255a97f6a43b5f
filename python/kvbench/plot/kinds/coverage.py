"""Coverage curves: radius of k centres, of keys and values.

One panel per layer; x is the number of centres k of greedy k-center, y the radius over that of one
centre (`radius_rel`). Lines are means over KV heads (of all prompts and traces), bands their
standard deviation (n - 1; one head: no band). A steeper curve means better clustering: ClusterGen
(section 3) finds keys below values.

More than nine layers: the mean over layers with the quartiles of layers, and a map of layer against
k each for keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from kvbench import tables as kt
from kvbench.cluster import tables as kcc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk
from kvbench.plot import layers as kl

CENTRES = "centres $k$"
RADIUS = "radius / radius of one centre"


def reduce_heads(frame):
    """Returns mean, sd and count of radius_rel per (layer, what, k), without k that some head lacks."""
    keys = ["layer", "what", "k"]
    out = frame.groupby(keys, sort=True)["radius_rel"].agg(
        mean=lambda v: v.mean(skipna=False), sd="std", heads="size").reset_index()
    largest = out.groupby(["layer", "what"])["heads"].transform("max")
    if (out["heads"] < largest).any():
        kt.note("values of k that only some heads have are left out")
    return out[out["heads"] == largest].reset_index(drop=True)


def load(centres, layers=(), mean_over_layers=False, pool=False):
    """Returns the reduced table of the wanted layers; all if `layers` is empty."""
    frame = kcc.checked(centres, "coverage.csv", ["radius_rel"], pool)
    kept = kcc.choose(frame["layer"].unique(), layers, "--layers", kt.source_of(frame))
    frame = frame[frame["layer"].isin(kept)]
    table = reduce_heads(frame.assign(layer=kl.ALL) if mean_over_layers else frame)
    for what in table.loc[table["mean"].isna(), "what"].unique():
        kt.note(f"{what} have a radius_rel that is not a number; not drawn")
    return kfr.keep(table, frame, "kv_head")


def set_axes(axes, table, log_y):
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(kcc.powers_of_4(1, table["k"].max(), max_ticks=5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    if log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, max(1.05, 1.03 * np.nanmax([1.0, *table["mean"]])))


@kf.in_style
def draw(table, log_y=False):
    """Returns a figure with a panel per layer with a line each for keys and values, or an overview."""
    rows = table.rename(columns={"what": "label"}).assign(x=table["k"])
    rows = rows.sort_values("label", key=lambda names: names.map(kcc.WHAT.index), kind="stable")
    part = kl.Part(rows, RADIUS, log=False, prepare=lambda axes, _: set_axes(axes, table, log_y))
    return kl.sweep([part], CENTRES, band=True, height=1.9, sharey=True)


def measured(table):
    ks = sorted(table["k"].unique())
    parts = []
    for k in dict.fromkeys((ks[len(ks) // 2], ks[-1])):
        means = table[table["k"] == k].groupby("what", sort=False)["mean"].mean()
        below = table[table["k"] == k].pivot(index="layer", columns="what", values="mean")
        count = ("" if not {"keys", "values"} <= set(below.columns) else
                 f" (keys below values in {int((below['keys'] < below['values']).sum())} of {len(below)})")
        parts.append(f"k = {k:g}: " + ", ".join(f"{w} {v:.3g}" for w, v in means.items()) + count)
    return "Measured, radius over that of one centre, mean over layers: " + "; ".join(parts) + "."


def read(paths, **_):
    return (kcc.read_table(paths, "coverage.csv", ["radius_rel"]),)


@kk.kind(read, "DIR|coverage.csv", "output of kvbench cluster")
def coverage(centres: pd.DataFrame, *, layers: Sequence[int] = (), mean_over_layers: bool = False,
             log_y: bool = False, pool: bool = False, title: str = "", model: str = "") -> kf.Picture:
    """Returns coverage curves of keys and values.

    centres: coverage.csv of `kvbench cluster` (trace, prompt, layer, kv_head, what, k, radius_rel). Raises CsvError.
    """
    table = load(centres, layers, mean_over_layers, pool)
    picture = draw(table, log_y)
    over = "layers and KV heads" if mean_over_layers else "KV heads"
    bars = kl.spread_text(picture, f"Bands: standard deviation over {over}.", "means over prompts and KV heads")
    return kfr.finish(picture, table.attrs["facts"], bars, measured(table), title, model)
