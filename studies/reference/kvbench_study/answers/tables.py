"""Answers by setting, task, budget, method and source, and their controls."""

import math
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from kvbench import tables as kt
from kvbench import units
from kvbench.comparison.scores import KEY, extent, refuse_other_layers, without_spoiled
from kvbench_study import intervals as ki

MEASURES = ("change", "right")
SAID = "answer_right"  # absent or empty if the model wrote no text
EXACT, ORACLE = "exact", "oracle"
FIGURES = ["answer_nll", "answer_nll_exact", "choice_right", "choice_exact_right"]
TEXT = ("trace", "prompt", "source", "algorithm", "params", "status")
COLUMNS = ["setting", "task", "budget", "method", "sources", "right", "right_low", "right_high", "said",
           "change", "change_low", "change_high", "chance", "control", "dropped"]
SOURCE_COLUMNS = ["setting", "task", "budget", "method", "source", "right", "said", "change"]
ALPHA = 0.05
REASON = "controls do not separate"


@dataclass(frozen=True)
class Controls:
    """Controls of a setting and task. why: reason to drop it; empty if the controls separate.

    sources, right, low, high   of exact: n, right answers, exact binomial interval
    failing, budget, failing_right, failing_sources   of the method that must fail
    p                           one-sided sign test of exact against it
    """

    sources: int
    right: float
    low: float
    high: float
    chance: float
    failing: str
    budget: float
    failing_right: float
    failing_sources: int
    p: float
    why: str


@dataclass
class Answers:
    """means: a row per setting, task, budget, method (label) and source; `right`, `said` and `change`."""

    means: pd.DataFrame
    controls: dict  # (setting, task): Controls
    notes: list = field(default_factory=list)

    def settings(self):
        return list(dict.fromkeys(setting for setting, _ in self.controls))

    def tasks(self):
        return list(dict.fromkeys(task for _, task in self.controls))

    def kept(self):
        """Returns the (setting, task) whose controls separate."""
        return [place for place, one in self.controls.items() if not one.why]


def read_tasks(paths):
    """Returns {prompt: (task, source, chance)} of records."""
    out = {}
    for record in units.read_records(paths):
        if "task" not in record:
            continue
        name, wrong = str(record.get("id")), record.get("wrong")
        source = record.get("source") or record.get("filler") or name
        if not isinstance(wrong, list) or not wrong:
            raise kt.CsvError(f"{paths[0]}: record {name}: wrong: got {wrong!r}, expected a list of wrong "
                              "answers: without them there is no choice")
        out[name] = str(record["task"]), str(source), 1 / (1 + len(wrong))
    if not out:
        raise kt.CsvError(f"{paths[0]}: no record has a `task`, expected those of kvbench-study tasks")
    return out


def read(paths):
    frame = kt.read_table(paths, [*KEY, *FIGURES, "status"], TEXT, others=["layers", "source", SAID])
    good = frame["status"].map(kt.status_kind) == "ok"
    for column in FIGURES:
        values = frame[column]
        # between is False for NaN.
        fits = values.between(0, 1) if column.startswith("choice") else values.between(0, math.inf, "left")
        if (good & ~fits).any():
            row = frame[good & ~fits].iloc[0]
            raise kt.CsvError(f"{paths[0]}: prompt {row['prompt']}, {row['algorithm']} at "
                              f"{row['budget_requested']:g}: {column} is {row[column]:g} though the status is "
                              "ok, expected a score with the task's --records")
    kt.reject_duplicates(frame, KEY, paths[0])
    refuse_other_layers(frame, paths[0])
    return frame


def load(scores, records, control="local", exclude=()):
    """Returns the Answers of tables [(setting, [file])] and files of records."""
    tasks = read_tasks(records)
    frame = pd.concat([read(paths).assign(setting=setting) for setting, paths in scores],
                      ignore_index=True)
    frame = frame[~frame["algorithm"].isin(exclude)].copy()
    for prompt in frame["prompt"].unique():
        if prompt not in tasks:
            raise kt.CsvError(f"no record says the task of {prompt}: --records")
    settings, rank = [setting for setting, _ in scores], {prompt: at for at, prompt in enumerate(tasks)}
    # In the order of the records, since resamples draw sources by their place.
    places = [(settings.index(setting), rank[prompt]) for setting, prompt in zip(frame["setting"], frame["prompt"])]
    frame = frame.iloc[sorted(range(len(frame)), key=places.__getitem__)].reset_index(drop=True)
    kt.add_labels(frame)
    for at, column in enumerate(("task", "unit", "chance")):
        frame[column] = [tasks[prompt][at] for prompt in frame["prompt"]]
    refuse_several(frame)
    frame["change"] = frame["answer_nll"] - frame["answer_nll_exact"]
    frame["right"] = frame["choice_right"]
    frame["said"] = frame[SAID] if SAID in frame else math.nan
    keys = ["setting", "task", "budget_requested", "label", "unit"]
    frame, gone = without_spoiled(frame, keys)
    notes = [f"{setting}, {task}: {label} at {budget:g}: {count} sources with rows that are not ok are left "
             "out" for (setting, task, budget, label), count in gone]
    if frame.empty:
        raise kt.CsvError(f"{scores[0][1][0]}: no rows with status ok")
    means = frame.groupby([*keys, "algorithm", "chance"], sort=False, dropna=False)[[*MEASURES, "said"]].mean()
    means = means.reset_index().rename(columns={"budget_requested": "budget", "label": "method",
                                                "unit": "source"})
    places = means[["setting", "task"]].drop_duplicates().itertuples(index=False, name=None)
    order = {task: at for at, task in enumerate(dict.fromkeys(task for task, *_ in tasks.values()))}
    places = sorted(places, key=lambda place: (settings.index(place[0]), order[place[1]]))
    controls = {place: controls_of(part_of(means, place), control) for place in places}
    return Answers(means, controls, notes)


def refuse_several(frame):
    """Raises CsvError if a source has several prompts of a task, which are not independent."""
    pairs = frame[["setting", "task", "unit", "trace", "prompt"]].drop_duplicates()
    twice = pairs[pairs.duplicated(["setting", "task", "unit"], keep=False)]
    if len(twice):
        one, other = twice.iloc[0], twice[twice["unit"] == twice["unit"].iloc[0]].iloc[1]
        raise kt.CsvError(f"prompts {one['prompt']} and {other['prompt']} are both of task {one['task']} and "
                          f"source {one['unit']}, expected one")


def part_of(means, place):
    return means[(means["setting"] == place[0]) & (means["task"] == place[1])]


def controls_of(part, control):
    """Returns the Controls of the means of one setting and task."""
    chance = float(part["chance"].max())  # the easiest, where tasks differ
    exact = part[part["algorithm"] == EXACT].groupby("source")["right"].mean()
    failing = part[(part["algorithm"] == control) & part["budget"].notna()]
    least = float(failing["budget"].min()) if len(failing) else math.nan
    failing = failing[failing["budget"] == least].groupby("source")["right"].mean()
    low, high = interval(exact.to_numpy())
    both = exact.index.intersection(failing.index)
    ahead = exact[both] - failing[both]
    p = ki.sign_test(int((ahead > 0).sum()), int((ahead < 0).sum()))
    why = []
    if not len(exact):
        why.append(f"no rows of {EXACT}")
    elif not low > chance:
        why.append(f"{EXACT} is not above chance")
    if not len(both):
        why.append(f"no rows of {control} at a budget, at a source that {EXACT} has")
    elif not p <= ALPHA:
        why.append(f"{EXACT} is not better than {control}")
    return Controls(len(exact), float(exact.mean()), low, high, chance, control, least, float(failing.mean()),
                    len(failing), p if len(both) else math.nan, "; ".join(why))


# A key is held or lost: most sources have one of two growths, many resamples nearly one only, and
# the studentised interval of the others is without bound.
INTERVAL = "bca"


def interval(values):
    """Exact interval of the share of right answers; NaN if seeds give fractions."""
    if not len(values) or not np.isin(values, (0.0, 1.0)).all():
        return math.nan, math.nan
    return ki.binomial_interval(int(values.sum()), len(values))


def lines(found):
    """Returns a dict of COLUMNS per setting, task, budget and method, in task order."""
    out = []
    for place, controls in found.controls.items():
        mine = part_of(found.means, place)
        for (budget, method), some in mine.groupby(["budget", "method"], sort=False, dropna=False):
            right, change = some["right"].to_numpy(), some["change"].to_numpy()
            (right_low, right_high), (low, high) = interval(right), extent(change, INTERVAL)
            algorithm = some["algorithm"].iloc[0]
            out.append({"setting": place[0], "task": place[1], "budget": float(budget), "method": method,
                        "sources": len(some), "right": float(right.mean()), "right_low": right_low,
                        "right_high": right_high, "said": float(some["said"].mean(skipna=False)),
                        "change": float(change.mean()), "change_low": low, "change_high": high,
                        "chance": controls.chance,
                        "control": ("must answer" if algorithm == EXACT else "must fail"
                                    if algorithm == controls.failing and budget == controls.budget else ""),
                        "dropped": f"{REASON}: {controls.why}" if controls.why else ""})
    return out


def by_source(found):
    columns = found.means[[*SOURCE_COLUMNS]]
    return [{**row, "budget": float(row["budget"]), "right": float(row["right"]),
             "said": float(row["said"]), "change": float(row["change"])} for row in columns.to_dict("records")]


def order_of(rows):
    """Returns methods sorted by mean change; methods without some budget come last."""
    changes = {}
    for row in rows:
        if not math.isnan(row["budget"]):
            changes.setdefault(row["method"], []).append(row["change"])
    most = max(map(len, changes.values()), default=0)
    return sorted(changes, key=lambda m: (most - len(changes[m]), sum(changes[m]) / len(changes[m])))


def shown(found, rows, most):
    """Returns the methods of the figure: best mean rank over panels, most panels first."""
    kept, ranks = found.kept(), {}
    for place in kept:
        order = order_of([row for row in rows if (row["setting"], row["task"]) == place])
        for rank, method in enumerate(order):
            ranks.setdefault(method, []).append(rank)
    return sorted(ranks, key=lambda m: (-len(ranks[m]), sum(ranks[m]) / len(ranks[m])))[:most]
