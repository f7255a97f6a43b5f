"""Inputs of kvbench-study correlate by cell: replay's figures and the model's scores."""

import os
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench.budgets import model as predict
from kvbench.comparison import analysis as compare
from kvbench.text import counted

HEAD_METRICS = ["rel_error", "rel_error_mean", "rel_error_p50", "rel_error_p95", "rel_error_max",
                "eps_fro", "eps_op", "log_z_error", "cosine", "mass_kept", "amnesia_count",
                "amnesia_mass", "middle_ratio"]
TURNED = kt.HIGHER_BETTER | {"middle_ratio", "top_agreement"}
# Scores of every prompt; `wrong_answers` covers prompts that the exact model answers right.
SCORES = ["kl", "loss_change", "top_agreement"]
WRONG = "wrong_answers"
ANSWERS = ["answer_exact_right", "answer_right"]
KEY = ["trace", "prompt", "algorithm", "params", "budget_requested", "seed"]
POINT = [*compare.POINT, "seed"]
TEXT = kt.TEXT_COLUMNS | {"answer", "answer_exact", "answer_expected", "layers"}
FEWEST_CELLS = 3


@dataclass
class Level:
    """Figures of heads or of layers: values [n, metrics], each with the index of its prompt and
    cell.
    """
    name: str
    metrics: list
    values: np.ndarray
    prompts: np.ndarray
    cells: np.ndarray


@dataclass
class Table:
    """Both sides. cells: (budget, method) by budget; units: prompts, or sources by `by`.

    scores: {name: [prompts, cells]}, NaN if missing. Scores and figures are oriented so that higher
    is worse (`1-NAME`). squares [prompts, cells, layers]: residual_rel_error squared, if read.
    """
    cells: list
    units: list
    levels: list
    scores: dict
    by: str = "prompt"
    squares: np.ndarray | None = None

    def budgets(self):
        return list(dict.fromkeys(budget for budget, _ in self.cells))

    def members(self, budget=None):
        """Returns indices of the cells of a budget, or of all."""
        return [i for i, cell in enumerate(self.cells) if budget in (None, cell[0])]


def note(text):
    """Prints a note on stderr about skipped data."""
    kt.note(text)


def shown(names):
    names = list(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def turned_name(metric):
    return f"1-{metric}" if metric in TURNED else metric


def keys_of(frame):
    """Returns the join key of each row, as tuples; a missing budget is None."""
    budget = frame["budget_requested"].astype(object).where(frame["budget_requested"].notna(), None)
    return list(zip(frame["trace"], frame["prompt"], frame["algorithm"], frame["params"], budget,
                    frame["seed"]))


def read_scores(paths, pool=False):
    """Returns rows of kvbench-py score with status ok, one per key; `agreement` is inverted."""
    frame = kt.read_table(paths, [*KEY, *SCORES, *ANSWERS, "status"], TEXT)
    frame["trace"] = frame["trace"].map(os.path.basename)
    kt.reject_duplicates(frame, KEY, ", ".join(paths))
    frame = kt.measured_rows(frame, paths[0], pool)
    for score in SCORES:
        bad = frame[~np.isfinite(frame[score])]
        if len(bad):
            row = bad.iloc[0]
            raise kt.CsvError(f"{paths[0]}: column `{score}`: got {row[score]} at prompt "
                              f"{row['prompt']}, {row['algorithm']}, expected a number")
    for column in ANSWERS:
        # In between: a mean over seeds, as in the reference's store.
        bad = frame[~(frame[column].between(0, 1) | frame[column].isna())]
        if len(bad):
            raise kt.CsvError(f"{paths[0]}: column `{column}`: got {bad[column].iloc[0]:g}, "
                              "expected 0, 1, a mean of these or nothing")
    counts = frame.groupby(["trace", "prompt"])["answer_exact_right"].nunique()
    if (counts > 1).any():
        raise kt.CsvError(f"{paths[0]}: column `answer_exact_right` differs within prompt "
                          f"{counts.index[counts > 1][0][1]}")
    frame[WRONG] = (1 - frame["answer_right"]).where(frame["answer_exact_right"] == 1)
    return frame


def both_sides(rows, scores):
    """Returns rows and scores of the common keys; notes the others."""
    row_keys, score_keys = pd.Series(keys_of(rows), rows.index), pd.Series(keys_of(scores),
                                                                         scores.index)
    texts = []
    for column, what in (("prompt", "prompts"), ("algorithm", "methods")):
        have, wanted = set(rows[column]), set(scores[column])
        if not have & wanted:
            raise kt.CsvError(f"no {what[:-1]} in common: the rows have {shown(sorted(have))}, the "
                              f"scores {shown(sorted(wanted))}")
        texts += [f"{what} without scores: {shown(sorted(have - wanted))}"] if have - wanted else []
        texts += [f"{what} without rows: {shown(sorted(wanted - have))}"] if wanted - have else []
    common = set(row_keys) & set(score_keys)
    if not common:
        raise kt.CsvError("no (trace, prompt, algorithm, params, budget, seed) in common; the rows "
                          f"have {row_keys.iloc[0]}, the scores {score_keys.iloc[0]}")
    for text in texts:
        note(text)
    return rows[row_keys.isin(common)].copy(), scores[score_keys.isin(common)].copy()


def whole_cells(good, points, lost):
    """Returns the cells (budget, label) with every prompt; notes the skipped ones.

    good: keys POINT of complete points with a score; points: of all rows with one.
    """
    units = sorted(points["unit"].unique())
    seeds = points.groupby(["budget", "label", "unit"])["seed"].nunique()
    have = good.drop_duplicates(POINT).groupby(["budget", "label", "unit"])["seed"].nunique()
    kept = []
    for budget, label in points[["budget", "label"]].drop_duplicates().itertuples(index=False):
        expected = int(seeds[budget, label].max())
        short = [unit for unit in units if have.get((budget, label, unit), 0) < expected]
        if not short:
            kept.append((budget, label))
            continue
        why = ("heads infeasible, degenerate, failed or absent" if (budget, label) in lost
               else "no rows, scores or seeds")
        note(f"{label} at budget {budget} left out: it lacks {len(short)} of "
             f"{counted(len(units))} ({why}): {shown(short)}")
    return kept, units


def level_of(name, frame, metrics, labels):
    """Returns a Level of rows with unit and cell indices; skips metrics without finite values."""
    kept = []
    for metric in metrics:
        bad = frame[~np.isfinite(frame[metric])]
        if bad.empty:
            kept.append(metric)
            continue
        if len(bad) == len(frame):
            note(f"{metric} left out: the tables have no values of it")
            continue
        note(f"{metric} left out: not finite for "
             + shown(dict.fromkeys(labels[c][1] for c in bad["cell"])))
    values = frame[kept].to_numpy(float)
    turned = [metric in TURNED for metric in kept]
    values[:, turned] = 1 - values[:, turned]
    return Level(name, [turned_name(metric) for metric in kept], values,
                 frame["unit_number"].to_numpy(int), frame["cell"].to_numpy(int))


def numbered(frame, cells, units):
    """Returns rows of these cells, with their indices."""
    place = {cell: i for i, cell in enumerate(cells)}
    at = [place.get(cell, -1) for cell in zip(frame["budget"], frame["label"])]
    number = {unit: i for i, unit in enumerate(units)}
    frame = frame.assign(cell=at, unit_number=frame["unit"].map(number))
    return frame[frame["cell"] >= 0]


def read_layers(paths, rows, labels, options):
    """Returns rows of OUT.layers.csv with budget, label and unit, for every layer of every point of
    `rows`.
    """
    # The column is empty for traces without norms of the residual stream.
    frame = kt.read_table(paths, [*KEY, "layer", *kt.SETTINGS, *kt.LAYER_METRICS], kt.TEXT_COLUMNS)
    kt.check_same_run(frame, ", ".join(paths), rows, ", ".join(options.inputs))
    kt.reject_duplicates(frame, [*KEY, "layer", *kt.SETTINGS], ", ".join(paths))
    wanted = pd.DataFrame({"key": keys_of(rows), "layer": rows["layer"]}).drop_duplicates()
    frame["key"] = keys_of(frame)
    merged = wanted.merge(frame[["key", "layer", *kt.LAYER_METRICS]], on=["key", "layer"], how="left",
                          indicator=True)
    absent = merged[merged["_merge"] == "left_only"]
    if len(absent):
        key = absent["key"].iloc[0]
        raise kt.CsvError(f"{paths[0]}: no row of prompt {key[1]}, layer "
                          f"{absent['layer'].iloc[0]:g}, {key[2]}, which the main table has")
    for name, at in (("budget", 0), ("label", 1), ("unit", 2)):
        merged[name] = merged["key"].map(lambda key, at=at: labels[key][at])
    return merged


def load(options):
    """Returns the Table of common cells. Raises CsvError with fewer than FEWEST_CELLS."""
    metrics = head_metrics(options.inputs)
    if not metrics:
        raise kt.CsvError(f"{options.inputs[0]}: no column of {', '.join(HEAD_METRICS[:3])} and others, "
                          "expected the rows of kvbench replay")
    rows = compare.read(options.inputs, options, metrics)
    sources = dict(zip(rows["unit"], rows["of"])) if options.by == "source" else None
    scores = read_scores(options.score_table, options.pool)
    rows, scores = both_sides(rows, scores)
    points, lost = compare.points(rows, options.inputs[0], options.pool)
    labels = dict(zip(keys_of(rows), zip(rows["budget"], rows["label"], rows["unit"])))
    order = rows.sort_values("budget_requested", ascending=False, kind="stable")
    cells, units = whole_cells(points, order, lost)
    if len(cells) < FEWEST_CELLS:
        raise kt.CsvError(f"{options.inputs[0]}: {len(cells)} cells (method and budget) have every "
                          f"prompt on both sides, expected at least {FEWEST_CELLS}")
    rows = numbered(points, cells, units)
    levels = [level_of("head", rows, metrics, cells)]
    squares = None
    if options.layer_table:
        layers = numbered(read_layers(options.layer_table, rows, labels, options), cells, units)
        levels.append(level_of("layer", layers, kt.LAYER_METRICS, cells))
        squares = squares_of(layers) if options.predict else None
    for at, name in enumerate(("budget", "label", "unit")):
        scores[name] = [labels[key][at] for key in keys_of(scores)]
    scores = numbered(scores, cells, units)
    found = {}
    for score in [*SCORES, WRONG]:
        groups = scores.groupby(["unit_number", "cell"])[score]
        means = groups.mean().where(groups.count() == groups.size())
        table = means.unstack("cell").reindex(range(len(units))).to_numpy()
        if np.isnan(table).all():
            continue
        found[turned_name(score)] = 1 - table if score in TURNED else table
    table = Table(cells, units, levels, found, squares=squares)
    table = table if sources is None else by_source(table, sources)
    if options.predict:
        table.levels.append(predicted_level(table))
    return table


def squares_of(layers):
    """Returns Table.squares of rows with unit and cell indices: means over seeds."""
    squares = layers["residual_rel_error"] ** 2
    table = squares.groupby([layers["unit_number"], layers["cell"], layers["layer"]]).mean()
    shape = [table.index.get_level_values(at).nunique() for at in range(3)]
    if not np.isfinite(table).all() or len(table) != np.prod(shape):
        raise kt.CsvError("--predict: residual_rel_error is missing for some layers, expected it for all")
    return table.to_numpy().reshape(shape)


def predicted_level(table):
    """Returns the Level of `kl_predicted`: every cell's KL predicted from other units and methods."""
    kl = table.scores["kl"]
    if not (kl > 0).all():
        raise kt.CsvError("--predict: the KL divergence of a cell is 0, expected --exclude exact")
    methods = [method for _, method in table.cells]
    if len(table.units) < 2 or len({*methods}) < 3:
        raise kt.CsvError(f"--predict: {counted(len(table.units), table.by)} and {len({*methods})} methods, "
                          "expected at least 2 and 3")
    values = predict.cross_fit(table.squares, kl, methods)
    units, cells = np.indices(values.shape)
    return Level("model", ["kl_predicted"], values.reshape(-1, 1), units.ravel(), cells.ravel())


def head_metrics(paths):
    """Returns HEAD_METRICS; for the reference's store those in its tables."""
    columns = [kt.header_of(path) for path in paths]
    if not all("seeds" in names for names in columns):
        return HEAD_METRICS
    return [metric for metric in HEAD_METRICS if all(metric in names for names in columns)]


def by_source(table, sources):
    """Returns the Table with sources as units: figures over all rows of a source's prompts, scores
    as means over its prompts (`wrong_answers`: over those that count).
    """
    units = sorted(set(sources[unit] for unit in table.units))
    place = np.array([units.index(sources[unit]) for unit in table.units])
    levels = [Level(one.name, one.metrics, one.values, place[one.prompts], one.cells)
              for one in table.levels]
    scores = {}
    for name, values in table.scores.items():
        scores[name] = np.full((len(units), values.shape[1]), np.nan)
        for i in range(len(units)):
            mine = values[place == i]
            mine = mine[~np.isnan(mine).all(axis=1)]
            if len(mine):
                scores[name][i] = mine.mean(axis=0)
    squares = table.squares
    if squares is not None:
        squares = np.stack([squares[place == i].mean(axis=0) for i in range(len(units))])
    return Table(table.cells, units, levels, scores, "source", squares)
