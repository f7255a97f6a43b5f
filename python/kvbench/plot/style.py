"""Looks of the lines of a picture: at most ten have a colour and a marker each (palette.py)."""

from kvbench.plot.palette import COLORS, DASHES, MARKERS, PLACES, place
from kvbench.tables import CsvError

# Methods that see the evaluated queries are never solid.
DASH = {"oracle": "--", "oracle-matching": ":"}
GREY = "0.82"  # of lines that are not highlighted


def method_of(label):
    return label.split(" ", 1)[0]


def line_style(i):
    """Returns colour, marker and dash of the i-th look; after ten the dash differs, with hollow markers."""
    look = {"color": COLORS[i % len(COLORS)], "marker": MARKERS[i % len(MARKERS)],
            "linestyle": DASHES[i // len(COLORS) % len(DASHES)]}
    return {**look, "markerfacecolor": "white"} if i // len(COLORS) % 2 else look


def styles(labels, highlight=()):
    """Returns {label: colour, marker, linestyle, zorder} for one picture, in the order of `labels`.

    A label has its method's place (palette.place), or if that is taken the next free one, so that a
    method has the same colour in most pictures and ten labels never share one. `highlight`: labels or
    methods; others are grey and in the background.
    """
    labels = list(dict.fromkeys(labels))
    taken, out = set(), {}
    # Not in the order of rows: methods with a place first, then by name.
    for label in sorted(labels, key=lambda one: (method_of(one) not in PLACES, method_of(one), one)):
        cycle = len(taken) // len(COLORS) * len(COLORS)
        at = place(method_of(label))
        while cycle + at in taken:
            at = (at + 1) % len(COLORS)
        taken.add(cycle + at)
        out[label] = {**line_style(cycle + at), "zorder": 3}
        if method_of(label) in DASH:
            out[label]["linestyle"] = DASH[method_of(label)]
        if highlight:
            grey = {} if is_highlighted(label, highlight) else {"color": GREY}
            out[label].update(zorder=2 if grey else 4, **grey)
    return {label: out[label] for label in labels}


def is_highlighted(label, highlight):
    return label in highlight or method_of(label) in highlight


def emphasis(labels, highlight):
    """Returns (labels in the foreground, labels in the background)."""
    bold = {label for label in labels if is_highlighted(label, highlight)}
    return (bold, set(labels) - bold) if highlight else (set(), set())


def check_highlight(labels, highlight, path):
    """Raises CsvError for a name of --highlight that the picture lacks."""
    for name in highlight:
        if not any(is_highlighted(label, [name]) for label in labels):
            raise CsvError(f"{path}: --highlight: got `{name}`, expected some of " + ", ".join(dict.fromkeys(labels)))
