"""What tests of figures of many lines or layers share: is a figure legible, and on one page?"""

import itertools
from unittest import mock

from matplotlib.axes import Axes
from matplotlib.text import Text
from plot_tables import FigureTest

from kvbench.plot import figures as kf

SLACK = 0.02  # inches: the outermost ink is not the outermost text


def shown_texts(figure):
    """Texts that are drawn and not empty: ticks outside an axis' view have labels, too."""
    hidden = set()
    for axes in figure.findobj(Axes):
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            slack = 1e-9 * (high - low)
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                inside = low - slack <= tick.get_loc() <= high + slack
                hidden.add(tick.label2)
                if not (inside and tick.label1.get_visible() and axes.get_visible()):
                    hidden.add(tick.label1)
        if not axes.get_visible():
            hidden.update(axes.findobj(Text))
    return [t for t in figure.findobj(Text)
            if t not in hidden and t.get_visible() and t.get_text().strip()]


class LegibleTest(FigureTest):
    """Runs scripts and looks at their figures."""

    def picture(self, module, *arguments):
        """The figure that the script would write, laid out, and its size in inches as written."""
        figures = []
        with mock.patch.object(kf, "save_figure", lambda figure, stem: figures.append(figure)):
            code, said = self.run_script(module, *arguments, "-o", self.path("picture"))
        self.assertEqual(code, 0, said)
        figures[0].canvas.draw()
        box = figures[0].get_tightbbox(figures[0].canvas.get_renderer())
        return figures[0], (box.width, box.height)

    def check(self, figure, size):
        """One page, no text over another, legends beside the panels or within one."""
        self.assertLess(size[0], kf.PAGE_WIDTH + SLACK)
        self.assertLess(size[1], kf.PAGE_HEIGHT + SLACK)
        texts = shown_texts(figure)
        self.assertGreater(len(texts), 5)
        boxes = [(t.get_text(), t.get_window_extent()) for t in texts]
        for (name, one), (other_name, other) in itertools.combinations(boxes, 2):
            # Lines of small type may share the room of descenders.
            wide = min(one.x1, other.x1) - max(one.x0, other.x0)
            high = min(one.y1, other.y1) - max(one.y0, other.y0)
            least = min(one.height, other.height, one.width, other.width)
            if wide > 0 and high > 0.2 * least:
                self.fail(f"`{name}` lies over `{other_name}`: {one}, {other}")
        for legend in figure.legends:
            box = legend.get_window_extent()
            self.assertLessEqual(box.width, figure.bbox.width)
            for axes in figure.axes:
                if axes.get_visible():
                    self.assertFalse(box.overlaps(axes.get_window_extent()))
        for axes in figure.axes:
            if axes.get_visible() and axes.get_legend():
                box, panel = axes.get_legend().get_window_extent(), axes.get_window_extent()
                self.assertTrue(panel.x0 - 2 <= box.x0 and box.x1 <= panel.x1 + 2
                                and panel.y0 - 2 <= box.y0 and box.y1 <= panel.y1 + 2)

    def both(self, module, make, *arguments):
        """Checks the script with 4 and 30 layers of `make(layers)`; returns the two figures."""
        out = []
        for layers in (4, 30):
            with self.subTest(module.__name__, layers=layers):
                figure, size = self.picture(module, *make(range(layers)), *arguments)
                self.check(figure, size)
                out.append(figure)
        return out
