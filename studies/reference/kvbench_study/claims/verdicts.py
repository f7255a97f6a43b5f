"""Claims of the form `figure < reference`, their cells and verdicts."""

import math
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from kvbench import stats as ks
from kvbench_study import intervals as ki

HOLDS, FAILS, UNDECIDED = "holds here", "does not hold here", "not decided"
# Without a verdict: free constants or no control of its kind, or too few sources.
ESTIMATE, NONE = "estimate", "-"
# How a claim was tested: in the authors' configuration, protocol and figure; in others, listed in
# `differs`; by an assumption of the paper.
REPLICATED, ADAPTED, ASSUMPTION = "setting replicated", "adapted", "assumption checked"
FEWEST = 8  # sources
HALF = 0.5  # of the cells
MAX_UNITS = 1000  # above, the effect is too small to show


@dataclass
class Cell:
    """One layer in one setting. values: a Series of a figure per unit (prompt or source) of the
    cell; NaN if missing.
    """
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
        return ", ".join(part for part in (f"layer {self.layer}" if self.layer != "all" else "",
                                           self.setting) if part) or "all layers"


@dataclass
class Claim:
    """A claim. figure: what `value` is. ratio: values are logarithms, shown as ratios. reference:
    on the shown scale. judged: whether it gets a verdict. differs: departures from the authors.
    tested: cells that count; shown: others, with names of figures and references.
    """
    id: str
    paper: str
    where: str
    statement: str
    protocol: str
    figure: str
    reference: float
    ratio: bool = False
    label: str = ADAPTED
    differs: str = ""
    judged: bool = True
    method: str = ""
    tested: list = field(default_factory=list)
    shown: list = field(default_factory=list)
    units: int = 0  # in the tables
    prompts: int = 0  # with a figure in all their cells: n
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    share: float = math.nan
    share_low: float = math.nan
    share_high: float = math.nan
    p: float = math.nan
    p_holm: float = math.nan
    verdict: str = NONE
    decide: str = ""

    def scale(self, x):
        with np.errstate(over="ignore"):  # unbounded interval
            return float(np.exp(x)) if self.ratio else float(x)

    @property
    def threshold(self):
        """The reference on the scale of the cells' values."""
        return math.log(self.reference) if self.ratio else self.reference

    def count(self, side):
        return sum(cell.side == side for cell in self.tested)

    def empty(self):
        return [cell for cell in self.tested if not len(cell.finite)]

    def add(self, grid, setting=""):
        """Adds tested cells, one per layer of a Grid."""
        self.tested += cells_of(grid, setting)

    def show(self, grid, setting="", figure="", reference=None):
        """Adds cells that are shown but not tested."""
        self.shown += [(figure or self.figure, self.reference if reference is None else reference,
                        cell) for cell in cells_of(grid, setting)]


def text_of(**parts):
    """Returns `budget=0.2;phi=log`."""
    return ";".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                    for name, value in parts.items())


def cells_of(grid, setting=""):
    """Returns a Cell per layer of a frame [units, layers]."""
    return [Cell(layer if layer == "all" else int(layer), setting, grid[layer])
            for layer in grid.columns]


# ------------------------------------------------------------------------------------- a claim


def decide(claims, options):
    """Fills in claims; Holm's rule runs over all that can get a verdict."""
    for claim in claims:
        decide_claim(claim, options)
    words = [claim for claim in claims if claim.judged and claim.prompts >= FEWEST]
    for claim, p in zip(words, ks.holm([claim.p for claim in words])):
        claim.p_holm = float(p)
    return claims


def decide_claim(claim, options):
    """Computes share and mean with intervals, intervals of the cells by Holm's rule, and the
    verdict.
    """
    keep_whole(claim)
    threshold = claim.threshold
    test_cells(claim.tested, threshold, options)
    for cell in claim.tested:
        # A figure equal to the reference at every unit has the interval [0, 0] and is not below.
        cell.side = ("for" if cell.high < threshold else "against" if cell.low >= threshold else "open")
    families = {}
    for figure, reference, cell in claim.shown:
        families.setdefault((figure, reference), []).append(cell)
    for (_, reference), cells in families.items():
        test_cells(cells, math.log(reference) if claim.ratio else reference, options)
    have = [cell.values for cell in claim.tested if len(cell.finite)]
    if claim.prompts:
        table = pd.concat(have, axis=1).to_numpy(float)
        overall(claim, table, options)
        share_of_cells(claim, table, options)
    claim.verdict, claim.decide = verdict_of(claim, options)
    return claim


def keep_whole(claim):
    """Drops units that lack some of their cells, since cells without their hard units are not
    comparable. Sets units and prompts.
    """
    have = [cell for cell in claim.tested if len(cell.finite)]
    lacking = {unit for cell in have
               for unit in cell.values.index[~np.isfinite(cell.values.to_numpy(float))]}
    claim.units = len({unit for cell in claim.tested for unit in cell.values.index})
    claim.prompts = len({unit for cell in have for unit in cell.values.index} - lacking)
    for cell in have:
        cell.values = cell.values[~cell.values.index.isin(lacking)]


def test_cells(cells, threshold, options):
    found = ki.holm_intervals([cell.finite - threshold for cell in cells], options.alpha,
                              options.resamples, options.seed)
    for cell, (low, high, p) in zip(cells, found):
        cell.low, cell.high, cell.p = low + threshold, high + threshold, p


def unit_means(table):
    """Returns a unit's mean over its cells; table [units, cells], NaN elsewhere."""
    return np.nanmean(table, axis=1)


def overall(claim, table, options):
    """Sets value (mean over units of their means over cells), its interval and p."""
    means = unit_means(table)
    claim.value = claim.scale(means.mean())
    low, high = ks.bootstrap_intervals(means[:, None], 1 - options.alpha,
                                       resamples=options.resamples, seed=options.seed)[0]
    claim.low, claim.high = claim.scale(low), claim.scale(high)
    claim.p = ks.signed_rank_test(means - claim.threshold)[0]


def cell_means(table, counts):
    """Returns means of the cells [resamples, cells] with weighted units; NaN without any."""
    there = np.isfinite(table)
    with np.errstate(invalid="ignore"):
        return (counts @ np.where(there, table, 0.0)) / (counts @ there)


def share_below(means, threshold):
    """Returns the share of each resample's cells whose mean is below; of those with a mean."""
    there = np.isfinite(means)
    with np.errstate(invalid="ignore"):
        return (there & (means < threshold)).sum(axis=1) / there.sum(axis=1)


def share_of_cells(claim, table, options):
    """Sets share (cells whose mean is on the claim's side) and its percentile interval over
    units.
    """
    n = len(table)
    claim.share = float(share_below(cell_means(table, np.ones((1, n))), claim.threshold)[0])
    if n < ks.FEWEST_FOR_INTERVALS:
        return
    counts = ks.resample_counts(n, options.resamples, options.seed).astype(float)
    shares = share_below(cell_means(table, counts), claim.threshold)
    low, high = np.quantile(shares, [options.alpha / 2, 1 - options.alpha / 2],
                            method="inverted_cdf")
    claim.share_low, claim.share_high = float(low), float(high)


# ---------------------------------------------------------------------------------- its verdict


def verdict_of(claim, options):
    """Returns (verdict, what would decide)."""
    if not claim.judged:
        return ESTIMATE, ""
    if not claim.tested:
        return NONE, "rows that the claim can be tested on"
    if claim.prompts < FEWEST:
        return NONE, f"at least {FEWEST} {options.by}s: got {claim.prompts} of {claim.units} with all cells"
    empty = claim.empty()
    if empty:
        return UNDECIDED, (f"measurements of {len(empty)} of {len(claim.tested)} cells that no "
                           f"{options.by} has whole (first: {empty[0].name})")
    below, above = claim.high < claim.reference, claim.low >= claim.reference
    if claim.share_low > HALF and below:
        return HOLDS, ""
    if claim.share_high < HALF and above:
        return FAILS, ""
    return UNDECIDED, what_decides(claim, below or above, options)


def what_decides(claim, clear, options):
    """Returns which interval leaves it open, and roughly how many units would decide."""
    out = []
    if claim.share_low <= HALF <= claim.share_high:
        out.append("the share's interval holds 1/2")
    if not clear:
        needed = units_needed(claim, options)
        out.append(f"the mean's interval holds {claim.reference:g}, and would leave it out with "
                   + (f"about {needed}" if needed <= MAX_UNITS else f"more than {MAX_UNITS}")
                   + f" {options.by}s if it stays as it is")
    return "; ".join(out) or "share and mean say opposite things"


def units_needed(claim, options):
    """Returns roughly the number of units that would move an end of the mean's interval to the
    reference (normal quantile, power one half).
    """
    means = unit_means(pd.concat([cell.values for cell in claim.tested], axis=1).to_numpy(float))
    means = means - claim.threshold
    if not means.mean():
        return math.inf
    needed = (stats.norm.isf(options.alpha / 2) * means.std(ddof=1) / means.mean())**2
    return max(math.ceil(needed), len(means) + 1)
