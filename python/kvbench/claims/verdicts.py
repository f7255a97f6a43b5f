"""Cells, verdicts and tables of kvbench-py claims. All claims say: a figure lies below a
reference."""

import math
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from kvbench import stats as ks
from kvbench.compare import tables as ct

HOLDS, FAILS, UNDECIDED = "holds here", "does not hold here", "not decided"
# What a claim is tested as: in the authors' configuration, protocol and figure; in others, which its
# comment lists; by what the paper assumes, in place of what it concludes.
REPLICATED, ADAPTED, ASSUMPTION = "setting replicated", "adapted", "assumption checked"
COLUMNS = ["claim", "paper", "where", "statement", "protocol", "figure", "prompts", "value", "low",
           "high", "cells", "cells_for", "cells_against", "verdict", "decide", "label"]
CELL_COLUMNS = ["claim", "protocol", "figure", "layer", "setting", "prompts", "value", "reference",
                "low", "high", "p", "side"]
MAX_PROMPTS = 1000  # above, the effect is too small for any table to show


@dataclass
class Cell:
    """One layer in one setting. values: a Series of a figure per prompt, NaN where it has none."""
    layer: object
    setting: str
    values: object
    low: float = math.nan
    high: float = math.nan
    p: float = math.nan
    side: str = "open"

    @property
    def finite(self):
        values = self.values.to_numpy(float)
        return values[np.isfinite(values)]

    @property
    def name(self):
        return f"layer {self.layer}" + (f", {self.setting}" if self.setting else "")


@dataclass
class Claim:
    """figure: what `value` is. ratio: values are logarithms, shown as ratios. reference: on the
    shown scale. tested: cells that decide; shown: others, which never do, with figure names."""
    id: str
    paper: str
    where: str
    statement: str
    protocol: str
    figure: str
    reference: float
    ratio: bool = False
    tested: list = field(default_factory=list)
    shown: list = field(default_factory=list)
    prompts: int = 0
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    verdict: str = UNDECIDED
    label: str = ADAPTED
    decide: str = ""

    def scale(self, x):
        """As shown."""
        with np.errstate(over="ignore"):  # an interval without an end
            return float(np.exp(x)) if self.ratio else float(x)

    @property
    def zero(self):
        """The reference on the scale of the cells' values."""
        return math.log(self.reference) if self.ratio else self.reference

    def count(self, side):
        return sum(cell.side == side for cell in self.tested)


def text_of(**parts):
    """`budget=0.2;phi=log`."""
    return ";".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                    for name, value in parts.items())


def cells_of(grid, setting=""):
    """A Cell for each layer of a frame [prompts, layers]."""
    return [Cell(layer if layer == "all" else int(layer), setting, grid[layer])
            for layer in grid.columns]


def decide_claim(claim, options):
    """Intervals of the cells by Holm's rule over all that decide, then the verdict."""
    zero = claim.zero
    looks(claim.tested, zero, options)
    for cell in claim.tested:
        # A figure that is the reference at every prompt has the interval [0, 0]: it is not below.
        cell.side = ("for" if cell.high < zero else "against" if cell.low >= zero else "open")
    families = {}
    for figure, reference, cell in claim.shown:
        families.setdefault((figure, reference), []).append(cell)
    for (_, reference), cells in families.items():
        looks(cells, math.log(reference) if claim.ratio else reference, options)
    overall(claim, options)
    if claim.count("against"):
        claim.verdict = FAILS
    elif claim.tested and claim.count("for") == len(claim.tested):
        claim.verdict = HOLDS
    else:
        claim.verdict = UNDECIDED
        claim.decide = what_decides(claim, options)
    return claim


def looks(cells, zero, options):
    found = ks.holm_intervals([cell.finite - zero for cell in cells], options.alpha,
                              options.resamples, options.seed)
    for cell, (low, high, p) in zip(cells, found):
        cell.low, cell.high, cell.p = low + zero, high + zero, p


def overall(claim, options):
    """value: the mean over the cells, of prompts that have all; its interval stands for itself."""
    have = [cell.values for cell in claim.tested if len(cell.finite)]
    if not have:
        return
    means = pd.concat(have, axis=1).mean(axis=1, skipna=False).to_numpy(float)
    means = means[np.isfinite(means)]
    claim.prompts = len(means)
    if not len(means):
        return
    claim.value = claim.scale(means.mean())
    low, high = ks.bootstrap_intervals(means[:, None], 1 - options.alpha,
                                       resamples=options.resamples, seed=options.seed)[0]
    claim.low, claim.high = claim.scale(low), claim.scale(high)


def prompts_needed(cell, zero, level):
    """About as many prompts as would put an end of the interval on the reference: the normal
    quantile, no power beyond a half."""
    values = cell.finite - zero
    if len(values) < 2 or not values.mean():
        return math.inf
    needed = (stats.norm.isf(level / 2) * values.std(ddof=1) / values.mean())**2
    return max(math.ceil(needed), len(values) + 1, ks.FEWEST_FOR_INTERVALS)


def what_decides(claim, options):
    """What a reader could do about an open verdict."""
    if not claim.tested:
        return "rows that the claim can be tested on"
    empty = [cell for cell in claim.tested if not len(cell.finite)]
    if empty:
        return (f"measurements of {len(empty)} of {len(claim.tested)} cells that no prompt has "
                f"whole (first: {empty[0].name})")
    scarce = [cell for cell in claim.tested if len(cell.finite) < ks.FEWEST_FOR_INTERVALS]
    if scarce:
        return (f"at least {ks.FEWEST_FOR_INTERVALS} prompts: {len(scarce)} of {len(claim.tested)} "
                f"cells have {ks.counted(min(len(cell.finite) for cell in scarce))}")
    zero, level = claim.zero, options.alpha / len(claim.tested)
    left = [cell for cell in claim.tested if cell.side == "open"]
    wrong = [cell for cell in left if cell.finite.mean() >= zero]
    need = {cell.name: prompts_needed(cell, zero, level) for cell in (wrong or left)}
    name = (min if wrong else max)(need, key=need.get)
    number = (f"about {need[name]}" if need[name] <= MAX_PROMPTS
              else f"more than {MAX_PROMPTS}")
    start = f"{len(left)} of {len(claim.tested)} cells are open, {len(wrong)} with a mean against"
    what = "does not hold" if wrong else "holds"
    return f"{start}; {number} prompts to show that it {what}, if {name} stays as it is"


# -------------------------------------------------------------------------------------- tables


def cell_row(claim, cell, figure, reference, decides):
    """A dict for the CSV of cells."""
    finite = cell.finite
    return {"claim": claim.id, "protocol": claim.protocol, "figure": figure, "layer": cell.layer,
            "setting": cell.setting, "prompts": len(finite),
            "value": claim.scale(finite.mean()) if len(finite) else math.nan,
            "reference": reference, "low": claim.scale(cell.low), "high": claim.scale(cell.high),
            "p": cell.p, "side": cell.side if decides else "shown"}


def cell_rows(claim):
    out = [cell_row(claim, cell, claim.figure, claim.reference, True) for cell in claim.tested]
    return out + [cell_row(claim, cell, figure, reference, False)
                  for figure, reference, cell in claim.shown]


def claim_row(claim):
    return {"claim": claim.id, **{name: getattr(claim, name) for name in COLUMNS
                                  if hasattr(claim, name)},
            "cells": len(claim.tested), "cells_for": claim.count("for"),
            "cells_against": claim.count("against")}


def write_csv(path, claims):
    ct.write_table(path, COLUMNS, [claim_row(claim) for claim in claims])


def write_cells(path, claims):
    ct.write_table(path, CELL_COLUMNS, [row for claim in claims for row in cell_rows(claim)])


def short(value):
    """A table's number."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def piped(text):
    return str(text).replace("|", "\\|")


def markdown(claims, options):
    lines = [f"Cells: {100 * (1 - options.alpha):g} % simultaneous intervals over prompts "
             "(studentised bootstrap, Holm's rule over the claim's cells); value: mean over cells, "
             f"its interval for itself. `{HOLDS}`: every cell's interval on the claim's side; "
             f"`{FAILS}`: one or more wholly on the other, here: on this model, these prompts and "
             f"settings. Tested as: `{REPLICATED}`, the authors' configuration, protocol and "
             f"figure, on another model; `{ADAPTED}`, another protocol or figure (the comment of "
             f"the claim in python/kvbench/claims lists what differs); `{ASSUMPTION}`, what the "
             "paper assumes for what it concludes.", "",
             "| claim | where | tested as | protocol | figure | value | for / against / open | "
             "prompts | verdict |", "| --- | --- | --- | --- | --- | --- | --- | ---: | --- |"]
    for claim in claims:
        value = short(claim.value)
        if not math.isnan(claim.low):
            value += f" [{short(claim.low)}, {short(claim.high)}]"
        sides = " / ".join(str(claim.count(side)) for side in ("for", "against", "open"))
        cells = [f"`{claim.id}`", f"{claim.paper}, {claim.where}", claim.label, claim.protocol,
                 f"{claim.figure} < {claim.reference:g}", value, sides, claim.prompts,
                 claim.verdict]
        lines.append("| " + " | ".join(map(piped, cells)) + " |")
    lines.append("")
    lines += [f"- `{claim.id}`: {claim.statement}." for claim in
              {claim.id: claim for claim in claims}.values()]
    undecided = [claim for claim in claims if claim.decide]
    if undecided:
        lines += ["", "What would decide:", ""]
        lines += [f"- `{claim.id}` ({claim.protocol}): {claim.decide}." for claim in undecided]
    against = [claim for claim in claims if claim.verdict == FAILS]
    if against:
        lines += ["", "Cells against, the strongest first:", ""]
        lines += [f"- `{claim.id}` ({claim.protocol}): {worst_cells(claim)}." for claim in against]
    return "\n".join(lines) + "\n"


def worst_cells(claim, count=3):
    cells = sorted((cell for cell in claim.tested if cell.side == "against"),
                   key=lambda cell: -cell.finite.mean())
    text = "; ".join(f"{cell.name}: {short(claim.scale(cell.finite.mean()))} "
                     f"[{short(claim.scale(cell.low))}, {short(claim.scale(cell.high))}]"
                     for cell in cells[:count])
    return text + (f"; {len(cells) - count} more" if len(cells) > count else "")


def shown(claim, grid, figure, reference, setting=""):
    """Adds cells that are tabled and do not decide."""
    claim.shown += [(figure, reference, cell) for cell in cells_of(grid, setting)]


