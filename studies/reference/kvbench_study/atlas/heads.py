"""Features and errors of KV heads, for kvbench-study atlas."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench import units
from kvbench.cluster import tables as kcc
from kvbench.comparison import scores as kcs
from kvbench.text import parse_json

HEAD = ["layer", "kv_head"]
# feature: (table, column, what). docs/schema.md has the units.
FEATURES = {
    "entropy": ("attention.csv", "entropy", "queries"),
    "heavy_tokens": ("attention.csv", "heavy_tokens", "queries"),
    "first_mass": ("attention.csv", "first_mass", "queries"),
    "near_mass": ("attention.csv", "near_mass", "queries"),
    "rho": ("keys.csv", "rho", "keys"),
    "key_mean": ("keys.csv", "mean_share", "keys"),
    "key_dims": ("spectrum.csv", "participation", "keys"),
    "value_dims": ("spectrum.csv", "participation", "values"),
}


@dataclass
class Heads:
    """KV heads of a model.

    features: a frame [head, FEATURES], means over prompts, and over query heads of the group;
    errors: a frame [head, methods], geometric means over sources of means over the group and seeds.
    The index of both is (layer, kv_head).
    """

    model: str
    features: pd.DataFrame
    errors: pd.DataFrame
    sources: int
    budgets: dict  # {layer: of the policy}, or empty

    def best(self):
        return self.errors.idxmin(axis=1)


def features(paths):
    """Returns FEATURES by head from folders of kvbench cluster."""
    tables = {table: kcc.read_table(paths, table, [column for other, column, _ in FEATURES.values() if other == table])
              for table, *_ in FEATURES.values()}
    attention = tables["attention.csv"]
    group = (attention["head"].max() + 1) / (tables["keys.csv"]["kv_head"].max() + 1)  # query heads per KV head
    tables["attention.csv"] = attention.assign(kv_head=attention["head"] // group)
    out = {}
    for name, (table, column, what) in FEATURES.items():
        frame = tables[table]
        frame = frame[frame["what"] == what]
        if frame.empty:
            raise kt.CsvError(f"{kcc.table_path(paths[0], table)}: no rows of {what}")
        out[name] = frame.groupby(HEAD)[column].mean()
    found = pd.DataFrame(out)
    if found.isna().any(axis=None):
        layer, head = found.index[found.isna().any(axis=1)][0]
        raise kt.CsvError(f"{paths[0]}: layer {layer:g}, KV head {head:g}: not in every table")
    return found


def errors(paths, budget, methods, records):
    """Returns (errors [head, method], number of sources) at a budget from OUT.csv."""
    frame = kt.read_table(paths, [*kcs.KEY, *HEAD, "q_head", "rel_error", "status"], kcs.TEXT, others=["source"])
    frame = frame[frame["budget_requested"] == budget].copy()
    if frame.empty:
        raise kt.CsvError(f"{paths[0]}: no rows at budget {budget:g}")
    kt.add_labels(frame)
    frame = kt.pick_names(frame, "label", methods, f"{paths[0]}: budget {budget:g}")
    frame = frame.assign(source=units.sources_of(frame, records, paths[0], own_source=True))
    bad = ~(frame["status"].map(kt.status_kind).eq("ok") & np.isfinite(frame["rel_error"]) & (frame["rel_error"] > 0))
    if bad.any():
        row = frame[bad].iloc[0]
        raise kt.CsvError(f"{paths[0]}: prompt {row['prompt']}, {row['label']}, layer {row['layer']:g}, head "
                          f"{row['q_head']:g}: status {row['status']}, rel_error {row['rel_error']:g}, expected ok and "
                          "a number above 0")
    prompt = frame.groupby(["label", *HEAD, "source", "trace", "prompt"])["rel_error"].mean()
    source = np.log(prompt.groupby(["label", *HEAD, "source"]).mean()).unstack("source")
    if source.isna().any(axis=None):
        label, layer, head = source.index[source.isna().any(axis=1)][0]
        raise kt.CsvError(f"{paths[0]}: {label}, layer {layer:g}, KV head {head:g}: not for every source")
    return np.exp(source.mean(axis=1)).unstack("label"), source.shape[1]


def budgets(path):
    """Returns {layer: budget, mean over its heads} of a policy file."""
    try:
        with open(path, encoding="utf-8") as file:
            return {int(one["layer"]): float(np.mean([part["budget"] for part in one.get("heads", [one])]))
                    for one in parse_json(file.read())["layers"]}
    except OSError as error:
        raise kt.CsvError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise kt.CsvError(f"{path}: expected a policy file (docs/policies.md)") from None


def load(options):
    """Returns Heads per model of --cluster, in order."""
    rows, policies = ({name: files for name, *files in groups} for groups in (options.row_table, options.policy))
    out = []
    for model, *folders in options.cluster:
        if model not in rows:
            raise kt.CsvError(f"--row-table: none of {model}, expected those of each model of --cluster")
        found, sources = errors(rows[model], options.budget, options.algorithm, options.records)
        mine = features(folders)
        common = mine.index.intersection(found.index)
        if len(common) < max(len(mine), len(found)):
            raise kt.CsvError(f"{folders[0]}: {len(mine)} KV heads, {rows[model][0]}: {len(found)}, {len(common)} of "
                              "them the same: expected the same layers and heads")
        out.append(Heads(model, mine.loc[common], found.loc[common], sources,
                         budgets(policies[model][0]) if model in policies else {}))
    methods = set(out[0].errors.columns)
    for one in out[1:]:
        if set(one.errors.columns) != methods:
            other = sorted(methods ^ set(one.errors.columns))[0]
            raise kt.CsvError(f"--row-table: not every model has rows of {other}; name those to compare by --algorithm")
    return out
