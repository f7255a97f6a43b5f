"""Correlations of kvbench-study correlate: every metric with every score, by budget and by prompt.

Prompts and methods are resampled (resamples.py), and both sides' figures are recomputed and ranked.
All metrics of a score share resamples, so that differences of correlations are paired.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from kvbench import stats as ks
from kvbench.text import counted
from kvbench_study.correlate import pairs as kr
from kvbench_study.correlate.cells import FEWEST_CELLS
from kvbench_study.correlate.resamples import ACROSS, BOTH, WITHIN, Rows, Scopes, predictors

REDUCTIONS = {
    "mean": "mean over layers, heads and seeds of a prompt, then over prompts",
    "median": "median over all prompts, layers, heads and seeds",
    "prompt_median": "median over layers, heads and seeds of a prompt, mean over prompts"}
# best: the highest correlation, not chance, with every other metric significantly below it under
# resampled prompts and methods; highest: otherwise.
BEST, HIGHEST, ALIKE, WORSE = "best", "highest", "alike", "worse"
LEVEL = 0.05
MEASURES = {"spearman": kr.spearman, "kendall": kr.kendall}


@dataclass
class Line:
    """Correlation of a metric with a score in one scope: a line of --csv."""
    score: str
    level: str
    metric: str
    reduction: str
    scope: str
    cells: int
    prompts: int
    spearman: float = math.nan
    spearman_low: float = math.nan
    spearman_high: float = math.nan
    kendall: float = math.nan
    kendall_low: float = math.nan
    kendall_high: float = math.nan
    behind: float = math.nan  # the highest Spearman correlation minus this one
    behind_low: float = math.nan
    behind_high: float = math.nan
    verdict: str = ""
    methods: int = 0  # of the cells
    resampled: str = ""  # of the intervals
    # Spearman without one method: minimum, maximum, and without the method of the highest mean
    # score.
    left_out_low: float = math.nan
    left_out_low_method: str = ""
    left_out_high: float = math.nan
    left_out_high_method: str = ""
    extreme_method: str = ""
    without_extreme: float = math.nan


@dataclass
class Misjudged:
    """A method's rank by a metric minus its rank by the score, mean over budgets."""
    score: str
    level: str
    metric: str
    reduction: str
    method: str
    budgets: int
    places: float
    low: float
    high: float
    verdict: str


@dataclass
class Found:
    """All correlations. figures: {(level, metric, reduction): [cells]}, over all prompts; resample:
    BOTH or PROMPTS.
    """
    table: object
    resample: str = BOTH
    lines: list = field(default_factory=list)
    methods: list = field(default_factory=list)
    figures: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    leaders: dict = field(default_factory=dict)  # (score, scope): the line of the highest

    def resampled(self, scope=ACROSS):
        """Returns `prompts and methods`: the resampled units of a scope's intervals."""
        both = self.resample == BOTH and scope in (ACROSS, WITHIN, *self.table.budgets())
        return f"{self.table.by}s" + (" and methods" if both else "")

    def pick(self, **wanted):
        return [line for line in self.lines
                if all(getattr(line, key) == value for key, value in wanted.items())]

    def highest(self, score, scope=ACROSS):
        """Returns the line of a score's highest correlation, or None."""
        return self.leaders.get((score, scope))

    def compared(self, score, scope=ACROSS):
        return sum(not math.isnan(line.spearman) for line in self.pick(score=score, scope=scope))

    def enough_to_rank(self, line):
        """Returns whether there are FEWEST_FOR_INTERVALS prompts and methods_to_rank methods."""
        return (line.prompts >= ks.FEWEST_FOR_INTERVALS
                and line.methods >= methods_to_rank(self.compared(line.score, line.scope)))


    def may_be_luck(self, line):
        """Returns whether such a correlation may be the maximum of as many that are 0, over so many
        independent methods (Student's t).
        """
        r = min(line.spearman, 1.0 - 1e-12)
        t = r * math.sqrt((line.methods - 2) / (1 - r * r)) if r > 0 else 0.0
        chance = 2 * stats.t.sf(t, line.methods - 2) * self.compared(line.score, line.scope)
        return not chance <= LEVEL


def methods_to_rank(compared):
    """Returns the fewest methods with which one order among `compared` is not chance at LEVEL.

    An uninformative metric has the score's order of n methods, or its reverse, with probability 2 /
    n!; some of `compared` with at most as many times this.
    """
    n = 2
    while 2 * compared > LEVEL * math.factorial(n):
        n += 1
    return n


def correlate(table, resamples, seed, resample=BOTH):
    """Returns a Found of the whole table; resample: BOTH or PROMPTS."""
    found = Found(table, resample)
    scopes = Scopes(table)
    for budget in scopes.small:
        found.notes.append(f"budget {budget}: {len(table.members(budget))} cells, expected at least "
                           f"{FEWEST_CELLS} for its own correlations")
    drawn = [(len(table.units), table.by)]
    drawn += [(len(scopes.methods), "method")] if resample == BOTH else []
    found.notes += [f"no intervals: {counted(*few)}, expected at least {ks.FEWEST_FOR_INTERVALS}"
                    for few in drawn if few[0] < ks.FEWEST_FOR_INTERVALS]
    by_prompts = {}  # scores of the same prompts share resamples
    for name, values in table.scores.items():
        used = np.flatnonzero(~np.isnan(values).any(axis=1))
        by_prompts.setdefault(tuple(used), {})[name] = values[used]
    for used, scores in by_prompts.items():
        correlate_prompts(found, scopes, np.array(used), scores, resamples, seed)
    for line in found.leaders.values():
        if line.scope == ACROSS and not found.enough_to_rank(line):
            found.notes.append(f"{line.score}: {too_little(found, line)}")
    order = list(table.scores)
    found.lines.sort(key=lambda line: order.index(line.score))
    found.methods.sort(key=lambda line: order.index(line.score))
    return found


def too_little(found, line):
    """Returns `not enough to rank metrics: ...` with numbers."""
    needed = methods_to_rank(found.compared(line.score, line.scope))
    return (f"not enough to rank metrics: {counted(line.prompts, found.table.by)} and "
            f"{line.methods} method{'' if line.methods == 1 else 's'}, expected at least "
            f"{ks.FEWEST_FOR_INTERVALS} and {needed}")


def correlate_prompts(found, scopes, used, scores, resamples, seed):
    """Adds the lines of scores for these prompts."""
    n = len(used)
    rows = Rows(n, len(scopes.methods), resamples if n >= ks.FEWEST_FOR_INTERVALS else 0, seed,
                found.resample)
    copies = scopes.copies(rows.methods)
    sides = {name: scopes.side(rows.units @ values / rows.units.sum(axis=1, keepdims=True), copies)
             for name, values in scores.items()}
    drawn_spearman, misjudged = {}, {score: [] for score in scores}
    for key, figures in predictors(found.table, used, rows.units):
        if n == len(found.table.units):
            found.figures[key] = figures[0]
        x = scopes.side(figures, copies)
        for score, y in sides.items():
            add_lines(found, scopes, (score, *key), rows, x, y, drawn_spearman, resamples)
            misjudged[score] += method_rows(scopes, (score, *key), rows, x, y)
    for score, judged in misjudged.items():
        compare_to_best(found, score, drawn_spearman)
        found.methods += worth_keeping(found, judged, score)


def worth_keeping(found, rows, score):
    """Selects rows for --misjudged: means, and the metric with the highest correlation."""
    best = [found.highest(score, scope) for scope in (ACROSS, WITHIN)]
    keys = {(line.level, line.metric, line.reduction) for line in best if line}
    return [row for row in rows
            if row.reduction == "mean" or (row.level, row.metric, row.reduction) in keys]


def add_lines(found, scopes, key, rows, x, y, drawn_spearman, resamples):
    """Adds the lines of a (score, level, metric, reduction); keeps resampled values for
    comparisons.
    """
    lines = {}

    def line_of(name, scope, prompts):
        return lines.setdefault(name, Line(
            *key, name, len(scopes.cells(scope, y)), prompts, resampled=found.resampled(name),
            methods=len(scopes.methods_of(scope, y))))

    for measure, function in MEASURES.items():
        for scope, values in scopes.correlations(x, y, function).items():
            point, alone, drawn, without = rows.split(values)
            line = line_of(scope, scope, rows.n)
            ends = ks.correlation_interval(point, drawn, drawn_of(found, line), bounds=(-1, 1))
            set_figures(line, measure, point, ends)
            if measure == "spearman":
                drawn_spearman[(*key, scope)] = drawn
                leave_one_out(line, scopes, y, without)
            if scope in (ACROSS, WITHIN):
                # A prompt on which all cells tie has no correlation.
                alone = alone[~np.isnan(alone)]
                line = line_of(f"prompt {scope}", scope, len(alone))
                if len(alone):
                    set_figures(line, measure, alone.mean(),
                                ks.bootstrap_intervals(alone[:, None], resamples=resamples)[0])
    found.lines += lines.values()


def drawn_of(found, line):
    """Returns the number of prompts drawn for a line's intervals, or of methods if fewer."""
    return min(line.prompts, line.methods) if found.resample == BOTH else line.prompts


def leave_one_out(line, scopes, y, without):
    """Fills in a line's figures without one method; without [methods]: its correlations.

    Requires FEWEST_CELLS methods without the one.
    """
    mine = scopes.methods_of(line.scope, y)
    if len(mine) <= FEWEST_CELLS:
        return
    extreme = scopes.extreme(line.scope, y)
    line.extreme_method = scopes.methods[extreme]
    line.without_extreme = float(without[extreme])
    # Equal up to rounding: the first.
    known = [(round(float(without[i]), 12), i) for i in mine if not math.isnan(without[i])]
    if known:
        low, high = min(known), max(known, key=lambda one: (one[0], -one[1]))
        line.left_out_low, line.left_out_low_method = float(without[low[1]]), scopes.methods[low[1]]
        line.left_out_high = float(without[high[1]])
        line.left_out_high_method = scopes.methods[high[1]]


def set_figures(line, measure, point, ends):
    setattr(line, measure, float(point))
    setattr(line, f"{measure}_low", float(ends[0]))
    setattr(line, f"{measure}_high", float(ends[1]))


def method_rows(scopes, key, rows, x, y):
    """Returns ranks among these methods: only prompts are resampled."""
    out = []
    for method, (budgets, offsets) in scopes.rank_offsets(x, y).items():
        point, _, drawn, _ = rows.split(offsets)
        low, high = ks.correlation_interval(point, drawn, rows.n)
        # A lower rank by the metric than by the score is better.
        verdict = "flattered" if high < 0 else "slandered" if low > 0 else ""
        out.append(Misjudged(*key, method, budgets, float(point), low, high, verdict))
    return out


def compare_to_best(found, score, drawn_spearman):
    """Fills in `behind` and `verdict` of the score's lines. No verdicts if there is too little to
    rank.
    """
    for scope in (ACROSS, WITHIN):
        lines = [line for line in found.pick(score=score, scope=scope)
                 if not math.isnan(line.spearman)]
        if not lines:
            continue
        best = max(lines, key=lambda line: line.spearman)
        found.leaders[score, scope] = best
        enough = found.enough_to_rank(best)
        drawn = {id(line): drawn_spearman[score, line.level, line.metric, line.reduction, scope]
                 for line in lines}
        for line in lines:
            apart = drawn[id(best)] - drawn[id(line)]
            line.behind = best.spearman - line.spearman
            low, high = ks.correlation_interval(line.behind, apart, drawn_of(found, line))
            line.behind_low, line.behind_high = low, high
            if enough and line is not best and not math.isnan(low):
                line.verdict = WORSE if low > 0 else ALIKE
        if enough:
            others = [line for line in lines if line.metric != best.metric]
            alone = others and all(line.verdict == WORSE for line in others)
            drawn_both = found.resample == BOTH
            best.verdict = BEST if drawn_both and alone and not found.may_be_luck(best) else HIGHEST
