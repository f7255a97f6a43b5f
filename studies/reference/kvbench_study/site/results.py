"""Data of the site: summaries of reference results, and the program's descriptions of methods."""

import csv
import dataclasses
import math
import os
import re
import statistics
import subprocess

from kvbench.text import one_line, parse_json
from kvbench_study.reference.plan import PlanError
from kvbench_study.reference.store import Store

STAGES = ("equal_bytes", "stream")  # every method at equal bytes, by protocol
METRICS = ("rel_error", "mass_kept", "log_z_error", "middle_ratio", "read_ratio", "recall")
READS = "read"  # the stage of models/*-retrieval that has rows of the retrieval protocol
TOLD = ("A", "union", "page", "bits")  # parameters that tell its rows apart


class SiteError(Exception):
    """One line."""


@dataclasses.dataclass
class Setup:
    """One stage on one model."""

    model: str
    folder: str
    protocol: str
    about: str  # windows, prompts, layers
    commit: str


@dataclasses.dataclass
class Result:
    """One line of a summary. means: None if not measured. label: the method, and what tells it from its
    other settings.
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


def read_setup(folder, stage):
    """Returns the Setup of a stage in a folder of reference results; None without the stage."""
    path = os.path.join(folder, "manifests", stage + ".json")
    if not os.path.exists(path):
        return None
    try:
        with open(path, encoding="utf-8") as file:
            manifest = parse_json(file.read())
        with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
            readme = file.read()
        shared = manifest["shared"]
        options, prompts = shared["configuration"], len(manifest["prompts"])
        protocol = options["protocol"]
        kept = f"{options['sink']} first, {options['recent']} recent tokens"
        layers = re.search(r"^- Layers: (.*)\.$", readme, re.MULTILINE)[1].split(", ")
        model = re.match(r"# Reference results: (.*)", readme)[1]
        commit = shared["tool"]["git_commit"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SiteError(f"{path}: cannot be read: {error!r}") from None
    about = (f"{kept}, {options['queries']} queries; {prompts} prompt{'s' if prompts > 1 else ''}, "
            f"{len(layers)} layers")
    return Setup(model, os.path.basename(folder), protocol, about, commit)


def read_results(root):
    """Returns [Result] of all folders below studies/reference/results, largest first."""
    out = []
    if not os.path.isdir(root):
        raise SiteError(f"{root}: no such folder")
    for name in sorted(os.listdir(root)):
        folder = os.path.join(root, name)
        for stage in STAGES:
            path = os.path.join(folder, stage + ".summary.csv")
            setup = read_setup(folder, stage) if os.path.exists(path) else None
            if setup is not None:
                out += read_summary(path, setup)
    models = os.path.join(root, "models")
    for name in sorted(os.listdir(models)) if os.path.isdir(models) else ():
        out += read_reads(os.path.join(models, name))
    if not out:
        raise SiteError(f"{root}: holds no reference results, expected FOLDER/equal_bytes.summary.csv "
                        "and its manifest")
    weight = {}
    for r in out:
        key = r.setup.folder, r.setup.protocol
        weight[key] = weight.get(key, 0) + r.rows
    return sorted(out, key=lambda r: -weight[r.setup.folder, r.setup.protocol])


def read_summary(path, setup):
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [one_result(line, setup) for line in csv.DictReader(file)]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise SiteError(f"{path}: cannot be read: {error!r}") from None


def read_reads(folder):
    """Returns the results of a folder's retrieval stage; none without it."""
    stored = Store(os.path.join(folder, "store"))
    try:
        records = stored.records().get(READS)
        if not records:
            return []
        table = stored.packed(READS, "")
        rows = [dict(zip(table.header, row)) for prompt in sorted(table.parts) for row in table.table(prompt).rows]
        commits = set(re.findall(r"\(([0-9a-f]{40})", str([one["parts"] for one in records.values()])))
        return reads_of(rows, os.path.basename(folder), min(commits, default="unknown"))
    except PlanError as error:
        raise SiteError(str(error)) from None
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise SiteError(f"{stored.path(READS)}: cannot be read: {error!r}") from None


def reads_of(rows, folder, commit):
    """Returns means over all rows of each method, setting and budget."""
    first = rows[0]
    prompts, layers = ({row[key] for row in rows} for key in ("prompt", "layer"))
    setup = Setup(first["model"], folder, "retrieval",
                  f"{first['sink']} first, {first['recent']} recent tokens, {first['n_queries']} queries; "
                  f"{len(prompts)} prompts, {len(layers)} layers", commit)
    groups, settings = {}, {}
    for row in rows:
        groups.setdefault((row["algorithm"], row["params"], row["budget_requested"]), []).append(row)
        settings.setdefault(row["algorithm"], {})[row["params"]] = dict(
            item.split("=", 1) for item in row["params"].split(";") if "=" in item)
    out = []
    for (method, params, budget), some in groups.items():
        own = settings[method]
        told = [f"{key}={own[params][key]}" for key in TOLD if key in own[params]
                and len({values.get(key) for values in own.values()}) > 1]
        ok = [row for row in some if row["status"] == "ok"]
        means, sd = {}, None
        for metric in METRICS:
            values = [float(row[metric]) for row in ok if row.get(metric)]
            means[metric] = statistics.fmean(values) if values else None
        if len(ok) > 1:
            sd = statistics.stdev(float(row["rel_error"]) for row in ok)
        notes = f"{len(some) - len(ok)} rows infeasible" if len(ok) < len(some) else ""
        out.append(Result(setup, method, params, number(budget), len(ok), means, sd, notes,
                          " ".join([method, *told])))
    return out


def one_result(line, setup):
    counts = {name: int(line[name]) for name in ("count", "degenerate", "infeasible", "failed")}
    notes = ", ".join(f"{counts[name]} rows {name}" for name in ("degenerate", "infeasible", "failed")
                      if counts[name])
    means = {metric: number(line.get("mean_" + metric, "")) for metric in METRICS}
    return Result(setup, line["algorithm"], line["params"], number(line["budget_requested"]),
                  counts["count"], means, number(line.get("sd_rel_error", "")), notes, line["algorithm"])


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
