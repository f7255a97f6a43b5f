"""Points of a figure from `kvbench summarize --format csv`."""

import numpy as np

from kvbench import tables as kt
from kvbench.plot import frame as kfr

KEYS = ["algorithm", "params", "budget_requested"]
# Size parameters vary along a line and are not in its name.
SIZE_PARAMETERS = ("T", "tokens", "delta", "bits")
READ_SIZES = ("T", "tokens", "p", "pages", "tables")  # of the retrieval protocol
COUNTS = ["count", "degenerate", "infeasible", "failed"]


def is_summary(frame):
    """Returns whether the frame begins as a summary does."""
    return list(frame.columns[:2]) == KEYS[:2]


def is_summary_file(path):
    """Returns whether the file begins as a summary does."""
    try:
        return kt.header_of(path)[:2] == KEYS[:2]
    except kt.CsvError:
        return False  # kt.read_table raises the error


def read(paths):
    """Reads one summary. Raises CsvError."""
    if len(paths) > 1:
        raise kt.CsvError(f"{paths[0]}: a summary; expected it alone, got {len(paths)} files")
    return kt.read_table(paths, ["budget_requested", *COUNTS], {*KEYS[:2]})


def points(frame, x, y, spread, algorithms, layers, pool):
    """plot.kinds.pareto.points_of_rows of one summary by algorithm, params and budget."""
    path = kt.source_of(frame)
    if layers or pool:
        raise kt.CsvError(f"{path}: a summary; --layers and --pool need the rows")
    held = "middle_ratio" if x == "budget_requested" else x
    columns = [f"mean_{name}" for name in (y, "middle_ratio", held)]
    columns += [f"sd_{y}"] if spread == "all" else []
    frame = kt.table_of(frame, [*KEYS, *COUNTS, *columns], {*KEYS[:2]})
    if frame.duplicated(KEYS).any():
        raise kt.CsvError(f"{path}: several lines of one algorithm, params and budget; expected a summary without --by")
    frame = kt.pick_names(frame, "algorithm", algorithms, path)
    lost = frame[COUNTS[1:]].sum(axis=1) > 0
    kt.note_each(frame[lost], "{}: points left out because some heads are missing: {count}", "algorithm")
    frame = frame[~lost & (frame["count"] > 0)].reset_index(drop=True)
    if frame.empty:
        raise kt.CsvError(f"{path}: no point has rows for every head")
    kt.add_labels(frame, ignore=SIZE_PARAMETERS)
    table = frame[["label", *KEYS]].assign(
        mean=frame[f"mean_{y}"], sd=frame[f"sd_{y}"] if columns[-1] == f"sd_{y}" else np.nan,
        x=frame["budget_requested" if x == "budget_requested" else f"mean_{x}"],
        held=frame["mean_middle_ratio"])
    rows = sorted(set(frame["count"]))
    text = " to ".join(f"{n:g}" for n in dict.fromkeys((rows[0], rows[-1])))
    return kfr.keep(table, frame, facts=kfr.Facts(f"a summary of {text} rows in each point."))
