"""kvbench-study correlate: its pictures fit a page, and are the same again."""

import random
import sys
import unittest
from unittest import mock

from correlate_tables import MANY, SCIPY, UP, Tables, grid
from matplotlib.text import Text

from kvbench.plot import figures as kf


@unittest.skipUnless(SCIPY, f"{sys.executable} has no scipy")
class PicturesTest(Tables):
    def test_few_and_many_methods(self):
        dice = random.Random(5)
        # With and without changes of the loss below zero.
        for methods, change in ((3, 0), (12, 0.3), (35, 0), (35, 0.3)):
            names = {f"method-of-some-length-{i}"[:8 + i % 14] + str(i): 0.01 * 1.1**i
                     for i in range(methods)}
            figures = {key: value * dice.uniform(0.7, 1.4) for key, value in
                       grid(names, ("p0", "p1", "p2", "p3"), (0.25, 0.125, 0.0625)).items()}
            rows, layers = self.write_rows(figures), self.write_layers(figures)
            scores = self.write_scores(figures, loss_change=lambda row, c=change:
                                       row["kl"] - c * dice.random())
            with self.subTest(methods=methods, change=change):
                found = {}
                with mock.patch.object(kf, "save_figure", lambda figure, stem, found=found:
                                       found.setdefault(stem.rpartition(".")[2], figure)):
                    self.correlate(rows, "--layer-table", layers, "--score-table", scores, "--figures",
                                   self.path("f"))
                self.assertEqual(set(found), {"scatter", "correlations"})
                for figure in found.values():
                    figure.canvas.draw()
                    self.on_one_page(figure)
                said = [t.get_text() for t in found["scatter"].findobj(Text)]
                for name in names:  # Named once in each of four panels.
                    self.assertEqual(said.count(name), 4)

    def test_an_exact_cache_is_not_drawn(self):
        """Its rounding would take most of the axis."""
        figures = grid({**UP, "exact": 1e-15}, MANY)
        figures = {key: 0.0 if key[1] == "exact" else value for key, value in figures.items()}
        rows = self.write_rows({key: value or 1e-15 for key, value in figures.items()})
        found = {}
        with mock.patch.object(kf, "save_figure", lambda figure, stem:
                               found.setdefault(stem.rpartition(".")[2], figure)):
            self.correlate(rows, "--score-table", self.write_scores(figures), "--figures",
                           self.path("f"))
        panels = [axes for axes in found["scatter"].axes if axes.get_visible()]
        for axes in panels:
            self.assertGreater(axes.get_xlim()[0], 1e-3)
            said = [t.get_text() for t in axes.texts]
            self.assertEqual(sorted(said), ["a", "b", "c", "d"])
        self.assertEqual(len(panels), 4)

    def test_files_are_the_same_again(self):
        figures = grid(UP, MANY)
        rows, scores = self.write_rows(figures), self.write_scores(figures)
        contents = []
        for stem in ("one", "two"):
            self.correlate(rows, "--score-table", scores, "--figures", self.path(stem))
            contents.append([open(self.path(f"{stem}.{name}.{end}"), "rb").read()
                             for name in ("scatter", "correlations") for end in ("png", "pdf")])
        self.assertEqual(contents[0], contents[1])


if __name__ == "__main__":
    unittest.main()
