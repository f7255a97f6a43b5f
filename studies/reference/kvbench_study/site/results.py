"""Data of the site: means of reference results, and the program's descriptions of methods."""

import collections
import dataclasses
import math
import operator
import os
import re
import statistics
import subprocess

from kvbench.text import one_line
from kvbench_study.reference.plan import PlanError
from kvbench_study.reference.store import Store

# Stages of stores, those of one setup together: every method at equal bytes, streams, the retrieval protocol.
STAGES = (("judged", "others"), ("stream",), ("read",))
METRICS = ("rel_error", "mass_kept", "log_z_error", "middle_ratio", "read_ratio", "recall")
TOLD = ("A", "union", "page", "bits")  # parameters that tell rows of a method apart


class SiteError(Exception):
    """One line."""


@dataclasses.dataclass
class Setup:
    """One protocol on one model."""

    model: str
    folder: str
    protocol: str
    about: str  # windows, prompts, layers
    commits: list  # of the programs, oldest run first


@dataclasses.dataclass
class Result:
    """Means of one method, setting and budget. means: None if not measured. label: the method, and
    what tells it from its other settings.
    """

    setup: Setup
    method: str
    params: str
    budget: float | None
    rows: int
    means: dict
    sd: float | None
    notes: str
    label: str = ""

    def share(self):
        """Bytes over those of the middle: read by a query, or held."""
        return self.means["read_ratio" if self.setup.protocol == "retrieval" else "middle_ratio"]


@dataclasses.dataclass
class Method:
    """Output of `kvbench list NAME`."""

    name: str
    does: str
    fields: dict
    parameters: str


def number(text):
    value = float(text) if text else math.nan
    return value if math.isfinite(value) else None


def read_results(root):
    """Returns [Result] of all stores below a results folder, largest setup first."""
    models = os.path.join(root, "models")
    if not os.path.isdir(root):
        raise SiteError(f"{root}: no such folder")
    out = []
    for name in sorted(os.listdir(models)) if os.path.isdir(models) else ():
        for stages in () if name.endswith("-policies") else STAGES:  # a policy is a file, no method
            out += read_stages(os.path.join(models, name), stages)
    if not out:
        raise SiteError(f"{root}: holds no reference results, expected models/FOLDER/store with a stage of "
                        f"{', '.join(sum(STAGES, ()))}")
    weight = {}
    for r in out:
        key = r.setup.folder, r.setup.protocol
        weight[key] = weight.get(key, 0) + r.rows
    return sorted(out, key=lambda r: -weight[r.setup.folder, r.setup.protocol])


def read_stages(folder, stages):
    """Returns the results of a folder's stages of one setup; none without them."""
    stored = Store(os.path.join(folder, "store"))
    means = Means()
    runs = set()
    try:
        for stage in stages:
            records = stored.records().get(stage)
            if records:
                table = stored.packed(stage, "")
                for prompt in sorted(table.parts):
                    means.add(table.header, table.table(prompt).rows)
                runs |= {(part["begin"], part["program"]) for one in records.values() for part in one["parts"]}
        commits = [commit for _, program in sorted(runs) for commit in re.findall(r"\(([0-9a-f]{40})", program)]
        return means.results(os.path.basename(folder), list(dict.fromkeys(commits))) if means.groups else []
    except PlanError as error:
        raise SiteError(str(error)) from None
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise SiteError(f"{stored.folder}: cannot be read: {error!r}") from None


class Means:
    """Means over all rows of each method, setting and budget."""

    def __init__(self):
        self.first, self.prompts, self.layers, self.groups = None, set(), set(), {}

    def add(self, header, rows):
        at = {name: index for index, name in enumerate(header)}
        metrics = [(metric, at[metric]) for metric in METRICS if metric in at]
        key = operator.itemgetter(at["algorithm"], at["params"], at["budget_requested"])
        for row in rows:
            self.first = self.first or dict(zip(header, row))
            self.prompts.add(row[at["prompt"]])
            self.layers.add(row[at["layer"]])
            group = self.groups.setdefault(key(row), {"status": collections.Counter()})
            group["status"][row[at["status"]].partition(":")[0]] += 1
            for metric, index in metrics if row[at["status"]] == "ok" else ():
                if row[index]:
                    group.setdefault(metric, []).append(float(row[index]))

    def results(self, folder, commits):
        first = self.first
        setup = Setup(first["model"], folder, first["protocol"],
                      f"{first['sink']} first, {first['recent']} recent tokens, {first['n_queries']} queries; "
                      f"{len(self.prompts)} prompts, {len(self.layers)} layers", commits)
        settings = {}
        for method, params, _ in self.groups:
            settings.setdefault(method, {})[params] = dict(
                item.split("=", 1) for item in params.split(";") if "=" in item)
        out = []
        for (method, params, budget), group in self.groups.items():
            own = settings[method]
            told = [f"{key}={own[params][key]}" for key in TOLD if key in own[params]
                    and len({values.get(key) for values in own.values()}) > 1]
            means = {metric: statistics.fmean(group[metric]) if metric in group else None for metric in METRICS}
            errors = group.get("rel_error", ())
            notes = ", ".join(f"{count} rows {status}" for status, count in sorted(group["status"].items())
                              if status != "ok")
            out.append(Result(setup, method, params, number(budget), group["status"]["ok"], means,
                              statistics.stdev(errors) if len(errors) > 1 else None, notes, " ".join([method, *told])))
        return out


def read_methods(kvbench, names):
    """Returns {name: Method} from the program."""
    out = {}
    for name in names:
        try:
            done = subprocess.run([kvbench, "list", name], capture_output=True, text=True, check=False)
        except OSError as error:
            raise SiteError(f"{kvbench}: cannot be run: {error.strerror}") from None
        if done.returncode != 0:
            raise SiteError(f"{kvbench} list {name}: {one_line(done.stderr)}")
        out[name] = parse_method(name, done.stdout)
    return out


def parse_method(name, text):
    first, *lines = text.rstrip("\n").split("\n")
    fields = {}
    while lines and (match := re.match(r"  (\w+) {2,}(.*)", lines[0])):
        fields[match[1]] = match[2]
        lines.pop(0)
    parameters = "\n".join(line.removeprefix("  ") for line in lines)
    return Method(name, first.removeprefix(name + ": "), fields, parameters)
