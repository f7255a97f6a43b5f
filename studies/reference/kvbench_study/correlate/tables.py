"""Tables of kvbench-study correlate: CSV and Markdown."""

import dataclasses
import math

import numpy as np

from kvbench.comparison import tables as ct
from kvbench.text import counted
from kvbench_study.correlate.cells import WRONG
from kvbench_study.correlate.ranks import ALIKE, BEST, HIGHEST, REDUCTIONS, WORSE, Line, Misjudged, too_little
from kvbench_study.correlate.resamples import ACROSS, BOTH, WITHIN

COLUMNS = [field.name for field in dataclasses.fields(Line)]
METHOD_COLUMNS = [field.name for field in dataclasses.fields(Misjudged)]
# Titles of scores in tables and figures.
SCORE_TITLES = {"kl": "KL divergence", "loss_change": "change of the loss",
                "1-top_agreement": "other top token", WRONG: "wrong answers"}


def rows(found):
    return [dataclasses.asdict(line) for line in found.lines]


def methods(found):
    return [dataclasses.asdict(row) for row in found.methods]


def title(line):
    return line.metric if line.reduction == "mean" else f"{line.metric} ({line.reduction})"


def cells(found):
    """Returns (columns, rows) of --cells: scores, then METRIC (mean), METRIC.median,
    METRIC.prompt_median.
    """
    names = {key: key[1] + ("" if key[2] == "mean" else f".{key[2]}") for key in found.figures}
    out = []
    for i, (budget, method) in enumerate(found.table.cells):
        row = {"budget": budget, "method": method, "prompts": len(found.table.units)}
        for score, values in found.table.scores.items():
            row[score] = float(np.nanmean(values[:, i]))
        row.update({name: float(found.figures[key][i]) for key, name in names.items()})
        out.append(row)
    return ["budget", "method", "prompts", *found.table.scores, *names.values()], out



def cell_text(line, digits):
    """Formats a correlation with its interval; the highest is bold, those not told from it have a
    star.
    """
    if line is None:
        return "-"
    text = ct.number(line.spearman, digits)
    if line.verdict in (BEST, HIGHEST):
        text = f"**{text}**"
    elif line.verdict == ALIKE:
        text += " \\*"
    return text + (f" {ct.interval(line.spearman_low, line.spearman_high, digits, ct.number)}"
                   if not math.isnan(line.spearman_low) else "")


def by_height(found, scope):
    """Returns [{score: line}] of the metrics' means, sorted by the first score with
    correlations.
    """
    scores = list(found.table.scores)
    by_metric = {}
    for line in found.pick(scope=scope, reduction="mean"):
        by_metric.setdefault((line.level, line.metric), {})[line.score] = line
    # By the first score with correlations; NaN last.
    first = next((score for score in scores for mine in by_metric.values()
                  if score in mine and not math.isnan(mine[score].spearman)), None)
    known = [mine[first].spearman if first else math.nan for mine in by_metric.values()]
    return [mine for _, mine in sorted(
        zip(known, by_metric.values()),
        key=lambda pair: math.inf if math.isnan(pair[0]) else -pair[0])]


def correlation_table(found, scope, options):
    scores = list(found.table.scores)
    titles = ["metric", *(SCORE_TITLES[score] for score in scores)]
    return ct.markdown_table(titles, [
        [next(iter(mine.values())).metric, *(cell_text(mine.get(score), options.digits)
                                             for score in scores)]
        for mine in by_height(found, scope)])


def left_out_text(line, digits):
    """Returns `0.80 (local) to 0.90 (knorm); 0.88 (kvreviver)`; - with too few methods."""
    if line is None or not line.left_out_low_method:
        return "-"
    return (f"{ct.number(line.left_out_low, digits)} ({line.left_out_low_method}) to "
            f"{ct.number(line.left_out_high, digits)} ({line.left_out_high_method}); "
            f"{ct.number(line.without_extreme, digits)} ({line.extreme_method})")


def left_out_table(found, scope, options):
    scores = list(found.table.scores)
    return ct.markdown_table(["metric", *(SCORE_TITLES[score] for score in scores)], [
        [next(iter(mine.values())).metric, *(left_out_text(mine.get(score), options.digits)
                                             for score in scores)]
        for mine in by_height(found, scope)])


def prompt_counts(found):
    """Returns `16 prompts (wrong answers: 7)`."""
    everything = {line.score: line.prompts for line in found.pick(scope=ACROSS)}
    usual = len(found.table.units)
    other = [f"{SCORE_TITLES[score]}: {n}" for score, n in everything.items() if n != usual]
    return counted(usual, found.table.by) + (f" ({', '.join(other)})" if other else "")


def best_lines(found, options):
    """Yields a sentence per score and scope."""
    for score in found.table.scores:
        for scope, where in ((ACROSS, "over all cells"), (WITHIN, "within budgets")):
            best = found.highest(score, scope)
            start = f"- {SCORE_TITLES[score]}, {where}: "
            if best is None:
                yield start + "no correlation (a side is constant)."
                continue
            if not found.enough_to_rank(best):
                yield start + too_little(found, best) + "."
                continue
            lines = found.pick(score=score, scope=scope)
            alike = sum(line.verdict == ALIKE for line in lines)
            figure = (f"{ct.number(best.spearman, options.digits)} "
                      f"{ct.interval(best.spearman_low, best.spearman_high, options.digits, ct.number)}, "
                      f"{counted(best.prompts, found.table.by)}, {best.methods} methods")
            if best.verdict == BEST:
                yield start + (f"`{title(best)}` predicts best ({figure}); every other metric is "
                               "behind it.")
                continue
            others = [line for line in lines if line.metric != best.metric]
            why = ("with so many methods that may be luck" if found.may_be_luck(best) else
                   "methods were not drawn" if found.resample != BOTH and all(
                       line.verdict == WORSE for line in others) else
                   f"{alike} of {len(lines) - 1} others cannot be told from it")
            yield start + (f"`{title(best)}` has the highest correlation ({figure}); {why}, so none "
                           "is best.")


def misjudged_table(found, options):
    """Returns methods whose interval excludes 0, by the metric of the highest correlation within
    budgets and by rel_error.
    """
    out = []
    for score in found.table.scores:
        best = found.highest(score, WITHIN)
        chosen = {("head", "rel_error", "mean")}
        chosen |= {(best.level, best.metric, best.reduction)} if best else set()
        for key in sorted(chosen):
            mine = [row for row in found.methods if row.score == score and row.verdict
                    and (row.level, row.metric, row.reduction) == key]
            words = {verdict: ", ".join(
                f"{row.method} ({row.places:+.1f})"
                for row in sorted(mine, key=lambda row: -abs(row.places)) if row.verdict == verdict)
                or "-" for verdict in ("flattered", "slandered")}
            name = key[1] if key[2] == "mean" else f"{key[1]} ({key[2]})"
            out.append([name, SCORE_TITLES[score], words["flattered"], words["slandered"]])
    return ct.markdown_table(["metric", "score", "flattered", "slandered"], out)


def markdown(found, options):
    table = found.table
    methods = len({method for _, method in table.cells})
    reach = (f"are of other {table.by}s and other methods like these" if found.resample == BOTH else
             "say nothing about other methods")
    lines = [
        f"Spearman's rank correlation with scores of the model; {len(table.cells)} cells ({methods} "
        f"methods at {len(table.budgets())} budgets), {prompt_counts(found)}. Higher is worse on both "
        f"sides (1-NAME: turned), 1 is a perfect prediction. Intervals: 95 %, {options.resamples} "
        f"resamples of the {found.resampled()}, seed {options.seed}; they {reach}. Bold: the "
        "highest of all metrics and reductions, where there is enough to rank them; \\*: not told "
        "from it.",
        "", "Over all cells:", "", *correlation_table(found, ACROSS, options), ""]
    if found.pick(scope=WITHIN):
        lines += ["Within budgets, mean over budgets:", "",
                  *correlation_table(found, WITHIN, options), ""]
    if any(line.left_out_low_method for line in found.pick(scope=ACROSS)):
        lines += ["Over all cells, without one method: the least and the highest correlation (and which "
                  "method is left out); then without the method of the highest mean score.", "",
                  *left_out_table(found, ACROSS, options), ""]
    lines += ["Of all metrics and reductions ("
              + "; ".join(f"{name}: {text}" for name, text in REDUCTIONS.items()) + "):", "",
              *best_lines(found, options), ""]
    if found.pick(scope=WITHIN):
        lines += ["Methods that a metric misjudges (rank by the metric minus rank by the score "
                  f"among the methods of a budget, mean over budgets; interval over {table.by}s without "
                  "0). Flattered: the metric ranks them better than the score does.", "",
                  *misjudged_table(found, options), ""]
    return "\n".join(lines).rstrip("\n") + "\n"
