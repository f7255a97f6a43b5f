"""Markdown page of kvbench-study answers: controls first, then tasks whose controls separate."""

import math

from kvbench import text as kx
from kvbench.comparison.scores import FEWEST, share
from kvbench.comparison.tables import chance, number
from kvbench_study import intervals as ki
from kvbench_study.answers.tables import ALPHA, EXACT, ORACLE, REASON, order_of, part_of


def needed(n, by_chance):
    """Returns the fewest right answers of n whose interval lies above chance; None if
    impossible.
    """
    return next((k for k in range(n + 1) if ki.binomial_interval(k, n)[0] > by_chance), None)


def counted(right, n):
    """Returns `7/8`; means over seeds may be fractional."""
    total = right * n
    return f"{total:.0f}/{n}" if abs(total - round(total)) < 1e-9 else f"{total:.1f}/{n}"


def oracle_right(rows, place):
    mine = [row for row in rows if (row["setting"], row["task"], row["method"]) == (*place, ORACLE)]
    if not mine:
        return "-"
    row = max(mine, key=lambda row: row["budget"])
    return f"{counted(row['right'], row['sources'])} at {share(row['budget'])}"


def control_rows(found, rows):
    out = ["| setting | task | exact right | 95 % | chance | oracle right | must fail | right | p | |",
           "| --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | --- |"]
    for (setting, task), one in found.controls.items():
        failing = f"{one.failing} at {share(one.budget)}" if one.failing_sources else one.failing
        said = f"dropped: {REASON} ({one.why})" if one.why else ""
        out.append(f"| {setting} | {task} | {counted(one.right, one.sources) if one.sources else '-'} | "
                   f"[{number(one.low, 2)}, {number(one.high, 2)}] | {one.chance:.2g} | "
                   f"{oracle_right(rows, (setting, task))} | {failing} | "
                   f"{counted(one.failing_right, one.failing_sources) if one.failing_sources else '-'} | "
                   f"{chance(one.p)} | {said} |")
    return out


def reach(found):
    out = []
    for n, by_chance in dict.fromkeys((one.sources, one.chance) for one in found.controls.values()):
        least = needed(n, by_chance)
        text = ("no number of right answers is above chance" if least is None else
                f"{least} right answers or more are above chance ({by_chance:.2g})")
        out.append(f"- Of {kx.counted(n, 'source')} {text}; the sign test reaches p = {chance(0.5**n)} at best"
                   + (": these controls cannot separate." if 0.5**n > ALPHA else "."))
    return out


def cell(row, n, digits):
    low, high = (f"{row[end]:+.{digits}f}" for end in ("change_low", "change_high"))
    said = "" if math.isnan(row["said"]) else f"said {counted(row['said'], row['sources'])}; "
    text = f"{counted(row['right'], row['sources'])}; {said}{row['change']:+.{digits}f} "
    return text + (f"({low} to {high})" if row["sources"] < FEWEST else f"[{low}, {high}]")


def task_table(rows, digits):
    budgets = sorted({row["budget"] for row in rows if not math.isnan(row["budget"])}, reverse=True)
    most = max(row["sources"] for row in rows)
    cells = {(row["method"], row["budget"]): cell(row, most, digits) for row in rows}
    out = ["| method | " + " | ".join(map(share, budgets)) + " |", "| --- |" + " ---: |" * len(budgets)]
    for method in order_of(rows):
        out.append(f"| {method} | " + " | ".join(cells.get((method, budget), "-") for budget in budgets) + " |")
    return out


def markdown(found, rows, digits):
    few = any(row["sources"] < FEWEST for row in rows)
    out = [f"Controls: `{EXACT}`, whose cache holds all, must choose the right answer more often than chance (the "
           "lower bound of its exact 95 % interval), and more often than a method that must fail (one-sided sign "
           f"test, p at most {ALPHA:g}). Where they do not separate, nothing is said of methods.", "",
           *control_rows(found, rows), "", *reach(found), ""]
    kept = found.kept()
    if kept:
        said = ("" if all(math.isnan(row["said"]) for row in rows) else
                "at how many the model's greedy text contains it (said); ")
        out += ["Then by method and budget: at how many sources the right answer is likelier than every wrong one; "
                f"{said}how much its negative log likelihood grows over that with the whole cache, nats, mean over "
                "sources [95 % interval over sources]" + (f", or of fewer than {FEWEST} sources (least to largest)."
                                                  if few else ".") + " The least mean growth stands first.", ""]
    for place in kept:
        mine = [row for row in rows if (row["setting"], row["task"]) == place]
        n = part_of(found.means, place)["source"].nunique()
        out += [f"## {place[1]}, {place[0]} (n = {n})", "", *task_table(mine, digits), ""]
    return "\n".join(out).rstrip("\n") + "\n"
