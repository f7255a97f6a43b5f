"""Correlations of kvbench-py correlate: every metric with every score, by budget and by prompt.

Prompts are resampled; each time both sides' figures of every cell are made anew and ranked. All
metrics of a score have the same resamples, so that differences of their correlations are paired.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from scipy import stats

from kvbench import ranks as kr
from kvbench import stats as ks
from kvbench.correlate.cells import FEWEST_CELLS

REDUCTIONS = {
    "mean": "mean over layers, heads and seeds of a prompt, then over prompts",
    "median": "median over all prompts, layers, heads and seeds",
    "prompt_median": "median over layers, heads and seeds of a prompt, mean over prompts"}
ACROSS, WITHIN = "all", "within"
# best: the highest correlation, no luck, with every other metric behind it; highest: else.
BEST, HIGHEST, ALIKE, WORSE = "best", "highest", "alike", "worse"
LEVEL = 0.05
MEASURES = {"spearman": kr.spearman, "kendall": kr.kendall}


@dataclass
class Line:
    """A metric's correlation with a score in one scope: a line of --csv."""
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
    """All correlations. figures: {(level, metric, reduction): [cells]}, over all prompts."""
    table: object
    lines: list = field(default_factory=list)
    methods: list = field(default_factory=list)
    figures: dict = field(default_factory=dict)
    notes: list = field(default_factory=list)
    leaders: dict = field(default_factory=dict)  # (score, scope): the line of the highest

    def pick(self, **wanted):
        return [line for line in self.lines
                if all(getattr(line, key) == value for key, value in wanted.items())]

    def highest(self, score, scope=ACROSS):
        """The line of a score's highest correlation; None where none has one."""
        return self.leaders.get((score, scope))

    def compared(self, score, scope=ACROSS):
        """How many correlations the highest is the highest of."""
        return sum(not math.isnan(line.spearman) for line in self.pick(score=score, scope=scope))

    def enough_to_rank(self, line):
        """Whether a verdict on the metrics can be right: FEWEST_FOR_INTERVALS prompts, and
        methods_to_rank methods."""
        return (line.prompts >= ks.FEWEST_FOR_INTERVALS
                and line.methods >= methods_to_rank(self.compared(line.score, line.scope)))


    def may_be_luck(self, line):
        """Whether so high a correlation may be the highest of as many that are 0, over so many
        independent methods (Student's t)."""
        r = min(line.spearman, 1.0 - 1e-12)
        t = r * math.sqrt((line.methods - 2) / (1 - r * r)) if r > 0 else 0.0
        chance = 2 * stats.t.sf(t, line.methods - 2) * self.compared(line.score, line.scope)
        return not chance <= LEVEL


def methods_to_rank(compared):
    """The fewest methods of which one order among `compared` is no luck at LEVEL.

    Of n methods that a metric does not know anything about it has the score's order, or its
    reverse, with probability 2 / n!; that some of `compared` do, with at most as many times this.
    """
    n = 2
    while 2 * compared > LEVEL * math.factorial(n):
        n += 1
    return n


class Scopes:
    """The groups of cells that are correlated: all, and those of each budget."""

    def __init__(self, table):
        self.pairs = kr.Pairs(len(table.cells))
        self.members = {ACROSS: table.members()}
        self.labels = [label for _, label in table.cells]
        budgets = table.budgets()
        self.small = [b for b in budgets if len(table.members(b)) < FEWEST_CELLS]
        self.budgets = [b for b in budgets if b not in self.small]
        self.members.update({b: table.members(b) for b in self.budgets})
        self.groups = {name: self.pairs.group(cells) for name, cells in self.members.items()}

    def ranked(self, values):
        """{scope: Ranked} of values [r, cells]."""
        signs = self.pairs.signs(values)
        return {name: kr.Ranked(signs, group) for name, group in self.groups.items()}

    def telling(self, y):
        """Budgets at which a score differs between cells: the mean over budgets is of these."""
        return [budget for budget in self.budgets if y[budget].signs[0].any()]

    def correlations(self, x, y, measure):
        """{scope: [r]}, the mean over budgets (WITHIN) too."""
        out = {name: measure(x[name], y[name]) for name in self.members}
        if self.telling(y):
            out[WITHIN] = np.mean([out[b] for b in self.telling(y)], axis=0)
        return out

    def size(self, scope, y):
        """Cells of a scope."""
        names = self.telling(y) if scope == WITHIN else [scope]
        return sum(len(self.members[name]) for name in names)

    def methods(self, scope, y):
        """Methods of a scope's cells."""
        names = self.telling(y) if scope == WITHIN else [scope]
        return len({self.labels[i] for name in names for i in self.members[name]})

    def places(self, x, y):
        """{method: (its budgets, [r]: rank of x minus rank of y, mean over these)}."""
        found = {}
        for budget in self.telling(y):
            apart = x[budget].ranks - y[budget].ranks
            for at, i in enumerate(self.members[budget]):
                found.setdefault(self.labels[i], []).append(apart[:, at])
        return {method: (len(parts), np.mean(parts, axis=0)) for method, parts in found.items()}


def predictors(table, used, counts):
    """((level, metric, reduction), [r, cells]) of prompts `used`, resampled as counts [r, used]."""
    n = counts.sum(axis=1, keepdims=True)
    for level in table.levels:
        mine = np.isin(level.prompts, used)
        prompts = np.searchsorted(used, level.prompts[mine])
        cells = level.cells[mine]
        order = np.lexsort((prompts, cells))
        ends = np.flatnonzero(np.diff(cells[order] * len(used) + prompts[order])) + 1
        for metric, values in zip(level.metrics, level.values[mine].T):
            parts = np.split(values[order], ends)
            for name, reduce in (("mean", np.mean), ("prompt_median", np.median)):
                # Cells and prompts ascend: every cell has every prompt.
                by_prompt = np.reshape([reduce(part) for part in parts], (-1, len(used))).T
                yield (level.name, metric, name), counts @ by_prompt / n
            yield ((level.name, metric, "median"),
                   kr.pooled_medians(values, prompts, cells, counts))


def correlate(table, resamples, seed):
    """A Found of the whole table."""
    found = Found(table)
    scopes = Scopes(table)
    for budget in scopes.small:
        found.notes.append(f"budget {budget}: {len(table.members(budget))} cells, expected at least "
                           f"{FEWEST_CELLS} for its own correlations")
    if len(table.units) < ks.FEWEST_FOR_INTERVALS:
        found.notes.append(f"no intervals: {ks.counted(len(table.units), table.by)}, expected at least "
                           f"{ks.FEWEST_FOR_INTERVALS}")
    by_prompts = {}  # scores of the same prompts share their resamples
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
    """`not enough to rank metrics: ...`, in numbers."""
    needed = methods_to_rank(found.compared(line.score, line.scope))
    return (f"not enough to rank metrics: {ks.counted(line.prompts, found.table.by)} and "
            f"{line.methods} method{'' if line.methods == 1 else 's'}, expected at least "
            f"{ks.FEWEST_FOR_INTERVALS} and {needed}")


def correlate_prompts(found, scopes, used, scores, resamples, seed):
    """Adds the lines of scores that these prompts have."""
    n = len(used)
    # The data, each prompt alone, the resamples.
    drawn = resamples if n >= ks.FEWEST_FOR_INTERVALS else 0
    counts = np.concatenate([np.ones((1, n), int), np.eye(n, dtype=int),
                             ks.resample_counts(n, resamples, seed)[:drawn]])
    sides = {name: scopes.ranked(counts @ values / counts.sum(axis=1, keepdims=True))
             for name, values in scores.items()}
    drawn_spearman, misjudged = {}, {score: [] for score in scores}
    for key, figures in predictors(found.table, used, counts):
        if n == len(found.table.units):
            found.figures[key] = figures[0]
        x = scopes.ranked(figures)
        for score, y in sides.items():
            add_lines(found, scopes, score, key, n, x, y, drawn_spearman, resamples)
            misjudged[score] += method_rows(scopes, score, key, n, x, y)
    for score, rows in misjudged.items():
        compare_to_best(found, score, drawn_spearman)
        found.methods += worth_keeping(found, rows, score)


def worth_keeping(found, rows, score):
    """Of --methods: means, and what has the highest correlation with the score."""
    best = [found.highest(score, scope) for scope in (ACROSS, WITHIN)]
    keys = {(line.level, line.metric, line.reduction) for line in best if line}
    return [row for row in rows
            if row.reduction == "mean" or (row.level, row.metric, row.reduction) in keys]


def add_lines(found, scopes, score, key, n, x, y, drawn_spearman, resamples):
    """The lines of a metric and a score; keeps what was resampled for comparisons."""
    lines = {}
    for measure, function in MEASURES.items():
        for scope, values in scopes.correlations(x, y, function).items():
            point, alone, drawn = values[0], values[1:n + 1], values[n + 1:]
            line = lines.setdefault(scope, Line(score, *key, scope, scopes.size(scope, y), n,
                                                methods=scopes.methods(scope, y)))
            set_figures(line, measure, point, kr.interval(point, drawn, n, bounds=(-1, 1)))
            if measure == "spearman":
                drawn_spearman[score, key, scope] = drawn
            if scope in (ACROSS, WITHIN):
                # A prompt on which all cells are level has no correlation.
                alone = alone[~np.isnan(alone)]
                name = f"prompt {scope}"
                line = lines.setdefault(name, Line(score, *key, name, scopes.size(scope, y),
                                                   len(alone), methods=scopes.methods(scope, y)))
                if len(alone):
                    set_figures(line, measure, alone.mean(),
                                ks.bootstrap_intervals(
                        alone[:, None], resamples=resamples)[0])
    found.lines += lines.values()


def set_figures(line, measure, point, ends):
    setattr(line, measure, float(point))
    setattr(line, f"{measure}_low", float(ends[0]))
    setattr(line, f"{measure}_high", float(ends[1]))


def method_rows(scopes, score, key, n, x, y):
    out = []
    for method, (budgets, places) in scopes.places(x, y).items():
        low, high = kr.interval(places[0], places[n + 1:], n)
        # By the metric it stands lower, that is better, than by the score.
        verdict = "flattered" if high < 0 else "slandered" if low > 0 else ""
        out.append(Misjudged(score, *key, method, budgets, float(places[0]), low, high, verdict))
    return out


def compare_to_best(found, score, drawn_spearman):
    """Fills `behind` and `verdict` of the score's lines: by how much does the highest lead?

    No verdicts where there is too little to rank.
    """
    for scope in (ACROSS, WITHIN):
        lines = [line for line in found.pick(score=score, scope=scope)
                 if not math.isnan(line.spearman)]
        if not lines:
            continue
        best = max(lines, key=lambda line: line.spearman)
        found.leaders[score, scope] = best
        enough = found.enough_to_rank(best)
        drawn = {id(line): drawn_spearman[score, (line.level, line.metric, line.reduction), scope]
                 for line in lines}
        for line in lines:
            apart = drawn[id(best)] - drawn[id(line)]
            line.behind = best.spearman - line.spearman
            low, high = kr.interval(line.behind, apart, line.prompts)
            line.behind_low, line.behind_high = low, high
            if enough and line is not best and not math.isnan(low):
                line.verdict = WORSE if low > 0 else ALIKE
        if enough:
            others = [line for line in lines if line.metric != best.metric]
            alone = others and all(line.verdict == WORSE for line in others)
            best.verdict = BEST if alone and not found.may_be_luck(best) else HIGHEST
