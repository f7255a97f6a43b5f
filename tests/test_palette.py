"""Ten colours and markers (kvbench/plot/palette.py), and the looks of a picture's lines (plot/style.py)."""

import itertools
import unittest

import script_case  # noqa: F401  (finds kvbench)
from cielab import cielab, distances

from kvbench.plot import style as ks
from kvbench.plot.palette import COLORS, MARKERS, PLACES, place
from kvbench.tables import CsvError

APART = 25  # CIELAB: ten times what is just seen, since lines are thin
LIGHTEST = 80  # L* of a line on white paper


class PaletteTest(unittest.TestCase):
    def test_ten_are_told_apart_in_every_vision(self):
        apart = distances(COLORS, COLORS)
        near = [(COLORS[i], COLORS[j], round(float(apart[i, j]), 1))
                for i, j in itertools.combinations(range(len(COLORS)), 2) if not apart[i, j] >= APART]
        self.assertEqual((len(COLORS), near), (10, []))
        self.assertLess(cielab(COLORS)[:, 0, 0].max(), LIGHTEST)
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
        with self.assertRaisesRegex(CsvError, "t.csv: --highlight: got `nope`, expected some of h2o, uniform"):
            ks.check_highlight(["h2o", "uniform"], ["nope"], "t.csv")


if __name__ == "__main__":
    unittest.main()
