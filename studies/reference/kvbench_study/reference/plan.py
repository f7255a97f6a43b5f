"""Plan of kvbench-study reference: studies/reference/plans/*.toml, checked, with its commands.

A stage is one kvbench command per prompt, a report several commands over the tables of all prompts.
placeholders.py fills in placeholders of commands. The results of steps are kept in a store (store.py).
"""

import fnmatch
import glob
import json
import os
import re
import tomllib
from dataclasses import dataclass

from kvbench.hashing import file_sha256
from kvbench.hashing import sha256 as digest
from kvbench.text import parse_json
from kvbench_study import ROOT

ROWS = "rows.csv"
# Of replay and score, where written.
SIDE_TABLES = ("rows.layers.csv", "scores.csv", "scores.layers.csv")
KINDS = ("replay", "cluster", "score")
PLANS = "studies/reference/plans/models/"
USUAL = PLANS + "smollm2-135m.toml"
# {STAGE/FILE} stands for that file of every prompt, one word each.
TABLE = re.compile(r"\{([\w-]+)/([\w.-]*)\}")
NAME = re.compile(r"[\w-]+")


class PlanError(Exception):
    """Invalid input. One line. exit_code: as in docs/cli.md."""

    def __init__(self, text, exit_code=2):
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Prompt:
    """One text. number: its index, from 0; digest: of the whole record; source: its source; task:
    of kvbench-study tasks, or "".
    """
    id: str
    set: str
    number: int
    digest: str
    source: str = ""
    task: str = ""


@dataclass(frozen=True)
class Stage:
    """One command per prompt. kind: replay, cluster or score; seconds: first guess per prompt.

    options: of kvbench replay or cluster; for score all words of the command, which writes
    {folder}/rows.csv and {folder}/scores.csv. after: reports whose files it reads. algorithms,
    budgets: values of --algorithm and --budget, otherwise in `options` or its --config. columns,
    tables: what the store keeps besides the default; keep: the only files to keep, default all.
    """
    name: str
    title: str
    kind: str
    options: tuple
    prompts: tuple
    fewer: str
    layers: tuple
    after: tuple
    seconds: float
    algorithms: tuple = ()
    budgets: tuple = ()
    columns: tuple = ()
    tables: tuple = ()
    keep: tuple = ()


@dataclass(frozen=True)
class Report:
    """Commands over whole stages; files that they leave in {out} are results.

    after: earlier reports whose files they read.
    """
    name: str
    title: str
    run: tuple
    stages: tuple
    after: tuple
    seconds: float


@dataclass(frozen=True)
class Plan:
    path: str
    title: str
    out: str
    work: str
    records: tuple
    layers: tuple
    model: dict
    trace: tuple
    trace_seconds: float
    prompts: dict
    stages: dict
    reports: dict
    threads: int = 0

    def before(self, stage):
        """Returns the reports that must be made before a stage."""
        reads = {name: report.after for name, report in self.reports.items()}
        return [self.reports[name] for name in with_earlier(stage.after, reads, self.stages)]


def file_digest(path):
    try:
        return file_sha256(path)
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from None


class Reader:
    """A TOML table; get() takes a typed key, rest() rejects unused keys."""

    def __init__(self, table, where):
        if not isinstance(table, dict):
            raise PlanError(f"{where}: got {table!r}, expected a table")
        self.table, self.where = dict(table), where

    def get(self, key, kind, default=None):
        if key not in self.table:
            if default is None:
                raise PlanError(f"{self.where}: `{key}` is missing")
            return default
        value = self.table.pop(key)
        if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
            raise PlanError(f"{self.where}: {key}: got {value!r}, expected another type")
        return value

    def words(self, key, default=None):
        value = self.get(key, list, default)
        if not all(isinstance(word, str) for word in value):
            raise PlanError(f"{self.where}: {key}: got {value!r}, expected a list of strings")
        return tuple(value)

    def numbers(self, key, default=None):
        value = self.get(key, list, default)
        if not all(type(n) is int and n >= 0 for n in value) or len(set(value)) < len(value):
            raise PlanError(f"{self.where}: {key}: got {value!r}, expected different layers")
        return tuple(value)

    def seconds(self):
        value = self.get("seconds", (int, float))
        if not value > 0:
            raise PlanError(f"{self.where}: seconds: got {value}, expected a number above 0")
        return float(value)

    def rest(self):
        for key in self.table:
            raise PlanError(f"{self.where}: unknown key `{key}`")


def read_prompts(patterns):
    """Returns {id: Prompt} of .jsonl files, in order."""
    out = {}
    for pattern in patterns:
        paths = sorted(glob.glob(os.path.join(ROOT, pattern)))
        if not paths:
            raise PlanError(f"{pattern}: no such file")
        for path in paths:
            try:
                with open(path, encoding="utf-8") as file:
                    records = [parse_json(line) for line in file if line.strip()]
                ids = [(record["id"], record.get("set", ""), record.get("source", ""),
                        record.get("task", "")) for record in records]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise PlanError(f"{path}: records with an id expected: {error}") from None
            for (name, group, source, task), record in zip(ids, records):
                if name in out or not NAME.fullmatch(name):
                    raise PlanError(f"{path}: id {name!r} stands twice, or is no plain word")
                text = json.dumps(record, sort_keys=True)
                out[name] = Prompt(name, group, len(out), digest(text), str(source), str(task))
    return out


def pick_prompts(wanted, prompts, where):
    """Returns ids of a set ("test"), of all ("all") but tasks, or of a list, which may hold
    `vim-*`.
    """
    if isinstance(wanted, str):
        ids = [p.id for p in prompts.values() if wanted in ("all", p.set) and not p.task]
        if not ids:
            raise PlanError(f"{where}: prompts: no prompt of the set `{wanted}`")
        return tuple(ids)
    for one in wanted:
        if not fnmatch.filter(prompts, one):
            raise PlanError(f"{where}: prompts: no prompt `{one}`; there are {', '.join(prompts)}")
    return tuple(id for id in prompts if any(fnmatch.fnmatchcase(id, one) for one in wanted))


def with_earlier(names, reads, stages):
    """Returns reports and the reports that they read. reads: {report: names of stages and reports}."""
    out = list(names)
    for name in out:  # grows on the way
        out += [one for one in reads[name] if one in reads and one not in stages and one not in out]
    return out


def read_stage(table, where, prompts, stages, reports):
    """reports: {name: the stages that it reads} of all reports, which may follow later."""
    at = Reader(table, where)
    name = at.get("name", str)
    where = at.where = f"{where} {name}"
    if not NAME.fullmatch(name) or name in stages or name in ("traces", "reports",
                                                                      "store", "samples"):
        raise PlanError(f"{where}: the name is taken, or no plain word")
    kinds = [kind for kind in KINDS if kind in at.table]
    if len(kinds) != 1:
        raise PlanError(f"{where}: expected either `replay` or `cluster`, a list of options, or "
                        "`score`, a command")
    options = at.words(kinds[0])
    wanted = at.get("prompts", (str, list), "test")
    picked = pick_prompts(wanted, prompts, where)
    fewer = at.get("fewer", str, "")
    tasks = {prompts[one].task for one in picked}
    everything = {p.id for p in prompts.values() if p.set == "test" and p.task in tasks}
    if wanted != "dev" and everything - set(picked) and not fewer:
        raise PlanError(f"{where}: not all test prompts: `fewer` must say why")
    read = (*options, *at.table.get("algorithms", ()))
    used = tuple(dict.fromkeys(match[1] for word in read for match in TABLE.finditer(str(word))))
    after = tuple(one for one in used if one in reports and one not in stages)
    for report in with_earlier(after, reports, stages):
        later = [one for one in reports[report] if one not in stages and one not in reports
                 or one in stages and stages[one].after]
        if later:
            raise PlanError(f"{where}: {{{report}/...}} reads the stage {later[0]}, which is no "
                            "earlier one, or waits for a report itself")
    for one in used:
        if one not in after:
            raise PlanError(f"{where}: {{{one}/...}} is no report: files of steps may be on another machine")
    out = Stage(name, at.get("title", str), kinds[0], options, picked, fewer,
                at.numbers("layers", []), after, at.seconds(), at.words("algorithms", []), budget_words(at),
                at.words("columns", []), at.words("tables", []), at.words("keep", []))
    check_stage(out, where)
    at.rest()
    return out


def budget_words(at):
    """Returns `budgets`, numbers of the file, as words."""
    values = at.get("budgets", list, [])
    if not all(type(value) in (int, float) and 0 < value <= 1 for value in values):
        raise PlanError(f"{at.where}: budgets: got {values!r}, expected shares above 0, up to 1")
    return tuple(f"{value:g}" for value in values)


def check_stage(out, where):
    """Raises PlanError if keys are inconsistent."""
    if out.kind == "cluster" and (out.algorithms or out.budgets):
        raise PlanError(f"{where}: algorithms, budgets: expected with `replay` or `score`")
    named = out.algorithms or {"--algorithm", "--config"} & {*out.options}
    if out.kind == "score" and not (out.options and named):
        raise PlanError(f"{where}: score: expected a command, and `algorithms`")
    for key, option in (("algorithms", "--algorithm"), ("budgets", "--budget")):
        if getattr(out, key) and option in out.options:
            raise PlanError(f"{where}: {key}: got {option} in `{out.kind}` too, expected one")
    for word in out.keep:
        if word not in (ROWS, *SIDE_TABLES, *out.tables):
            raise PlanError(f"{where}: keep: got `{word}`, expected some of "
                            f"{', '.join((ROWS, *SIDE_TABLES, *out.tables))}")


def read_report(table, where, stages, reports):
    at = Reader(table, where)
    name = at.get("name", str)
    where = at.where = f"{where} {name}"
    if not NAME.fullmatch(name) or name in reports:
        raise PlanError(f"{where}: the name is taken, or no plain word")
    run = at.words("run")
    used = tuple(dict.fromkeys(m[1] for line in run for m in TABLE.finditer(line)))
    after = tuple(one for one in used if one in reports and one not in stages)
    used = tuple(one for one in used if one not in after)
    for stage in used:
        if stage not in stages:
            raise PlanError(f"{where}: {{{stage}/...}}: no such stage, and no earlier report")
    if not run or not used:
        raise PlanError(f"{where}: expected commands that read {{STAGE/{ROWS}}}")
    out = Report(name, at.get("title", str), run, used, after, at.seconds())
    at.rest()
    return out


def read_plan(path):
    try:
        with open(path, "rb") as file:
            top = Reader(tomllib.load(file), os.path.basename(path))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"{path}: {error}") from None
    except RecursionError:
        raise PlanError(f"{path}: nested too deeply") from None
    name = top.where
    records = top.words("prompts")
    prompts = read_prompts(records)
    stages, reports = {}, {}
    written = top.get("report", list, [])
    reads = {str(table.get("name")): [m[1] for m in TABLE.finditer(str(table.get("run")))]
             for table in written if isinstance(table, dict)}
    for table in top.get("stage", list):
        stage = read_stage(table, f"{name}: stage", prompts, stages, reads)
        stages[stage.name] = stage
    for table in written:
        report = read_report(table, f"{name}: report", stages, reports)
        reports[report.name] = report
    model = Reader(top.get("model", dict), f"{name}: model")
    trace = Reader(top.get("trace", dict), f"{name}: trace")
    plan = Plan(path, top.get("title", str), top.get("out", str), top.get("work", str), records,
                top.numbers("layers"),
                {"folder": model.get("folder", str), "files": model.words("files"),
                 "run": model.words("run"), "sha256": model.get("sha256", str, "")},
                trace.words("run"), trace.seconds(), prompts, stages, reports,
                trace.get("threads", int, 0))
    for reader in (model, trace, top):
        reader.rest()
    return plan
