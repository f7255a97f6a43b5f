"""Main function of kvbench-py compare. The command line is in options.py."""

from kvbench import tables as kt
from kvbench.comparison import analysis, orders, scores
from kvbench.comparison import tables as ct
from kvbench.comparison.options import ROWS, parse_arguments


def main(arguments=None):
    options = parse_arguments(arguments)
    (compare_rows if options.kind == ROWS else compare_scores)(options)


def compare_rows(options):
    out = analysis.compare(options.inputs, options)
    for found in out if options.markdown != "-" else ():  # the page has them
        for note in found.notes:
            kt.note(f"budget {found.budget}: {note}")
    if options.csv:
        ct.write_csv(options.csv, out)
    if options.markdown:
        ct.write_text(options.markdown, ct.markdown(out, options))
    if options.latex:
        ct.write_text(options.latex, ct.latex(out, options))
    if options.figures:
        from kvbench.comparison import figures  # slow import

        figures.draw(out, options)


def compare_scores(options):
    found = scores.load(options)
    for text in found.notes:
        kt.note(text)
    lines = scores.lines(found, options.to)
    if options.csv:
        ct.write_table(options.csv, scores.COLUMNS, lines)
    if options.sources:
        ct.write_table(options.sources, scores.SOURCE_COLUMNS, scores.by_source(found))
    alike = orders.orders(found) if options.orders or options.markdown else []
    if options.orders:
        ct.write_table(options.orders, orders.COLUMNS, alike)
    if options.markdown:
        ct.write_text(options.markdown, scores.markdown(found, lines, options) + orders.markdown(alike))
    if options.figures:
        from kvbench.comparison import score_figure  # slow import
        from kvbench.plot import figures as kf

        figure = score_figure.draw(found, options.show, options.metric, options.axis)
        kf.save_figure(figure, options.figures)
