"""Writes a policy by a simple rule, a control for those of `kvbench-py policy choose`.

    kvbench-study rules DEV.layers.csv --rule error --algorithm h2o@quant-kivi --budget 0.125 -o policy.json

All layers have one algorithm. Rules:

- `first`, `last`, `random`, `error`: a third of the layers has twice the budget, and the others share the rest equally.
  The third are the first layers, the last, those drawn with --seed, or those with the largest squared error at the
  budget (mean over prompts).
- `pyramid`: PyramidKV's, budgets falling linearly from the first layer to 1/20 of the mean at the last.

The model and its layers are those of the tables.
"""

import argparse
import random

import numpy as np

from kvbench import command
from kvbench import tables as kt
from kvbench.budgets import policies, tables
from kvbench.comparison.tables import write_text

RULES = ("first", "last", "random", "error", "pyramid")
THIRD, TIMES, STEEPEST = 3, 2.0, 20.0


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    add = parser.add_argument
    add("layer_table", nargs="+", metavar="DEV.layers.csv", help="of kvbench replay on development prompts")
    add("--rule", choices=RULES, required=True)
    add("--seed", type=command.count, default=0, metavar="N", help="of --rule random [%(default)s]")
    add("--algorithm", required=True, metavar="NAME", help="of all layers, as in the tables, with their parameters")
    add("--budget", type=command.above_0(most=1), required=True, metavar="RHO", help="mean over layers")
    add("-o", "--output", required=True, metavar="POLICY.json")
    return parser.parse_args(arguments)


def budgets_of(rule, errors, budget, seed=0):
    """Returns [layers]: budgets with the mean `budget`. errors [layers]: squared errors at it."""
    layers = len(errors)
    if rule == "pyramid":
        first = min((2 - 1 / STEEPEST) * budget, 1.0)
        return np.linspace(first, 2 * budget - first, layers)
    many = round(layers / THIRD)
    order = {"first": range(layers), "last": range(layers)[::-1],
             "random": random.Random(seed).sample(range(layers), layers),
             "error": sorted(range(layers), key=lambda at: -errors[at])}[rule]
    large = min(TIMES * budget, 1.0)
    out = np.full(layers, (layers * budget - many * large) / (layers - many))
    out[list(order)[:many]] = large
    return out


def main(arguments=None):
    options = parse_arguments(arguments)
    words = argparse.Namespace(layer_table=options.layer_table, per=policies.LAYER, sensitivities=tables.EQUAL,
                               algorithm=[], exclude=[], prompts=[])
    read = policies.Tables(options.layer_table)
    content = tables.equal(words, read.layers[1])
    mine = policies.curves(words, content, read)
    specs = mine.specs
    found = [at for at, (spec, name) in enumerate(zip(specs, mine.algorithms))
             if options.algorithm in (spec, name) and np.isclose(mine.budgets[at], options.budget, rtol=0, atol=1e-9)]
    if len(found) != 1:
        raise kt.CsvError(f"{options.layer_table[0]}: got {len(found)} choices of {options.algorithm} at "
                          f"{options.budget:g}, expected one of {', '.join(sorted(set(specs)))} at one of its budgets")
    budgets = budgets_of(options.rule, mine.squares[:, found[0]], options.budget, options.seed)
    policies.write_policy(options, content, [
        {"layer": layer, "algorithm": specs[found[0]], "budget": float(budget)}
        for (layer, _), budget in zip(mine.parts, budgets)])
    write_text("-", f"Policy for {content['model']} by the rule `{options.rule}`: budgets {budgets.min():.4g} to "
                    f"{budgets.max():.4g}, mean {budgets.mean():.4g}.\n")
