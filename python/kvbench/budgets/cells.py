"""Inputs of kvbench-py policy: errors of layers, and the model's scores, by source and cell."""

import os
from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench import units
from kvbench.comparison import scores as kcs
from kvbench.text import counted

METRIC = "residual_rel_error"
HEADS = "residual_rel_error_heads"
KEY = kcs.KEY
LEAST = 1e-9  # nats; smaller divergences are rounding, such as those of `exact`


@dataclass
class Cells:
    """Both sides of every cell (budget, method), by source.

    squares [sources, cells, layers]: METRIC squared, mean over seeds and prompts; kl [sources,
    cells]; layers: their numbers.
    """

    cells: list
    sources: list
    layers: list
    squares: np.ndarray
    kl: np.ndarray
    notes: list

    def methods(self):
        return [method for _, method in self.cells]


def read_layers(paths):
    """Returns (rows of METRIC's squares [key, layers], their layers): every layer of each key."""
    frame = kcs.read(paths, METRIC)
    frame["trace"] = frame["trace"].map(os.path.basename)
    kt.reject_duplicates(frame, [*KEY, "layer"], paths[0])  # traces of one name in two folders
    table = (frame.set_index([*KEY, "layer"])[METRIC] ** 2).unstack("layer")
    if table.isna().any(axis=None):
        key = table.index[table.isna().any(axis=1)][0]
        raise kt.CsvError(f"{paths[0]}: prompt {key[1]}, {key[2]}: layers are missing, expected those of the "
                          "other rows")
    return table, [int(layer) for layer in table.columns]


def read_sizes(paths):
    """Returns {layer: bytes that its budget is a share of, mean over prompts}; 1 of tables without `budget_bytes`."""
    frame = kt.read_table(paths, ["trace", "prompt", "layer"], kcs.TEXT, others=["budget_bytes"])
    if "budget_bytes" not in frame:
        return dict.fromkeys(frame["layer"].astype(int), 1)
    once = frame.drop_duplicates(["trace", "prompt", "layer"])
    if not (once["budget_bytes"] > 0).all():
        raise kt.CsvError(f"{paths[0]}: budget_bytes: expected numbers above 0")
    return {int(layer): round(size) for layer, size in once.groupby("layer")["budget_bytes"].mean().items()}


def read_heads(paths, table):
    """Returns (squares of HEADS [key, part], parts): of every KV head, for rows of read_layers with a budget.

    parts: (layer, KV head), layer by layer. Raises CsvError if layers differ in their number of heads.
    """
    frame = kt.read_table(paths, [*KEY, "layer", HEADS], (*kcs.TEXT, HEADS))
    frame["trace"] = frame["trace"].map(os.path.basename)
    frame = frame[frame["budget_requested"].notna()]
    table = table[table.index.get_level_values("budget_requested").notna()]
    of_heads = frame[HEADS].str.split(";", expand=True)
    values = of_heads.apply(pd.to_numeric, errors="coerce")
    bad = ~np.isfinite(values.to_numpy(dtype=float)).all(axis=1)
    if bad.any():
        row = frame[bad].iloc[0]
        raise kt.CsvError(f"{paths[0]}: prompt {row['prompt']}, layer {row['layer']:g}: {HEADS}: got `{row[HEADS]}`, "
                          f"expected {values.shape[1]} numbers")
    squares = frame[[*KEY, "layer"]].join(values**2)
    means = squares.groupby([*KEY, "layer"], dropna=False, sort=False).mean().unstack("layer")
    means = means.swaplevel(axis=1).sort_index(axis=1).reindex(table.index)
    if means.isna().any(axis=None):
        raise kt.CsvError(f"{paths[0]}: {HEADS}: some layers lack it, expected it for all")
    return means, [(int(layer), int(head)) for layer, head in means.columns]


def load(options):
    """Returns the Cells of scores and --layer-table. Raises CsvError without two sources and three methods."""
    path = options.scores[0]
    scores = kcs.read(options.scores, "kl")
    kcs.refuse_other_layers(scores, path)
    scores = kt.pick_rows(scores, options, path)
    scores["trace"] = scores["trace"].map(os.path.basename)
    scores["source"] = units.sources_of(scores, options.records, path, own_source=True)
    kt.add_labels(scores)
    plain = scores["budget_requested"].isna()
    notes = [f"{label}: skipped, it has no budget" for label in scores["label"][plain].unique()]
    if plain.all():
        raise kt.CsvError(f"{path}: got no method with a budget, expected at least 3")
    scores = scores[~plain]
    squares, layers = read_layers(options.layer_table)
    keys = ["label", "budget_requested", "source"]
    scores, gone = kcs.without_spoiled(scores, keys)
    notes += [f"{label} at {budget:g}: {counted(count, 'source')} with rows that are not ok or missing"
              for (label, budget), count in gone]
    absent = ~scores.set_index(KEY).index.isin(squares.index)
    if absent.any():
        row = scores[absent].iloc[0]
        raise kt.CsvError(f"{options.layer_table[0]}: no rows of prompt {row['prompt']}, {row['algorithm']} at "
                          f"{row['budget_requested']:g}, which the scores have")
    both = scores.join(squares, on=KEY)
    # Seeds of a prompt first, then the prompts of a source.
    prompt = both.groupby([*keys, "trace", "prompt"], sort=False)[["kl", *squares.columns]].mean()
    source = prompt.groupby(keys, sort=False).mean()
    return whole(source, layers, notes, path)


def load_alone(options, found):
    """Returns (KL [sources, cells, layers] of single compressed layers, notes). Raises CsvError without one above 0."""
    frame = kt.read_table(options.alone, [*KEY, "layer", "kl", "status"], kcs.TEXT, others=["source"])
    kt.reject_duplicates(frame, [*KEY, "layer"], options.alone[0])
    frame = frame[~frame["algorithm"].isin(options.exclude)].copy()
    frame["source"] = units.sources_of(frame, options.records, options.alone[0], own_source=True)
    kt.add_labels(frame)
    keys = ["budget_requested", "label", "layer", "source"]
    frame, gone = kcs.without_spoiled(frame, keys)
    notes = [f"{label} at {budget:g}, layer {layer:g}: {counted(count, 'source')} with rows that are not ok or missing"
             for (budget, label, layer), count in gone]
    prompt = frame.groupby([*keys, "trace", "prompt"], sort=False)["kl"].mean()
    kl = prompt.groupby(keys, sort=False).mean()
    wanted = pd.MultiIndex.from_tuples([(*cell, layer, source) for source in found.sources for cell in found.cells
                                        for layer in found.layers], names=keys)
    kl = kl.reindex(wanted)
    bad = ~(kl >= LEAST)
    if bad.any():
        budget, label, layer, source = kl.index[bad][0]
        raise kt.CsvError(f"{options.alone[0]}: {source}, {label} at {budget:g}, layer {layer}: got no KL above "
                          f"{LEAST:g}, expected one for every layer of the cells of the scores")
    return kl.to_numpy().reshape(found.squares.shape), notes


def whole(table, layers, notes, path):
    """Returns the Cells that every source has, with KL above LEAST; notes the others."""
    sources = sorted(table.index.unique("source"))
    cells, parts = [], []
    order = table.groupby(level=["budget_requested", "label"], sort=False)
    for (budget, label), part in sorted(order, key=lambda one: (-one[0][0], one[0][1])):
        part = part.droplevel(["label", "budget_requested"]).reindex(sources)
        if part.isna().any(axis=None):
            notes.append(f"{label} at {budget:g}: skipped, {int(part['kl'].isna().sum())} of {len(sources)} "
                         "sources lack it")
        elif part["kl"].min() < LEAST:
            notes.append(f"{label} at {budget:g}: skipped, its KL divergence is 0")
        elif not (part.drop(columns="kl").sum(axis=1) > 0).all():
            notes.append(f"{label} at {budget:g}: skipped, the errors of its layers are 0")
        else:
            cells.append((budget, label))
            parts.append(part.to_numpy())
    if len(sources) < 2 or len({method for _, method in cells}) < 3:
        methods = counted(len({method for _, method in cells}), "method")
        raise kt.CsvError(f"{path}: {counted(len(sources), 'source')} and {methods} that all sources have, expected at "
                          "least 2 and 3")
    values = np.stack(parts, axis=1)
    return Cells(cells, sources, layers, values[:, :, 1:], values[:, :, 0], notes)
