"""Claims of KVReviver for kvbench-py claims: a function each, whose comment defines it."""

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench.claims import tables
from kvbench.claims import verdicts as cv


def kvreviver_sketch(merging, equal):
    """Tokens kept in the sketch are worth the sketch's bytes.

    Sections "Contextual Amnesia" and "Vague Sketch": what others evict goes into the sketch, from
    which it is rebuilt. Figure: rel_error of kvreviver over that of vague=none, where the vague
    tokens are dropped and their bytes go to the candidates, at equal bytes; mean over prompts of
    the logarithm. All other parameters are the same. A cell is a layer at a budget. Against it: a
    cell whose interval lies above 1: there the bytes are better spent without a sketch. Shown
    besides: the ratio of means over layers, and the ratio to vague=mean (one mean token).
    """
    one, two = (tables.read_rows(paths, ["rel_error"]) for paths in (merging, equal))
    for name in ("protocol", "sink", "recent", "n_queries", "device"):
        if set(one[name]) != set(two[name]):
            raise kt.CsvError(f"{equal[0]}: {name} differs from that of {merging[0]}")
    claim = cv.Claim("kvreviver-sketch", "KVReviver",
                     'sections "Contextual Amnesia", "Vague Sketch"',
                     "Evicted tokens in a sketch are worth its bytes", tables.protocol_of(two),
                     "rel_error over that of vague=none", 1.0, True)
    parts = []
    for frame, path, wanted in ((two, equal[0], ["sketch"]), (one, merging[0], ["none", "mean"])):
        mine = frame[(frame["algorithm"] == "kvreviver")
                     & frame["budget_requested"].notna()].copy()
        mine["vague"] = [kt.parse_params(text).get("vague", "") for text in mine["params"]]
        mine = mine[mine["vague"].isin(wanted)]
        if wanted[0] not in set(mine["vague"]):
            raise kt.CsvError(f"{path}: no rows of kvreviver with vague={wanted[0]} and a budget")
        parts.append(mine)
    tables.add_parameters(pd.concat(parts), ["vague"], merging[0])  # refuses other differences
    sketch = tables.grids(parts[0], "rel_error", ["budget_requested"])
    others = tables.grids(parts[1], "rel_error", ["vague", "budget_requested"])
    for (vague, budget), grid in others.items():
        if (budget,) not in sketch:
            continue
        # The prompts of both tables: others could never have a cell.
        units = grid.index.intersection(sketch[budget,].index)
        ours, grid = sketch[budget,].loc[units], grid.loc[units]
        ratio, setting = tables.log_ratio(ours, grid), cv.text_of(budget=budget)
        figure = f"rel_error over that of vague={vague}"
        means = tables.log_ratio(tables.over_layers(ours), tables.over_layers(grid))
        if vague == "none":
            claim.tested += cv.cells_of(ratio, setting)
        else:
            cv.shown(claim, ratio, figure, 1.0, setting)
        cv.shown(claim, means, figure, 1.0, setting)
    return claim


def kvreviver_bound(frame, protocol, part):
    """Rebuilt keys (values) lie within the paper's variance bound.

    Section "Mathematical Analysis" and the technical appendix: the variance of a rebuilt element is
    above (a pi / N) sigma^2 with chance below exp(-a/N), for a tokens in N cells, 3 rows,
    estimate=sum and normal elements of mean 0. Figure: mean squared error per element over a pi / N
    times the mean square (k_error / k_bound and v_error / v_bound of `diag`), mean over KV heads
    and seeds; the mean over prompts of its logarithm. A cell is a layer at a budget and shares of
    the three parts. Against it: a cell whose interval lies above 1, where elements are not so.
    """
    name = {"k": "keys", "v": "values"}[part]
    claim = cv.Claim(f"kvreviver-bound-{name}", "KVReviver",
                     'section "Mathematical Analysis", technical appendix',
                     f"The squared error of rebuilt {name} is within the variance bound", protocol,
                     f"squared error of {name} over the bound", 1.0, True, label=cv.ASSUMPTION)
    shares = ["vague_ratio", "candidate_ratio", "recent_ratio"]
    for (budget, *values), grid in tables.grids(
            frame, part, ["budget", *shares], "kv_head").items():
        setting = cv.text_of(budget=budget, **dict(zip(shares, values)))
        with np.errstate(divide="ignore"):
            claim.tested += cv.cells_of(np.log(grid), setting)
            cv.shown(claim, np.log(tables.over_layers(grid)), claim.figure, 1.0, setting)
    return claim


def kvreviver_bounds(paths):
    frame, protocol = tables.sketch_rows(paths)
    if frame.empty:
        raise kt.CsvError(f"{paths[0]}: no rows of kvreviver with estimate=sum and a sketch")
    tables.add_parameters(frame, ["vague_ratio", "candidate_ratio", "recent_ratio"], paths[0])
    frame["budget"] = frame["budget_requested"].map(tables.number_text)
    return [kvreviver_bound(frame, protocol, part) for part in ("k", "v")]
