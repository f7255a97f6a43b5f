"""Main function of kvbench-study correlate. The command line is in options.py."""

from kvbench.comparison import tables as compare_tables
from kvbench_study.correlate import cells as correlate_cells
from kvbench_study.correlate import ranks as correlate_ranks
from kvbench_study.correlate import tables as correlate_tables
from kvbench_study.correlate.options import parse_arguments


def main(arguments=None):
    options = parse_arguments(arguments)
    table = correlate_cells.load(options)
    found = correlate_ranks.correlate(table, options.resamples, options.seed, options.resample)
    for text in found.notes:
        correlate_cells.note(text)
    if options.csv:
        compare_tables.write_table(options.csv, correlate_tables.COLUMNS,
                                   correlate_tables.rows(found))
    if options.cells:
        compare_tables.write_table(options.cells, *correlate_tables.cells(found))
    if options.misjudged:
        compare_tables.write_table(options.misjudged, correlate_tables.METHOD_COLUMNS,
                                   correlate_tables.methods(found))
    if options.markdown:
        compare_tables.write_text(options.markdown, correlate_tables.markdown(found, options))
    if options.figures:
        from kvbench_study.correlate import figures  # slow import

        figures.draw(found, options)
