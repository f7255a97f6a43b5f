"""Look of every method, the same in all figures: colour and marker (palette.py), and dash."""

import zlib

from kvbench.plot.figures import DASHES, PALETTE
from kvbench.plot.palette import KNOWN, STREAM
from kvbench.tables import CsvError

# Methods that see the evaluated queries are never solid.
DASH = {"oracle": "--", "oracle-matching": ":"}
MARKERS = ["o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "d", "p"]
UNKNOWN_DASHES = DASHES[1:]  # known methods are solid
DARK = 0x50  # maximum of all channels of a dark colour, whose first variant is lighter
GREY = "0.82"  # of lines that are not highlighted
SHADES = (0.0, -0.35, 0.35, -0.6, 0.55)  # of a method's variants: towards black (below 0) or white


def shade(color, amount):
    """Mixes `color` (#RRGGBB) with black (amount below 0) or white (above)."""
    aim = 255 if amount > 0 else 0
    parts = [int(color[i:i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(p + (aim - p) * abs(amount)):02X}" for p in parts)


def _place(name):
    """Returns a number that depends on the name only."""
    return zlib.crc32(name.encode())


def method_style(name, step=0):
    """Returns colour, marker and dash of a method; `step`: later choices, if one is taken.

    A+B has A's colour and B's marker, hollow (grey inside where hollow ones are taken). A@Q has A's
    colour and dash and Q's marker, half filled. An unknown name gets its look from its hash.
    """
    first, plus, second = name.partition("+")
    if not plus and "@" in name:
        return _stored_style(*name.split("@", 1), step)
    base = first.removesuffix(STREAM)
    if not plus and base in KNOWN and step == 0:
        color, marker = KNOWN[base]
        dash = "--" if base != first else DASH.get(base, "-")
        return {"color": color, "marker": marker, "linestyle": dash}
    place = _place(name) + step
    if plus:
        place = MARKERS.index(method_style(second)["marker"]) + step
        return {"color": method_style(first)["color"], "marker": MARKERS[place % len(MARKERS)],
                "linestyle": ("-.", ":", "--", "-")[step // len(MARKERS) % 4],
                "markerfacecolor": ("white", "0.7")[step // len(MARKERS) // 4 % 2]}
    return {"color": PALETTE[place % len(PALETTE)],
            "marker": MARKERS[place // len(PALETTE) % len(MARKERS)],
            "linestyle": UNKNOWN_DASHES[place // len(PALETTE) // len(MARKERS)
                                        % len(UNKNOWN_DASHES)]}


def _stored_style(method, quantizer, step):
    place = MARKERS.index(method_style(quantizer)["marker"]) + step
    dash = (DASH.get(method, "-"), "-.", ":", "--")[step // len(MARKERS) % 4]
    return {"color": method_style(method)["color"], "marker": MARKERS[place % len(MARKERS)],
            "linestyle": dash, "fillstyle": "bottom"}


def _variant(look, i):
    """Returns the look of a method's i-th variant: same hue and marker, another lightness, dash and
    face.
    """
    if i == 0:
        return look
    dash = DASHES[(DASHES.index(look["linestyle"]) + i) % len(DASHES)]
    color, amount = look["color"], SHADES[i % len(SHADES)]
    if max(int(color[at:at + 2], 16) for at in (1, 3, 5)) < DARK:
        amount = -amount
    out = {**look, "color": shade(color, amount), "linestyle": dash}
    if i % 2:
        out["markerfacecolor"] = "white"
    return out


def method_of(label):
    return label.split(" ", 1)[0]


def styles(labels, highlight=()):
    """Returns {label: colour, marker, linestyle, zorder} for one picture, in the order of `labels`.

    A method's first label looks the same in every picture. Unknown methods take the next free look.
    `highlight`: labels or methods; others are grey and in the background.
    """
    labels = list(dict.fromkeys(labels))
    looks, taken = {}, set()
    # Known methods first, then by name, so that looks do not depend on row order.
    for name in sorted({method_of(label) for label in labels}, key=lambda n: (n not in KNOWN, n)):
        step = 0
        while (look := method_style(name, step)) and tuple(look.values()) in taken and step < 400:
            step += 1
        taken.add(tuple(look.values()))
        looks[name] = look
    out, count = {}, {}
    for label in labels:
        name = method_of(label)
        out[label] = {**_variant(looks[name], count.get(name, 0)), "zorder": 3}
        count[name] = count.get(name, 0) + 1
        if highlight:
            if is_highlighted(label, highlight):
                out[label]["zorder"] = 4
            else:
                out[label].update(color=GREY, zorder=2)
    return out


def is_highlighted(label, highlight):
    return label in highlight or method_of(label) in highlight


def emphasis(labels, highlight):
    """Returns (labels in the foreground, labels in the background)."""
    if not highlight:
        return set(), set()
    bold = {label for label in labels if is_highlighted(label, highlight)}
    return bold, set(labels) - bold


def check_highlight(labels, highlight, path):
    """Raises CsvError for a name of --highlight that the picture lacks."""
    for name in highlight:
        if not any(is_highlighted(label, [name]) for label in labels):
            raise CsvError(f"{path}: --highlight: got `{name}`, expected some of "
                           + ", ".join(dict.fromkeys(labels)))
