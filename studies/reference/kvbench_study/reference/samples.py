"""Samples of the store of kvbench-study reference: rows that are computed again and compared.

Per stage, and per state of lib and scripts that made its rows, a few variants of one prompt, chosen
by a hash. A variant runs in all of its layers, since budgets may move between layers. All of its
tables are compared without times, bit by bit: `check` in the tables is a checksum of the unrounded
rows. Tables of layers and scores keep nine digits and may differ behind these, as sums in another
order do: this is reported. So may rows of another state of lib behind their five digits: `check`
covers columns that are not stored, and `mass_kept` was above 1 by rounding before it was clipped. If
the trace made here differs in bits from the store's (another machine may use other torch kernels),
this is reported, and means over layers and heads must agree within TOLERANCE; the same holds for
scores of another machine. Last digits of scores depend on which caches the model reads together,
which are others in a sample: scores may differ by ROUNDING, as reported.
"""

import contextlib
import math
import operator
import os
import shutil

from kvbench_study.reference import plan as rp
from kvbench_study.reference import store
from kvbench_study.reference.commands import read_json, say, write_json
from kvbench_study.reference.steps import cpu_model

# Of a mean over layers and heads, if traces differ in last digits of float16: choices among nearly
# equal tokens change, and single heads differ by more.
TOLERANCE = 0.05
FLOOR = 1e-3  # smaller figures are rounding or noise
# Of scores, sums in float32 over all layers: relative, and in nats for divergences near 0.
ROUNDING, LEAST = 1e-4, 2e-6


class Differs(Exception):
    """A sample differs from the store. One line."""


def order(*words):
    return rp.digest("\0".join(words))


def floats(table):
    """Returns the columns whose means are compared within TOLERANCE: measured, without times."""
    return [name for name in table.header
            if name not in (*store.PLACE, *store.TIMES, "source", "seed", "seeds", "check")
            # One answer, right or wrong, is no mean over a prompt.
            and not name.startswith(("answer", "wrong", "choice"))
            and any(store.number(row[table.columns[name]]) is not None for row in table.rows)]


def rounded(one, other):
    numbers = store.number(one), store.number(other)
    return one == other or None not in numbers and math.isclose(*numbers, rel_tol=ROUNDING, abs_tol=LEAST)


def same_bits(name, old, new, but=(), equal=operator.eq):
    """Raises Differs unless all rows are equal, by `equal` of two cells, without times and the columns `but`."""
    columns = [c for c in new.header if c not in (*store.TIMES, *but)]
    absent = [c for c in columns if c not in old.columns]
    if absent:
        raise Differs(f"{name}: the store has no column {absent[0]}")
    old, new = old.with_columns(columns), new.with_columns(columns)
    old.sort()
    if len(old.rows) != len(new.rows):
        raise Differs(f"{name}: the store has {len(old.rows)} rows, expected {len(new.rows)}")
    for one, other in zip(old.rows, new.rows):
        at = next((i for i, cell in enumerate(one) if not equal(cell, other[i])), None)
        if at is not None:
            what = ", ".join(f"{c} {one[old.columns[c]]}" for c in
                             ("algorithm", "budget_requested", "layer", "q_head")
                             if c in old.columns)
            raise Differs(f"{name}: {what}: {columns[at]}: the store has {one[at]}, here it is "
                          f"{other[at]}")


def near(name, old, new):
    """Raises Differs unless means of each variant agree within TOLERANCE."""
    for variant in sorted(new.variants()):
        mine, its = new.only(lambda v, w=variant: v == w), old.only(lambda v, w=variant: v == w)
        if len(mine.rows) != len(its.rows):
            raise Differs(f"{name}: {variant[0]}: the store has {len(its.rows)} rows, expected "
                          f"{len(mine.rows)}")
        for column in floats(new):
            means = [mean(table, column) for table in (its, mine)]
            if not (means[0] == means[1] or math.isnan(means[0]) and math.isnan(means[1])
                    or abs(means[0] - means[1]) <= max(FLOOR, TOLERANCE * abs(means[0]))):
                raise Differs(f"{name}: {variant[0]} at {variant[2] or 'its own size'}: mean "
                              f"{column}: the store has {means[0]:g}, here it is {means[1]:g}, "
                              f"which is further than {TOLERANCE:g}")


def mean(table, column):
    values = [store.number(row[table.columns[column]]) for row in table.rows]
    values = [value for value in values if value is not None]
    return sum(values) / len(values) if values else math.nan


class Samples:
    """run: a Run of main.py; count: variants of a stage, 0 for none."""

    def __init__(self, run, count):
        self.run, self.count = run, count
        self.steps, self.placeholders = run.steps, run.placeholders
        self.path = os.path.join(self.placeholders.work, "samples.json")

    def groups(self):
        """Returns {(stage's name, lib, scripts): [(prompt, record, part, {variant: budgets})]} of all records."""
        out = {}
        for stage in self.run.stages.values():
            for prompt in self.run.prompts[stage.name]:
                record = self.steps.record(stage, prompt)
                for at, part in enumerate(record["parts"] if record else ()):
                    mine = self.made(record, at)
                    if mine or stage.kind == "cluster":
                        out.setdefault((stage.name, part["lib"], part["scripts"]), []).append(
                            (prompt, record, part, mine))
        return out

    @staticmethod
    def made(record, at):
        """Returns {variant: budgets} of the rows that run number `at` made and no later one; "": a policy's own
        budgets.
        """
        part, out = record["parts"][at], {}
        for variant in part["variants"]:
            entry = record["variants"][variant]
            again = [budget for later in record["parts"][at + 1:] if variant in later["variants"]
                     for budget in later["budgets"] or [""]]
            budgets = [one for one in part["budgets"] or [""]
                       if one not in again and one in (entry["budgets"] or [""])]
            if budgets and isinstance(entry["points"], list):
                out[variant] = budgets
        return out

    def foreign(self, group):
        """Returns whether another state of the program made these rows."""
        stage, lib, scripts = group
        return (lib, scripts) != (self.steps.lib,
                                  self.steps.scripts_digest(self.run.plan.stages[stage]))

    def check(self):
        """Returns [(group, why, [prompts])] of the groups whose sample differs."""
        known, stale = read_json(self.path) or {}, []
        for group, members in self.groups().items():
            state = self.state(group, members)
            name = "/".join(group)
            if known.get(name, {}).get("state") == state:
                say(f"sample of {group[0]}: " + known[name]["said"] + ", checked before")
                continue
            try:
                said = self.check_group(group, members)
            except Differs as error:
                stale.append((group, str(error), [prompt for prompt, *_ in members]))
                continue
            say(f"sample of {group[0]}: {said}")
            known[name] = {"state": state, "said": said}
            write_json(self.path, known)
        return stale

    def state(self, group, members):
        stage = self.run.plan.stages[group[0]]
        return [self.steps.lib, self.count, self.steps.program.now["sha256"],
                sorted(self.steps.holds(stage, prompt) for prompt, *_ in members)]

    @staticmethod
    def compare(name, old, new, free, digits, scores=False):
        """Returns what is equal: "bits"; "digits", all that is stored, accepted if `digits`; "rounding", accepted if
        `scores`; or "means", accepted if `free`. Raises Differs.
        """
        try:
            same_bits(name, old, new)
            return "bits"
        except Differs:
            if digits:
                with contextlib.suppress(Differs):
                    same_bits(name, old, new, but=("check",))
                    return "digits"
            if scores:
                with contextlib.suppress(Differs):
                    same_bits(name, old, new, but=("check",), equal=rounded)
                    return "rounding"
            if not free:
                raise
        near(name, old, new)
        return "means"

    def check_group(self, group, members):
        """Returns a description of the comparison. Raises Differs."""
        stage = self.run.plan.stages[group[0]]
        prompt, record, part, mine = min(members, key=lambda m: order(self.steps.lib, m[0].id))
        chosen = sorted(mine, key=lambda v: order(self.steps.lib, prompt.id, v))
        budgets = sorted(mine[chosen[0]] if chosen else [], key=lambda b: order(self.steps.lib, prompt.id, b))[:1]
        chosen = [variant for variant in chosen if budgets[0] in mine[variant]][:self.count]
        budgets = [one for one in budgets if one]
        if not self.steps.has_trace(prompt):
            self.steps.make_trace(prompt)
        same = self.steps.trace_digest(prompt) == part["trace"]
        folder = os.path.join(self.placeholders.work, "samples", stage.name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        words = self.steps.stage_words(stage, prompt, folder, chosen, budgets)
        self.steps.execute(stage, folder, words)
        # Not those that the program writes since.
        tables = {name: table for name, table in self.steps.condensed(stage, prompt, folder).items()
                  if name in record["files"]}
        if not tables:
            raise Differs(f"none of the tables {', '.join(record['files'])} is written here")
        equal, newer = {}, set()
        for name, new in tables.items():
            variants = new.variants()
            old = self.steps.store.packed(stage.name, name).table(prompt.id).only(lambda v, known=variants: v in known)
            absent = [c for c in store.appended(name) if not new.lacks(c) and old.lacks(c)]
            if absent:
                new = self.steps.condensed(stage, prompt, folder, absent)[name]
                newer.update(absent)
            # The model's arithmetic depends on the torch here.
            scores = name.partition(".")[0] == "scores"
            free = not same or scores and part["cpu"] != cpu_model()
            digits = name in store.FEW_ROWS or self.foreign(group)
            equal[name] = self.compare(store.file_of(stage.name, name), old, new, free, digits, scores)
        shutil.rmtree(folder, ignore_errors=True)
        if not self.run.args.keep:
            self.run.sampled.add(prompt.id)
        what = prompt.id + (f", {', '.join(chosen)}" if chosen else "")
        what += f", without {', '.join(sorted(newer))}, newer than the store" if newer else ""
        if same or "means" not in equal.values():
            said = f"{what}: equal bits"
            for kept in (store.FEW_ROWS_DIGITS, store.DIGITS):
                rounded = sorted(name or "rows" for name, found in equal.items()
                                 if found == "digits" and kept == store.digits_of(name))
                if rounded:
                    said += f", {', '.join(rounded)} equal in {kept} digits"
            if "rounding" in equal.values():
                said += f", scores within {ROUNDING:g}: the model read other caches together"
            if "means" in equal.values():
                said += f", scores within {TOLERANCE:g}: the model ran on another machine, {part['cpu']}"
            return said
        return (f"{what}: within {TOLERANCE:g}, not compared bit by bit: the trace made here has "
                "other bits than the store's (another machine)")
