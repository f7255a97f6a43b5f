"""SVG of a method's curve among all others."""

import html
import math

from kvbench.plot.palette import COLORS, place

WIDTH, HEIGHT = 480, 320  # readable on a phone
LEFT, RIGHT, TOP, BOTTOM = 62, 146, 12, 44
GREY, MARK, INK = "#c4c4c4", "#555555", "#1a1a1a"
BASELINES = ("uniform", "snapkv", "topk union=head", "static A=snapkv")  # labelled beside the method


def ticks(low, high):
    """Returns powers of ten times 1, 2 and 5 within [low, high]."""
    out = []
    for exponent in range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1):
        out += [factor * 10.0**exponent for factor in (1, 2, 5)]
    return [x for x in out if low <= x <= high]


class Scale:
    """Logarithmic scale with margins."""

    def __init__(self, values, begin, end):
        self.low, self.high = min(values) / 1.15, max(values) * 1.15
        self.begin, self.end = begin, end  # in pixels

    def __call__(self, x):
        part = math.log(x / self.low) / math.log(self.high / self.low)
        return self.begin + part * (self.end - self.begin)

    def ticks(self):
        return ticks(self.low, self.high)


def colour_of(method):
    """Returns its colour in most figures; A+B and A@Q have A's."""
    return COLORS[place(method.split(" ")[0])]


def svg(lines, own, budgets, what="held"):
    """Returns the SVG, or None if `own` has no point. lines: {name: [(share of bytes, rel_error)]},
    all positive. what: is done with these bytes.
    """
    if not lines.get(own):
        return None
    points = [point for line in lines.values() for point in line]
    x = Scale([p[0] for p in points], LEFT, WIDTH - RIGHT)
    y = Scale([p[1] for p in points], HEIGHT - BOTTOM, TOP)
    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
           f'aria-label="relative error of {html.escape(own)} and of all others against memory">']
    for value in (b for b in budgets if x.low <= b <= x.high):
        out.append(f'<line class="grid" x1="{x(value):.1f}" x2="{x(value):.1f}" y1="{TOP}" '
                   f'y2="{HEIGHT - BOTTOM}"/><text x="{x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" '
                   f'text-anchor="middle">{value:g}</text>')
    for value in y.ticks():
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" '
                   f'y2="{y(value):.1f}"/><text x="{LEFT - 6}" y="{y(value) + 4:.1f}" '
                   f'text-anchor="end">{value:g}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">share of '
               f"the middle's bytes {what}</text>")
    out.append(f'<text transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
               'text-anchor="middle">relative error</text>')
    named = []
    order = [name for name in lines if name != own and name not in BASELINES]
    order += [name for name in BASELINES if name != own and lines.get(name)] + [own]
    for name in order:
        line = sorted(lines[name])
        colour = colour_of(own) if name == own else MARK if name in BASELINES else GREY
        dash = ' stroke-dasharray="5 3"' if name in BASELINES and name != own else ""
        width = 2.5 if name == own else 1.2
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in line)
        out.append(f'<polyline fill="none" stroke="{colour}" stroke-width="{width}"{dash} '
                   f'points="{path}"><title>{html.escape(name)}</title></polyline>')
        for a, b in line if name == own or len(line) == 1 else ():
            out.append(f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="{4 if name == own else 2}" '
                       f'fill="{colour}"><title>{html.escape(name)}: {a:.3g}, {b:.3g}</title></circle>')
        if name == own or name in BASELINES:
            named.append((y(line[-1][1]), x(line[-1][0]), name))
    last = -math.inf
    for at, right, name in sorted(named):
        at = max(at, last + 14)
        last = at
        out.append(f'<text x="{right + 8:.1f}" y="{at + 4:.1f}" fill="{INK if name == own else MARK}" '
                   f'font-weight="{"bold" if name == own else "normal"}">'
                   f'{html.escape(name.split(" ")[0] if name == own else name)}</text>')
    return "\n".join([*out, "</svg>"])
