"""Title and footer of a figure: what was measured and what bars mean.

A drawn table carries `attrs["facts"]`, one sentence of facts_of or cluster_facts.
"""

import textwrap

import numpy as np

from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import style as ks
from kvbench.text import counted

GAP = 0.06  # inches above and below the figure
LETTERS = 19  # characters per inch in the smallest font


def some(values, most=3):
    """Returns `a, b`, or the count if there are many."""
    values = list(values)
    return ", ".join(values) if len(values) <= most else f"{len(values)} in all"


def span(values):
    """Returns `0-3` for consecutive integers, otherwise `0, 2, 5`; for many the ends."""
    values = sorted({int(v) for v in values})
    if len(values) > 2 and values[-1] - values[0] == len(values) - 1:
        return f"{values[0]}-{values[-1]}"
    return ", ".join(map(str, values)) if len(values) <= 8 else f"{values[0]} to {values[-1]}"


def _one(frame, name):
    """Values of a setting as text; empty if the column is missing."""
    if name not in frame.columns:
        return ""
    values = frame[name].dropna().unique()
    return ", ".join(v if isinstance(v, str) else f"{v:g}" for v in sorted(values))


def traces_of(frame):
    names = list(dict.fromkeys(frame["trace"])) if "trace" in frame.columns else []
    if len(names) > 1:
        return f"traces: {some(names)}"
    return f"trace {names[0]}" if names else "no trace"


class Facts(str):
    """One sentence on rows; `models`: those named in the rows."""

    models = ()


def facts_of(frame, heads="q_head"):
    """Facts of rows of `kvbench replay`: trace, prompts, layers, heads, protocol."""
    parts = [traces_of(frame)]
    if "prompt" in frame.columns:
        keys = [name for name in ("trace", "prompt") if name in frame.columns]
        parts.append(counted(len(frame[keys].drop_duplicates()), "prompt"))
        lengths = sorted(frame["n_tokens"].unique()) if "n_tokens" in frame.columns else []
        if lengths:
            between = f"{lengths[0]:g}" + (f" to {lengths[-1]:g}" if len(lengths) > 1 else "")
            parts[-1] += f" of {between} tokens"
    if "layer" in frame.columns:
        layers = frame["layer"].dropna().unique()
        parts.append(f"{counted(len(layers), 'layer')} ({span(layers)})")
    if heads in frame.columns:
        kind = "KV head" if heads == "kv_head" else "query head"
        parts.append(counted(frame[heads].nunique(), kind))
    if "protocol" in frame.columns:
        used = [v for v in _one(frame, "scores").split(", ") if v != "none"]
        parts.append(_one(frame, "protocol"))
        parts += [f"{name} {_one(frame, name)}" for name in ("sink", "recent") if name in frame.columns]
        if "n_queries" in frame.columns:
            parts.append(f"{_one(frame, 'n_queries')} evaluated queries")
        parts.append("scores " + (", ".join(used) or "none"))
    if "seed" in frame.columns:
        seeds = frame["seed"].nunique()
        if "seeds" in frame.columns:  # of rows that a store averaged
            seeds = max(seeds, int(frame["seeds"].max()))
        parts.append(counted(seeds, "seed"))
    out = Facts(", ".join(parts) + "." + sizes_text(kt.sizes_of(frame)))
    if "model" in frame.columns:
        out.models = [name for name in frame["model"].dropna().unique() if name]
    return out


def sizes_text(sizes):
    """Returns what budgets of the middle are of the whole cache, of many the ends."""
    some = [*sizes.items()] if len(sizes) <= 6 else [*sizes.items()][::len(sizes) - 1]
    if not some:
        return ""
    budgets, shares, factors = (", ".join(texts) for texts in zip(
        *((f"{budget:g}", f"{share:.2g}", f"{1 / share:.2g}x") for budget, share in some)))
    many = len(some) > 1
    return f" Budget{'s' * many} {budgets} {'are' if many else 'is'} {shares} of the whole cache ({factors} smaller)."


def cluster_facts(frame, heads="kv_head"):
    """Facts of tables of `kvbench cluster`, without a protocol."""
    return facts_of(frame[[c for c in ("trace", "prompt", "layer", "model", heads) if c in frame.columns]], heads)


def keep(table, frame, heads="q_head", facts=None):
    """Returns `table` with the facts of its source rows (or these), and their files."""
    of = facts_of if "protocol" in frame.columns else cluster_facts
    table.attrs = {"paths": [kt.source_of(frame)], "facts": facts or of(frame, heads)}
    return table


def measured_rows(rows, needed=(), algorithms=(), layers=(), pool=False):
    """Returns measured rows with HEAD_COLUMNS, seed, budget_requested and the `needed` columns. Raises CsvError."""
    frame = kt.results_of(rows, [*kt.HEAD_COLUMNS, "seed", "budget_requested", *needed])
    path = kt.source_of(frame)
    frame = kt.pick_names(frame, "algorithm", algorithms, path)
    frame = kt.pick_layers(frame, layers, path)
    return kt.measured_rows(frame, path, pool)


def points(frame, keys, y, spread="seeds", **means):
    """Returns a row per point of `keys` that covers every head: mean, sd of `y`, and `means` {name: column}; of
    shares of bytes these are sums of bytes over sums of bytes.
    """
    weights = {name: kt.bytes_of(frame, column) for name, column in means.items()}
    frame = kt.full_points(frame, keys, kt.source_of(frame))
    table = kt.mean_and_sd(frame, keys, y, spread)
    return table.assign(**{name: kt.weighted_means(frame, keys, column, weights[name][frame.index]).to_numpy()
                           for name, column in means.items()})


def above_rounding(table, y):
    """Returns the points that a logarithmic axis can show; notes the others. Raises CsvError if none."""
    table = kt.finite_points(table)
    small = table["mean"] < kt.ROUNDING_ERROR
    kt.note_each(table[small], f"{{}} has points of no {y}, which a logarithmic axis cannot show")
    if small.all():
        raise kt.CsvError(f"{kt.source_of(table)}: column `{y}` is below {kt.ROUNDING_ERROR:g} in every "
                          "point, expected errors for a logarithmic axis")
    return table[~small]


def footer(facts, bars, model=""):
    """Returns `Model M, trace T, ... Bars: ...`, without an unknown model."""
    models = [model] if model else facts.models
    model = f"Model {some(models)}, " if models else ""
    text = model + facts if model else facts[:1].upper() + facts[1:]
    return f"{text} {bars}".strip()


def relative(table, method, keys, path):
    """Divides mean and sd by the mean of `method` at the same `keys`; skips points where it has no error."""
    if not method:
        return table
    labels = list(dict.fromkeys(table["label"]))
    wanted = [label for label in labels if label == method] or [
        label for label in labels if ks.method_of(label) == method]
    if len(wanted) != 1:
        raise kt.CsvError(f"{path}: --relative-to: got `{method}`, expected one of " + ", ".join(wanted or labels))
    base = table.loc[table["label"] == wanted[0], [*keys, "mean"]]
    base = base.groupby(keys, dropna=False)["mean"].mean().rename("base").reset_index()
    # Keeps order and index; pandas' merge treats NaN keys as equal, as needed here.
    out = table.assign(base=table[keys].merge(base, on=keys, how="left")["base"].to_numpy())
    absent = ~(out["base"] >= kt.ROUNDING_ERROR)
    if absent.all():
        raise kt.CsvError(f"{path}: --relative-to: {wanted[0]} has no error above "
                          f"{kt.ROUNDING_ERROR:g} at a place of the others")
    kt.note_each(out[absent], f"{{}}: points left out where {wanted[0]} has none: {{count}}")
    out = out[~absent].copy()
    # An exact cache stays exact.
    out["base"] = out["base"].where(~(out["mean"] < kt.ROUNDING_ERROR), np.inf)
    for name in ("mean", "sd", "low", "high", "median"):
        if name in out.columns:
            out[name] = out[name] / out["base"]
    return out.drop(columns="base")


def y_label(y, relative_to=""):
    name = kt.METRIC_LABELS.get(y, y)
    return f"{name} / that of {relative_to}" if relative_to else name


def where_spread(table, text):
    """Returns `text` on bars if some mean has a deviation."""
    return text if (table["sd"] > 0).any() else ""


def _wrapped(figure, text, width, **more):
    """Draws a text wrapped to `width` inches."""
    letters = max(20, int(width * LETTERS))
    while True:
        drawn = figure.text(0, 0, textwrap.fill(text, letters), fontsize=kf.SMALL_FONT_SIZE, **more)
        wide = drawn.get_window_extent(figure.canvas.get_renderer()).width / figure.dpi
        if wide <= width or letters <= 20:
            return drawn
        drawn.remove()
        letters -= max(1, round(letters * (1 - width / wide)))


@kf.in_style
def add(figure, text, title=""):
    """Adds the footer `text` below and the title above."""
    figure.canvas.draw()
    # Layout is final; nothing may move.
    figure.set_layout_engine("none")
    box = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    wide = max(box.width, 0.9 * width)
    left = max(0.0, box.x0) / width
    below = _wrapped(figure, text, wide, color="0.3", va="top", ha="left", gid="footer")
    below.set_position((left, (box.y0 - GAP) / height))
    if title:
        above = _wrapped(figure, title, wide * 0.8, va="bottom", ha="center", gid="title")
        above.set(position=(0.5, (box.y1 + GAP) / height), fontsize=kf.FONT_SIZE + 1)


def finish(figure, facts, bars, measured="", title="", model=""):
    """Returns `figure` with title, footer and caption. bars: what bars mean; model: where rows name none."""
    text = footer(facts, bars, model)
    add(figure, text, title)
    figure.caption = f"{measured} {text}".strip()
    return figure
