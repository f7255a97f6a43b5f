"""Claims, their cells, and what is said of them. All claims say: a figure lies below a reference."""

import math
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

from kvbench import stats as ks

HOLDS, FAILS, UNDECIDED = "holds here", "does not hold here", "not decided"
# No verdict: a claim with free constants, which no table can contradict; too few sources.
ESTIMATE, NONE = "estimate", "-"
# What a claim is tested as: in the authors' configuration, protocol and figure; in others, which
# `differs` lists; by what the paper assumes, in place of what it concludes.
REPLICATED, ADAPTED, ASSUMPTION = "setting replicated", "adapted", "assumption checked"
FEWEST = 8  # sources of a verdict
HALF = 0.5  # of the cells
MAX_UNITS = 1000  # above, the effect is too small for any table to show


@dataclass
class Cell:
    """One layer in one setting. values: a Series of a figure per unit (prompt or source) that belongs
    to the cell, NaN where it has none."""
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
    """figure: what `value` is. ratio: values are logarithms, shown as ratios. reference: on the
    shown scale. judged: whether it gets a verdict in words. differs: from what the authors did.
    tested: cells that count; shown: others, with figure names and references."""
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
    units: int = 0  # of the tables
    prompts: int = 0  # that have a figure in all of their cells: n
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
        """As shown."""
        with np.errstate(over="ignore"):  # an interval without an end
            return float(np.exp(x)) if self.ratio else float(x)

    @property
    def zero(self):
        """The reference on the scale of the cells' values."""
        return math.log(self.reference) if self.ratio else self.reference

    def count(self, side):
        return sum(cell.side == side for cell in self.tested)

    def empty(self):
        """Cells without a figure of any unit."""
        return [cell for cell in self.tested if not len(cell.finite)]

    def add(self, grid, setting=""):
        """Cells that count, one for each layer of a Grid."""
        self.tested += cells_of(grid, setting)

    def show(self, grid, setting="", figure="", reference=None):
        """Cells that are tabled and count for nothing."""
        self.shown += [(figure or self.figure, self.reference if reference is None else reference,
                        cell) for cell in cells_of(grid, setting)]


def text_of(**parts):
    """`budget=0.2;phi=log`."""
    return ";".join(f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
                    for name, value in parts.items())


def cells_of(grid, setting=""):
    """A Cell for each layer of a frame [units, layers]."""
    return [Cell(layer if layer == "all" else int(layer), setting, grid[layer])
            for layer in grid.columns]


# ------------------------------------------------------------------------------------- a claim


def decide(claims, options):
    """Fills in claims; p over all of them that could get a word."""
    for claim in claims:
        decide_claim(claim, options)
    words = [claim for claim in claims if claim.judged and claim.prompts >= FEWEST]
    for claim, p in zip(words, ks.holm([claim.p for claim in words])):
        claim.p_holm = float(p)
    return claims


def decide_claim(claim, options):
    """Share and mean with their intervals, intervals of the cells by Holm's rule, then the verdict."""
    keep_whole(claim)
    zero = claim.zero
    looks(claim.tested, zero, options)
    for cell in claim.tested:
        # A figure that is the reference at every unit has the interval [0, 0]: it is not below.
        cell.side = ("for" if cell.high < zero else "against" if cell.low >= zero else "open")
    families = {}
    for figure, reference, cell in claim.shown:
        families.setdefault((figure, reference), []).append(cell)
    for (_, reference), cells in families.items():
        looks(cells, math.log(reference) if claim.ratio else reference, options)
    have = [cell.values for cell in claim.tested if len(cell.finite)]
    if claim.prompts:
        table = pd.concat(have, axis=1).to_numpy(float)
        overall(claim, table, options)
        share_of_cells(claim, table, options)
    claim.verdict, claim.decide = verdict_of(claim, options)
    return claim


def keep_whole(claim):
    """A unit counts with all cells that it belongs to, or not at all: cells that lack their hard
    units would be compared with cells that have them. Sets units and prompts."""
    have = [cell for cell in claim.tested if len(cell.finite)]
    lacking = {unit for cell in have
               for unit in cell.values.index[~np.isfinite(cell.values.to_numpy(float))]}
    claim.units = len({unit for cell in claim.tested for unit in cell.values.index})
    claim.prompts = len({unit for cell in have for unit in cell.values.index} - lacking)
    for cell in have:
        cell.values = cell.values[~cell.values.index.isin(lacking)]


def looks(cells, zero, options):
    found = ks.holm_intervals([cell.finite - zero for cell in cells], options.alpha,
                              options.resamples, options.seed)
    for cell, (low, high, p) in zip(cells, found):
        cell.low, cell.high, cell.p = low + zero, high + zero, p


def unit_means(table):
    """A unit's mean over the cells that it belongs to; table [units, cells], NaN elsewhere."""
    return np.nanmean(table, axis=1)


def overall(claim, table, options):
    """value: the mean over units of their means over cells; its interval and p."""
    means = unit_means(table)
    claim.value = claim.scale(means.mean())
    low, high = ks.bootstrap_intervals(means[:, None], 1 - options.alpha,
                                       resamples=options.resamples, seed=options.seed)[0]
    claim.low, claim.high = claim.scale(low), claim.scale(high)
    claim.p = ks.signed_rank_test(means - claim.zero)[0]


def cell_means(table, counts):
    """Means of the cells [resamples, cells] with each unit so many times; NaN without any."""
    there = np.isfinite(table)
    with np.errstate(invalid="ignore"):
        return (counts @ np.where(there, table, 0.0)) / (counts @ there)


def share_below(means, zero):
    """Share of the cells of each resample whose mean is below; of those that have one."""
    there = np.isfinite(means)
    with np.errstate(invalid="ignore"):
        return (there & (means < zero)).sum(axis=1) / there.sum(axis=1)


def share_of_cells(claim, table, options):
    """share: of the cells, those whose mean is on the claim's side. Its interval: percentiles of the
    share in resamples of the units."""
    n = len(table)
    claim.share = float(share_below(cell_means(table, np.ones((1, n))), claim.zero)[0])
    if n < ks.FEWEST_FOR_INTERVALS:
        return
    counts = ks.resample_counts(n, options.resamples, options.seed).astype(float)
    shares = share_below(cell_means(table, counts), claim.zero)
    low, high = np.quantile(shares, [options.alpha / 2, 1 - options.alpha / 2],
                            method="inverted_cdf")
    claim.share_low, claim.share_high = float(low), float(high)


# ---------------------------------------------------------------------------------- its verdict


def verdict_of(claim, options):
    """(verdict, what would decide)."""
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
    """Which interval leaves it open, and about how many units would move the mean's."""
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
    """About as many units as would put an end of the mean's interval on the reference: the normal
    quantile, no power beyond a half."""
    means = unit_means(pd.concat([cell.values for cell in claim.tested], axis=1).to_numpy(float))
    means = means - claim.zero
    if not means.mean():
        return math.inf
    needed = (stats.norm.isf(options.alpha / 2) * means.std(ddof=1) / means.mean())**2
    return max(math.ceil(needed), len(means) + 1)
