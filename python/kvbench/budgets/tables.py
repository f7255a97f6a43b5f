"""Figures, tables and files of kvbench-py policy."""

import json
import math
import os

import numpy as np
from scipy import stats

from kvbench import tables as kt
from kvbench.budgets.cells import METRIC
from kvbench.comparison import tables as ct
from kvbench.comparison.scores import extent
from kvbench.records import read_json
from kvbench.text import counted

FORMAT = "kvbench-sensitivities"
VERSION = 1
EQUAL = "equal"  # in place of a file: all layers have one sensitivity
LEVEL = 0.95
COLUMNS = ["budget", "method", "sources", "kl", "kl_predicted", "ratio", "ratio_low", "ratio_high"]
PREDICTED = ["trace", "prompt", "algorithm", "params", "budget_requested", "seed", "kl_predicted", "low", "high"]
MEANS = ["budget", "method", "prompts", "kl_predicted", "low", "high"]


def held_out(found, predicted):
    """Returns a dict of COLUMNS per cell. `ratio`: predicted over measured, geometric mean over sources."""
    out = []
    for at, (budget, method) in enumerate(found.cells):
        off = np.log(predicted[:, at] / found.kl[:, at])
        low, high = extent(off)
        out.append({"budget": budget, "method": method, "sources": len(off), "kl": float(found.kl[:, at].mean()),
                    "kl_predicted": float(predicted[:, at].mean()), "ratio": math.exp(off.mean()),
                    "ratio_low": math.exp(low), "ratio_high": math.exp(high)})
    return out


def ranges(found, predicted):
    """Returns the central LEVEL of measured over predicted: of a prompt's, and of a mean over sources."""
    ends = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    return {"prompt": np.quantile(found.kl / predicted, ends).tolist(),
            "mean": np.quantile(found.kl.mean(axis=0) / predicted.mean(axis=0), ends).tolist()}


def rank_correlations(found, values):
    """Returns Spearman's correlation with the KL of means over sources: over all cells, and within budgets."""
    kl, other = found.kl.mean(axis=0), values.mean(axis=0)
    budgets = np.array([budget for budget, _ in found.cells])
    within = [stats.spearmanr(kl[budgets == one], other[budgets == one])[0] for one in dict.fromkeys(budgets)
              if (budgets == one).sum() > 2]
    return float(stats.spearmanr(kl, other)[0]), float(np.mean(within)) if within else math.nan


def model_of(options):
    """Returns the model that is recorded beside the tables. Raises CsvError for none, for several, and for one that
    is not --model.
    """
    name, first = one_model([*options.scores, *options.layer_table, *getattr(options, "alone", ())])
    if not name:
        raise kt.CsvError(f"{options.scores[0]}: got no record of its model, expected a manifest beside it, as "
                          f"kvbench-py score writes it, or {kt.MODEL_RECORD} in its folder")
    if options.model and kt.plain_model(options.model) != kt.plain_model(name):
        raise kt.CsvError(f"--model: got {options.model}, expected {name}, which {first} is of")
    return name


def one_model(paths):
    """Returns (the model that is recorded beside the tables, its first table), "" for none. Raises CsvError for
    several.
    """
    found = kt.recorded_models(paths)
    name, first = next(iter(found.values()), ("", ""))
    check_model(found, name, first)
    return name, first


def check_model(found, name, where):
    """Raises CsvError if a table of `found`, of recorded_models, is not of the model `name` of the file `where`."""
    for plain, (other, path) in found.items():
        if plain != kt.plain_model(name):
            raise kt.CsvError(f"{path}: got rows of {other}, expected those of {name}, as {where} is")


def write_sensitivities(path, found, weights, predicted, options):
    fitted = {"sources": found.sources, "methods": sorted(set(found.methods())),
              "budgets": sorted({budget for budget, _ in found.cells})}
    if "ridge" in options:
        fitted["ridge"] = options.ridge
    content = {"format": FORMAT, "version": VERSION, "model": options.model, "metric": METRIC,
               "layers": found.layers, "sensitivity": [float(f"{one:.6g}") for one in weights],
               "ratio": ranges(found, predicted), "fitted": fitted}
    ct.write_text(path, json.dumps(content, indent=1) + "\n")


def read_sensitivities(path):
    """Returns the content of write_sensitivities. Raises CsvError."""
    content = read_json(path, kt.CsvError)
    if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise kt.CsvError(f"{path}: expected a file of kvbench-py policy fit, format {FORMAT} {VERSION}")
    try:
        weights = [float(one) for one in content["sensitivity"]]
        ends = [float(one) for name in ("prompt", "mean") for one in content["ratio"][name]]
        whole = len(weights) == len(content["layers"]) > 0 and len(ends) == 4
    except (KeyError, TypeError, ValueError):
        whole, weights, ends = False, [], []
    if not whole or not all(0 < one < math.inf for one in weights + ends):
        raise kt.CsvError(f"{path}: expected `layers`, as many `sensitivity` and two `ratio`, positive numbers")
    return content


def equal(options, layers):
    """Returns what choosing needs of read_sensitivities, for equally sensitive layers. The model is that of the tables,
    "" without a record.
    """
    name, _ = one_model(options.layer_table)
    return {"model": name, "layers": layers, "sensitivity": [1.0] * len(layers)}


def check_layers(layers, content, options):
    """Raises CsvError if the tables of layers of `options` are of another model, or have other layers, than its
    sensitivities.
    """
    check_model(kt.recorded_models([*options.layer_table, *getattr(options, "scores", ())]), content["model"],
                options.sensitivities)
    if layers != content["layers"]:
        raise kt.CsvError(f"{options.layer_table[0]}: got {len(layers)} layers, {layers[0]} to {layers[-1]}, expected "
                          f"the {len(content['layers'])} of {options.sensitivities}, {content['layers'][0]} to "
                          f"{content['layers'][-1]}")


def markdown(found, weights, predicted, options):
    """Returns the report of a fit: how far predictions are off, and the layers' sensitivities."""
    out = [*title(found, options.model),
           "Every prediction below is from other sources and from methods that share no name with its own.", "",
           *off_by(found, predicted)]
    share = found.squares * weights
    share = (share / share.sum(axis=2, keepdims=True)).mean(axis=(0, 1))
    out += ["", "Sensitivity in nats, and the layer's share of the predicted KL (mean over cells):", ""]
    out += ct.markdown_table(["layer", "sensitivity", "share"], [
        [str(layer), f"{weight:.3g}", f"{part:.1%}"] for layer, weight, part in zip(found.layers, weights, share)])
    return "\n".join(out) + "\n"


def checked(found, predicted, content, options):
    """Returns the report of check."""
    fitted = content.get("fitted", {})
    common = sorted(set(fitted.get("sources", ())) & set(found.sources))
    return "\n".join([
        *title(found, content["model"]),
        f"Predicted by {os.path.basename(options.sensitivities)}, which was made from "
        f"{counted(len(fitted.get('sources', ())), 'source')}"
        + (f", {len(common)} of them among these." if common else ", none of them among these."), "",
        *off_by(found, predicted)]) + "\n"


def measured(found, alone, by_source, options):
    """Returns the report of measure: whether one sensitivity fits a layer, and whether layers add up."""
    each = np.exp(np.log(alone / found.squares).mean(axis=0))  # [cells, layers]
    rows = []
    for at, layer in enumerate(found.layers):
        low, high = (math.exp(end) for end in extent(by_source[:, at]))
        rows.append([str(layer), f"{math.exp(by_source[:, at].mean()):.3g} [{low:.3g}, {high:.3g}]",
                     f"{each[:, at].min():.3g} to {each[:, at].max():.3g}"])
    sums = np.log(alone.sum(axis=2) / found.kl)
    out = [*title(found, options.model),
           "Sensitivity in nats of layers that are compressed alone: geometric mean of KL over squared error over "
           "sources and cells, its 95 % interval over sources, and the least and largest mean of a cell:", "",
           *ct.markdown_table(["layer", "sensitivity", "cells"], rows), "",
           "Sum over layers of the KL of each alone, over the KL of all together; geometric mean over sources and "
           "its 95 % interval:", "",
           *ct.markdown_table(["budget", "method", "sum over all"], [
               [f"{budget:g}", method, ratio_text(dict(zip(("ratio", "ratio_low", "ratio_high"), (
                   math.exp(end) for end in (sums[:, at].mean(), *extent(sums[:, at]))))))]
               for at, (budget, method) in enumerate(found.cells)])]
    return "\n".join(out) + "\n"


def title(found, name):
    return [f"KL divergence of {name} from the squared `{METRIC}` of {counted(len(found.layers), 'layer')}: "
            f"{counted(len(found.sources), 'source')}, {counted(len(set(found.methods())), 'method')}, "
            f"{counted(len(found.cells), 'cell')} (method and budget).", ""]


def off_by(found, predicted):
    """Returns lines that compare predictions with the KL, over all cells and by method."""
    everywhere, within = rank_correlations(found, predicted)
    usual, usual_within = rank_correlations(found, np.sqrt(found.squares).mean(axis=2))
    off = np.abs(np.log(predicted / found.kl))
    low, high = ranges(found, predicted)["prompt"]
    out = [f"- Spearman's correlation with the KL of means over sources: {everywhere:.3f} over all cells, "
           f"{within:.3f} within budgets; of the mean `{METRIC}`: {usual:.3f} and {usual_within:.3f}.",
           f"- A prediction for one source is off by a factor of {math.exp(np.median(off)):.2f} in the median; "
           f"95 % of the measured values are {low:.2f} to {high:.2f} times the prediction.", "",
           "Predicted over measured, geometric mean over sources and its 95 % interval:", ""]
    budgets = sorted({budget for budget, _ in found.cells}, reverse=True)
    rows = {(row["budget"], row["method"]): row for row in held_out(found, predicted)}
    order = sorted(set(found.methods()), key=lambda m: np.mean(
        [abs(math.log(rows[b, m]["ratio"])) for b in budgets if (b, m) in rows]))
    out += ct.markdown_table(["method", *(f"{budget:g}" for budget in budgets)], [
        [method, *("-" if (b, method) not in rows else ratio_text(rows[b, method]) for b in budgets)]
        for method in order])
    return out


def ratio_text(row):
    return f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"


def apply(table, content):
    """Returns a dict of PREDICTED per row of squares [key, layers] (cells.read_layers)."""
    low, high = content["ratio"]["prompt"]
    values = table.to_numpy() @ np.array(content["sensitivity"])
    return [dict(zip(PREDICTED, [*(None if part != part else part for part in key), value, value * low, value * high]))
            for key, value in zip(table.index, values.tolist())]


def means(rows, content, labels):
    """Returns a dict of MEANS per budget and method, ascending; labels: {(algorithm, params): label}."""
    low, high = content["ratio"]["mean"]
    groups = {}
    for row in rows:
        of_prompt = groups.setdefault((row["budget_requested"], labels[row["algorithm"], row["params"]]), {})
        of_prompt.setdefault((row["trace"], row["prompt"]), []).append(row["kl_predicted"])
    out = []
    for (budget, method), prompts in groups.items():
        mean = float(np.mean([np.mean(seeds) for seeds in prompts.values()]))
        out.append({"budget": budget, "method": method, "prompts": len(prompts), "kl_predicted": mean,
                    "low": mean * low, "high": mean * high})
    return sorted(out, key=lambda row: (-(row["budget"] or 0), row["kl_predicted"]))
