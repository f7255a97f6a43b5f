"""Whether a head's features predict its best method: a tree, tested on models left out."""

import math

import numpy as np
from scipy import stats

from kvbench.comparison.scores import share
from kvbench.comparison.tables import markdown_table
from kvbench.text import counted
from kvbench_study.atlas.heads import FEATURES

COLUMNS = ["model", "layer", "kv_head", *FEATURES, "best", "error", "single", "single_error", "policy_budget"]
DEPTH, LEAF = 3, 0.05  # levels of a tree; least share of the heads in a leaf


def log_errors(models):
    """Returns log errors [heads, methods] of all heads of the models, and the methods."""
    methods = list(models[0].errors.columns)
    return np.log(np.concatenate([one.errors[methods].to_numpy() for one in models])), methods


def single(models):
    """Returns the method with the smallest geometric mean error over the models' heads."""
    logs, methods = log_errors(models)
    return methods[int(logs.mean(axis=0).argmin())]


def rows(heads):
    """Returns a dict of COLUMNS per KV head."""
    usual = single([heads])
    best = heads.best()
    out = []
    for layer, kv_head in heads.errors.index:
        at = (layer, kv_head)
        out.append({"model": heads.model, "layer": int(layer), "kv_head": int(kv_head),
                    **{name: float(heads.features.loc[at, name]) for name in FEATURES},
                    "best": best[at], "error": float(heads.errors.loc[at, best[at]]), "single": usual,
                    "single_error": float(heads.errors.loc[at, usual]),
                    "policy_budget": heads.budgets.get(int(layer))})
    return out


def fitted_tree(models):
    from sklearn.tree import DecisionTreeClassifier  # slow import

    x = np.concatenate([one.features.to_numpy() for one in models])
    y = np.concatenate([one.best().to_numpy(dtype=str) for one in models])
    return DecisionTreeClassifier(max_depth=DEPTH, min_samples_leaf=LEAF, random_state=0).fit(x, y)


def left_out(models):
    """Returns a dict per model: how well a tree of the other models chooses for its heads.

    right: share of heads whose best method it names; common: that of the method that is most often best
    among the others; tree, single, best: geometric mean error of its choices, of one method for all
    (the best over the others' heads) and of every head's best, over that of this model's best single one.
    """
    out = []
    for mine in models:
        others = [one for one in models if one is not mine]
        tree = fitted_tree(others)
        named = tree.predict(mine.features.to_numpy())
        best = mine.best().to_numpy(dtype=str)
        names, counts = np.unique(np.concatenate([one.best().to_numpy(dtype=str) for one in others]),
                                  return_counts=True)
        logs, methods = log_errors([mine])
        of = {method: logs[:, at] for at, method in enumerate(methods)}
        own = of[single([mine])].mean()
        out.append({"model": mine.model, "heads": len(best), "right": float((named == best).mean()),
                    "common": float((names[counts.argmax()] == best).mean()),
                    "tree": math.exp(np.mean([of[method][i] for i, method in enumerate(named)]) - own),
                    "single": math.exp(of[single(others)].mean() - own),
                    "best": math.exp(logs.min(axis=1).mean() - own),
                    "importance": dict(zip(FEATURES, tree.feature_importances_.tolist()))})
    return out


def wins_table(models):
    """Returns lines of how many heads each method serves best, by model."""
    counts = {one.model: one.best().value_counts() for one in models}
    methods = sorted({method for found in counts.values() for method in found.index},
                     key=lambda method: (-sum(found.get(method, 0) for found in counts.values()), method))
    gain = {one.model: math.exp((np.log(one.errors.min(axis=1)) - np.log(one.errors[single([one])])).mean())
            for one in models}
    return [*markdown_table(["method", *counts], [[method, *(str(found.get(method, 0)) for found in counts.values())]
                                                  for method in methods]), "",
            "Error of every head's best method over that of the best single one, in sample: "
            + ", ".join(f"{one.model} {gain[one.model]:.3f} (`{single([one])}`)" for one in models) + "."]


def feature_table(models):
    """Returns lines of each feature's range, and its rank correlation with the smallest error of a head."""
    cells = []
    for name in FEATURES:
        cell = [name]
        for one in models:
            values = one.features[name]
            low, middle, high = np.quantile(values, [0.1, 0.5, 0.9])
            r = stats.spearmanr(values, one.errors.min(axis=1))[0]
            cell.append(f"{middle:.3g} ({low:.3g} to {high:.3g}); {r:+.2f}")
        cells.append(cell)
    return markdown_table(["feature", *(one.model for one in models)], cells)


def report(models, options):
    counts = ", ".join(f"{one.model} ({len(one.errors)} KV heads, {counted(one.sources, 'source')})"
                       for one in models)
    out = [f"KV heads of {counts}: `rel_error` at {share(options.budget)} of the bytes, "
           f"{len(models[0].errors.columns)} methods.", "", "Heads that a method serves best:", "",
           *wins_table(models), "",
           "Median of a feature over heads (10 % to 90 %), and Spearman's correlation with the head's smallest error:",
           "", *feature_table(models)]
    if len(models) > 1:
        found = left_out(models)
        out += ["", f"A tree of {DEPTH} levels, fitted to the other models' heads, chooses for the heads of the model "
                "left out. Errors are relative to the model's best single method:", "",
                *markdown_table(["model left out", "heads", "right", "commonest right", "tree", "one method",
                                 "best of each head"],
                                [[row["model"], str(row["heads"]), f"{row['right']:.0%}", f"{row['common']:.0%}",
                                  f"{row['tree']:.3f}", f"{row['single']:.3f}", f"{row['best']:.3f}"]
                                 for row in found]), "",
                "Importance of features in these trees (share of the impurity that their splits remove):", "",
                *markdown_table(["feature", *(f"without {row['model']}" for row in found)],
                                [[name, *(f"{row['importance'][name]:.2f}" for row in found)] for name in FEATURES])]
    return "\n".join(out) + "\n"
