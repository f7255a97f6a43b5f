"""Reading tables of kvbench: parameters, labels, means. docs/schema.md defines the columns. Raises CsvError."""

import contextlib
import logging
import os
import zlib

import numpy as np
import pandas as pd

from kvbench import checksums
from kvbench.errors import CsvError
from kvbench.text import parse_json

SCHEMA_MAJOR = "1"

# Columns about the trace and the run; side tables and hand-made ones may lack them.
ORIGINS = ["model", "dtype", "precision"]
TEXT_COLUMNS = {
    "schema", "trace", "prompt", "algorithm", "params", "protocol", "scores", "device", "status",
    "diag", "source", *ORIGINS,
}
SETTINGS = ["protocol", "sink", "recent", "scores", "device", "n_queries"]
# Integer columns that locate a row; must not be empty.
INTEGER_COLUMNS = {"layer", "q_head", "kv_head", "head", "token", "step", "offset", "first", "last", "queries",
          "k", "n_prefix", "n_tokens"}
HEAD_COLUMNS = ["trace", "prompt", "layer", "q_head"]  # a mean over heads averages these
# Key columns of docs/schema.md; hand-made tables may lack SETTINGS.
ROW_COLUMNS = [*HEAD_COLUMNS, "algorithm", "params", "seed", "budget_requested"]

# Smaller errors are float32 rounding of an exact cache; logarithmic axes skip them.
ROUNDING_ERROR = 1e-6
LAYER_METRICS = ["out_rel_error", "residual_rel_error"]  # of OUT.layers.csv
HIGHER_BETTER = {"cosine", "mass_kept", "recall"}  # smaller is better for all other metrics
# Exponents and fits, which short streams lack: NaN in every row is allowed.
MAY_BE_UNKNOWN = {"alpha", "r2"}
# Error metrics and their axis labels.
ERROR_LABELS = {
    "rel_error": "relative error",
    "rel_error_mean": "relative error, mean over queries",
    "rel_error_p50": "relative error, median over queries",
    "rel_error_p95": "relative error, 95th percentile",
    "rel_error_max": "relative error, largest of the queries",
    "eps_fro": r"$\epsilon$ (Frobenius norm)",
    "eps_op": r"$\epsilon$ (operator norm)",
    "log_z_error": "error of log denominator (nats)",
    "amnesia_mass": "attention on tokens not held",
}
# All metrics that may be drawn on the y axis.
METRIC_LABELS = {**ERROR_LABELS, "amnesia_count": "tokens not held, above 0.005",
                 "cosine": "cosine of the outputs", "mass_kept": "attention on tokens held"}


def parse_params(text):
    """Returns `key=value;key=value` as a dict, in order; a part without `=` maps to ''."""
    out = {}
    for part in text.split(";"):
        if part:
            key, _, value = part.partition("=")
            out[key] = value
    return out


def changed_params(text, usual):
    """Returns the part of a setting that differs from the default."""
    before = parse_params(usual)
    return ";".join(f"{key}={value}" for key, value in parse_params(text).items() if before.get(key) != value)


def status_kind(status):
    """Returns the first word of a status: ok, degenerate, infeasible or failed."""
    return status.partition(":")[0]


def read_results(paths, needed):
    """Reads result files as one frame, checked by results_of. Raises CsvError."""
    columns = ["schema", "algorithm", "params", "status"]
    columns += [c for c in needed if c not in columns]
    return results_of(read_table(paths, columns, TEXT_COLUMNS), columns)


def results_of(frame, needed):
    """Returns a frame of result rows as figures and comparisons need it.

    `needed`: required columns besides algorithm, params and status. These are float64 (empty: NaN) or str. Missing
    ORIGINS are added, empty. Raises CsvError for a missing column, no rows, mixed or unknown schemas, a field that is
    not a number, and a duplicate row; names the file that read_table read.
    """
    frame = table_of(frame, dict.fromkeys(["algorithm", "params", "status", *needed]), TEXT_COLUMNS)
    check_schema(frame, source_of(frame))
    _reject_repeated_rows(frame)
    return with_origins(frame)


def source_of(frame):
    """Returns the first file that read_table read the frame from, or `the table`."""
    return frame.attrs.get("paths", ["the table"])[0]


def joined(frames):
    """Returns tables as one frame that knows their files."""
    out = pd.concat(frames, ignore_index=True)
    out.attrs = {"paths": [source_of(one) for one in frames], "rows": [len(one) for one in frames]}
    return out


def place_of(frame, row):
    """Returns (file, number of the row in it, from 1) of row `row` of the frame."""
    counts = frame.attrs.get("rows", [])
    if len(frame) != sum(counts):  # rows were dropped or added
        return source_of(frame), row + 1
    ends = np.cumsum(counts)
    file = int(np.searchsorted(ends, row, side="right"))
    return frame.attrs["paths"][file], row - (int(ends[file - 1]) if file else 0) + 1


def table_of(frame, needed, text):
    """Returns the frame with the `needed` columns and those of `text` as str (in `text`, empty for NaN) or float64.

    Raises CsvError for no rows, a missing column, a needed field that is not a number, and a needed column that was
    `nan` in every row of its file.
    """
    path = source_of(frame)
    if frame.empty:
        raise CsvError(f"{path}: no rows")
    if not frame.index.is_unique:  # of pandas.concat
        frame = frame.reset_index(drop=True)
    made = {}
    for name in dict.fromkeys([*needed, *(column for column in frame.columns if column in text)]):
        if name not in frame.columns:
            raise CsvError(f"{path}: column `{name}` is missing")
        column = frame[name]
        if name in frame.attrs.get("nan", ()) and name not in text and name not in MAY_BE_UNKNOWN:
            raise CsvError(f"{path}: column `{name}`: got nan in all rows, expected numbers")
        if name in text:
            if not all(isinstance(v, str) for v in column):
                made[name] = column.map(lambda v: v if isinstance(v, str) else "" if pd.isna(v) else str(v))
        elif column.dtype != np.float64 or (name in INTEGER_COLUMNS and column.isna().any()):
            texts = column.map(lambda v: "" if pd.isna(v) else str(v))
            made[name], bad = _floats(texts, name)
            if bad is not None:
                file, row = place_of(frame, bad)
                raise CsvError(f"{file}: row {row}: column `{name}`: got `{texts.iloc[bad]}`, expected a number")
    return frame.assign(**made) if made else frame


def check_schema(frame, path):
    """Raises CsvError for mixed or unknown schemas, if the frame has the column."""
    schemas = sorted(frame["schema"].unique()) if "schema" in frame.columns else []
    if len(schemas) > 1:
        raise CsvError(f"{path}: mixed schemas: {', '.join(schemas)}")
    if schemas and schemas[0].split(".")[0] != SCHEMA_MAJOR:
        raise CsvError(f"{path}: schema {schemas[0]}, expected {SCHEMA_MAJOR}.x")


def with_origins(frame):
    """Adds missing ORIGINS columns, empty."""
    absent = {name: "" for name in ORIGINS if name not in frame.columns}
    return frame.assign(**absent) if absent else frame


def _reject_repeated_rows(frame):
    """Raises CsvError for a duplicate row, within a file or across files."""
    columns = [name for name in (*ROW_COLUMNS, *SETTINGS) if name in frame.columns]
    if not {*ROW_COLUMNS} <= {*columns}:
        return
    repeats = frame.duplicated(columns)
    if not repeats.any():
        return
    second = int(repeats.to_numpy().argmax())
    row = frame.iloc[second]
    key = frame[columns]
    same = (key.eq(key.iloc[second]) | (key.isna() & key.iloc[second].isna())).all(axis=1)
    (path, at), (other, before) = place_of(frame, second), place_of(frame, int(same.to_numpy().argmax()))
    raise CsvError(f"{path}: duplicate row: prompt {row['prompt']}, layer {row['layer']:g}, head "
                   f"{row['q_head']:g}, {row['algorithm']}: row {at}, and row {before} of {other}")


def reject_duplicates(frame, keys, path):
    """Raises CsvError if two rows share `keys`, which include prompt, algorithm, budget_requested and seed."""
    twice = frame.duplicated(keys)
    if twice.any():
        row = frame[twice].iloc[0]
        place = "".join(f", {name} {row[key]:g}" for key, name in (("layer", "layer"), ("q_head", "head"))
                        if key in keys)
        raise CsvError(f"{path}: duplicate row: prompt {row['prompt']}{place}, {row['algorithm']}, "
                       f"budget {row['budget_requested']:g}, seed {row['seed']:g}")


def read_table(paths, needed, text, others=None):
    """Reads files of one header as one frame, such as OUT.steps.csv or those of `kvbench cluster`.

    `needed`: required columns. `others`: optional columns to read; None reads all (slow for long tables). Columns of
    `text` are str, the others float64 (empty: NaN); an optional column with text stays str. attrs: "paths" and "rows",
    the files and the number of rows of each, "runs", those that wrote the rows, and "nan", the columns that are `nan`
    in every row. Raises CsvError for a missing file or column, an empty file, a needed field that is not a number, a
    needed column that is `nan` in every row, and a modified table (checksums.check_table).
    """
    frames, runs, unknown = [], set(), None
    for path in paths:
        runs |= check_table(path)
        frame = _read_one(path, None if others is None else {*needed, *others})
        for column in needed:
            if column not in frame.columns:
                raise CsvError(f"{path}: column `{column}` is missing")
        empty = {column for column in frame.columns if (frame[column] == "nan").all()}
        unknown = empty if unknown is None else unknown & empty
        for column in frame.columns:
            if column not in text:
                frame[column] = numbers(frame[column], path, column, column in needed)
        frames.append(frame)
    out = pd.concat(frames, ignore_index=True)
    out.attrs = {"paths": list(paths), "rows": [len(frame) for frame in frames], "runs": sorted(runs),
                 "nan": sorted(unknown)}
    return table_of(out, needed, text)


def plain_model(name):
    """Returns the name alone, in lower case, of ORGANISATION/NAME @ REVISION, as kvbench compares them."""
    return name.partition(" @ ")[0].rpartition("/")[2].lower()


MODEL_RECORD = "model.json"  # {"model": NAME} of all tables of a folder, which may have no manifests


def recorded_models(paths):
    """Returns {plain name: (model, table)} of the models that are recorded beside tables: in their manifests, or in
    their folder's MODEL_RECORD. Tables may have none.
    """
    out = {}
    for path in paths:
        stem = path.removesuffix(".gz").removesuffix(".layers.csv").removesuffix(".csv")
        for record in (stem + ".csv.json", os.path.join(os.path.dirname(path), MODEL_RECORD)):
            try:
                with open(record, encoding="utf-8") as file:
                    content = parse_json(file.read())
                parts = [content["settings"]] if "settings" in content else content.get("traces", [content])
                for one in parts:
                    if one.get("model"):
                        out.setdefault(plain_model(one["model"]), (one["model"], path))
                break
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue
    return out


@contextlib.contextmanager
def reading(path):
    """Turns errors of pandas and of checksums into CsvError."""
    try:
        yield
    except checksums.ChangedError as error:
        raise CsvError(str(error)) from None
    except FileNotFoundError:
        raise CsvError(f"{path}: no such file") from None
    except pd.errors.EmptyDataError:
        raise CsvError(f"{path}: the file is empty") from None
    except (pd.errors.ParserError, UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise CsvError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None


def header_of(path):
    """Returns the column names of a table. Raises CsvError."""
    with reading(path):
        return list(pd.read_csv(path, dtype=str, nrows=0).columns)


def check_table(path):
    """checksums.check_table with CsvError."""
    with reading(path):
        return checksums.check_table(path)


def check_same_run(side, side_path, table, path):
    """Raises CsvError unless a side table has its table's runs (both of read_table), if rows name any."""
    known = set(table.attrs["runs"])
    for run in side.attrs["runs"]:
        if known and run not in known:
            raise CsvError(f"{side_path}: holds rows of run {run}, expected {', '.join(known)} as {path}")


def _read_one(path, columns):
    with reading(path):
        # As text first: pandas would turn a prompt `007` into 7 and `nan` into NaN.
        frame = pd.read_csv(path, dtype=str, keep_default_na=False,
                            usecols=lambda name: (name in columns if columns is not None
                                                  else name not in checksums.COLUMNS))
    if frame.empty:
        raise CsvError(f"{path}: no rows")
    # Frame.to_csv writes its index as an unnamed column.
    return frame.drop(columns=[name for name in frame.columns if name.startswith("Unnamed: ")])


def numbers(column, path, name, strict):
    """Returns a text column as floats. Raises CsvError for the first invalid value if `strict`."""
    values, bad = _floats(column, name)
    if strict and bad is not None:
        raise CsvError(f"{path}: row {bad + 1}: column `{name}`: got `{column.iloc[bad]}`, expected a number")
    # Optional columns stay text: a newer minor version may add text columns.
    return column if bad is not None else values


def _floats(column, name):
    """Returns (a text column as floats, the first row that is no number or None)."""
    values = pd.to_numeric(column.where(column != "", "nan"), errors="coerce")
    bad = values.isna()
    if name not in INTEGER_COLUMNS:
        bad &= ~column.isin(["", "nan"])
    return values.astype(float), int(bad.to_numpy().argmax()) if bad.any() else None


def side_table(path, kind):
    """Returns OUT.KIND.csv of OUT.csv, OUT.KIND.csv.gz of OUT.csv.gz."""
    end = ".gz" * path.endswith(".gz")
    return f"{path.removesuffix(end).removesuffix('.csv')}.{kind}.csv{end}"


def pick_names(frame, column, names, path):
    """Returns rows whose `column` is in `names`, all for an empty list. Raises CsvError for an absent one."""
    absent = [name for name in names if name not in set(frame[column])]
    if absent:
        raise CsvError(f"{path}: no rows of {column} {', '.join(absent)}; it holds "
                       + ", ".join(sorted(frame[column].unique())))
    return frame[frame[column].isin(names)] if names else frame


def pick_numbers(frame, column, values, path):
    """Returns rows whose `column` is in `values`, all for an empty list. Raises CsvError for an absent one."""
    have = frame[column].dropna().unique()
    for value in values:
        if not np.isclose(have, value, rtol=1e-9, atol=0).any():
            raise CsvError(f"{path}: no rows with {column} {value:g}; it holds "
                           + ", ".join(f"{v:g}" for v in sorted(have)))
    if not values:
        return frame
    near = np.isclose(frame[column].to_numpy()[:, None], values, rtol=1e-9, atol=0).any(axis=1)
    return frame[near]


def pick_layers(frame, layers, path):
    """Returns the rows of these layers (text.Indices), all for an empty list. Raises CsvError for an absent one."""
    if layers:
        pick_numbers(frame, "layer", getattr(layers, "named", layers), path)
    return frame[frame["layer"].isin(layers)] if layers else frame


def policy_names(frame):
    """Returns `policy:NAME` of each row of a policy, as labels have it, "" of other rows."""
    names = pd.Series("", frame.index)
    of_policy = frame["algorithm"] == "policy"
    names[of_policy] = [f"policy:{parse_params(text).get('name')}" for text in frame.loc[of_policy, "params"]]
    return names


def pick_rows(frame, options, path):
    """Returns the rows that --algorithm, --exclude, --budget and --prompts choose. Raises CsvError.

    `policy` names all policies, `policy:NAME` those of a file NAME.json.
    """
    policy = policy_names(frame)
    kept = ~(frame["algorithm"].isin(options.exclude) | policy.isin(options.exclude))
    frame, policy = frame[kept], policy[kept]
    if options.algorithm:
        others = [name for name in options.algorithm if name not in set(policy)]
        pick_names(frame, "algorithm", others, path)
        frame = frame[frame["algorithm"].isin(others) | policy.isin(options.algorithm)]
    frame = pick_numbers(frame, "budget_requested", options.budget, path)
    return pick_names(frame, "prompt", options.prompts, path).copy()


def note(text):
    """Logs a note about skipped data: logger `kvbench`, level INFO. Programs print these on stderr."""
    logging.getLogger("kvbench").info("%s", text)


def note_each(frame, text, column="label"):
    """Notes `text` for each value of `column`, in order: {} is the value, {count} the number of its rows."""
    for name, count in frame.groupby(column, sort=False).size().items():
        note(text.format(name, count=count))


def differing(frame):
    """Returns {setting: values} of the settings that differ among rows to be averaged or compared.

    `scores` may differ between methods, not within one. Unknown values are ignored.
    """
    out = {}
    for name in [*SETTINGS, *ORIGINS]:
        if name not in frame.columns:
            continue
        known = frame[frame[name].notna() & (frame[name] != "")]
        if name == "scores":
            one = known.groupby(["algorithm", "params"])[name].transform("nunique")
            known = known[one > 1]
        values = sorted(known[name].unique())
        if len(values) > 1:
            out[name] = [v if isinstance(v, str) else f"{v:g}" for v in values]
    return out


def refuse_mixed(frame, path, pool=False):
    """Raises CsvError if rows differ in settings that forbid a common mean; with `pool` prints a note."""
    found = differing(frame)
    if found and not pool:
        raise CsvError(f"{path}: rows of one mean or comparison differ in "
                       + ", ".join(f"{name} ({', '.join(values[:3])}{', ...' if len(values) > 3 else ''})"
                                   for name, values in found.items())
                       + "; give rows of one alone, or take them together with --pool")
    for name in found:
        note(f"rows that differ in {name} are pooled")


def measured_rows(frame, path="", pool=False):
    kept = ok_rows(frame, path)
    refuse_mixed(kept, path, pool)
    return kept


def ok_rows(frame, path=""):
    """Returns rows with status ok; notes the skipped rows on stderr."""
    kind = frame["status"].map(status_kind)
    for word in ("degenerate", "infeasible", "failed"):
        count = int((kind == word).sum())
        if count:
            names = ", ".join(sorted(frame.loc[kind == word, "algorithm"].unique()))
            note(f"{count} {word} rows are left out ({names})")
    kept = frame[kind == "ok"].copy()
    if kept.empty:
        where = f"{path}: " if path else ""
        raise CsvError(f"{where}no row holds measurements: all are degenerate, infeasible or failed")
    return kept


def commonest(values):
    """Returns the majority value, or None."""
    values = list(values)
    return next((v for v in set(values) if 2 * values.count(v) > len(values)), None)


def add_labels(frame, ignore=(), short=False):
    """Adds the column `label`: the algorithm and those of its parameters that differ in `frame`.

    `ignore`: parameters to omit (those on the x axis). `short`: omits values that most of the
    algorithm's variants share, as in an ablation.
    """
    texts = {}
    for algorithm, group in frame.groupby("algorithm", sort=False):
        variants = {text: parse_params(text) for text in group["params"].unique()}
        if algorithm == "policy" and one_file_a_name(group, variants):
            texts.update({(algorithm, text): "policy" if v.get("name") == "policy" else f"policy:{v.get('name')}"
                          for text, v in variants.items()})
            continue
        keys = list(dict.fromkeys(k for v in variants.values() for k in v if k not in ignore))
        # A parameter that only some variants have differs too, unless another's value implies it
        # (attention-matching's keys=h2o implies h2o.heavy_ratio).
        shown = [k for k in keys if len({v.get(k) for v in variants.values() if k in v or "." not in k}) > 1]
        usual = {k: commonest(v.get(k) for v in variants.values()) if short else None for k in shown}
        for text, values in variants.items():
            parts = [f"{k}={values[k]}" for k in shown if k in values and values[k] != usual[k]]
            texts[algorithm, text] = " ".join([algorithm, *parts])
    frame["label"] = [texts[pair] for pair in zip(frame["algorithm"], frame["params"])]
    return frame


def one_file_a_name(group, variants):
    """Returns whether each prompt of a model has one policy file of a name; notes names with several files."""
    names = group["params"].map(lambda text: variants[text].get("name")).rename("name")
    prompt = [column for column in ("model", "trace", "prompt") if column in group]
    if (group.groupby([*prompt, names], dropna=False)["params"].nunique() > 1).any():
        return False
    model = ["model"] if "model" in group else []
    files = group.groupby([*model, names], dropna=False)["params"].nunique().groupby("name").max()
    for name in files.index[files > 1]:
        note(f"policy:{name}: {files[name]} files of this name, in different prompts")
    return True


def full_points(frame, keys, path):
    """Returns the rows of points that cover every head; notes the skipped points on stderr.

    A point is a group by `keys`, over seeds. A mean over the feasible heads only is not comparable
    with a mean over all. Heads are those of the frame (of the layer, if `keys` holds `layer`).
    """
    facets = [k for k in keys if k in HEAD_COLUMNS]
    heads = frame.groupby(HEAD_COLUMNS, dropna=False, sort=False).ngroup()
    seen = heads.groupby([frame[k] for k in [*keys, "seed"]], dropna=False).transform("nunique")
    of_all = (heads.groupby([frame[k] for k in facets], dropna=False).transform("nunique")
              if facets else heads.nunique())
    part = seen < of_all
    note_each(frame[part].drop_duplicates(keys), "{}: points left out because some heads are missing: {count}")
    if part.all():
        raise CsvError(f"{path}: no point has rows for every head that the file has")
    return frame[~part]


def mean_and_sd(frame, keys, column, spread="seeds"):
    """Returns one row per group of `keys`, in order of appearance: mean, sd (n - 1), seeds.

    Averages each seed first; `mean` and `sd` are over seeds, as in BalanceKV's figure 2.
    spread="all": sd over all rows. NaN and infinity propagate. The sd of one value is NaN.
    """
    per_seed = frame.groupby([*keys, "seed"], dropna=False, sort=False)[column].agg(lambda v: v.mean(skipna=False))
    groups = per_seed.groupby(level=list(keys), dropna=False, sort=False)
    out = groups.agg(mean=lambda v: v.mean(skipna=False), sd="std", seeds="size")
    if spread == "all":
        out["sd"] = frame.groupby(list(keys), dropna=False, sort=False)[column].std()
    return out.reset_index()


SHARES = ("ratio", "middle_ratio", "read_ratio")  # of the bytes of the whole cache, or of its middle


def bytes_of(frame, share):
    """Returns the bytes that each row's column `share` is a part of, relative to the most; 1 for other columns, and in
    tables without bytes. A mean over heads or layers with these weights is a sum of bytes over a sum of bytes.
    """
    names = ["bytes", "full_bytes", *(["middle_ratio"] if share != "ratio" else [])]
    if share not in SHARES or not all(name in frame and frame[name].dtype == np.float64 for name in names):
        return pd.Series(1.0, frame.index)
    out = frame["full_bytes"]
    if share != "ratio":
        rest = 1 - frame["middle_ratio"]
        middle = ((out - frame["bytes"]) / rest).where(rest.abs() > 1e-9)
        if "read_bytes" in frame and "read_ratio" in frame:
            middle = middle.fillna((frame["read_bytes"] / frame["read_ratio"]).where(frame["read_ratio"] > 0))
        # Of a head and its windows, whatever the row holds.
        keys = [frame[name] for name in (*HEAD_COLUMNS, "sink", "recent") if name in frame]
        of_head = middle.groupby(keys, dropna=False).transform("median").round()
        out = of_head.where(of_head > 0, out)
    return out / out.max()


def sizes_of(frame):
    """Returns {budget: share of the whole cache's bytes} of rows of prefill: of the methods' shares the median."""
    names = ["budget_requested", "ratio", "full_bytes"]
    if not all(name in frame and frame[name].dtype.kind in "fi" for name in names):
        return {}
    rows = frame[frame["budget_requested"].notna() & frame["ratio"].notna()]
    if rows.empty or "protocol" in rows and (rows["protocol"] != "prefill").any():
        return {}
    keys = ["budget_requested", "algorithm", "params"]
    shares = weighted_means(rows, keys, "ratio", bytes_of(rows, "ratio"))
    return {float(budget): float(share)
            for budget, share in shares.groupby(level=0).median().sort_index(ascending=False).items()}


def of_whole_cache(frame):
    """Returns whether budgets are of the whole cache (--total-budget): it has them, and the middle does not."""
    sizes = sizes_of(frame)
    if not sizes or not all(abs(share - budget) <= 0.01 * budget for budget, share in sizes.items()):
        return False
    return (frame["middle_ratio"] < 0.95 * frame["budget_requested"]).any()


def size_text(share):
    """Returns `0.35 of the cache, 2.9x`."""
    return f"{share:.2g} of the cache, {1 / share:.2g}x"


def weighted_means(frame, keys, column, weights):
    """Returns the mean of a column in each group of `keys`, in order of appearance. NaN propagates."""
    parts = frame[keys].assign(share=frame[column] * weights, of=weights)
    groups = parts.groupby(keys, dropna=False, sort=False)
    if (weights == 1).all():
        out = groups["share"].mean()
    else:
        out = groups["share"].sum() / groups["of"].sum()
    return out.where(groups["share"].count() == groups.size())


def finite_points(table):
    """Returns points with a finite mean; notes the others on stderr."""
    bad = ~np.isfinite(table["mean"])
    note_each(table[bad], "{} has a mean that is not finite; not drawn")
    return table[~bad]
