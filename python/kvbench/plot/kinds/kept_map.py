"""Tokens that a cache held at each step of a stream (BumbleBee, figures 6 and 7).

One panel per algorithm (columns) and KV head (rows); x is the token's position, y the step,
downwards. Coloured: held at that step, sinks and recent window included; white: evicted; grey: not
yet seen. Vertical lines are tokens held for long, the diagonal band the recent tokens. Input:
OUT.kept.csv of `kvbench replay --protocol stream --kept`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from kvbench import tables as kt
from kvbench.cluster import tables as kcc
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk

MAX_COLUMNS = 4  # panels side by side
MAX_ROWS = 6
MAX_CELLS = 1024  # columns of a map; longer streams show the held share per cell
HELD = kf.COLORS[0]
SHADES = LinearSegmentedColormap.from_list("held", ["white", HELD])
FUTURE = "0.9"


def load(kept, labels=(), layers=(), kv_heads=(), prompt=""):
    """Returns rows of the wanted labels and heads of one prompt, and the labels and heads in order."""
    path = kt.source_of(kept)
    frame = kcc.kept_of(kept)
    frame = frame[frame["protocol"] == "stream"]
    if frame.empty:
        raise kt.CsvError(f"{path}: no row of protocol stream; a map over steps needs "
                          "kvbench replay --protocol stream --kept")
    frame = kcc.only_prompt(frame, prompt, path)
    present = list(dict.fromkeys(frame["label"]))
    absent = [label for label in labels if label not in present]
    if absent:
        raise kt.CsvError(f"{path}: --labels: got `{absent[0]}`, expected some of " + ", ".join(present))
    if not labels and len(present) > MAX_COLUMNS:
        kt.note(f"the first {MAX_COLUMNS} of {len(present)} labels are shown (--labels takes "
                f"others: {', '.join(present)})")
    labels = labels or present[:MAX_COLUMNS]
    frame, heads = kcc.pick_heads(frame[frame["label"].isin(labels)], layers, kv_heads, 2, path)
    if len(heads) > MAX_ROWS or len(labels) > MAX_COLUMNS:
        raise kt.CsvError(f"--layers, --kv-heads and --labels: got {len(heads)} heads and "
                          f"{len(labels)} labels, expected at most {MAX_ROWS} and {MAX_COLUMNS}")
    return frame, labels, heads


def held_shares(rows):
    """Returns the map of one label and head: y edges [s + 1], x edges [c + 1], held share [s, c].

    A row reaches from the previous step to its own. A share is NaN if none of the cell's tokens was seen yet.
    """
    rows = rows.sort_values("step")
    steps = rows["step"].to_numpy().astype(int)
    n = int(rows["n_tokens"].iloc[0])
    width = -(-n // MAX_CELLS)
    starts = np.arange(0, n, width)
    share = np.full((len(steps), len(starts)), np.nan)
    for i, (step, tokens) in enumerate(zip(steps, rows["tokens"])):
        mask = kcc.held(tokens, n)
        come = np.arange(n) <= step
        if (mask & ~come).any():
            raise kt.CsvError(f"column `tokens`: step {step} holds token "
                              f"{int((mask & ~come).nonzero()[0][0])}, which comes after it")
        counts = np.add.reduceat(come.astype(float), starts)
        held = np.add.reduceat(mask.astype(float), starts)
        np.divide(held, counts, out=share[i], where=counts > 0)
    return np.concatenate([[0], steps + 1]), np.append(starts, n), share


@kf.in_style
def draw(frame, labels, heads):
    figure, grid = kf.panels(len(heads), len(labels), sharex=True, sharey=True,
                             height=min(1.8, (kf.BODY_HEIGHT - 0.6) / len(heads)))
    for i, head in enumerate(heads):
        for j, label in enumerate(labels):
            axes = grid[i, j]
            axes.grid(False)
            axes.spines[["top", "right"]].set_visible(True)
            axes.set_facecolor(FUTURE)
            rows = frame[(frame["label"] == label) & (frame["layer"] == head[0]) & (frame["kv_head"] == head[1])]
            if not rows.empty:
                y, x, share = held_shares(rows)
                axes.pcolormesh(x, y, np.ma.masked_invalid(share), cmap=SHADES, vmin=0, vmax=1, rasterized=True)
            if i == 0:
                axes.set_title(label.replace(" ", "\n", 1))
            axes.xaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
            axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        grid[i, 0].set_ylabel(f"layer {head[0]}, KV head {head[1]}", fontsize=8)
    last = int(frame["step"].max()) + 1
    grid[0, 0].set_ylim(last, 0)  # shared; time runs downwards, as in the paper
    grid[0, 0].set_xlim(0, int(frame["n_tokens"].max()))
    figure.supxlabel("token position", fontsize=8)
    figure.supylabel("step", fontsize=8)
    handles = [Rectangle((0, 0), 1, 1, facecolor=color, edgecolor="0.6", linewidth=0.5,
                             label=text)
               for color, text in ((HELD, "held"), ("white", "evicted"),
                                   (FUTURE, "not yet come"))]
    kf.legend_above(figure, handles)
    return figure


def measured(frame):
    """Share of the tokens held at the last step from the older half of the stream."""
    parts = []
    for label, rows in frame.groupby("label", sort=False):
        shares = []
        for _, last in rows.loc[rows.groupby(["layer", "kv_head"])["step"].idxmax()].iterrows():
            mask = kcc.held(last["tokens"], int(last["n_tokens"]))
            shares.append(mask[:(int(last["step"]) + 1) // 2].sum() / max(1, mask.sum()))
        parts.append(f"{label} {np.mean(shares):.2f}")
    return ("Measured, share of the tokens held at the end that come from the older half, mean "
            "over the heads shown: " + ", ".join(parts) + ".")


def read(paths, **_):
    return (kcc.read_table(paths, "kept.csv", kcc.KEPT),)


@kk.kind(read, "OUT.kept.csv", "files of kvbench replay --protocol stream --kept")
def kept_map(kept: pd.DataFrame, *, labels: kk.Names = (), layers: Sequence[int] = (), kv_heads: Sequence[int] = (),
             prompt: str = "", title: str = "", model: str = "") -> kf.Picture:
    """Returns maps of the tokens that a cache held at each step, one per algorithm and KV head.

    kept: OUT.kept.csv of a stream (docs/schema.md). Raises CsvError.
    """
    frame, shown, heads = load(kept, labels, layers, kv_heads, prompt)
    return kfr.finish(draw(frame, shown, heads), kfr.facts_of(frame, "kv_head"),
                      "Every picture is one KV head; shades: the share of a cell's tokens that is "
                      "held.", measured(frame), title, model)
