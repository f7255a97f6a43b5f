"""t-SNE of cached keys and values (ClusterGen, figure 1; BumbleBee, figure 8).

Columns are heads, rows keys and values. Dots are tokens, green ones with an edge the centres of
greedy k-center (`kvbench cluster --k`, 16). With --marked, rows are the named labels (`kvbench
cluster --kept-by`): kept tokens are triangles, evicted ones pale dots. --color-by position colours
tokens by position: keys in the order of their positions have not clustered by content. Every row of
tokens has its own embedding of points.csv's columns, deterministic for the same libraries.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize

from kvbench import tables as kt
from kvbench.cluster import tables as kcc
from kvbench.plot import embedding as ke
from kvbench.plot import figures as kf
from kvbench.plot import frame as kfr
from kvbench.plot import kind as kk

MAX_COLUMNS = 4  # panels side by side
MAX_ROWS = 8
COLOR_BY = ("kind", "position")
VECTOR_POINTS = 5000  # above, dots in a PDF become a 300-dpi image
TOKEN = {"color": "#56B4E9", "s": 3, "linewidths": 0}
EVICTED = {"color": "0.8", "s": 3, "linewidths": 0}
CENTER = {"color": kf.COLORS[2], "s": 22, "linewidths": 0.5, "edgecolors": "black"}
POSITIONS = colormaps["viridis"]  # monotone lightness
KEPT = {"color": kf.COLORS[1], "s": 9, "linewidths": 0.2, "marker": "^", "edgecolors": "black"}


def choose_heads(groups, whats, layers, kv_heads, prompt, path):
    """Returns the rows of `groups` to show (of one prompt), and their (layer, KV head) pairs."""
    groups = kcc.only_prompt(groups, prompt, path)
    absent = [what for what in whats if what not in set(groups["what"])]
    if absent:
        raise kt.CsvError(f"{path}: --what: got {absent[0]}, which it does not hold; it holds "
                          + ", ".join(groups["what"].unique()))
    groups, heads = kcc.pick_heads(groups, layers, kv_heads, MAX_COLUMNS, path)
    if len(heads) > 2 * MAX_COLUMNS:
        raise kt.CsvError(f"--layers and --kv-heads: got {len(heads)} heads, expected at most "
                          f"{2 * MAX_COLUMNS} for one figure")
    return groups[groups["what"].isin(whats)], heads


def whats_of(what, kept):
    """Returns the quantities of --what and --marked. Raises CsvError."""
    unknown = [one for one in what if one not in ("keys", "values")]
    if unknown:
        raise kt.CsvError(f"--what: got `{unknown[0]}`, expected keys, values or both")
    return list(what) or (["keys"] if kept else ["keys", "values"])


def read(paths, layers, kv_heads, prompt, what, marked, **_):
    """Returns the points of one points.csv that are shown: the others may not fit in memory."""
    if len(paths) > 1:
        raise kt.CsvError(f"got {len(paths)} inputs, expected one")
    path = paths[0]
    groups, _ = choose_heads(kcc.point_groups(path), whats_of(what, marked), layers, kv_heads, prompt, path)
    points = kcc.read_points(path, groups)
    points.attrs["paths"] = [path]
    return (points,)


def load(points, whats, layers=(), kv_heads=(), prompt=""):
    """Returns the rows of points.csv to show, and their (layer, KV head) pairs."""
    frame = kcc.points_of(points)
    groups, heads = choose_heads(frame[[*kcc.HEAD, "what"]], whats, layers, kv_heads, prompt, kt.source_of(points))
    return frame.loc[groups.index], heads


def labels_of(field):
    return [label for label in field.split(";") if label]


def check_labels(frame, wanted, path):
    present = sorted({label for field in frame["kept_by"].unique() for label in labels_of(field)})
    for label in wanted:
        if label not in present:
            holds = f"it holds {', '.join(present)}" if present else (
                "it holds none (kvbench cluster --kept-by OUT.kept.csv fills them)")
            raise kt.CsvError(f"{path}: --marked: got `{label}`, which kept none of these tokens; " + holds)


def thin(frame, count):
    """Returns about `count` evenly spaced tokens of each picture, and every centre."""
    if not count:
        return frame
    rank = frame.groupby(["layer", "kv_head", "what"]).cumcount()
    size = frame.groupby(["layer", "kv_head", "what"])["token"].transform("size")
    every = -(-size // count)
    return frame[(rank % every == 0) | (frame["is_center"] == 1)]


def embeddings(frame, heads, whats, jobs, seed, perplexity):
    """Returns {(layer, KV head, what): (its rows, positions [n, 2])}."""
    found = {}
    for place in ((*head, what) for head in heads for what in whats):
        rows = frame[(frame[["layer", "kv_head", "what"]] == place).all(axis=1)]
        if len(rows):
            found[place] = rows
    flat = ke.embed_all([*map(coordinates, found.values())], jobs, seed, perplexity)
    return {place: (rows, xy) for (place, rows), xy in zip(found.items(), flat)}


def coordinates(rows):
    """Returns x0, x1, ... [n, d] of one head's rows; columns of wider heads are empty."""
    return rows[kcc.point_columns(rows.columns)].dropna(axis="columns", how="all").to_numpy()


def scatter(axes, xy, style, zorder, colors=None, norm=None):
    """Draws dots; with `colors` (numbers) and `norm` in colours of the map."""
    if colors is not None:
        style = {key: v for key, v in style.items() if key != "color"}
        style |= {"c": colors, "cmap": POSITIONS, "norm": norm}
    return axes.scatter(xy[:, 0], xy[:, 1], zorder=zorder, rasterized=len(xy) > VECTOR_POINTS, **style)


def draw_panel(axes, rows, xy, label, norm=None):
    """Draws tokens and centres; with a label, kept tokens above evicted ones. norm: of positions, for colours."""
    tokens = rows["token"].to_numpy()
    if label is None:
        center = rows["is_center"].to_numpy() == 1
        scatter(axes, xy[~center], TOKEN, 1, None if norm is None else tokens[~center], norm)
        scatter(axes, xy[center], CENTER, 2, None if norm is None else tokens[center], norm)
        return
    kept = np.array([label in labels_of(field) for field in rows["kept_by"]], dtype=bool)
    scatter(axes, xy[~kept], EVICTED, 1)
    scatter(axes, xy[kept], KEPT, 2, None if norm is None else tokens[kept], norm)


@kf.in_style
def draw(pictures, heads, whats, kept, color_by=""):
    """Returns a figure with columns of heads; rows of quantities, and within them the labels of `kept`."""
    rows = [(what, label) for what in whats for label in (kept or [None])]
    if len(rows) > MAX_ROWS:
        raise kt.CsvError(f"--marked and --what: got {len(rows)} rows of panels, expected at most "
                          f"{MAX_ROWS} for one figure")
    figure, grid = kf.panels(len(rows), len(heads), height=min(1.75, (kf.BODY_HEIGHT - 0.8) / len(rows)))
    norm = None
    if color_by == "position":
        norm = Normalize(0, max(rows_of["token"].max() for rows_of, _ in pictures.values()))
    space = " " if len(heads) <= MAX_COLUMNS else "\n"
    for i, (what, label) in enumerate(rows):
        for j, head in enumerate(heads):
            axes = grid[i, j]
            if (*head, what) in pictures:
                draw_panel(axes, *pictures[*head, what], label, norm)
            axes.spines[["top", "right"]].set_visible(True)
            axes.set_xticks([])  # t-SNE's axes have neither unit nor meaning
            axes.set_yticks([])
            if i == 0:
                axes.set_title(f"layer {head[0]},{space}KV head {head[1]}")
        text = what if label is None else label if len(whats) == 1 else f"{what}: {label}"
        grid[i, 0].set_ylabel(text.replace(" ", "\n"), fontsize=8)
    if norm is not None:
        bar = figure.colorbar(ScalarMappable(norm, POSITIONS), ax=grid, fraction=0.03, pad=0.015, aspect=30)
        bar.set_label("position of the token", fontsize=kf.FONT_SIZE)
    entries = [(TOKEN, "tokens"), (CENTER, "k-center centres")]
    if kept:
        entries = [(EVICTED, "evicted"), (KEPT, "kept")]
    grey = {} if norm is None else {"color": "0.5"}  # the bar shows the colours
    handles = [axes.scatter([], [], label=text,
                            **(style | {"s": max(style["s"], 12)}
                               | (grey if style != EVICTED else {})))
               for style, text in entries]
    kf.legend_above(figure, handles)
    return figure


def measured(pictures, whats, kept):
    """Mean distance of a token to the nearest centre, or to the nearest kept token; over the root
    mean square distance to the mean, in the columns of points.csv.
    """
    def nearness(rows, chosen):
        points = coordinates(rows)
        some = points[chosen]
        squares = (points**2).sum(1)[:, None] + (some**2).sum(1) - 2 * points @ some.T
        scale = math.sqrt(((points - points.mean(0))**2).sum(1).mean())
        if not len(some) or not scale:
            return math.nan
        return np.sqrt(np.maximum(squares.min(1), 0)).mean() / scale

    parts = []
    for what in whats:
        for label in kept or [None]:
            values = [nearness(rows, rows["is_center"] == 1 if label is None else
                               np.array([label in labels_of(f) for f in rows["kept_by"]], bool))
                      for key, (rows, _) in pictures.items() if key[2] == what]
            parts.append(f"{what}{' of ' + label if label else ''} {np.mean(values):.3g}")
    of = "kept token" if kept else "centre"
    return (f"Measured, mean distance of a token to the nearest {of}, over the root mean square "
            "distance to the mean: " + ", ".join(parts) + ".")


@kk.kind(read, "DIR|points.csv", "output of kvbench cluster (one)", {"jobs": os.cpu_count() or 1}, color_by=COLOR_BY)
def tsne(points: pd.DataFrame, *, layers: Sequence[int] = (), kv_heads: Sequence[int] = (), prompt: str = "",
         what: kk.Names = (), marked: kk.Names = (), color_by: str = "kind", max_points: int = 0,
         perplexity: float = ke.PERPLEXITY, seed: int = 0, jobs: int = 1, title: str = "",
         model: str = "") -> kf.Picture:
    """Returns t-SNE embeddings of keys and values, one per head.

    points: points.csv of `kvbench cluster` (docs/schema.md). jobs: processes for embeddings. Raises
    CsvError, also without scikit-learn.
    """
    ke.require_sklearn()
    if max_points < 0 or not perplexity >= 1:
        raise kt.CsvError("--max-points and --perplexity: expected at least 0 and 1, got "
                          f"{max_points} and {perplexity:g}")
    path, whats = kt.source_of(points), whats_of(what, marked)
    frame, heads = load(points, whats, layers, kv_heads, prompt)
    check_labels(frame, marked, path)
    whole = len(frame)
    frame = thin(frame, max_points)
    if len(frame) < whole:
        kt.note(f"{len(frame)} of {whole} tokens are shown (--max-points)")
    pictures = embeddings(frame, heads, whats, jobs, seed, perplexity)
    return kfr.finish(draw(pictures, heads, whats, marked, color_by), kfr.cluster_facts(frame),
                      "Every picture is one head's own embedding; its axes have no unit.",
                      measured(pictures, whats, marked), title, model)
