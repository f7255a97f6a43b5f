"""Analysis of kvbench-py compare: a Comparison per budget, over prompts or sources."""

import math
from dataclasses import dataclass, field

import numpy as np

from kvbench import stats as ks
from kvbench import tables as kt
from kvbench import units
from kvbench.text import counted

POINT = ["budget", "label", "unit"]


@dataclass
class Comparison:
    """Results at one budget. values: a frame [prompts, methods], NaN if missing; by: prompts or sources.

    rows: a dict per method, sorted by mean. layers: a dict per method and layer. tests: Friedman and Nemenyi over
    `ranked`, the methods with every prompt. groups: of `ranked`, not told apart.
    """
    budget: str
    values: object
    ranks: dict = field(default_factory=dict)
    rows: list = field(default_factory=list)
    layers: list = field(default_factory=list)
    ranked: list = field(default_factory=list)
    tests: dict = field(default_factory=dict)
    groups: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    by: str = "prompt"
    size: str = ""  # what the budget is of the whole cache


def budget_name(budget):
    return "native" if math.isnan(budget) else f"{budget:g}"


def read(tables, options, metrics=None):
    """Returns the chosen rows of a frame or of files, with unit (the prompt), label, budget (text), head, and with --by
    source its `of`. metrics: required columns; None: that of --metric.
    """
    read_as = kt.results_of if isinstance(tables, kt.pd.DataFrame) else kt.read_results
    frame = read_as(tables, [*(metrics or [options.metric]), "seed", "budget_requested", *kt.HEAD_COLUMNS,
                             *kt.SETTINGS])
    path = kt.source_of(frame)
    frame = kt.pick_layers(kt.pick_rows(frame, options, path), options.layers, path).copy()
    if options.set is not None:
        frame = frame[frame["prompt"].isin(units.of_set(options.set, options.records))].copy()
        if frame.empty:
            raise kt.CsvError(f"{path}: --set: no rows of prompts of the set {options.set}")
    pairs = frame[["trace", "prompt"]].drop_duplicates()
    again = sorted(pairs.loc[pairs["prompt"].duplicated(), "prompt"].unique())
    frame["unit"] = frame["prompt"]
    if again:
        kt.note(f"prompts of one name in several traces count as several prompts: {', '.join(again[:5])}")
        frame["unit"] = frame["trace"] + ":" + frame["prompt"]
    if options.by == "source":
        frame["of"] = units.sources_of(frame, options.records, path)
    frame["budget"] = frame["budget_requested"].map(budget_name)
    frame["head"] = frame.groupby(["layer", "q_head"], sort=False).ngroup()
    if options.figures:
        from kvbench.plot import frame as kfr  # slow import

        options.facts = kfr.facts_of(frame)
    return kt.add_labels(frame)


def points(frame, path, pool=False):
    """Returns (rows of complete points, {(budget, label): whether a point is incomplete})."""
    good = kt.measured_rows(frame, path, pool)
    point = frame.groupby(POINT, sort=False).ngroup()
    bad = set(point[frame["status"].map(kt.status_kind) != "ok"])
    heads = frame.groupby("unit")["head"].nunique()
    seen = good.groupby([*POINT, "seed"], sort=False)["head"].transform("nunique")
    bad |= set(point[good.index][seen < good["unit"].map(heads)])
    lost = frame.loc[point.isin(bad), ["budget", "label"]].drop_duplicates()
    return good[~point[good.index].isin(bad)], set(map(tuple, lost.to_numpy()))


def means(rows, keys, metric):
    """Returns means by the columns `keys`; of shares of bytes sums over sums. NaN propagates."""
    return kt.weighted_means(rows, keys, metric, rows["of_bytes"])


def load(tables, options):
    """Returns [(Comparison with values and notes, values by layer)], largest budget first."""
    frame = read(tables, options)
    path = kt.source_of(frame)
    if frame.empty:
        raise kt.CsvError(f"{path}: no rows are left")
    frame["of_bytes"] = kt.bytes_of(frame, options.metric)
    good, lost = points(frame, path, options.pool)
    sizes = {budget_name(budget): kt.size_text(share) for budget, share in kt.sizes_of(good).items()}
    out = []
    order = frame.drop_duplicates("budget").sort_values("budget_requested", ascending=False)
    for budget in order["budget"]:
        here = good[good["budget"] == budget]
        names = list(dict.fromkeys(frame.loc[frame["budget"] == budget, "unit"]))
        values = means(here, ["unit", "label"], options.metric)
        values = values.unstack("label").reindex(names)
        values = values.where(np.isfinite(values))
        labels = list(dict.fromkeys(frame.loc[frame["budget"] == budget, "label"]))
        if len(labels) < 2:
            kt.note(f"budget {budget}: {labels[0]} alone; nothing to compare")
            continue
        found = Comparison(budget, values.reindex(columns=labels), by=options.by, size=sizes.get(budget, ""))
        absent = [unit for unit in dict.fromkeys(frame["unit"]) if unit not in set(names)]
        if absent:
            found.notes.append(f"{counted(len(absent))} without rows here: {', '.join(absent)}")
        by_layer = means(here, ["layer", "unit", "label"], options.metric)
        by_layer = by_layer.unstack("label")
        if options.by == "source":
            found.values, by_layer = by_source(frame, found.values, by_layer)
        for label in labels:
            have = int(found.values[label].notna().sum())
            if have < len(found.values):
                what = ("heads infeasible, degenerate, failed or absent"
                        if (budget, label) in lost else "no rows, or no finite figure")
                found.notes.append(f"{label} has {have} of {counted(len(found.values), options.by)} ({what} in the "
                                   "others): no rank")
        out.append((found, by_layer))
    if not out:
        raise kt.CsvError(f"{path}: no budget has two methods")
    return out


def by_source(frame, values, by_layer):
    """Averages the figures of prompts by source, over all layers and by layer."""
    of = dict(zip(frame["unit"], frame["of"]))
    layers = {key: (key[0], of[key[1]]) for key in by_layer.index}
    by_layer = units.mean_by(by_layer, layers)
    # Also of no rows, where no point of the budget is complete.
    by_layer.index = kt.pd.MultiIndex.from_tuples(list(by_layer.index), names=["layer", "unit"])
    return units.mean_by(values, of), by_layer


def compare_to(rows, values, to, interval):
    """Adds the paired comparison with `to` to each row that has one; returns [(row, differences)] of these.

    interval: of differences. sign: 1 if positive ranks weigh more; the mean can have the other sign.
    """
    pairs = []
    for row in rows:
        apart = (values[row["method"]] - values[to]).dropna()
        if row["method"] == to or apart.empty:
            continue
        low, high = interval(apart.to_numpy())
        p, sign = ks.signed_rank_test(apart)
        row.update(to=to, pairs=len(apart), difference=apart.to_numpy().mean(), difference_low=low,
                   difference_high=high, p=p, sign=sign)
        pairs.append((row, apart))
    for (row, _), adjusted in zip(pairs, ks.holm([row["p"] for row, _ in pairs])):
        row["p_holm"] = adjusted
    return pairs


def by_layers(found, by_layer, options):
    """Adds a dict per method and layer to `found.layers`, with the difference to --to."""
    for layer, rows in by_layer.groupby(level="layer"):
        rows = rows.droplevel("layer").reindex(index=found.values.index)
        for row in found.rows:
            label = row["method"]
            if label not in rows.columns:
                continue
            # The prompts of the method's mean.
            mine = rows[label].where(found.values[label].notna()).dropna()
            if mine.empty:
                continue
            out = {"budget": found.budget, "method": label, "layer": int(layer),
                   "prompts": len(mine), "mean": mine.mean(), "median": mine.median()}
            if options.to and options.to in rows.columns and label != options.to:
                base = rows[options.to].where(found.values[options.to].notna())
                apart = (mine - base).dropna()
                out["difference"] = apart.mean() if len(apart) else math.nan
            found.layers.append(out)


def analyse(found, by_layer, options):
    values, n = found.values, len(found.values)
    whole = values.columns[values.notna().all()]
    for label in values.columns:
        mine = values[label].dropna().to_numpy()
        if not len(mine):
            continue
        low, high = ks.bootstrap_intervals(mine[:, None], options.level, options.interval,
                                           options.resamples, options.seed)[0]
        found.rows.append({"budget": found.budget, "method": label, "prompts": len(mine),
                           "mean": mine.mean(), "low": low, "high": high,
                           "median": float(np.median(mine))})
    found.rows.sort(key=lambda row: -row["mean"] if options.higher_better else row["mean"])
    if len(whole) >= 2:
        matrix = values[whole].to_numpy()
        ranks = ks.ranks_of(matrix, options.higher_better)
        mean_ranks = dict(zip(whole, ranks.mean(axis=0)))
        wins = dict(zip(whole, ks.win_counts(matrix, options.higher_better)))
        found.ranks = {label: ranks[:, i] for i, label in enumerate(whole)}
        for row in found.rows:
            if row["method"] in mean_ranks:
                row["mean_rank"], row["wins"] = mean_ranks[row["method"]], wins[row["method"]]
        found.ranked = sorted(whole, key=lambda label: mean_ranks[label])
        difference = ks.critical_difference(len(whole), n, options.alpha)
        found.tests = {"budget": found.budget, "prompts": n, "methods": len(whole),
                       **ks.friedman(ranks), "critical_difference": difference,
                       "alpha": options.alpha}
        found.groups = ks.groups_alike([mean_ranks[m] for m in found.ranked], difference)
        if difference >= len(whole) - 1:
            needed = ks.prompts_to_rank(len(whole), options.alpha)
            found.notes.append(
                f"too few {options.by}s for Nemenyi's test: mean ranks of {len(whole)} methods differ by "
                f"{len(whole) - 1} at most, the critical difference of {counted(n, options.by)} is "
                f"{difference:.2f}; {needed} {options.by}s could tell the first from the last")
    else:
        found.notes.append(f"fewer than two methods have every {options.by}: no ranks")
    if n < ks.FEWEST_FOR_INTERVALS:
        found.notes.append(f"no intervals: {counted(n, options.by)}, expected at least {ks.FEWEST_FOR_INTERVALS}")
    if options.to:
        paired(found, options)
    by_layers(found, by_layer, options)
    return found


def paired(found, options):
    if options.to not in found.values.columns or found.values[options.to].isna().all():
        found.notes.append(f"{options.to} has no figure here: no comparison with it")
        return
    pairs = compare_to(found.rows, found.values, options.to, lambda apart: ks.bootstrap_intervals(
        apart[:, None], options.level, options.interval, options.resamples, options.seed)[0])
    better = 1 if options.higher_better else -1
    for row, apart in pairs:
        row.update(relative=row["difference"] / found.values.loc[apart.index, options.to].mean(), verdict="undecided",
                   better=int((apart * better > 0).sum()), worse=int((apart * better < 0).sum()))
        if row["p_holm"] <= options.alpha and row["sign"]:
            row["verdict"] = "better" if row["sign"] == better else "worse"
    made, n = len(pairs), len(found.values)
    one = ks.min_p(n)
    if made and made * one > options.alpha:
        found.notes.append(
            f"too few {options.by}s for Wilcoxon's test: with {counted(n, options.by)} the smallest p is "
            f"{one:.3g}, after Holm's correction for {counted(made, 'method')} {min(1, made * one):.3g}, above "
            f"{options.alpha:g}: no difference to {options.to} can be established by it; "
            f"{ks.prompts_to_compare(made, options.alpha)} {options.by}s could")


def compare(tables, options):
    """Returns a Comparison per budget. tables: paths, or a frame."""
    out = load(tables, options)
    labels = list(dict.fromkeys(label for found, _ in out for label in found.values.columns))
    if options.to and options.to not in labels:
        raise kt.CsvError(f"--to: got `{options.to}`, expected one of {', '.join(labels)}")
    return [analyse(found, by_layer, options) for found, by_layer in out]
