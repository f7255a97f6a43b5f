"""Ten colours and markers (kvbench/plot/palette.py), and the looks of a picture's lines (plot/style.py)."""

import itertools
import unittest

import numpy as np
import script_case  # noqa: F401  (finds kvbench)

from kvbench.plot import style as ks
from kvbench.plot.palette import COLORS, MARKERS, PLACES, place

APART = 25  # CIELAB: ten times what is just seen, since lines are thin
LIGHTEST = 80  # L* of a line on white paper
# Of linear RGB, as Machado, Oliveira and Fernandes simulate them at severity 1: 10.1109/TVCG.2009.113.
VISIONS = {
    "common": np.eye(3),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
}
XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                [0.0193339, 0.1191920, 0.9503041]])


def cielab(colors):
    """[number, vision, 3]: L*, a*, b* of colours #RRGGBB, visions in the order of VISIONS."""
    rgb = np.array([[int(color[i:i + 2], 16) for i in (1, 3, 5)] for color in colors]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.stack([np.clip(linear @ matrix.T, 0, 1) for matrix in VISIONS.values()], axis=1)
    xyz = seen @ XYZ.T / XYZ.sum(axis=1)
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    x, y, z = np.moveaxis(f, -1, 0)
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


class PaletteTest(unittest.TestCase):
    def test_ten_are_told_apart_in_every_vision(self):
        places = cielab(COLORS)
        apart = np.linalg.norm(places[:, None] - places[None], axis=-1).min(axis=-1)
        near = [(COLORS[i], COLORS[j], round(float(apart[i, j]), 1))
                for i, j in itertools.combinations(range(len(COLORS)), 2) if not apart[i, j] >= APART]
        self.assertEqual((len(COLORS), near), (10, []))
        self.assertLess(places[:, 0, 0].max(), LIGHTEST)
        self.assertEqual(len(set(MARKERS)), len(COLORS))


class StylesTest(unittest.TestCase):
    def look(self, style):
        return style["color"], style["marker"]

    def test_ten_lines_never_share_a_look(self):
        for labels in ([*PLACES], [f"m{i}" for i in range(10)], [f"h2o T={i}" for i in range(10)],
                       ["h2o", "h2o+balancekv", "h2o@quant-kivi", "oracle", "mine", "yours", "tova"]):
            looks = ks.styles(labels)
            self.assertEqual(list(looks), labels)
            self.assertEqual(len({look["color"] for look in looks.values()}), len(labels))
            self.assertEqual(len({look["marker"] for look in looks.values()}), len(labels))

    def test_more_lines_differ_in_dash(self):
        looks = ks.styles([f"m{i}" for i in range(40)])
        self.assertEqual(len({(*self.look(look), look["linestyle"]) for look in looks.values()}), 40)

    def test_a_method_has_its_place_in_every_picture(self):
        self.assertEqual(len(set(PLACES.values())), len(PLACES))
        for name, at in PLACES.items():
            for others in ([], ["mine", "yours", "a b=1"]):
                self.assertEqual(self.look(ks.styles([*others, name])[name]), (COLORS[at], MARKERS[at]))
        self.assertEqual(place("h2o+balancekv"), PLACES["h2o"])
        self.assertEqual(place("bumblebee-stream"), PLACES["bumblebee"])
        # By a rule of the name alone; not by the order of rows.
        names = ["mine", "yours", "theirs", "ours", "mine T=1"]
        self.assertEqual(ks.styles(names), {name: ks.styles(names[::-1])[name] for name in names})

    def test_what_sees_the_queries_is_never_solid(self):
        looks = ks.styles(["oracle", "oracle-matching", "h2o"])
        self.assertEqual([look["linestyle"] for look in looks.values()], ["--", ":", "-"])

    def test_highlight(self):
        looks = ks.styles(["h2o", "snapkv kernel=5", "exact"], ["snapkv"])
        self.assertEqual([look["color"] for look in looks.values()],
                         [ks.GREY, ks.styles(["snapkv"])["snapkv"]["color"], ks.GREY])
        self.assertLess(looks["h2o"]["zorder"], looks["snapkv kernel=5"]["zorder"])
