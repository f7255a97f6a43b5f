"""Claims of BumbleBee for kvbench-py claims: a function each, whose comment defines it."""

import math

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench.claims import tables
from kvbench.claims import verdicts as cv

LAMBDAS = (0.2, 0.4)  # the paper's best, both ends included
LAMBDA = 0.3


def inside(value):
    return LAMBDAS[0] - 1e-9 <= value <= LAMBDAS[1] + 1e-9


def lambda_grids(paths):
    """{(budget, phi): {lambda: Grid of log rel_error}}, protocol."""
    frame = tables.read_rows(paths, ["rel_error"])
    protocol = tables.protocol_of(frame)
    frame = frame[(frame["algorithm"] == "bumblebee") & frame["budget_requested"].notna()].copy()
    if frame.empty:
        raise kt.CsvError(f"{paths[0]}: no rows of bumblebee with a budget")
    tables.add_parameters(frame, ["lambda", "phi"], paths[0])
    tables.as_numbers(frame, "lambda")
    out = {}
    found = tables.grids(frame, "rel_error", ["budget_requested", "phi", "lambda"])
    for (budget, phi, value), grid in found.items():
        out.setdefault((budget, phi), {})[round(value, 6)] = grid
    return out, protocol


def bumblebee_extremes(found, protocol):
    """lambda = 0 (attention alone) and lambda = 1 (facility location alone) are worse than 0.3.

    Section 6.3: "The extreme cases (lambda in {0, 1}) ... yield suboptimal performance"; appendix
    D takes 0.3 on LongBench. The papers' measure is the model's score, here the attention output's
    error. Figure: rel_error at lambda = 0.3 over that at the extreme, mean over prompts of the
    logarithm. lambda is fixed beforehand, so that nothing is chosen on these prompts. A cell is a
    layer at a budget, a phi and an extreme. Against it: a cell whose interval lies above 1. Shown
    besides: the ratio of the means over layers.
    """
    claim = cv.Claim("bumblebee-extremes", "BumbleBee", "section 6.3",
                     "lambda = 0.3 has a smaller error than lambda = 0 and than lambda = 1",
                     protocol, "rel_error at 0.3 over that at the extreme", 1.0, True)
    for (budget, phi), by_lambda in found.items():
        for end in (0.0, 1.0):
            if LAMBDA in by_lambda and end in by_lambda:
                setting = cv.text_of(budget=budget, phi=phi, extreme=end)
                ours, other = by_lambda[LAMBDA], by_lambda[end]
                claim.tested += cv.cells_of(tables.log_ratio(ours, other), setting)
                means = tables.log_ratio(tables.over_layers(ours), tables.over_layers(other))
                cv.shown(claim, means, claim.figure, 1.0, setting)
    return claim


def left_out_choice(by_lambda):
    """(Grid of log error at the lambda chosen on the other prompts, Grid of the chosen lambdas).

    A prompt's lambda at a layer is the one with the least mean of log error over all others.
    """
    lambdas = sorted(by_lambda)
    with np.errstate(divide="ignore"):
        errors = np.stack([np.log(by_lambda[value].to_numpy(float)) for value in lambdas])
    # A prompt that lacks a lambda at a layer has no part in that layer's choice.
    whole = np.isfinite(errors).all(axis=0)
    known = np.where(whole, errors, 0.0)
    others = known.sum(axis=1, keepdims=True) - known
    best = np.argmin(others, axis=0)
    # With no other prompt nothing can be chosen.
    chosen = whole & (whole.sum(axis=0) > 1)
    value = np.take_along_axis(errors, best[None], axis=0)[0]
    like = by_lambda[lambdas[0]]
    return (pd.DataFrame(np.where(chosen, value, math.nan), like.index, like.columns),
            pd.DataFrame(np.where(chosen, np.array(lambdas)[best], math.nan), like.index,
                         like.columns))


def bumblebee_range(found, protocol):
    """The best lambda lies within 0.2 to 0.4.

    Appendix D: "lambda in {0.2, 0.3} perform the best across both evaluated models", and 0.2 and
    0.4 were tuned for XSUM. Figure: rel_error at the best lambda inside [0.2, 0.4] over that at the
    best one outside, mean over prompts of the logarithm. Both are chosen for each prompt, layer,
    budget and phi on the other prompts alone, by the mean of log error: chosen on the same prompts,
    the range with more lambdas would win by luck. A cell is a layer at a budget and a phi. Against
    it: a cell whose interval lies above 1, where a lambda outside is better. Shown besides: the
    same of the mean over layers, and the best of all lambdas over 0.3.
    """
    claim = cv.Claim("bumblebee-range", "BumbleBee", "appendix D, section 6.4",
                     "The best lambda lies within 0.2 to 0.4", protocol,
                     "rel_error at the best lambda inside over that outside", 1.0, True)
    for (budget, phi), by_lambda in found.items():
        parts = [{value: grid for value, grid in by_lambda.items() if inside(value) == wanted}
                 for wanted in (True, False)]
        if not all(parts):
            continue
        setting = cv.text_of(budget=budget, phi=phi)
        near, far = (left_out_choice(part)[0] for part in parts)
        claim.tested += cv.cells_of(near - far, setting)
        means = {value: tables.over_layers(grid) for value, grid in by_lambda.items()}
        near, far = (left_out_choice({value: means[value] for value in part})[0] for part in parts)
        cv.shown(claim, near - far, claim.figure, 1.0, setting)
        best, _ = left_out_choice(by_lambda)
        if LAMBDA in by_lambda:
            with np.errstate(divide="ignore"):
                cv.shown(claim, best - np.log(by_lambda[LAMBDA]), "best of all lambdas over 0.3",
                         1.0, setting)
    return claim


def all_claims(paths):
    found, protocol = lambda_grids(paths)
    return [bumblebee_extremes(found, protocol), bumblebee_range(found, protocol)]
