"""Chooses an algorithm and a budget for each layer.

    kvbench replay dev.h5 --algorithm h2o@quant-kivi,snapkv --budget 0.5,0.25,0.125,0.0625,0.03125 -o dev.csv
    kvbench-py policy smollm2.json dev.layers.csv --budget 0.125 -o policy.json
    kvbench replay test.h5 --policy policy.json -o test.csv

Reads the layers' sensitivities (kvbench-py predict) and OUT.layers.csv of runs over development prompts,
all layers, at several budgets. Minimises the predicted KL divergence, the sum over layers of sensitivity
times squared `residual_rel_error`, at a mean budget over layers of at most --budget. The minimum is exact
(scipy's milp).

--vary methods: every layer has the budget, and its own algorithm. --vary budgets: one algorithm, the best,
with budgets of each layer. --by head chooses for each KV head: the squared error of a layer is taken as
the sum over its heads of `residual_rel_error_heads`, times a factor of the layer. The policy is for the
same model; docs/policies.md.

--each-prompt writes a policy from the errors of each prompt alone, FOLDER/PROMPT/POLICY.json for
-o FOLDER/POLICY.json. Such a policy has seen what it is tested on: on its own prompt it shows what that would gain.

--like POLICY.json chooses nothing: each layer takes the algorithm and budget of the layer of that policy, of
another model, at the same relative depth; budgets are scaled down where their mean exceeds --budget.
"""

import argparse
import functools
import json
import os
from dataclasses import dataclass

import numpy as np

from kvbench import command
from kvbench import tables as kt
from kvbench.compare.tables import markdown_table, opened, write_text
from kvbench.policy import choose
from kvbench.predict import cells
from kvbench.predict.tables import check_layers, read_sensitivities
from kvbench.text import parse_json

FORMAT, VERSION = "kvbench-policy", 1
LAYER, HEAD = "layer", "head"


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("sensitivities", metavar="SENSITIVITIES.json", help="of kvbench-py predict")
    parser.add_argument("layers", nargs="*", metavar="OUT.layers.csv")
    parser.add_argument("--budget", type=share, required=True, metavar="RHO",
                        help="mean over layers of the fraction of the middle's full bytes")
    parser.add_argument("--algorithms", type=command.name_list, default=[], metavar="NAME,...",
                        help="only these; default: all of the tables")
    parser.add_argument("--exclude", type=command.name_list, default=[], metavar="NAME,...",
                        help="exclude these algorithms")
    parser.add_argument("--vary", choices=choose.VARY, default=choose.BOTH,
                        help="what may differ between layers [both]")
    parser.add_argument("--like", metavar="POLICY.json", help="take the policy of another model, by relative depth")
    parser.add_argument("--prompts", **cells.PROMPTS)
    parser.add_argument("--each-prompt", action="store_true", help="a policy from each prompt alone")
    parser.add_argument("--by", choices=(LAYER, HEAD), default=LAYER, help="what has its own choice [layer]")
    parser.add_argument("-o", "--output", required=True, metavar="POLICY.json")
    parser.add_argument("--markdown", metavar="FILE", help="report [stdout]")
    options = parser.parse_args(arguments)
    if bool(options.layers) == bool(options.like):
        parser.error("expected either OUT.layers.csv or --like POLICY.json")
    if options.each_prompt and options.like:
        parser.error("--each-prompt: got --like too, expected OUT.layers.csv")
    return options


def share(text):
    value = float(text)
    if not 0 < value <= 1:
        raise ValueError
    return value


@dataclass
class Curves:
    """Means over prompts of the variants that every prompt has.

    squares [parts, choices]: squared errors; parts: (layer, KV head), or (layer, None).
    """

    parts: list
    squares: np.ndarray
    algorithms: list
    params: list
    budgets: np.ndarray
    prompts: int


class Tables:
    """Squared errors of all prompts, read once."""

    def __init__(self, paths):
        self.paths = paths
        self.layers = cells.read_layers(paths)

    @functools.cached_property
    def heads(self):
        return cells.read_heads(self.paths, self.layers[0])


def curves(options, content, tables):
    """Returns the Curves of the layers, or with --by head of the KV heads, scaled so that those of a layer
    sum to its own squares, in the geometric mean over choices.
    """
    table, layers = tables.layers
    check_layers(layers, content, options)
    if options.by == LAYER:
        return means(options, table, [(layer, None) for layer in layers])
    of_layers = means(options, table, layers)
    found = means(options, *tables.heads, note=lambda text: None)
    heads = len(found.parts) // len(layers)
    sums = found.squares.reshape(len(layers), heads, -1).sum(axis=1)
    if not ((sums > 0) & (of_layers.squares > 0)).all():
        raise kt.CsvError(f"{options.layers[0]}: a layer's errors are 0, expected some of every layer at every budget")
    scale = np.exp(np.log(of_layers.squares / sums).mean(axis=1))
    found.squares = found.squares * np.repeat(scale, heads)[:, None]
    return found


def means(options, table, parts, note=kt.note):
    keys = table.index.to_frame(index=False)
    names = keys["algorithm"]
    kept = (keys["budget_requested"].notna() & cells.of_prompts(keys["prompt"], options, options.layers[0])
            & ~names.isin(options.exclude)
            & (names.isin(options.algorithms) if options.algorithms else True))
    absent = [name for name in options.algorithms if name not in set(names)]
    if absent:
        raise kt.CsvError(f"{options.layers[0]}: no rows of {absent[0]}, expected some of "
                          f"{', '.join(dict.fromkeys(names))}")
    table = table[kept.to_numpy()]
    prompt = table.groupby(level=["trace", "prompt", "algorithm", "params", "budget_requested"], sort=False).mean()
    choice = prompt.groupby(level=["algorithm", "params", "budget_requested"], sort=False)
    whole = choice.size()
    prompts = len(prompt.index.droplevel([2, 3, 4]).unique())
    mean = choice.mean()[whole == prompts]
    for name, _, budget in whole.index[whole != prompts]:
        note(f"{name} at {budget:g}: skipped, some of {prompts} prompts lack it")
    if mean.empty:
        raise kt.CsvError(f"{options.layers[0]}: no algorithm with a budget that every prompt has")
    algorithms, params, budgets = (mean.index.get_level_values(at).to_numpy() for at in range(3))
    return Curves(parts, mean.to_numpy().T, list(algorithms), list(params), budgets.astype(float), prompts)


def main(arguments=None):
    options = parse_arguments(arguments)
    content = read_sensitivities(options.sensitivities)
    if options.like:
        like(options, content)
        return
    work = each_prompt if options.each_prompt else choose_from
    text = work(options, content, Tables(options.layers))
    write_text(options.markdown or "-", text)


def choose_from(options, content, tables):
    """Writes the policy. Returns its report."""
    mine = curves(options, content, tables)
    sensitivity = dict(zip(content["layers"], content["sensitivity"]))
    cost = mine.squares * np.array([sensitivity[layer] for layer, _ in mine.parts])[:, None]
    specs = [f"{name}:{text}" if text else name for name, text in zip(mine.algorithms, mine.params)]
    try:
        found = choose.choose(cost, specs, mine.budgets, options.budget, options.vary)
    except choose.Infeasible as error:
        raise kt.CsvError(f"--budget: {error}") from None
    write_policy(options, content, chosen(mine, specs, found))
    return report(options, content, cost, mine, specs, found)


def each_prompt(options, content, tables):
    """Writes the policies of --each-prompt. Returns their reports."""
    folder, name = os.path.split(options.output)
    names = tables.layers[0].index.get_level_values("prompt").unique().to_series()
    out = []
    for prompt in names[cells.of_prompts(names, options, options.layers[0])]:
        if os.path.basename(prompt) in ("", ".", "..") or os.path.basename(prompt) != prompt:
            raise kt.CsvError(f"{options.layers[0]}: prompt `{prompt}`: expected a name that --each-prompt can give "
                              "to a folder")
        place = os.path.join(folder, prompt)
        try:
            os.makedirs(place, exist_ok=True)
        except OSError as error:
            raise kt.CsvError(f"{place}: cannot be made: {error.strerror}") from None
        mine = argparse.Namespace(**{**vars(options), "prompts": [prompt], "output": os.path.join(place, name)})
        out.append(f"## {prompt}\n\n{choose_from(mine, content, tables)}")
    return "\n".join(out)


def write_policy(options, content, layers):
    with opened(options.output) as file:
        json.dump({"format": FORMAT, "version": VERSION, "model": content["model"], "budget": options.budget,
                   "layers": layers}, file, indent=1)
        file.write("\n")


def like(options, content):
    """Writes the policy --like for the layers of `content`. Raises CsvError for one by KV head."""
    try:
        with open(options.like, encoding="utf-8") as file:
            theirs = parse_json(file.read())["layers"]
        choices = [(one["algorithm"], float(one["budget"])) for one in theirs]
    except OSError as error:
        raise kt.CsvError(f"{options.like}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise kt.CsvError(f"{options.like}: expected a policy with an algorithm and a budget for each layer "
                          "(docs/policies.md)") from None
    layers = content["layers"]
    found = [choices[at * len(choices) // len(layers)] for at in range(len(layers))]
    mean = float(np.mean([budget for _, budget in found]))
    scale = min(1.0, options.budget / mean) if mean > 0 else 1.0
    write_policy(options, content, [{"layer": layer, "algorithm": algorithm, "budget": budget * scale}
                                    for layer, (algorithm, budget) in zip(layers, found)])
    write_text(options.markdown or "-", f"Policy for {content['model']} by relative depth from {options.like}: mean "
                                        f"budget {mean * scale:.4g}.\n")


def chosen(mine, specs, found):
    """Returns `layers` of the policy file."""
    out = []
    for (layer, head), at in zip(mine.parts, found):
        choice = {"algorithm": specs[at], "budget": float(mine.budgets[at])}
        if head is None:
            out.append({"layer": layer, **choice})
            continue
        if head == 0:
            out.append({"layer": layer, "heads": []})
        out[-1]["heads"].append({"kv_head": head, **choice})
    return out


def report(options, content, cost, mine, specs, found):
    """Returns the policy as a table, beside the best single choice."""
    least = cost[np.arange(len(cost)), found]
    plain = choose.uniform(cost, mine.budgets, options.budget)
    short = len(set(specs)) == len(set(mine.algorithms))
    names = mine.algorithms if short else specs
    out = [f"Policy for {content['model']} from {mine.prompts} prompt{'' if mine.prompts == 1 else 's'}: predicted KL "
           f"{least.sum():.4g} nats at a mean budget of {mine.budgets[found].mean():.4g}."]
    if plain is not None:
        out.append(f"The best single algorithm at {options.budget:g} everywhere, `{names[plain]}`: "
                   f"{cost[:, plain].sum():.4g}.")
    out += ["", *markdown_table(["layer" if options.by == LAYER else "layer, KV head", "algorithm", "budget",
                                 "predicted KL"], [
        [str(layer) if head is None else f"{layer}, {head}", names[at], f"{mine.budgets[at]:g}", f"{value:.2g}"]
        for (layer, head), at, value in zip(mine.parts, found, least)])]
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    command.run_main(main)
