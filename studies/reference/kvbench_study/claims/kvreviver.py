"""Claims of KVReviver. Each function's docstring defines one claim."""

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench_study.claims import scores, tables
from kvbench_study.claims import verdicts as cv

WHERE = 'sections "Contextual Amnesia", "Vague Sketch"'
WORTH = "Evicted tokens in a sketch are worth its bytes"
MODEL = "another model, other texts"
BATCH = "compressed once, so that nothing is swapped back, one budget for all layers"
# (prefill, layer_budget) of rows of kvreviver: the paper's form and the batch form. Both read a cell
# by its sum, as the paper does.
FORMS = {"kvreviver:estimate=sum;prefill=stream;layer_budget=fisher": ("stream", "fisher"),
         "kvreviver:estimate=sum": ("batch", "uniform")}


# ------------------------------------------------------------------------------- by the model


def revived(paths, options):
    """Returns ({(vague, prefill, layer_budget, budget): log KL over (kind, of)}, {budget: that of
    h2o}, protocol).
    """
    frame = scores.read(paths, ["kvreviver", "h2o"], options)
    names = ["vague", "prefill", "layer_budget", "estimate"]
    tables.add_parameters(frame, names, paths[0])  # rejects other differences
    keys = ["algorithm", *names, "budget_requested"]
    table = scores.table_of(frame, keys)
    found, h2o = {}, {}
    for name, *setting, estimate, budget in table.columns:
        column = table[(name, *setting, estimate, budget)]
        if name == "h2o":
            h2o[budget] = column
        elif setting[0] != "sketch" or estimate == "sum":  # without a sketch nothing is estimated
            found[(*setting, budget)] = column
    return found, h2o, scores.protocol_of(frame)


def kvreviver_scores(paths, options):
    """Tokens kept in the sketch are worth their bytes, by the model.

    Sections "Contextual Amnesia" and "Vague Sketch": evicted tokens go into a sketch and are
    rebuilt from it. The paper inserts token by token, so that rebuilt tokens are attended and may
    be swapped back (prefill=stream), and shares budgets by Fisher information
    (layer_budget=fisher); the batch form does neither. estimate=sum alone, the paper's: a cell's
    mean is a variant of kvbench. The stream form has estimates and no verdict, since vague=none and
    h2o compress once: no control streams. Figures: KL divergence over that of
    vague=none with the same layer budget at equal bytes, where vague tokens are dropped and their
    bytes go to the candidates (kvreviver-sketch); over that of h2o (kvreviver-h2o), the paper's
    baseline; geometric means over units. A cell is a kind of text (or a task) at a budget. A budget
    at which a form's sketch is degenerate or infeasible for some unit, and another is not, is
    dropped and listed in `differs`. Also shown: the first form over vague=none with one budget for
    all layers.
    """
    found, h2o, protocol = revived(paths, options)
    out = []
    for method, (prefill, shared) in FORMS.items():
        mine = {budget: values for (vague, *form, budget), values in found.items()
                if (vague, *form) == ("sketch", prefill, shared)}
        if not mine:
            continue
        differs = "the model's KL divergence in place of task scores, " + MODEL
        differs += (", Fisher information of each text's own tokens; vague=none and h2o compress once"
                    if prefill == "stream" else ", " + BATCH)
        mine, left_out = whole_budgets(mine, options)
        differs += left_out
        sketch, beside = (cv.Claim(name, "KVReviver", where, statement, protocol, figure, 1.0, True,
                                   differs=differs, method=method, judged=prefill == "batch")
                          for name, where, statement, figure in (
                              ("kvreviver-sketch", WHERE, WORTH, "KL over that of vague=none"),
                              ("kvreviver-h2o", "figures 4 to 6",
                               "At equal bytes it loses less than H2O", "KL over that of h2o")))
        for budget, values in mine.items():
            none = found.get(("none", "batch", shared, budget))
            plain = found.get(("none", "batch", "uniform", budget))
            if none is not None:
                scores.add_cells(sketch, values - none, budget=budget)
            if plain is not None and shared != "uniform":
                scores.add_cells(sketch, values - plain, "KL over that of vague=none, one budget for "
                                 "all layers", False, budget=budget)
            if budget in h2o:
                scores.add_cells(beside, values - h2o[budget], budget=budget)
        out += [claim for claim in (sketch, beside) if claim.tested]
    if not out:
        raise kt.CsvError(f"{paths[0]}: no rows of kvreviver with vague=sketch beside vague=none or h2o at "
                          "the same budget")
    return out


def whole_budgets(found, options):
    """Returns ({budget: values} of the budgets that every unit has, otherwise all; text on the
    others).
    """
    lacking = {budget: int((~np.isfinite(values)).sum()) for budget, values in found.items()}
    if all(lacking.values()):
        return found, ""
    text = "".join(f"; budget {budget:g} left out, where the sketch of {count} of {len(found[budget])} "
                   f"{options.by}s is not ok" for budget, count in lacking.items() if count)
    return {budget: values for budget, values in found.items() if not lacking[budget]}, text


# ---------------------------------------------------------------------------------- by heads


def kvreviver_sketch(merging, equal, options):
    """Tokens kept in the sketch are worth their bytes, by the error of heads, in the batch form.

    Figure: rel_error of kvreviver over that of vague=none at equal bytes, geometric mean over
    units; other parameters are equal. A cell is a layer at a budget. Also shown: the ratio of means
    over layers, and the ratio to vague=mean (one mean token).
    """
    one, two = (tables.read_rows(paths, ["rel_error"], options) for paths in (merging, equal))
    for name in ("protocol", "sink", "recent", "n_queries", "device"):
        if set(one[name]) != set(two[name]):
            raise kt.CsvError(f"{equal[0]}: {name} differs from that of {merging[0]}")
    claim = cv.Claim("kvreviver-sketch", "KVReviver", WHERE, WORTH, tables.protocol_of(two),
                     "rel_error over that of vague=none", 1.0, True, method="kvreviver",
                     differs=f"the attention output's error in place of task scores, {BATCH}, {MODEL}")
    parts = []
    for frame, path, wanted in ((two, equal[0], ["sketch"]), (one, merging[0], ["none", "mean"])):
        mine = frame[(frame["algorithm"] == "kvreviver")
                     & frame["budget_requested"].notna()].copy()
        mine["vague"] = [kt.parse_params(text).get("vague", "") for text in mine["params"]]
        mine = mine[mine["vague"].isin(wanted)]
        if wanted[0] not in set(mine["vague"]):
            raise kt.CsvError(f"{path}: no rows of kvreviver with vague={wanted[0]} and a budget")
        parts.append(mine)
    tables.add_parameters(pd.concat(parts), ["vague"], merging[0])  # rejects other differences
    sketch = tables.grids(parts[0], "rel_error", ["budget_requested"])
    others = tables.grids(parts[1], "rel_error", ["vague", "budget_requested"])
    for (vague, budget), grid in others.items():
        if (budget,) not in sketch:
            continue
        # Units of both tables.
        both = grid.index.intersection(sketch[budget,].index)
        ours, grid = sketch[budget,].loc[both], grid.loc[both]
        ratio, setting = tables.log_ratio(ours, grid), cv.text_of(budget=budget)
        figure = f"rel_error over that of vague={vague}"
        if vague == "none":
            claim.add(ratio, setting)
        else:
            claim.show(ratio, setting, figure)
        claim.show(tables.log_ratio(tables.over_layers(ours), tables.over_layers(grid)), setting,
                   figure)
    return claim


def kvreviver_normal(frame, protocol, part):
    """Elements of keys (values) are normal with mean 0, as the variance bound assumes.

    Assumed in section "Mathematical Analysis" and the technical appendix: the variance of a rebuilt
    element then exceeds (a pi / N) sigma^2 with probability below exp(-a/N), for a tokens in N
    cells, 3 rows, estimate=sum. Tests the assumption by its consequence. Figure: mean squared error
    per element over a pi / N times the mean square (k_error / k_bound and v_error / v_bound of
    `diag`), mean over KV heads and seeds, geometric mean over units. Under the assumption it is
    near 0.43: the median of three normal estimates has 0.448 of the variance 3 a / N sigma^2. A
    cell is a layer at a budget and shares of the three parts.
    """
    name = {"k": "keys", "v": "values"}[part]
    claim = cv.Claim(f"kvreviver-normal-{name}", "KVReviver",
                     'section "Mathematical Analysis", technical appendix',
                     f"Elements of {name} are normal without a mean, so that rebuilt {name} lie within the "
                     "variance bound", protocol, f"squared error of {name} over the bound", 1.0, True,
                     label=cv.ASSUMPTION, differs=MODEL, method="kvreviver")
    shares = ["vague_ratio", "candidate_ratio", "recent_ratio"]
    for (budget, *values), grid in tables.grids(
            frame, part, ["budget", *shares], "kv_head").items():
        setting = cv.text_of(budget=budget, **dict(zip(shares, values)))
        with np.errstate(divide="ignore"):
            claim.add(np.log(grid), setting)
            claim.show(np.log(tables.over_layers(grid)), setting)
    return claim


def kvreviver_normals(paths, options):
    frame, protocol = tables.sketch_rows(paths, options)
    if frame.empty:
        raise kt.CsvError(f"{paths[0]}: no rows of kvreviver with estimate=sum and a sketch")
    tables.add_parameters(frame, ["vague_ratio", "candidate_ratio", "recent_ratio"], paths[0])
    frame["budget"] = frame["budget_requested"].map(tables.number_text)
    return [kvreviver_normal(frame, protocol, part) for part in ("k", "v")]
