"""Ten colours and markers. Imports nothing heavy, since a page without matplotlib may read it.

Any two colours are at least 25 apart in CIELAB for common vision, protanopia and deuteranopia, and
no marker comes twice (tests/test_plot_style.py).
"""

import zlib

COLORS = ("#1166CC", "#DD3300", "#009999", "#FF99FF", "#FFAA00", "#660055", "#AACC77", "#995544", "#2200AA", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
DASHES = ("-", "-.", ":", "--")  # of the first ten lines of a picture, the next ten, ...
# Where the methods of most pictures are; any other name has a place by its hash.
PLACES = {"h2o": 0, "balancekv": 1, "kvreviver": 2, "snapkv": 3, "bumblebee": 4, "clustergen": 5,
          "streamingllm": 6, "uniform": 7, "oracle": 8, "exact": 9}
QUANTITIES = {"keys": 0, "values": 1, "queries": 2}


def place(name):
    """Returns the preferred place of a method in COLORS and MARKERS. A+B and A@Q begin with A's."""
    first = name.partition("+")[0].partition("@")[0].removesuffix("-stream")
    return (PLACES | QUANTITIES).get(first, zlib.crc32(first.encode()) % len(COLORS))
