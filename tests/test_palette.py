"""Colours and markers of methods (kvbench/plot/palette.py): every method has its own, and no two are
alike for the eye."""

import itertools
import subprocess
import unittest

import numpy as np
from cielab import cielab, distances
from script_case import KVBENCH

from kvbench.plot import style as ks
from kvbench.plot.palette import BESIDE_RETRIEVAL, FAMILIES, KNOWN, STREAM

APART = 12  # CIELAB: any two methods
MARKER_APART = 40  # two methods of one marker
LIGHTEST = 80  # L* of a line on white paper


def listed():
    """Names of `kvbench list`, a form for streams as its method."""
    done = subprocess.run([KVBENCH, "list"], capture_output=True, text=True, check=True)
    rows = done.stdout.partition("\n\n")[0].splitlines()[1:]
    return {row.split()[0].removesuffix(STREAM) for row in rows}


def meet(one, two):
    """Whether two methods are in one picture."""
    retrieval = [name in FAMILIES["retrieval"] for name in (one, two)]
    return all(retrieval) or not any(retrieval) or one in BESIDE_RETRIEVAL or two in BESIDE_RETRIEVAL


def too_near(looks):
    """[(method, method, distance, least distance)] of {method: (colour, marker)}."""
    names = list(looks)
    apart = distances(*2 * [[looks[name][0] for name in names]])
    out = []
    for (i, one), (j, two) in itertools.combinations(enumerate(names), 2):
        least = MARKER_APART if looks[one][1] == looks[two][1] else APART
        if meet(one, two) and not apart[i, j] >= least:
            out.append((one, two, round(float(apart[i, j]), 1), least))
    return out


def free_looks():
    """Up to three looks that a further method can have, the colours farthest from all others'."""
    steps = [f"{part:02X}" for part in range(0, 256, 15)]
    colors = ["#" + "".join(rgb) for rgb in itertools.product(steps, repeat=3)]
    light = cielab(colors)[:, 0, 0]
    colors = [color for color, value in zip(colors, light) if 15 <= value <= LIGHTEST]
    apart = distances(colors, [color for color, _ in KNOWN.values()])
    markers = np.array([marker for _, marker in KNOWN.values()])
    out = []
    for at in np.argsort(-apart.min(axis=1)):
        for marker in ks.MARKERS:
            if apart[at].min() >= APART and (apart[at][markers == marker] >= MARKER_APART).all():
                out.append((colors[at], marker))
                break
        if len(out) == 3:
            break
    return out


class LooksTest(unittest.TestCase):
    @unittest.skipUnless(KVBENCH, "KVBENCH names no program")
    def test_every_method_has_a_look_and_every_look_a_method(self):
        names = listed()
        self.assertGreater(len(names), 30)
        missing = sorted(names - set(KNOWN))
        if missing:
            self.fail(f"no look in kvbench/plot/palette.py: {', '.join(missing)}; free: {free_looks()}")
        self.assertEqual(sorted(set(KNOWN) - names), [])

    def test_no_two_looks_are_alike(self):
        self.assertEqual(too_near(KNOWN), [])
        self.assertLess(cielab([color for color, _ in KNOWN.values()])[:, 0, 0].max(), LIGHTEST)
        self.assertLessEqual({marker for _, marker in KNOWN.values()}, set(ks.MARKERS))
        self.assertEqual(sum(map(len, FAMILIES.values())), len(KNOWN))

    def test_palette_that_are_alike_are_found(self):
        color = KNOWN["h2o"][0]
        near = {"h2o": KNOWN["h2o"], "mine": (color[:-1] + "0", "o")}
        self.assertEqual([(a, b) for a, b, *_ in too_near(near)], [("h2o", "mine")])
        # Red and green of one lightness: apart for common vision only.
        self.assertGreater(np.linalg.norm(np.diff(cielab(["#A06000", "#5A7A00"])[:, 0], axis=0)), 40)
        self.assertEqual([pair[:2] for pair in too_near({"a": ("#A06000", "o"), "b": ("#5A7A00", "s")})],
                         [("a", "b")])
        # One marker asks for more.
        self.assertEqual(too_near({"a": ("#0042A8", "o"), "b": ("#3382FB", "s")}), [])
        self.assertEqual(len(too_near({"a": ("#0042A8", "o"), "b": ("#3382FB", "o")})), 1)

    def test_cielab(self):
        # Of sRGB's primaries and white, as textbooks have them.
        for color, expected in (("#FFFFFF", (100, 0, 0)), ("#000000", (0, 0, 0)),
                                ("#FF0000", (53.24, 80.09, 67.20)), ("#00FF00", (87.73, -86.18, 83.18)),
                                ("#0000FF", (32.30, 79.19, -107.86))):
            np.testing.assert_allclose(cielab([color])[0, 0], expected, atol=0.02)
        # Greys are the same for all visions.
        grey = cielab(["#808080"])[0]
        np.testing.assert_allclose(grey, grey[[0, 0, 0]], atol=0.01)


if __name__ == "__main__":
    unittest.main()
