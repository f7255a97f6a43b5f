"""Lines over a parameter, a panel per layer (or budget): `sweep`.

More than MAX_PANELS layers give an overview: lines of the mean over layers with the quartiles of
layers, and a map of layer against the parameter per line.
"""

import dataclasses
import math

import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from kvbench import tables as kt
from kvbench.plot import figures as kf
from kvbench.plot import names as kn
from kvbench.plot import style as ks

MAX_PANELS = 9  # layers with a panel each
MAX_COLUMNS = 4  # panels of lines side by side
MAX_MAPS = 6  # maps side by side
MAP_TICKS = 4  # maximum number of ticks per axis of a map
MIN_MAP = 0.64  # inches, with title
LINES_HEIGHT = 2.3
BLOCK_MARGIN = 0.45  # inches below a block of maps
MAX_BARS = 12  # points per line with bars; longer lines get a band
MAX_BANDS = 2  # overlapping bands
OVERVIEW = "overview"  # figure label
LETTERS = 17  # characters per inch in the smallest font
# Share of outlier cells at either end of a colour scale.
OUTSIDE = 0.02


def fit_panels(layers, rows=1, height=2.0, columns=MAX_COLUMNS):
    """Returns whether each of `layers` can have a panel, in `rows` such blocks on one page."""
    needed = rows * math.ceil(len(layers) / columns) * height
    return len(layers) <= MAX_PANELS and needed <= kf.PAGE_HEIGHT - 1


def facets(groups, height=2.0, columns=MAX_COLUMNS, wide=False, **share):
    """Returns a figure and {key: axes}: each list of keys begins a row of at most `columns`. wide: page width."""
    longest = max(len(keys) for keys in groups)
    ncols = math.ceil(longest / math.ceil(longest / columns))
    places = {}
    row = 0
    for keys in groups:
        places.update({key: (row + i // ncols, i % ncols) for i, key in enumerate(keys)})
        row += math.ceil(len(keys) / ncols)
    figure, grid = kf.panels(row, ncols, height=height, width=kf.PAGE_WIDTH if wide else None, **share)
    hide_others(grid, places.values())
    return figure, {key: grid[place] for key, place in places.items()}


@kf.in_style
def blocks(heights):
    """Returns a figure of page width and its stacked parts of these heights in inches."""
    figure = kf.new_picture(kf.PAGE_WIDTH, sum(heights))
    return figure, list(figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0])


@kf.in_style
def block_panels(block, nrows, ncols, **share):
    """Returns a 2-D array of axes in one of `blocks`."""
    grid = block.subplots(nrows, ncols, squeeze=False, **share)
    for axes in grid.flat:
        kf.dress(axes)
    return grid


def plain_log(axis):
    """Sets a logarithmic axis with decimal ticks, also for less than a decade."""
    low, high = axis.get_view_interval()
    steps = (1,) if high > 1e3 * low else (1, 2, 5)
    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_formatter(NullFormatter())


def hide_others(grid, used):
    """Hides unused panels; those above them get the x ticks."""
    used = set(used)
    for row, column in np.ndindex(grid.shape):
        grid[row, column].set_visible((row, column) in used)
        if (row, column) in used and (row + 1, column) not in used:
            grid[row, column].tick_params(labelbottom=True)


# ---------------------------------------------------------------------------------------- maps


def map_columns(labels):
    """Returns the number of maps side by side that fit their titles."""
    longest = max(len(label) for label in labels)
    fit = int((kf.PAGE_WIDTH - 0.6) / (longest / LETTERS + 0.1))
    return max(1, min(MAX_MAPS, len(labels), fit))


def colour_scale(values, log):
    """Returns (norm, the colour bar's `extend`), without outliers. log: rounding has the lowest colour."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values) & (values >= kt.ROUNDING_ERROR if log else True)]
    if not len(values):
        return Normalize(0, 1), "neither"
    # Fewer than 1 / OUTSIDE values have no outliers.
    low = np.quantile(values, OUTSIDE, method="lower")
    high = np.quantile(values, 1 - OUTSIDE, method="higher")
    below, above = values.min() < low, values.max() > high
    extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[below, above]
    if low == high:
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    return (LogNorm if log else Normalize)(low, high), extend


def cell_matrix(part, x, layers, columns):
    """Returns means as [layers, columns], NaN if missing."""
    cells = part.pivot(index="layer", columns=x, values="mean")
    return cells.reindex(index=layers, columns=columns).to_numpy()


def draw_maps(figure, grid, maps, layers, columns, scale, name, tick="{:g}".format):
    """Draws {title: cells [layers, columns]} on one scale (of colour_scale), a map per panel, with a colour bar. tick:
    formats a column. Cells without a number are hatched.
    """
    norm, extend = scale
    ncols = grid.shape[1]
    hide_others(grid, [divmod(i, ncols) for i in range(len(maps))])
    image = None
    for axes, (title, cells) in zip(grid.flat, maps.items()):
        axes.set_facecolor("0.92")
        axes.patch.set(hatch="/////", edgecolor="0.7")
        axes.grid(False)
        # Zero (an exact head) gets the lowest colour.
        shown = np.maximum(cells, kt.ROUNDING_ERROR) if isinstance(norm, LogNorm) else cells
        image = axes.imshow(shown, norm=norm, cmap="viridis", aspect="auto", interpolation="nearest")
        axes.set_title(title, fontsize=kf.SMALL_FONT_SIZE, pad=3)
        axes.tick_params(length=2)
        for axis, texts in ((axes.xaxis, [tick(v) for v in columns]), (axes.yaxis, [f"{v:g}" for v in layers])):
            some = range(0, len(texts), math.ceil(len(texts) / MAP_TICKS))
            axis.set_ticks(some, [texts[i] for i in some])
    colour_bar(figure, image, grid, extend, name)


def colour_bar(figure, image, grid, extend, name):
    """Draws the colour bar of `image` beside `grid`."""
    bar = figure.colorbar(image, ax=grid, fraction=0.04, pad=0.015, aspect=25, extend=extend, extendfrac=0.03)
    bar.set_label(name, fontsize=kf.FONT_SIZE)
    bar.ax.yaxis.set_minor_locator(NullLocator())
    if isinstance(image.norm, LogNorm):
        plain_log(bar.ax.yaxis)
    else:
        bar.ax.yaxis.set_major_locator(MaxNLocator(4))
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))


# ------------------------------------------------------------------------------------ overview


ALL = -1.0  # layer code of a mean over layers
LEVELS = (":", "--", "-.")  # dashes of levels
LONG = 20  # points of a line; more have a marker at every fifth


@dataclasses.dataclass
class Part:
    """Lines of one quantity: a panel per layer, or one of means and a block of maps.

    rows: a frame of label, layer, x and mean, with sd, or low and high, of what is shaded or barred; x
    NaN: a level. layer may be another column's value (sweep's `name`), or ALL. `at` (optional): position
    of x on the lines' axis. `name`: of the mean. `log`: of the maps' colours. `alone`: position `at` that
    is not joined to a line. `prepare(axes, rows)`: sets a panel's axes.
    """

    rows: object
    name: str
    title: str = ""
    log: bool = True
    alone: float | None = None
    prepare: object = lambda axes, rows: None


def layers_of(parts):
    """Returns the layers of all parts, ascending; NaN alone if no row has one."""
    return sorted(set().union(*(part.rows["layer"].dropna() for part in parts))) or [math.nan]


def over_layers(rows):
    """Returns mean, low and high quartile over layers and at, per (label, x); notes and skips points that a layer
    lacks, since a mean over easy layers would be biased.
    """
    rows = placed(rows[np.isfinite(rows["mean"])])
    count = rows["layer"].nunique()
    groups = rows.groupby(["label", "x"], dropna=False, sort=False)
    out = groups["mean"].agg(mean="mean", low=lambda v: v.quantile(0.25),
                             high=lambda v: v.quantile(0.75), layers="size")
    out["at"] = groups["at"].mean()
    out = out.reset_index()
    kt.note_each(out[out["layers"] < count], "{}: the mean over layers is not drawn where a layer is missing")
    return out[out["layers"] == count]


def shown_spread(means, labels):
    """Returns how the quartiles of over_layers are shown: "bars", "bands", or None where they would hide the lines."""
    lines = means[means["x"].notna()].groupby("label").size()
    if len(labels) > kn.MANY or lines.empty:
        return None
    return "bars" if lines.max() <= MAX_BARS else "bands" if len(lines) <= MAX_BANDS else None


def spread_text(figure, otherwise, cells="means over seeds, prompts and heads"):
    """Returns the text on bars, bands and maps: on quartiles if `overview` made the figure."""
    kind, _, spread = figure.get_label().partition(" ")
    if kind != OVERVIEW:
        return otherwise
    above = {"bars": "bars are", "bands": "bands are"}.get(spread)
    of_bars = f"; {above} the quartiles of the layers" if above else ""
    return (f"Lines: means over the layers{of_bars}. Maps: every layer; {cells}.")


def line_styles(parts, highlight=()):
    """Returns {label: style}; a level (no x, no position) has a dash and no marker."""
    rows = kt.pd.concat([part.rows for part in parts])
    places = rows["at"].fillna(rows["x"]) if "at" in rows.columns else rows["x"]
    out = ks.styles(rows["label"], highlight)
    levels = [label for label in out if places[rows["label"] == label].isna().all()]
    for i, label in enumerate(levels):
        out[label].update(linestyle=LEVELS[i % len(LEVELS)], marker=None)
    return {label: out[label] for label in [*(one for one in out if one not in levels), *levels]}


def sweep(parts, x_name, *, highlight=(), height=2.0, columns=MAX_COLUMNS, band=False, name="layer",
          maps=True, stacked=False, falling=False, map_x_name=None, tick="{:g}".format, minima=False,
          dots=False, grey=(), names=True, wide=False, **share):
    """Returns the figure of `parts`: a panel per part and layer, or the overview of many layers.

    name: of what `layer` holds. maps: many layers may become maps. stacked: a row per part, also without
    layers. falling: largest `layer` first. dots: points are not joined. grey: (name, dash) of further
    grey lines for the legend. names: more than names.MANY lines may be labelled at their ends, in place of
    the legend. wide: page width. The rest: of overview.
    """
    styles = line_styles(parts, highlight)
    if dots:
        styles = {label: {**style, "linestyle": "none"} for label, style in styles.items()}
    layers = layers_of(parts)[::-1 if falling else 1]
    rows = len(parts) if stacked or len(layers) > 1 else 1
    panel_count = len(parts) * len(layers)
    named = names and len(styles) > kn.MANY and not stacked
    if named and fit_panels([*range(panel_count)], 1, kn.height_for(len(styles)), 2):
        columns, height = 2, max(height, kn.height_for(len(styles)))
    else:
        named = False
    if panel_count == 1:
        columns, height = 1, max(height, 3.2)
    if maps and (not fit_panels(layers, rows, height, columns) or (stacked and len(layers) > columns)):
        return overview(parts, styles, x_name, map_x_name, tick, minima, highlight)
    keys = [[(i, layer) for layer in layers] for i in range(len(parts))]
    figure, panels = facets(keys if rows > 1 else [sum(keys, [])], height, columns, named or wide, sharex=True, **share)
    own = {(i, layer): placed(parts[i].rows[(parts[i].rows["layer"] == layer) | parts[i].rows["layer"].isna()])
           for i, layer in panels}
    for at, axes in panels.items():
        for label, style in styles.items():
            draw_line(axes, own[at][own[at]["label"] == label], style, band, parts[at[0]].alone)
    for (i, layer), axes in panels.items():  # limits of shared axes are those of all panels
        if not (stacked and i):  # else it stands above the first row
            axes.set_title(panel_title(parts[i], name, layer))
        parts[i].prepare(axes, own[i, layer])
    figure.supxlabel(x_name, fontsize=kf.FONT_SIZE)
    if len({part.name for part in parts}) == 1:
        figure.supylabel(parts[0].name, fontsize=kf.FONT_SIZE)
    else:
        for i, part in enumerate(parts):
            panels[i, layers[0]].set_ylabel(part.name)
        figure.align_ylabels()
    if not named:
        looks = [*styles.items(), *((label, {"color": "0.4", "linestyle": dash}) for label, dash in grey)]
        kf.legend_above(figure, [kf.line_handle(look, label) for label, look in looks])
        return figure
    figure.canvas.draw()
    for at, axes in panels.items():
        kn.name_lines(axes, line_ends(axes, own[at], styles), styles, *ks.emphasis(styles, highlight))
    return figure


def panel_title(part, name, layer):
    """Returns `budget 0.5, layer 3`."""
    if np.isnan(layer):
        layer_text = "native sizes"
    else:
        layer_text = f"{name} {layer:g}" if layer != ALL else "" if part.title else "mean over layers"
    return ", ".join(filter(None, [part.title, layer_text]))


def placed(rows):
    """Returns rows with `at`, their position on the axis of lines."""
    return rows if "at" in rows.columns else rows.assign(at=rows["x"])


def draw_line(axes, points, style, band=False, alone=None):
    """Draws the points of one label: a line with gaps at infinite means, bars or a band; without x a level."""
    points = placed(points).sort_values("at", kind="stable")
    flat = points["at"].isna()
    if "low" in points.columns:
        low, high = points["low"], points["high"]
    else:
        sd = points["sd"].replace([np.inf, -np.inf], np.nan).fillna(0.0)
        low, high = points["mean"] - sd, points["mean"] + sd
    if (points["mean"] >= 0).all():
        low = low.clip(lower=0) if band else low
    for at in points.index[flat]:
        axes.axhline(points["mean"][at], color=style["color"], linestyle=style["linestyle"], linewidth=1.2)
        if high[at] > low[at]:
            axes.axhspan(low[at], high[at], color=style["color"], alpha=0.15, linewidth=0)
    if flat.all():
        return
    points, low, high = points[~flat], low[~flat], high[~flat]
    mean = points["mean"].where(np.isfinite(points["mean"]))
    if mean.isna().all():
        return
    single = points["x"].isna() | np.isclose(points["at"], math.nan if alone is None else alone)
    more = {"markevery": (sum(map(ord, style["color"])) % 5, 5)} if len(points) > LONG else {}
    for some, look in ((~single, {**style, **more}), (single, {**style, "linestyle": "none"})):
        if some.any():
            axes.plot(points["at"][some], mean[some], **{"ms": 3.5, "linewidth": 1.2, **look})
    shown = mean.notna() & np.isfinite(low) & np.isfinite(high)
    if not (high > low)[shown].any():
        return
    if band:
        axes.fill_between(points["at"], low.where(shown), high.where(shown), color=style["color"], alpha=0.15,
                          linewidth=0)
    else:
        axes.errorbar(points["at"][shown], mean[shown], yerr=[(mean - low)[shown], (high - mean)[shown]],
                      fmt="none", ecolor=style["color"], elinewidth=0.9, capsize=3, zorder=3)


def overview(parts, styles, x_name, map_x_name=None, tick="{:g}".format, minima=False, highlight=()):
    """Returns a figure with panels of means over layers side by side, and maps of every layer below.

    styles: {label: style}, in order. `tick`: formats x in maps. minima: marks the smallest cell of every
    layer. highlight: draws maps of these only.
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
        raise kt.CsvError(f"maps of {len(layers_of(parts))} layers: got {len(mapped)} lines, expected at most {limit} "
                          "for one page; choose fewer with --algorithm or --highlight")
    block_height = nrows * height + BLOCK_MARGIN
    figure, (top, *below) = blocks([lines_height, *[block_height] * len(parts)])
    tops = block_panels(top, 1, len(parts))[0]
    layers = layers_of(parts)
    for axes, block, part in zip(tops, below, parts):
        means = over_layers(part.rows)
        spread = shown_spread(means, styles)
        if not spread:
            means = means.assign(low=means["mean"], high=means["mean"])
        means = means.assign(**{name: means[name].where(means["x"].notna(), means["mean"]) for name in ("low", "high")})
        for label, style in styles.items():
            draw_line(axes, means[means["label"] == label], style, spread == "bands", part.alone)
        figure.set_label(f"{OVERVIEW} {spread}")
        part.prepare(axes, means)
        shown = f", {spread}: quartiles of layers" if spread else ""
        above = f"{part.title}\n" if part.title else ""
        axes.set_title(f"{above}mean over {len(layers)} layers{shown}")
        axes.set_ylabel(part.name)
        axes.set_xlabel(x_name)
        rows = part.rows[part.rows["x"].notna()]
        columns = sorted(rows["x"].unique())
        maps = {label: cell_matrix(rows[rows["label"] == label], "x", layers, columns) for label in mapped}
        grid = block_panels(block, nrows, ncols, sharex=True, sharey=True)
        draw_maps(block, grid, maps, layers, columns, colour_scale(rows["mean"], part.log), part.name, tick)
        if minima:
            mark_minima(grid, maps)
        under = f"{part.title}: " if part.title else ""
        block.supxlabel(under + (map_x_name or x_name), fontsize=kf.FONT_SIZE)
        block.supylabel("layer", fontsize=kf.FONT_SIZE)
    if not named:
        kf.legend_above(figure, [kf.line_handle(style, label) for label, style in styles.items()])
        return figure
    figure.canvas.draw()
    kn.name_lines(tops[0], line_ends(tops[0], means, styles), styles, bold, grey)
    return figure


def line_ends(axes, means, styles):
    """Returns the ends of lines and levels of draw_line, for names.name_lines."""
    lines = {label: (part["at"], part["mean"]) for label in styles
             if len(part := means[(means["label"] == label) & np.isfinite(means["at"])])}
    levels = {label: (None, part["mean"].iloc[0]) for label in styles
              if label not in lines and len(part := means[means["label"] == label])}
    return {**kn.ends_of(axes, lines), **levels}


def mark_minima(grid, maps):
    """Marks the smallest cell of every row."""
    for axes, cells in zip(grid.flat, maps.values()):
        rows = [i for i, row in enumerate(cells) if np.isfinite(row).any()]
        axes.plot([np.nanargmin(cells[i]) for i in rows], rows, linestyle="none", marker="o",
                  ms=2.2, color="white", markeredgecolor="black", markeredgewidth=0.3)
