"""Policies of kvbench-py policy choose: an algorithm and a budget for each layer or KV head."""

import argparse
import functools
import json
import os
from dataclasses import dataclass

import numpy as np

from kvbench import tables as kt
from kvbench.budgets import cells
from kvbench.budgets import choose as solver
from kvbench.budgets.tables import EQUAL, check_layers, equal, read_sensitivities
from kvbench.comparison.tables import markdown_table, write_text
from kvbench.outputs import check_outputs
from kvbench.records import read_json

FORMAT, VERSION = "kvbench-policy", 1
LAYER, HEAD = "layer", "head"


@dataclass
class Curves:
    """Means over prompts of the variants that all have. squares [parts, choices]; parts: (layer, KV head or None)."""

    parts: list
    squares: np.ndarray
    algorithms: list
    params: list
    budgets: np.ndarray
    prompts: int

    @property
    def specs(self):
        """Of each choice: the algorithm with its parameters."""
        return [f"{name}:{text}" if text else name for name, text in zip(self.algorithms, self.params)]


class Tables:
    """Squared errors of all prompts, read once."""

    def __init__(self, paths):
        self.paths = paths
        self.layers = cells.read_layers(paths)

    @functools.cached_property
    def heads(self):
        return cells.read_heads(self.paths, self.layers[0])

    @functools.cached_property
    def sizes(self):
        return cells.read_sizes(self.paths)


def curves(options, content, tables):
    """Returns the Curves of layers, or with --per head of KV heads, scaled so that a layer's sum to its own squares."""
    table, layers = tables.layers
    check_layers(layers, content, options)
    if options.per == LAYER:
        return means(options, table, [(layer, None) for layer in layers])
    of_layers = means(options, table, layers)
    found = means(options, *tables.heads, note=lambda text: None)
    heads = len(found.parts) // len(layers)
    sums = found.squares.reshape(len(layers), heads, -1).sum(axis=1)
    if not ((sums > 0) & (of_layers.squares > 0)).all():
        raise kt.CsvError(f"{options.layer_table[0]}: a layer's errors are 0, expected some of every layer at every "
                          "budget")
    scale = np.exp(np.log(of_layers.squares / sums).mean(axis=1))
    found.squares = found.squares * np.repeat(scale, heads)[:, None]
    return found


def means(options, table, parts, note=kt.note):
    keys = table.index.to_frame(index=False)
    path = options.layer_table[0]
    kept = kt.pick_names(kt.pick_names(keys, "algorithm", options.algorithm, path), "prompt", options.prompts, path)
    kept = kept[kept["budget_requested"].notna() & ~kept["algorithm"].isin(options.exclude)]
    table = table.iloc[kept.index]
    prompt = table.groupby(level=["trace", "prompt", "algorithm", "params", "budget_requested"], sort=False).mean()
    choice = prompt.groupby(level=["algorithm", "params", "budget_requested"], sort=False)
    whole = choice.size()
    prompts = len(prompt.index.droplevel([2, 3, 4]).unique())
    mean = choice.mean()[whole == prompts]
    for name, _, budget in whole.index[whole != prompts]:
        note(f"{name} at {budget:g}: skipped, some of {prompts} prompts lack it")
    if mean.empty:
        raise kt.CsvError(f"{options.layer_table[0]}: no algorithm with a budget that every prompt has")
    algorithms, params, budgets = (mean.index.get_level_values(at).to_numpy() for at in range(3))
    return Curves(parts, mean.to_numpy().T, list(algorithms), list(params), budgets.astype(float), prompts)


def choose(options):
    if options.like:
        like(options, read_sensitivities(options.sensitivities))
        return
    tables = Tables(options.layer_table)
    same = options.sensitivities == EQUAL
    content = equal(options, tables.layers[1]) if same else read_sensitivities(options.sensitivities)
    text = (each_prompt if options.each_prompt else choose_from)(options, content, tables)
    write_text(options.markdown or "-", text)


def choose_from(options, content, tables):
    """Writes the policy. Returns its report."""
    mine = curves(options, content, tables)
    sensitivity = dict(zip(content["layers"], content["sensitivity"]))
    cost = mine.squares * np.array([sensitivity[layer] for layer, _ in mine.parts])[:, None]
    sizes = np.array([tables.sizes[layer] for layer, _ in mine.parts])
    try:
        found = solver.choose(cost, mine.specs, mine.budgets, options.budget, options.vary, sizes)
    except solver.Infeasible as error:
        raise kt.CsvError(f"--budget: {error}") from None
    write_policy(options, content, chosen(mine, found, tables.sizes))
    return report(options, content, cost, mine, found, sizes)


def each_prompt(options, content, tables):
    """Writes the policies of --each-prompt. Returns their reports."""
    folder, name = os.path.split(options.output)
    names = tables.layers[0].index.unique("prompt").to_frame()
    out = []
    for prompt in kt.pick_names(names, "prompt", options.prompts, options.layer_table[0])["prompt"]:
        if os.path.basename(prompt) in ("", ".", "..") or os.path.basename(prompt) != prompt:
            raise kt.CsvError(f"{options.layer_table[0]}: prompt `{prompt}`: expected a name that --each-prompt can "
                              "give to a folder")
        place = os.path.join(folder, prompt)
        try:
            os.makedirs(place, exist_ok=True)
        except OSError as error:
            raise kt.CsvError(f"{place}: cannot be made: {error.strerror}") from None
        mine = argparse.Namespace(**{**vars(options), "prompts": [prompt], "output": os.path.join(place, name)})
        check_outputs([options.sensitivities, *options.layer_table], [mine.output])
        out.append(f"## {prompt}\n\n{choose_from(mine, content, tables)}")
    return "\n".join(out)


def write_policy(options, content, layers):
    write_text(options.output, json.dumps({"format": FORMAT, "version": VERSION, "model": content["model"],
                                           "budget": options.budget, "layers": layers}, indent=1) + "\n")


def like(options, content):
    """Writes the policy --like for the layers of `content`. Raises CsvError for one by KV head, without layers or with
    budgets outside [0, 1].
    """
    try:
        choices = [(one["algorithm"], float(one["budget"])) for one in read_json(options.like, kt.CsvError)["layers"]]
        good = choices and all(0 <= budget <= 1 for _, budget in choices)
    except (ValueError, KeyError, TypeError):
        good = False
    if not good:
        raise kt.CsvError(f"{options.like}: expected a policy with an algorithm and a budget for each layer "
                          "(docs/policies.md)")
    layers = content["layers"]
    found = [choices[at * len(choices) // len(layers)] for at in range(len(layers))]
    mean = float(np.mean([budget for _, budget in found]))
    scale = min(1.0, options.budget / mean) if mean > 0 else 1.0
    write_policy(options, content, [{"layer": layer, "algorithm": algorithm, "budget": budget * scale}
                                    for layer, (algorithm, budget) in zip(layers, found)])
    write_text(options.markdown or "-", f"Policy for {content['model']} by relative depth from {options.like}: mean "
                                        f"budget {mean * scale:.4g}.\n")


def chosen(mine, found, sizes):
    """Returns `layers` of the policy file, with their bytes where these differ."""
    out, specs = [], mine.specs
    for (layer, head), at in zip(mine.parts, found):
        choice = {"algorithm": specs[at], "budget": float(mine.budgets[at])}
        size = {"bytes": sizes[layer]} if len({*sizes.values()}) > 1 else {}
        if head is None:
            out.append({"layer": layer, **choice, **size})
            continue
        if head == 0:
            out.append({"layer": layer, **size, "heads": []})
        out[-1]["heads"].append({"kv_head": head, **choice})
    return out


def report(options, content, cost, mine, found, sizes):
    """Returns the policy as a table, beside the best single choice."""
    least = cost[np.arange(len(cost)), found]
    plain = solver.uniform(cost, mine.budgets, options.budget)
    short = len(set(mine.specs)) == len(set(mine.algorithms))
    names = mine.algorithms if short else mine.specs
    what, unit = ("squared errors", "") if options.sensitivities == EQUAL else ("predicted KL", " nats")
    of_model = f" for {content['model']}" if content["model"] else ""
    out = [f"Policy{of_model} from {mine.prompts} prompt{'' if mine.prompts == 1 else 's'}: {what} "
           f"{least.sum():.4g}{unit} at a mean budget of {np.average(mine.budgets[found], weights=sizes):.4g}."]
    if plain is not None:
        out.append(f"The best single algorithm at {options.budget:g} everywhere, `{names[plain]}`: "
                   f"{cost[:, plain].sum():.4g}.")
    out += ["", *markdown_table(["layer" if options.per == LAYER else "layer, KV head", "algorithm", "budget",
                                 what], [
        [str(layer) if head is None else f"{layer}, {head}", names[at], f"{mine.budgets[at]:g}", f"{value:.2g}"]
        for (layer, head), at, value in zip(mine.parts, found, least)])]
    return "\n".join(out) + "\n"
