"""How figures show layers: a panel each for a few, maps of layer against x for many.

A model of 30 layers has no room for 30 panels on a page. Beyond MAX_PANELS layers a figure is an
overview: lines of the mean over layers with the quartiles of layers, and below them a map per line,
layers downwards, which shows every layer.
"""

import dataclasses
import math

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator
from matplotlib.transforms import offset_copy

from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import names as kn
from kvbench.plot import style as ks

MAX_PANELS = 9  # layers that get a panel each
MAX_COLUMNS = 4  # panels of lines beside each other on a page
MAX_MAPS = 6  # maps beside each other
MAP_TICKS = 4  # numbers at either axis of a map, at most
MIN_MAP = 0.64  # inches, with its title
LINES_HEIGHT = 2.3
BLOCK_MARGIN = 0.45  # inches below a block of maps: numbers and name of x
MAX_BARS = 12  # points of a line with a bar each; longer lines get a band
MAX_BANDS = 2  # of layers; more of them over each other are one grey
OVERVIEW = "overview"  # the label of such a figure, and what shows its quartiles
LETTERS = 17  # characters of the smallest type to an inch
# Shares of the cells below and above a colour scale: few outliers would take all its colours.
OUTSIDE = 0.02


def fit_panels(layers, rows=1, height=2.0, columns=MAX_COLUMNS):
    """Whether each of `layers` can have a panel, in `rows` such blocks of panels on one page."""
    needed = rows * math.ceil(len(layers) / columns) * height
    return len(layers) <= MAX_PANELS and needed <= kf.PAGE_HEIGHT - 1


def facets(groups, height=2.0, columns=MAX_COLUMNS, wide=False, **share):
    """Figure and a dict from key to axes: each list of keys begins a row, of at most `columns`.

    wide: of page width, however few panels there are.
    """
    longest = max(len(keys) for keys in groups)
    ncols = math.ceil(longest / math.ceil(longest / columns))
    places = {}
    row = 0
    for keys in groups:
        places.update({key: (row + i // ncols, i % ncols) for i, key in enumerate(keys)})
        row += math.ceil(len(keys) / ncols)
    figure, grid = kf.panels(row, ncols, height=height, width=kf.PAGE_WIDTH if wide else None,
                             **share)
    hide_others(grid, places.values())
    return figure, {key: grid[place] for key, place in places.items()}


@kf.in_style
def blocks(heights):
    """Figure of page width and its parts one below the other, of these heights in inches."""
    figure = kf.new_picture(kf.PAGE_WIDTH, sum(heights))
    return figure, list(figure.subfigures(len(heights), 1, squeeze=False,
                                          height_ratios=heights)[:, 0])


@kf.in_style
def block_panels(block, nrows, ncols, **share):
    """2-D array of axes in one of `blocks`."""
    grid = block.subplots(nrows, ncols, squeeze=False, **share)
    for axes in grid.flat:
        kf.dress(axes)
    return grid


def plain_log(axis):
    """A logarithmic axis with numbers as 0.02, enough of them for less than a decade."""
    low, high = axis.get_view_interval()
    steps = (1,) if high > 1e3 * low else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_formatter(NullFormatter())


def hide_others(grid, used):
    """Hides the panels that are not `used`; those above them get the x axis' numbers."""
    used = set(used)
    for row, column in np.ndindex(grid.shape):
        grid[row, column].set_visible((row, column) in used)
        if (row, column) in used and (row + 1, column) not in used:
            grid[row, column].tick_params(labelbottom=True)


# ---------------------------------------------------------------------------------------- maps


def map_columns(labels):
    """Maps beside each other: as many as their titles allow at page width."""
    longest = max(len(label) for label in labels)
    fit = int((kf.PAGE_WIDTH - 0.6) / (longest / LETTERS + 0.1))
    return max(1, min(MAX_MAPS, len(labels), fit))


def colour_scale(values, log):
    """(norm, the colour bar's `extend`): from the least to the greatest value, but for outliers.

    log: values below rounding have the lowest colour.
    """
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values) & (values >= kt.ROUNDING_ERROR if log else True)]
    if not len(values):
        return Normalize(0, 1), "neither"
    # With fewer than 1 / OUTSIDE values these are the least and the greatest.
    low = np.quantile(values, OUTSIDE, method="lower")
    high = np.quantile(values, 1 - OUTSIDE, method="higher")
    below, above = values.min() < low, values.max() > high
    extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[below, above]
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    return (LogNorm if log else Normalize)(low, high), extend


def cell_matrix(part, x, layers, columns):
    """Means as [layers, columns], NaN where there is none."""
    cells = part.pivot(index="layer", columns=x, values="mean")
    return cells.reindex(index=layers, columns=columns).to_numpy()


def draw_maps(figure, grid, maps, layers, columns, scale, name, tick="{:g}".format):
    """A map per panel of `grid`, of one scale (of colour_scale) that a bar beside them shows.

    maps: {title: cells [layers, columns]}; `tick`: the text of a column. A cell without a number is
    hatched. `figure` may be a part of one.
    """
    norm, extend = scale
    ncols = grid.shape[1]
    hide_others(grid, [divmod(i, ncols) for i in range(len(maps))])
    image = None
    for axes, (title, cells) in zip(grid.flat, maps.items()):
        axes.set_facecolor("0.92")
        axes.patch.set(hatch="/////", edgecolor="0.7")
        axes.grid(False)
        # A logarithmic scale has no place for 0 (an exact head): it gets the lowest colour.
        shown = np.maximum(cells, kt.ROUNDING_ERROR) if isinstance(norm, LogNorm) else cells
        image = axes.imshow(shown, norm=norm, cmap="viridis", aspect="auto",
                            interpolation="nearest")
        axes.set_title(title, fontsize=kf.SMALL_FONT_SIZE, pad=3)
        axes.tick_params(length=2)
        for axis, texts in ((axes.xaxis, [tick(v) for v in columns]),
                            (axes.yaxis, [f"{v:g}" for v in layers])):
            some = range(0, len(texts), math.ceil(len(texts) / MAP_TICKS))
            axis.set_ticks(some, [texts[i] for i in some])
    colour_bar(figure, image, grid, extend, name)


def colour_bar(figure, image, grid, extend, name):
    """The bar beside `grid`: what the colours of `image` mean, and the `name` of the numbers."""
    bar = figure.colorbar(image, ax=grid, fraction=0.04, pad=0.015, aspect=25, extend=extend,
                          extendfrac=0.03)
    bar.set_label(name, fontsize=kf.FONT_SIZE)
    bar.ax.yaxis.set_minor_locator(NullLocator())
    if isinstance(image.norm, LogNorm):
        plain_log(bar.ax.yaxis)
    else:
        bar.ax.yaxis.set_major_locator(MaxNLocator(4))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


# ------------------------------------------------------------------------------------ overview


@dataclasses.dataclass
class Part:
    """What one panel of lines and one block of maps show.

    rows: a frame of label, layer, x and mean; x NaN: no line but a level. `at`, where it is there,
    is the place of x on the lines' axis. `name`: of the mean. `log`: of the maps' colours. `alone`:
    the place `at` that no line leads to.
    """

    rows: object
    name: str
    title: str = ""
    log: bool = True
    alone: float | None = None


def layers_of(parts):
    return sorted(set().union(*(part.rows["layer"] for part in parts)))


def over_layers(rows):
    """One row per (label, x): mean over layers, low and high quartile, at.

    A point that some layer lacks is left out, and said: easy layers alone would flatter.
    """
    rows = rows if "at" in rows.columns else rows.assign(at=rows["x"])
    count = rows["layer"].nunique()
    groups = rows.groupby(["label", "x"], dropna=False, sort=False)
    out = groups["mean"].agg(mean="mean", low=lambda v: v.quantile(0.25),
                             high=lambda v: v.quantile(0.75), layers="size")
    out["at"] = groups["at"].mean()
    out = out.reset_index()
    for label in dict.fromkeys(out.loc[out["layers"] < count, "label"]):
        kt.note(f"{label}: the mean over layers is not drawn where a layer is missing")
    return out[out["layers"] == count]


def draw_means(axes, means, styles, alone=None):
    """Lines of over_layers, dots at `alone`. Returns what shows the quartiles: "bars", "bands" or
    None."""
    lines = [label for label in styles if means.loc[means["label"] == label, "x"].notna().any()]
    longest = means[means["label"].isin(lines)].groupby("label").size().max() if lines else 0
    spread = "bars" if longest <= MAX_BARS else "bands" if len(lines) <= MAX_BANDS else None
    if len(lines) > kn.MANY:
        spread = None  # they would hide the lines
    gap = min(3.0, 14 / max(1, len(lines)))  # points between bars of one x
    for label, style in styles.items():
        part = means[means["label"] == label]
        for _, level in part[part["x"].isna()].iterrows():
            if np.isfinite(level["at"]):
                axes.plot(level["at"], level["mean"], ms=3.5, **style)
            else:
                axes.axhline(level["mean"], color=style["color"], linestyle=style["linestyle"],
                             linewidth=1.2)
        part = part[part["x"].notna()].sort_values("at")
        if part.empty:
            continue
        at, mean = part["at"].to_numpy(), part["mean"].to_numpy()
        aside = axes.transData
        if spread == "bars":  # beside each other: they would hide each other
            aside = offset_copy(aside, axes.figure, units="points",
                                x=gap * (lines.index(label) - (len(lines) - 1) / 2))
            axes.vlines(at, part["low"], part["high"], color=style["color"], linewidth=1,
                        alpha=0.7, transform=aside)
            # matplotlib 3.10 leaves out of the limits what is drawn through `aside`.
            axes.update_datalim(np.concatenate([np.column_stack([at, part[name]])
                                                for name in ("mean", "low", "high")]))
            axes.autoscale_view()
        elif spread == "bands":
            axes.fill_between(at, part["low"], part["high"], color=style["color"], alpha=0.2,
                              linewidth=0)
        dots = np.isclose(at, math.nan if alone is None else alone)
        for some, look in ((~dots, style), (dots, {**style, "linestyle": "none"})):
            if some.any():
                axes.plot(at[some], mean[some], ms=3.5, linewidth=1.0, transform=aside, **look)
    return spread


def spread_text(figure, otherwise, cells="means over seeds, prompts and heads"):
    """What bars and bands mean in the figure: quartiles where `overview` made it, and what the
    `cells` of its maps are."""
    kind, _, spread = figure.get_label().partition(" ")
    if kind != OVERVIEW:
        return otherwise
    above = {"bars": "bars are", "bands": "bands are"}.get(spread)
    of_bars = f"; {above} the quartiles of the layers" if above else ""
    return (f"Lines: means over the layers{of_bars}"
            f". Maps: every layer; {cells}.")


def overview(parts, styles, x_name, prepare, map_x_name=None, tick="{:g}".format, minima=False,
             highlight=(), choose="--highlight"):
    """The figure: panels of means over layers beside each other, maps of every layer below.

    parts: Parts; styles: {label: style}, in order. `prepare(axes, means)` sets a panel's axes.
    `tick`: x as the maps say it. minima: marks the smallest cell of every layer. highlight: maps
    are of these alone, where there are any. choose: the options that the refusal of too many maps
    names.
    """
    bold, grey = ks.emphasis(styles, highlight)
    mapped = [label for label in styles if label not in grey and any(
        part.rows.loc[part.rows["label"] == label, "x"].notna().any() for part in parts)]
    if not mapped:
        raise kt.CsvError("maps of layers: nothing that is highlighted has a line")
    ncols = map_columns(mapped)
    nrows = math.ceil(len(mapped) / ncols)
    named = len(styles) > kn.MANY and len(parts) == 1
    lines_height = max(LINES_HEIGHT, kn.height_for(len(styles))) if named else LINES_HEIGHT
    legend = 0 if named else 0.3 * math.ceil(len(styles) / 4)
    room = kf.BODY_HEIGHT - lines_height - legend - BLOCK_MARGIN * len(parts)
    height = min(1.75, room / (nrows * len(parts)))
    if height < MIN_MAP:
        limit = int(room / MIN_MAP / len(parts)) * ncols
        raise kt.CsvError(f"maps of {len(layers_of(parts))} layers: got {len(mapped)} lines, "
                          f"expected at most {limit} for one page; choose fewer with {choose}")
    block_height = nrows * height + BLOCK_MARGIN
    figure, (top, *below) = blocks([lines_height, *[block_height] * len(parts)])
    tops = block_panels(top, 1, len(parts))[0]
    layers = layers_of(parts)
    for axes, block, part in zip(tops, below, parts):
        means = over_layers(part.rows)
        spread = draw_means(axes, means, styles, part.alone)
        figure.set_label(f"{OVERVIEW} {spread}")
        prepare(axes, means)
        shown = f", {spread}: quartiles of layers" if spread else ""
        above = f"{part.title}\n" if part.title else ""
        axes.set_title(f"{above}mean over {len(layers)} layers{shown}")
        axes.set_ylabel(part.name)
        axes.set_xlabel(x_name)
        rows = part.rows[part.rows["x"].notna()]
        columns = sorted(rows["x"].unique())
        maps = {label: cell_matrix(rows[rows["label"] == label], "x", layers, columns)
                for label in mapped}
        grid = block_panels(block, nrows, ncols, sharex=True, sharey=True)
        draw_maps(block, grid, maps, layers, columns, colour_scale(rows["mean"], part.log),
                  part.name, tick)
        if minima:
            mark_minima(grid, maps)
        under = f"{part.title}: " if part.title else ""
        block.supxlabel(under + (map_x_name or x_name), fontsize=kf.FONT_SIZE)
        block.supylabel("layer", fontsize=kf.FONT_SIZE)
    if not named:
        kf.legend_above(figure, [kf.line_handle(style, label) for label, style in styles.items()])
        return figure
    figure.canvas.draw()
    kn.name_lines(tops[0], mean_ends(tops[0], means, styles), styles, bold, grey)
    return figure


def mean_ends(axes, means, styles):
    """Where lines and levels of draw_means end."""
    lines = {label: (part["at"], part["mean"]) for label in styles
             if len(part := means[(means["label"] == label) & np.isfinite(means["at"])])}
    levels = {label: (None, part["mean"].iloc[0]) for label in styles
              if label not in lines and len(part := means[means["label"] == label])}
    return {**kn.ends_of(axes, lines), **levels}


def mark_minima(grid, maps):
    """A dot on the smallest cell of every row."""
    for axes, cells in zip(grid.flat, maps.values()):
        rows = [i for i, row in enumerate(cells) if np.isfinite(row).any()]
        axes.plot([np.nanargmin(cells[i]) for i in rows], rows, linestyle="none", marker="o",
                  ms=2.2, color="white", markeredgecolor="black", markeredgewidth=0.3)
