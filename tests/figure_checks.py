"""Is a figure legible, and on one page?"""

import itertools

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
    return [t for t in figure.findobj(Text) if t not in hidden and t.get_visible() and t.get_text().strip()]


class LegibleTest(FigureTest):
    def check(self, figure, size=None):
        """One page, no text over another, legends beside the panels or within one."""
        box = figure.get_tightbbox(figure.canvas.get_renderer())
        size = size or (box.width, box.height)
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
