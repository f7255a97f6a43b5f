"""Losses by model, budget, method and source: reading, averaging, tests, output."""

import math
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from kvbench import stats as ks
from kvbench import tables as kt
from kvbench import units
from kvbench.comparison.analysis import compare_to
from kvbench.comparison.options import METRICS
from kvbench.comparison.tables import chance, significant
from kvbench.text import counted

# Key columns of a metric's table besides prompt and cache.
PARTS = {"rel_error": ["layer", "q_head"], **dict.fromkeys(kt.LAYER_METRICS, ["layer"])}
KEY = ["trace", "prompt", "algorithm", "params", "budget_requested", "seed"]
TEXT = ("trace", "prompt", "source", "algorithm", "params", "status")
COLUMNS = ["model", "budget", "method", "sources", "mean", "low", "high", "geometric", "median", "to",
           "difference", "difference_low", "difference_high", "ratio", "ratio_low", "ratio_high", "p",
           "p_holm", "verdict", "setting", "default", "change", "change_low", "change_high", "bytes"]
SOURCE_COLUMNS = ["model", "budget", "method", "source", "value"]
ALPHA = 0.05
FEWEST = 8  # sources of an interval; the studentised bootstrap of four exceeds their range


@dataclass
class Losses:
    """values[model, budget]: a frame [sources, methods], NaN if a source is missing; usual: the same before --tuned;
    settings: {(model, method): difference from the default}; sizes[model, budget]: {method: mean share of all bytes},
    of tables with `ratio`.
    """

    values: dict
    methods: list
    notes: list = field(default_factory=list)
    usual: dict = field(default_factory=dict)
    settings: dict = field(default_factory=dict)
    sizes: dict = field(default_factory=dict)

    def models(self):
        return list(dict.fromkeys(model for model, _ in self.values))

    def budgets(self):
        return sorted({budget for _, budget in self.values}, reverse=True)


def read(tables, metric):
    """Returns rows of a frame or of files."""
    parts = PARTS.get(metric, [])
    of_layers = metric in kt.LAYER_METRICS  # layers have rows only where all heads are ok, without status
    needed = [*KEY, *parts, metric, *([] if of_layers else ["status"])]
    frame = (kt.table_of(tables, needed, TEXT) if isinstance(tables, pd.DataFrame) else
             kt.read_table(tables, needed, TEXT, others=["source"] if parts else ["layers", "source", "ratio"]))
    path = kt.source_of(frame)
    if of_layers:
        own = frame.groupby(KEY, dropna=False)["layer"].transform("nunique")
        frame["status"] = np.where(own == frame["layer"].nunique(), "ok", "incomplete")
    unknown = (frame["status"].map(kt.status_kind) == "ok") & ~np.isfinite(frame[metric])
    if unknown.any():
        row = frame[unknown].iloc[0]
        raise kt.CsvError(f"{path}: prompt {row['prompt']}, {row['algorithm']} at {row['budget_requested']:g}: "
                          f"{metric} is {row[metric]} though the status is ok, expected a finite number")
    kt.reject_duplicates(frame, [*KEY, *parts], path)
    return frame


def refuse_other_layers(frame, path):
    """Raises CsvError if caches have different numbers of layers."""
    if "layers" in frame and frame["layers"].nunique() > 1:
        raise kt.CsvError(f"{path}: caches of {', '.join(map(str, frame['layers'].unique()))} layers, "
                          "expected one number: they are not compared")


def without_spoiled(frame, keys):
    """Returns (rows of the groups by `keys` that are whole, [(keys but the last, number of dropped groups)]).

    Whole: all rows are ok, and every prompt and head has one that any label has there.
    """
    heads = frame.groupby([name for name in kt.HEAD_COLUMNS if name in frame], sort=False, dropna=False).ngroup()
    own, of_all = (heads.groupby([frame[name] for name in some], dropna=False).transform("nunique")
                   for some in (keys, [name for name in keys if name not in ("usual", "label")]))
    bad = (frame["status"].map(kt.status_kind) != "ok") | (own < of_all)
    spoiled = frame.loc[bad, keys].drop_duplicates()
    frame = frame.merge(spoiled.assign(spoiled=True), "left", keys)
    gone = [(place, len(some)) for place, some in spoiled.groupby(keys[:-1], dropna=False)]
    return frame[frame["spoiled"].isna()], gone


def load(options):
    """Returns the Losses of `tables`, [(model, [file] or frame)], with rows of `tuned` in place of theirs."""
    frames, places, settings, skipped, metric = [], [], {}, [], options.metric
    tuned = {model: files for model, *files in options.tuned}
    for model, paths in options.tables:
        frame = read(paths, metric).assign(model=model, usual=False)
        places.append(kt.source_of(frame))
        if model in tuned:
            frame = with_tuned(frame, read(tuned[model], metric).assign(model=model, usual=False),
                               tuned[model][0], settings, skipped)
        refuse_other_layers(frame, places[-1])
        frames.append(frame)
    frame, path = pd.concat(frames, ignore_index=True), places[0]
    frame = kt.pick_rows(frame, options, path)
    if tuned:
        label_by_method(frame)
    else:
        kt.add_labels(frame)
    frame["source"] = units.sources_of(frame, options.records, path, own_source=True)
    frame, gone = without_spoiled(frame, ["model", "usual", "budget_requested", "label", "source"])
    notes = [f"{model}: {label} at {budget:g}: without {counted(count, 'source')} with rows that are not ok or missing"
             for (model, usual, budget, label), count in gone if not usual]
    usual, frame = averaged(frame[frame["usual"]], metric), frame[~frame["usual"]]
    values = averaged(frame, metric)
    if not values:
        raise kt.CsvError(f"{path}: no rows with status ok")
    sizes = averaged(frame, "ratio") if "ratio" in frame else {}
    methods = list(dict.fromkeys(label for table in values.values() for label in table.columns))
    return Losses(values, methods, skipped + notes, usual, settings,
                  {place: table.mean().to_dict() for place, table in sizes.items()})


def with_tuned(frame, tuned, path, settings, skipped):
    """Returns rows of both; marks `frame`'s of tuned methods as `usual`. Skips tuned methods that it lacks."""
    known = tuned["algorithm"].isin(frame["algorithm"].unique())
    for model, name in tuned.loc[~known, ["model", "algorithm"]].drop_duplicates().itertuples(index=False):
        skipped.append(f"{model}: {name}: skipped, the other tables have no row of it")
    tuned = tuned[known]
    for (model, name), part in tuned.groupby(["model", "algorithm"], sort=False):
        before = frame.loc[frame["algorithm"] == name, "params"].unique()
        after = part["params"].unique()
        if len(before) != 1 or len(after) != 1:
            raise kt.CsvError(f"{path}: {name}: got {len(after)} settings, and {len(before)} in the other "
                              "tables, expected one of each")
        settings[model, name] = kt.changed_params(after[0], before[0])
    frame["usual"] = frame["algorithm"].isin(tuned["algorithm"].unique())
    return pd.concat([frame, tuned], ignore_index=True)


def label_by_method(frame):
    """Labels by algorithm, and within a model by differing parameters, since tuned settings differ between models."""
    for _, part in frame.groupby(["model", "usual"], sort=False):
        own = part.copy()
        kt.add_labels(own)
        frame.loc[part.index, "label"] = own["label"]


def averaged(frame, metric):
    """Returns {(model, budget): [sources, methods]}: means of a prompt's rows, then of a source's prompts."""
    keys = ["model", "budget_requested", "label", "source"]
    prompt = frame.groupby([*keys, "trace", "prompt"], sort=False, dropna=False)[metric].mean()
    # By level: a label or a model may be called as a key.
    source = prompt.groupby(level=keys, sort=False, dropna=False).mean()
    values = {}
    for (model, budget), part in source.groupby(level=["model", "budget_requested"], sort=False, dropna=False):
        budget = math.nan if math.isnan(budget) else budget  # one object, by which it is found
        values[model, budget] = part.droplevel([0, 1]).unstack("label").sort_index()
    return values


def extent(values, kind="t"):
    """Returns (low, high) of a mean over sources: its 95 % interval, with fewer than FEWEST the minimum and maximum."""
    if len(values) < FEWEST:
        return (float(values.min()), float(values.max())) if len(values) else (math.nan, math.nan)
    (low, high), = ks.bootstrap_intervals(values[:, None], kind=kind)
    return float(low), float(high)


def logs(table):
    """Returns logarithms, NaN where a figure is not positive."""
    return np.log(table.where(table > 0))


def geometric(table):
    """Returns the geometric mean of each column; NaN where a figure is not positive."""
    return np.exp(logs(table).mean()).where((table > 0).sum() == table.notna().sum())


def centre(table):
    """Returns what ranks methods: geometric means, since few sources make the mean; means if a figure is <= 0."""
    middles = geometric(table)
    return middles if middles.notna().all() else table.mean()


def lines(found, to=None):
    """Returns a dict of COLUMNS per model, budget and method, by `centre`. ratio: geometric mean, to `to`."""
    if to is not None and to not in found.methods:
        raise kt.CsvError(f"--to: got `{to}`, expected one of {', '.join(found.methods)}")
    out = []
    for (model, budget), table in found.values.items():
        rows, middles = [], geometric(table)
        for label in table.columns:
            values = table[label].dropna().to_numpy()
            low, high = extent(values)
            rows.append({"model": model, "budget": budget, "method": label, "sources": len(values),
                         "mean": float(values.mean()), "low": low, "high": high,
                         "geometric": float(middles[label]), "median": float(np.median(values)),
                         "bytes": found.sizes.get((model, budget), {}).get(label, math.nan)})
        if to in table.columns:
            tested(rows, table, to)
        for row in rows:
            row.update(changed_by_tuning(found, model, budget, row["method"]))
        place = centre(table)
        out += sorted(rows, key=lambda row: place[row["method"]])
    return out


def tested(rows, table, to):
    """Adds differences and ratios to `to`, p, and verdicts if the number of sources allows."""
    pairs = compare_to(rows, table, to, extent)
    for row, _ in pairs:
        reach = len(pairs) * ks.min_p(row["pairs"]) <= ALPHA
        row.update(ratio_to(table, row["method"], to), verdict="not decided" if reach else "-")
        if reach and row["p_holm"] <= ALPHA:
            row["verdict"] = "less" if row["sign"] < 0 else "more"


def ratio_to(table, method, to):
    """Returns {ratio...}: the geometric mean of the ratio to `to` with its interval; NaN if some figure is <= 0."""
    pairs = table[[method, to]].dropna()
    if pairs.empty or not (pairs > 0).to_numpy().all():
        return dict.fromkeys(("ratio", "ratio_low", "ratio_high"), math.nan)
    apart = (logs(pairs[method]) - logs(pairs[to])).to_numpy()
    low, high = extent(apart)
    return {"ratio": math.exp(apart.mean()), "ratio_low": math.exp(low), "ratio_high": math.exp(high)}


def changed_by_tuning(found, model, budget, method):
    """Returns {setting, default, change...} of a tuned method, over the sources that tuned and default share."""
    before = found.usual.get((model, budget), {}).get(method)
    if before is None:
        return {}
    pairs = (found.values[model, budget][method] - before).dropna()
    pair = pairs.to_numpy()
    low, high = extent(pair)
    return {"setting": found.settings[model, method], "default": float(before[pairs.index].mean()),
            "change": float(pair.mean()) if len(pair) else math.nan, "change_low": low, "change_high": high}


def by_source(found):
    return [{"model": model, "budget": budget, "method": label, "source": source,
             "value": float(table.loc[source, label])}
            for (model, budget), table in found.values.items() for label in table.columns
            for source in table.index if not math.isnan(table.loc[source, label])]


def mean_ranks(found):
    """Returns {method: mean rank by `centre` over models and budgets} of methods in all of them."""
    ranks = [centre(table).rank() for table in found.values.values()]
    return {method: float(np.mean([rank[method] for rank in ranks])) for method in found.methods
            if all(method in rank.index for rank in ranks)}


def shown(found, most):
    """Returns the best of each model and budget, then those with the lowest mean rank."""
    ranks = mean_ranks(found)
    best = [centre(table).idxmin() for table in found.values.values()]
    order = [*dict.fromkeys(best), *sorted(ranks, key=ranks.get)]
    return [m for m in dict.fromkeys(order) if m != "exact"][:most]


def markdown(found, rows, options):
    """Returns the table over models, then the resolution of the tests."""
    models, budgets = found.models(), found.budgets()
    cells = {(row["model"], row["budget"], row["method"]): row for row in rows}
    columns = [(model, budget) for model in models for budget in budgets if (model, budget) in found.values]
    n = {key: len(table) for key, table in found.values.items()}
    few = any(count < FEWEST for count in n.values())
    out = [f"{METRICS[options.metric]}: geometric mean over sources; mean [95 % interval over sources]"
           + (f", or of fewer than {FEWEST} sources (least to largest)." if few else "."), ""]
    out.append("| method | " + " | ".join(f"{model}, {share(budget)} (n = {n[model, budget]})"
                                          for model, budget in columns) + " |")
    out.append("| --- |" + " --- |" * len(columns))
    order = {method: rank for method, rank in mean_ranks(found).items()}
    middle = columns[len(columns) // 2]
    later = centre(found.values[middle])
    for method in sorted(found.methods, key=lambda m: (order.get(m, math.inf), later.get(m, math.inf))):
        texts = []
        for model, budget in columns:
            row = cells.get((model, budget, method))
            texts.append("-" if row is None else cell(row, n[model, budget], options))
        out.append(f"| {method} | " + " | ".join(texts) + " |")
    out += ["", "Methods that every column has stand first, by mean rank of the geometric means over the columns."]
    if options.to:
        out += ["", f"Tested against {options.to}: * differs (Holm over the methods of the column)."]
        for model, budget in columns:
            tests = len(found.values[model, budget].columns) - 1
            if tests < 1 or options.to not in found.values[model, budget]:
                continue
            least = tests * ks.min_p(n[model, budget])
            out.append(f"- {model}, {share(budget)}: {counted(tests, 'comparison')} of "
                       f"{counted(n[model, budget], 'source')}: the least p is {chance(min(1.0, least))}"
                       + (": estimates, no verdicts." if least > ALPHA else "."))
    if found.settings:
        out += ["", *tuning_lines(found, rows, options)]
    return "\n".join(out) + "\n"


def tuning_lines(found, rows, options):
    """Returns the changes by tuning at the middle budget of each model."""
    out = ["What tuning changed; methods that are not here have their defaults:", "",
           "| model, budget | method | setting | default | tuned | change |", "| --- | --- | --- | --- | --- | --- |"]
    for model in found.models():
        here = sorted({row["budget"] for row in rows if row["model"] == model and "setting" in row}, reverse=True)
        middle = here[len(here) // 2] if here else None
        for row in rows:
            if "setting" in row and (row["model"], row["budget"]) == (model, middle):
                default, mean = (significant(row[name], options.digits) for name in ("default", "mean"))
                ends = (row["change_low"], row["change_high"])
                out.append(f"| {model}, {share(row['budget'])} | {row['method']} | `{row['setting']}` | "
                           f"{default} | {mean} | {spanned(row['change'], ends, row['sources'], options)} |")
    return out


def cell(row, most, options):
    text = spanned(row["mean"], (row["low"], row["high"]), row["sources"], options)
    if not math.isnan(row["geometric"]):
        text = f"{significant(row['geometric'], options.digits)}; {text}"
    if row.get("verdict") in ("less", "more"):
        text += " *"
    return text + (f" (n = {row['sources']})" if row["sources"] < most else "")


def spanned(mean, ends, sources, options):
    """Formats a mean with its interval, with fewer than FEWEST sources with minimum and maximum, of one with `-`."""
    if sources < 2:
        return f"{significant(mean, options.digits)} [-]"
    low, high = (significant(end, options.digits) for end in ends)
    return significant(mean, options.digits) + (f" ({low} to {high})" if sources < FEWEST else f" [{low}, {high}]")


def share(budget):
    if math.isnan(budget):
        return "native"
    whole = 1 / budget if budget > 0 else 1.0
    return f"1/{whole:g}" if whole > 1 and abs(whole - round(whole)) < 1e-9 else f"{budget:g}"
