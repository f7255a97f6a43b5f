"""Readers for tables of `kvbench cluster` (DIR/*.csv) and kept sets (OUT.kept.csv).

Errors are kvbench.tables.CsvError. docs/schema.md defines the columns.
"""

import os

import numpy as np
import pandas as pd

from kvbench import tables as kt

HEAD = ["trace", "prompt", "layer", "kv_head"]
# Unique key columns of each table.
KEYS = {
    "attention.csv": ["trace", "prompt", "layer", "head", "what"],
    "coverage.csv": [*HEAD, "what", "k"],
    "delta.csv": [*HEAD, "what", "delta", "n_prefix"],
    "growth.csv": [*HEAD, "what", "delta"],
    "keys.csv": [*HEAD, "what"],
    "norms.csv": ["trace", "prompt", "layer", "head", "what"],
    "spectrum.csv": [*HEAD, "what"],
    "points.csv": [*HEAD, "what", "token"],
    "kept.csv": [*HEAD, "algorithm", "params", "protocol", "sink", "recent", "scores", "device",
                 "seed", "budget_requested", "step"],
}
TEXT = {"schema", "trace", "prompt", "what", "kept_by", "algorithm", "params", "protocol",
        "scores", "device", "budget_requested", "tokens", *kt.ORIGINS}
KEPT = ["schema", "n_tokens", "tokens"]
WHAT = ["queries", "keys", "values"]  # order in figures
POINTS_CHUNK = 20_000  # rows read at a time, to bound memory


def table_path(path, name):
    """Returns `path`, or the table `name` of a folder of kvbench cluster or of a prompt of the study's store."""
    if os.path.isdir(path):
        return os.path.join(path, name)
    stored = f"{path}.{name}.gz"
    return stored if os.path.isfile(stored) else path


def table_files(paths):
    """Returns the files that paths name: a file itself, of a folder the tables of kvbench cluster."""
    return [table_path(path, name) for path in paths for name in KEYS]


def read_table(paths, name, needed, pool=None):
    """Reads the tables `name` (a key of KEYS) of files or folders as one frame.

    `needed`: columns besides the key columns. Numbers are float64 (empty: NaN), text stays text. pool: False rejects
    rows of several models or element types (kvbench.tables.refuse_mixed), True notes them, None skips the check.
    Raises CsvError for a missing file or column, no rows, differing columns, unknown or mixed schemas, a field that is
    not a number, an unknown `what`, a duplicate row.
    """
    frames = []
    columns = list(dict.fromkeys([*KEYS[name], *needed]))
    for path in (table_path(p, name) for p in paths):
        frame = kt.with_origins(kt.read_table([path], columns, TEXT))
        if frames and {*frame.columns} != {*frames[0].columns}:
            raise kt.CsvError(f"{path}: its columns differ from those of "
                              f"{table_path(paths[0], name)}; they cannot share a figure")
        _check_what(frame, path)
        frames.append(frame)
    frame = pd.concat(frames, ignore_index=True)
    frame.attrs["paths"] = [table_path(p, name) for p in paths]
    return checked(frame, name, needed, pool)


def checked(frame, name, needed, pool=None):
    """Returns a frame of table `name` as read_table does, with the same checks. Raises CsvError."""
    first = kt.source_of(frame)
    columns = list(dict.fromkeys([*KEYS[name], *needed]))
    frame = kt.with_origins(kt.table_of(frame, columns, TEXT))
    _check_what(frame, first)
    kt.check_schema(frame, first)
    if frame.duplicated(KEYS[name]).any():
        row = frame[frame.duplicated(KEYS[name])].iloc[0]
        at = ", ".join(f"{k} {row[k]}" for k in KEYS[name] if str(row[k]) != "")
        raise kt.CsvError(f"{first}: two rows for {at}, expected one")
    if pool is not None:
        kt.refuse_mixed(frame, first, pool)
    return frame


def _check_what(frame, path):
    if "what" not in frame.columns:
        return
    unknown = ~frame["what"].isin(WHAT)
    if unknown.any():
        row = int(unknown.to_numpy().nonzero()[0][0])
        raise kt.CsvError(f"{path}: row {row + 1}: column `what`: got `{frame['what'].iloc[row]}`, "
                          f"expected one of {', '.join(WHAT)}")


def relative_delta(frame, coverage):
    """Returns delta / R of every row, rounded to four decimals so that heads agree even with stored radii of five
    digits; NaN if R is missing or 0. R: radius of one centre, from the table of coverage.
    """
    head = [*HEAD, "what"]
    one = coverage.loc[coverage["k"] == 1, [*head, "radius"]]
    radius = frame[head].merge(one, on=head, how="left")["radius"]
    return np.round(frame["delta"].to_numpy() / radius.where(radius > 0).to_numpy(), 4)


def point_columns(names):
    """Returns the columns x0, x1, ... among those of a points table."""
    return [name for name in names if name[:1] == "x" and name[1:].isdigit()]


def point_groups(path):
    """Returns a row per trace, prompt, layer, kv_head and what of a points table."""
    path = table_path(path, "points.csv")
    header = kt.header_of(path)
    for column in (*KEYS["points.csv"], "is_center", "kept_by", "x0"):
        if column not in header:
            raise kt.CsvError(f"{path}: column `{column}` is missing")
    kt.check_table(path)
    with kt.reading(path):
        parts = [part.drop_duplicates() for part in pd.read_csv(
            path, dtype=str, keep_default_na=False, usecols=[*HEAD, "what"], chunksize=POINTS_CHUNK)]
    groups = pd.concat(parts, ignore_index=True).drop_duplicates(ignore_index=True) if parts else pd.DataFrame()
    if groups.empty:
        raise kt.CsvError(f"{path}: no rows")
    for column in ["layer", "kv_head"]:
        groups[column] = kt.numbers(groups[column], path, column, True)
    _check_what(groups, path)
    return groups


def read_points(path, groups):
    """Returns the rows of a points table that belong to `groups` (rows of point_groups), read in chunks."""
    path = table_path(path, "points.csv")
    xs, head, parts = point_columns(kt.header_of(path)), [*HEAD, "what"], []
    wanted = pd.MultiIndex.from_frame(groups[head])
    with kt.reading(path), pd.read_csv(path, dtype=str, keep_default_na=False, chunksize=POINTS_CHUNK) as reader:
        for part in reader:
            for column in ["layer", "kv_head"]:
                part[column] = kt.numbers(part[column], path, column, True)
            part = part[pd.MultiIndex.from_frame(part[head]).isin(wanted)].copy()
            for column in ["token", "is_center", *xs]:
                part[column] = kt.numbers(part[column], path, column, True)
            parts.append(part)
    out = pd.concat(parts, ignore_index=True)
    out.attrs["paths"] = [path]
    return points_of(out)  # extra columns are empty where other heads are wider


def points_of(frame):
    """Returns a frame of points.csv with key columns, is_center, kept_by, x0, x1, ... Raises CsvError."""
    xs = point_columns(frame.columns) or ["x0"]
    frame = kt.table_of(frame, [*KEYS["points.csv"], "is_center", "kept_by", *xs], TEXT)
    _check_what(frame, kt.source_of(frame))
    if frame["x0"].isna().any():
        raise kt.CsvError(f"{kt.source_of(frame)}: column `x0`: got nan or nothing, expected a number")
    return frame


def kept_of(frame):
    """Returns a frame of OUT.kept.csv with the columns of KEYS, n_tokens, tokens and `label`. Raises CsvError."""
    frame = checked(frame, "kept.csv", KEPT)
    return frame.assign(label=kept_labels(frame))


def kept_labels(frame):
    """Returns a label per row, as `kvbench cluster --kept-by`: the algorithm and its differing budget, params, seed."""
    texts = {}
    for algorithm, group in frame.groupby("algorithm", sort=False):
        entries = group[["budget_requested", "params", "seed"]].drop_duplicates()
        parts = [{"budget_requested": budget, **kt.parse_params(params), "seed": f"{seed:g}"}
                 for budget, params, seed in entries.itertuples(index=False)]
        keys = list(dict.fromkeys(k for part in parts for k in part))
        shown = [k for k in keys if len({part[k] for part in parts if k in part}) > 1]
        for entry, part in zip(entries.itertuples(index=False), parts):
            words = [f"{k}={part[k]}" for k in shown if part.get(k)]
            texts[(algorithm, *entry)] = " ".join([algorithm, *words])
    columns = zip(frame["algorithm"], frame["budget_requested"], frame["params"], frame["seed"])
    return [texts[key] for key in columns]


def parse_ranges(text):
    """Returns `0-3 7 9-10` as ascending, disjoint (first, last), inclusive. Raises ValueError with a wrong part."""
    ranges = []
    for part in text.split():
        first, dash, last = part.partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True)):
            raise ValueError(part)
        pair = int(first), int(last if dash else first)
        if pair[1] < pair[0] or (ranges and pair[0] <= ranges[-1][1]):
            raise ValueError(part)
        ranges.append(pair)
    return ranges


def held(text, n):
    """Returns bool [n]: the token positions in a field `tokens`. Raises CsvError."""
    mask = np.zeros(n, dtype=bool)
    try:
        for first, last in parse_ranges(text):
            if last >= n:
                raise ValueError(f"{first}-{last}")
            mask[first:last + 1] = True
    except ValueError as error:
        raise kt.CsvError(f"column `tokens`: got `{error}`, expected ascending ranges within 0-{n - 1}") from None
    return mask


def choose(present, wanted, option, path):
    """Returns `wanted` if given and present, otherwise all of `present`, ascending. Raises CsvError."""
    present = sorted({int(value) for value in present})
    absent = [value for value in getattr(wanted, "named", wanted) if value not in present]
    if absent:
        raise kt.CsvError(f"{path}: {option}: got {absent[0]}, which it does not hold; it holds "
                          + ", ".join(map(str, present)))
    return sorted(set(wanted) & set(present)) if wanted else present


def pick_heads(frame, layers, kv_heads, most, path):
    """Returns (rows, [(layer, KV head)]) of these layers and heads; by default of `most` evenly spaced layers and of
    the first head. Raises CsvError.
    """
    chosen = choose(frame["layer"], layers, "--layers", path)
    heads = choose(frame["kv_head"], kv_heads, "--kv-heads", path)
    chosen, heads = chosen if layers else spread_out(chosen, most), heads if kv_heads else heads[:1]
    frame = frame[frame["layer"].isin(chosen) & frame["kv_head"].isin(heads)]
    if frame.empty:
        raise kt.CsvError(f"{path}: no layer of {chosen} holds a KV head of {heads}")
    return frame, sorted({(int(layer), int(head)) for layer, head in zip(frame["layer"], frame["kv_head"])})


def spread_out(values, count):
    """Returns at most `count` evenly spaced values, including first and last."""
    if len(values) <= count:
        return list(values)
    return [values[round(i * (len(values) - 1) / (count - 1))] for i in range(count)]


def powers_of_4(low, high, max_ticks=16):
    """Returns ticks of a logarithmic axis: powers of 4, or of 16 if there would be more than `max_ticks`."""
    ticks = [4.0**i for i in range(16) if low <= 4**i <= high] or [float(low)]
    return ticks if len(ticks) <= max_ticks else ticks[::2]


def only_prompt(frame, prompt, path):
    """Returns the rows of `prompt`, or of the first prompt with a note."""
    pairs = list(frame[["trace", "prompt"]].drop_duplicates().itertuples(index=False, name=None))
    chosen = [pair for pair in pairs if not prompt or pair[1] == prompt]
    if not chosen:
        raise kt.CsvError(f"{path}: --prompt: got `{prompt}`, expected one of "
                          + ", ".join(dict.fromkeys(pair[1] for pair in pairs)))
    trace, prompt = chosen[0]
    if len(chosen) > 1:
        kt.note(f"{path} holds {len(chosen)} prompts; prompt {prompt} of {trace} is shown (--prompt takes another)")
    return frame[(frame["trace"] == trace) & (frame["prompt"] == prompt)]
