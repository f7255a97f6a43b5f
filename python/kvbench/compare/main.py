"""Main function of kvbench-py compare. The command line is in options.py."""

from kvbench import tables as kt
from kvbench.compare import analysis
from kvbench.compare import tables as compare_tables
from kvbench.compare.options import parse_arguments


def main(arguments=None):
    options = parse_arguments(arguments)
    out = analysis.compare(options.inputs, options)
    for found in out:
        for note in found.notes:
            kt.note(f"budget {found.budget}: {note}")
    if options.csv:
        compare_tables.write_csv(options.csv, out)
    if options.markdown:
        compare_tables.write_text(options.markdown, compare_tables.markdown(out, options))
    if options.latex:
        compare_tables.write_text(options.latex, compare_tables.latex(out, options))
    if options.figures:
        from kvbench.compare import figures  # slow import

        figures.draw(out, options)
