#!/usr/bin/env python3
"""Draws the includes between modules: docs/architecture.svg.

    scripts/draw_modules.py                  # docs/architecture.svg
    scripts/draw_modules.py --picture FILE   # another file: .svg, .png or .pdf

The modules are apps/ and the folders of lib/. An arrow points to an included module.
Ranks are those of scripts/check_includes.sh. Needs matplotlib.
"""

import argparse
import collections
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PICTURE = os.path.join("docs", "architecture.svg")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([a-z0-9_]+)/[^"]+"', re.M)
RANK = re.compile(r'rank\["(\w+)"\]')
SOURCES = (".hpp", ".h", ".cpp", ".cu", ".cuh", ".inc", ".in")

# The text of a module's box, and its steps in the data flow (docs/extending.md).
TEXT = {
    "apps": ("command line, exit codes", ""),
    "replay": ("plan, jobs, threads, the clock: connects the other modules", ""),
    "trace": ("HDF5: traces,\ncaches, points", "1"),
    "report": ("CSV tables,\nmanifest", "6"),
    "metrics": ("errors,\nmemory", "5"),
    "cluster": ("clusters of keys\nand values", ""),
    "algorithms": ("methods and\ntheir contract", "3"),
    "gpu": ("Backend: a\nCUDA device", "2 4"),
    "attention": ("truth, estimator, one file per operation;\nBackend and the CPU's", "2 4"),
    "streams": ("eviction, retention,\nsketch: steps", "3"),
    "core": ("types, errors, random numbers, threads", ""),
}


def ranks(root):
    """{module: rank}; 0 includes all others. `rank["a"] = rank["b"] = 2` in check_includes.sh."""
    out = {}
    with open(os.path.join(root, "scripts", "check_includes.sh"), encoding="utf-8") as file:
        for line in file:
            names = RANK.findall(line.split("=")[0]) and RANK.findall(line)
            value = re.search(r"= *(\d+) *$", line)
            if names and value:
                out.update(dict.fromkeys(names, int(value[1])))
    return out


def graph(root):
    """{(module, module)}: the first includes a header of the second."""
    rank = ranks(root)
    out = set()
    modules = [("apps", "apps")] + [(module, os.path.join("lib", module)) for module in rank]
    for module, top in modules:
        for folder, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                if not name.endswith(SOURCES):
                    continue
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    for target in INCLUDE.findall(file.read()):
                        if target in rank and target != module:
                            out.add((module, target))
    return out


LANE, WIDTH, GAP, HEIGHT, STEP = 0.42, 2.15, 0.62, 0.86, 1.62


def place(edges, rank):
    """({module: (left, right, y)}, {edge: x}): boxes by rank, and a lane of its own for every arrow.

    The widest rank stands in columns. A module alone on its rank spans the modules that include it, or
    above the columns all of them. Two arrows never share a lane where they pass one another.
    """
    rows = collections.defaultdict(list)
    for module, at in rank.items():
        rows[at].append(module)
    widest = max(rows, key=lambda at: len(rows[at]))
    bottom = max(rows)

    def weight(module):  # modules with more dependencies go to the right
        targets = [rank[target] for source, target in edges if source == module]
        return (sum(bottom - at for at in targets), module)

    boxes = {}
    for column, module in enumerate(sorted(rows[widest], key=weight)):
        left = 1.2 + column * (WIDTH + GAP)
        boxes[module] = (left, left + WIDTH, -STEP * widest)
    right_end = max(right for _, right, _ in boxes.values())
    for at in sorted(rows):
        if at == widest:
            continue
        for number, module in enumerate(sorted(rows[at])):
            users = [boxes[a] for a, b in edges if b == module and a in boxes and rank[a] >= widest]
            if at < widest:
                span = (0.6 * at, right_end + 0.6)
            elif at == bottom:
                span = (0.0, right_end + 0.6)
            elif users:
                span = (min(u[0] for u in users), max(u[1] for u in users))
            else:
                span = (right_end - WIDTH, right_end)
            share = (span[1] - span[0]) / len(rows[at])
            boxes[module] = (span[0] + number * share, span[0] + (number + 1) * share, -STEP * at)

    def common(edge):
        a, b = boxes[edge[0]], boxes[edge[1]]
        return max(a[0], b[0]) + 0.15, min(a[1], b[1]) - 0.15

    lanes = {}
    for edge in sorted(edges, key=lambda e: (common(e)[1] - common(e)[0], e)):
        low, high = common(edge)
        above, below = rank[edge[0]], rank[edge[1]]

        def behind(x, above=above, below=below):  # modules that a lane would pass behind
            return sum(above < rank[r] < below and b[0] - 0.1 < x < b[1] + 0.1
                       for r, b in boxes.items())

        def free(x, above=above, below=below):
            return all(abs(x - other) >= LANE - 1e-9 or below <= rank[e[0]] or rank[e[1]] <= above
                       for e, other in lanes.items())

        middle = (low + high) / 2
        steps = [low + 0.06 * i for i in range(int((high - low) / 0.06) + 1)]
        choices = [x for x in steps if free(x)]
        if not choices:
            raise SystemExit(f"draw_modules: no lane for an arrow {edge[0]} -> {edge[1]}")
        lanes[edge] = min(choices, key=lambda x: (behind(x), round(abs(x - middle), 6), x))
    return boxes, lanes


def draw(edges, rank, path):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

    matplotlib.rcParams.update({"svg.hashsalt": "kvbench", "font.family": "DejaVu Sans"})
    boxes, lanes = place(edges, rank)
    right = max(box[1] for box in boxes.values())
    low = min(box[2] for box in boxes.values())
    figure = pyplot.figure(figsize=((right + 0.4) * 0.72, (1.9 - low) * 0.72))
    axes = figure.add_axes([0, 0, 1, 1])
    axes.set(xlim=(-0.2, right + 0.2), ylim=(low - 1.15, 0.75))
    axes.axis("off")
    colours = ["#6b6b6b", "#1f5fa8", "#a4501c", "#2f7d3b", "#7a3f98", "#333333"]
    for (source, target), x in sorted(lanes.items()):
        colour = colours[rank[source] % len(colours)]
        top, bottom = boxes[source][2] - HEIGHT / 2, boxes[target][2] + HEIGHT / 2
        axes.add_patch(FancyArrowPatch((x, top), (x, bottom), arrowstyle="-|>", mutation_scale=11,
                                       shrinkA=0, shrinkB=1, lw=1.2, color=colour, zorder=1))
    for module, (left, end, y) in sorted(boxes.items()):
        text, numbers = TEXT.get(module, ("", ""))
        axes.add_patch(FancyBboxPatch((left, y - HEIGHT / 2), end - left, HEIGHT, zorder=3,
                                      boxstyle="round,pad=0,rounding_size=0.08", fc="#f4f1ea",
                                      ec=colours[rank[module] % len(colours)], lw=1.4))
        middle = (left + end) / 2
        axes.text(middle, y + HEIGHT / 2 - 0.2, module, ha="center", va="center", fontsize=11,
                  fontweight="bold", zorder=4)
        axes.text(middle, y - 0.16, text, ha="center", va="center", fontsize=7.5, zorder=4)
        for i, number in enumerate(numbers.split()):
            axes.text(left + 0.2 + 0.3 * i, y + HEIGHT / 2 - 0.2, number, ha="center", va="center",
                      fontsize=7.5, color="white", zorder=5,
                      bbox={"boxstyle": "circle,pad=0.2", "fc": "#a4501c", "ec": "none"})
    axes.text(0, low - 0.8, "Arrows point to included modules. A line behind a box does not touch it.  "
              "Circles: steps of the data flow.", ha="left", va="center", fontsize=8.5)
    is_svg = path.endswith(".svg")
    figure.savefig(path, dpi=110, metadata={"Date": None} if is_svg else None)
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--picture", help="file to write [docs/architecture.svg]")
    parser.add_argument("--root", default=ROOT, help="source tree [this one]")
    options = parser.parse_args()
    draw(graph(options.root), ranks(options.root),
         options.picture or os.path.join(options.root, PICTURE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
