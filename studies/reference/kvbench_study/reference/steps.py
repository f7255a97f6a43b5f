"""Steps of kvbench-study reference: the store decides what is done, on any machine.

A step is done if its record has the step's key and all variants of the stage. Otherwise the missing
variants run in the work folder, whose begun.json says what they depend on, and are merged into the
store. For each merged run the record names the git tree of lib, the digest of the trace and the machine.
"""

import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import time

from kvbench_study.reference import plan as rp
from kvbench_study.reference import sources, store
from kvbench_study.reference.commands import Failed, read_json, say, write_json, write_text
from kvbench_study.reference.placeholders import without
from kvbench_study.reference.variants import Variants, claims, option_values

# Fixes the kernels of torch: with a fixed number of threads a trace has the same bits on most
# machines. For plans whose [trace] has `threads`.
STEADY = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
LARGE = ("points.csv", "kept.csv")  # of cluster; kept only if in a stage's `tables`


def cpu_model():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return re.search(r"model name\s*:\s*(.*)", file.read())[1]
    except (OSError, TypeError):
        return platform.processor() or platform.machine()


def lib_tree(program):
    """Returns the git tree of lib that a program was built from; its own digest without git."""
    def git(*words):
        try:
            return subprocess.run(["git", *words], cwd=rp.ROOT, capture_output=True, text=True,
                                  check=False)
        except OSError:
            return subprocess.CompletedProcess(words, 1, "", "")

    match = re.search(r" \(([0-9a-f]{40})(, modified)?\)$", program["version"])
    commit = match[1] if match else "HEAD"
    tree = git("rev-parse", "--verify", "--quiet", f"{commit}:lib")
    if tree.returncode:
        return "program " + program["sha256"][:16]
    changed = not match or match[2]
    if changed and git("diff", "--quiet", commit, "--", "lib").returncode:
        return f"{tree.stdout.strip()}, modified, program {program['sha256'][:16]}"
    return tree.stdout.strip()


def trace_digest(path):
    """Returns the SHA-256 of a trace's tensors by name, without attributes."""
    import h5py

    from kvbench.trace.digest import sha256_of

    found = {}

    def add(name, item):
        if isinstance(item, h5py.Dataset):
            value = item[()]
            said = sha256_of(value) if hasattr(value, "tobytes") and value.dtype != object \
                else rp.digest(repr(value))
            found[name] = [list(item.shape), said]

    with h5py.File(path) as file:
        file.visititems(add)
    return rp.digest(json.dumps(found, sort_keys=True))


def points_of(entries):
    """Returns all points of entries of a record."""
    return [point for entry in entries if isinstance(entry["points"], list) for point in entry["points"]]


class Steps:
    """Every (prompt, stage) and trace: dependencies, state and execution. folder: of the store."""

    def __init__(self, plan, placeholders, program, commands, folder):
        self.plan, self.placeholders = plan, placeholders
        self.program, self.commands = program, commands
        self.digests = {}
        if plan.threads:
            commands.environments[placeholders.programs[2]] = {**STEADY, "OMP_NUM_THREADS": str(plan.threads)}
        self.store = store.Store(folder)
        self.variants = Variants(program.path, placeholders)
        self.lib = lib_tree(program.now)
        self.views = {}
        placeholders.view = self.view

    # ------------------------------------------------------------------------ what a step depends on

    def digest(self, path):
        if path not in self.digests:
            self.digests[path] = rp.file_digest(path)
        return self.digests[path]

    def threads(self):
        return {"threads": self.plan.threads} if self.plan.threads else {}

    def key(self, stage, prompt):
        """Returns what all rows of a step share."""
        settled = self.variants.settled(stage)
        options = without(stage.options, ("--algorithm", "--budget"))
        return {"format": store.FORMAT, "prompt": prompt.digest, "source": prompt.source,
                "model": self.model_key(), "layers": list(self.placeholders.layers),
                "trace": list(self.plan.trace), **self.threads(), "kind": stage.kind,
                "options": list(options), "config": "absent" if settled is None else settled,
                "stage_layers": [n for n in stage.layers if n in self.placeholders.layers],
                "then": [],  # keys in committed records have it
                "columns": list(stage.columns),
                "tables": list(stage.tables), **({"keep": list(stage.keep)} if stage.keep else {})}

    def model_key(self):
        """Returns the SHA-256 of the model's file if in the plan, otherwise of its local files."""
        if self.plan.model["sha256"]:
            return {"sha256": self.plan.model["sha256"]}
        path = os.path.join(self.placeholders.work, "model.json")
        known, out = read_json(path) or {}, {}
        for name in self.plan.model["files"]:
            file = os.path.join(rp.ROOT, self.plan.model["folder"], name)
            if not os.path.exists(file):
                out[name] = "absent"
                continue
            facts = os.stat(file)
            here = known.get(file, [])
            if here[:2] != [facts.st_size, facts.st_mtime_ns]:
                here = known[file] = [facts.st_size, facts.st_mtime_ns, rp.file_digest(file)]
                if os.path.isdir(self.placeholders.work):  # --dry-run makes no folder
                    write_json(path, known)
            out[name] = here[2]
        return out

    def scripts(self, stage):
        """Returns {file: digest} of the Python that a step runs."""
        scripts = sources.named(stage.options) if stage.kind == "score" else []
        found = {}
        for script in scripts:  # grows on the way
            found[script] = self.digest(os.path.join(rp.ROOT, script))
            scripts += [other for other in sources.imported(script) if other not in scripts]
        return found

    def scripts_digest(self, stage):
        found = self.scripts(stage)
        return rp.digest(json.dumps(found, sort_keys=True))[:16] if found else ""

    def record(self, stage, prompt):
        """Returns the step's record if it has the step's key, otherwise None."""
        found = self.store.record(stage.name, prompt.id)
        return found if found and found.get("key") == self.key(stage, prompt) else None

    def missing(self, stage, prompt, record):
        """Returns ({variant: whether from a set}, budgets) that the record lacks; None if the
        stage's configuration does not exist yet.
        """
        named, budgets = self.variants.named(stage), self.variants.budgets(stage)
        if named is None:
            return None
        known = record["variants"] if record else {}
        out, lacking = {}, []
        for variant, of_set in named.items():
            entry = known.get(variant)
            if entry is None or entry["settings"] != self.variants.settings(variant, prompt):
                rest = list(budgets)
            else:
                rest = [one for one in budgets if one not in entry["budgets"]]
                if not rest:
                    continue
            out[variant] = of_set
            lacking += [one for one in rest if one not in lacking]
        return out, [one for one in budgets if one in lacking]

    def done(self, stage, prompt):
        record = self.record(stage, prompt)
        if record is None or self.missing(stage, prompt, record) != ({}, []):
            return None
        seconds = [part["seconds"] for part in record["parts"]]
        return {"code": record["code"], "program": {"version": record["parts"][-1]["program"]},
                "seconds": None if None in seconds else round(sum(seconds), 2)}

    def took(self, stage, prompt):
        record = self.record(stage, prompt)
        return record["parts"][0]["seconds"] if record and len(record["parts"]) == 1 else None

    def holds(self, stage, prompt):
        return rp.digest(json.dumps([self.store.record(stage.name, prompt.id), list(self.variants.named(stage)),
                                     self.variants.budgets(stage)], sort_keys=True))

    def forget(self, stage, prompt):
        """Marks the step to be repeated."""
        self.store.forget(stage.name, prompt.id)

    # -------------------------------------------------------------------------------------- traces

    def trace_inputs(self, prompt):
        """Returns a trace's dependencies. The model is identified by its small files and the size
        of its weights.
        """
        folder = os.path.join(rp.ROOT, self.plan.model["folder"])
        return {"prompt": prompt.digest, "layers": list(self.placeholders.layers),
                "run": list(self.plan.trace), **self.threads(),
                "model": {name: self.model_file(os.path.join(folder, name))
                          for name in self.plan.model["files"]}}

    def model_file(self, path):
        if not os.path.exists(path):
            return "absent"
        size = os.path.getsize(path)
        return size if size > 1 << 24 else self.digest(path)

    def has_trace(self, prompt):
        path = self.placeholders.trace(prompt.id)
        found = read_json(path + ".json")
        return bool(found and found.get("inputs") == self.trace_inputs(prompt)
                    and os.path.isfile(path))

    def lacks_model(self):
        """Returns the model's first missing file."""
        folder = os.path.join(rp.ROOT, self.plan.model["folder"])
        return next((name for name in self.plan.model["files"]
                     if not os.path.isfile(os.path.join(folder, name))), None)

    def make_model(self):
        typed = self.placeholders.typed(list(self.plan.model["run"]))
        say(f"the model: {typed}")
        os.makedirs(self.placeholders.work, exist_ok=True)
        self.commands.run(list(self.plan.model["run"]), os.path.join(self.placeholders.work, "model.log"),
                          typed)
        if self.lacks_model():
            raise Failed(f"{typed}: left no {self.plan.model['folder']}/{self.lacks_model()}", 3)
        self.digests.clear()

    def make_trace(self, prompt):
        """Returns the seconds it took."""
        path = self.placeholders.trace(prompt.id)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.drop_trace(prompt)
        words = self.placeholders.trace_words(prompt)
        start = time.monotonic()
        self.commands.run(words, os.path.join(os.path.dirname(path), prompt.id + ".log"),
                          self.placeholders.typed(words))
        seconds = time.monotonic() - start
        if not os.path.isfile(path):
            raise Failed(f"left no trace: {self.placeholders.typed(words)}", 3)
        write_json(path + ".json", {"inputs": self.trace_inputs(prompt)})
        # separate, since times outlive traces
        write_json(path.removesuffix(".h5") + ".done.json",
                   {"layers": len(self.placeholders.layers), "seconds": round(seconds, 2)})
        self.trace_digest(prompt)
        return seconds

    def drop_trace(self, prompt):
        trace = self.placeholders.trace(prompt.id)
        for path in (trace + ".json", trace, trace + ".tmp"):
            if os.path.exists(path):
                os.remove(path)

    def trace_digest(self, prompt):
        """Digest of the trace in the work folder."""
        path = self.placeholders.trace(prompt.id) + ".json"
        found = read_json(path)
        if "digest" not in found:
            found["digest"] = trace_digest(self.placeholders.trace(prompt.id))
            write_json(path, found)
        return found["digest"]

    # --------------------------------------------------------------------------------------- steps

    def entries(self, stage, prompt, todo, budgets):
        """Returns {variant: its entry in the record}, by dry runs on the trace."""
        if stage.kind == "score":
            options = []
        else:
            options = without(self.placeholders.expand(stage.options, self.values_of(prompt),
                                                 lambda _: [prompt.id]),
                              ("--algorithm", "--budget", "--export-caches"))
        return {variant: {"points": self.variants.points(
                    variant, budgets, options, prompt, of_set),
                          "budgets": list(budgets), "settings": self.variants.settings(variant, prompt)}
                for variant, of_set in todo.items()}

    def folder(self, stage, prompt):
        return self.placeholders.folder(stage.name, prompt.id)

    def values_of(self, prompt):
        return self.placeholders.values(prompt, folder=self.placeholders.work)

    def run(self, stage, prompt):
        """Runs the missing part of a step, and merges it."""
        record = self.record(stage, prompt)
        found = self.missing(stage, prompt, record)
        if found is None:
            raise Failed(f"stage {stage.name}: its configuration is not there", 3)
        todo, budgets = found
        begin = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        entries = self.entries(stage, prompt, todo, budgets)
        running = [one for one in todo if isinstance(entries[one]["points"], list)]
        folder = self.folder(stage, prompt)
        code, seconds = 0, 0.0
        tables = {}
        if running or stage.kind == "cluster":
            words = self.stage_words(stage, prompt, folder, running, budgets)
            now = {"key": self.key(stage, prompt), "program": self.program.now,
                   "variants": {one: entries[one]["settings"] for one in running}, "budgets": budgets,
                   "scripts": self.scripts(stage)}
            code, seconds = self.begin_or_go_on(stage, prompt, folder, words, now)
            tables = self.condensed(stage, prompt, folder)
        part = {"variants": list(entries), "budgets": budgets, "lib": self.lib,
                "scripts": self.scripts_digest(stage), "program": self.program.now["version"],
                "trace": self.trace_digest(prompt), "cpu": cpu_model(), "begin": begin,
                "seconds": seconds}
        self.merge(stage, prompt, record, tables, entries, {**part, "code": code})
        shutil.rmtree(folder, ignore_errors=True)
        return {"code": code, "seconds": seconds}

    def begin_or_go_on(self, stage, prompt, folder, words, now):
        """Runs a step in its folder, resuming if begun.json equals `now`. Returns its exit code and seconds, None if
        it was resumed.
        """
        begun = os.path.join(folder, "begun.json")
        resumed = stage.kind != "cluster" and read_json(begun) == now
        # A replay that was killed has left its log.
        resumed = resumed and any(os.path.isfile(os.path.join(folder, rp.ROWS + end)) for end in ("", ".log"))
        if resumed:
            more = ["--resume"] if stage.kind == "replay" else []
            try:
                return self.execute(stage, folder, [*words, *more]), None
            except Failed as error:
                # A regenerated trace may differ in a last digit: the rows cannot be resumed.
                if error.exit_code != 2:
                    raise
                say(f"{prompt.id} {stage.name}: begins anew")
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        write_json(begun, now)
        start = time.monotonic()
        code = self.execute(stage, folder, words)
        return code, round(time.monotonic() - start, 2)

    def execute(self, stage, folder, words):
        """Runs a step's command in a folder. Returns its exit code."""
        typed = self.placeholders.typed(words)
        code = self.commands.run(words, os.path.join(folder, "log.txt"), typed, rows=stage.kind == "score")
        expected = {"replay": rp.ROWS + ".json", "cluster": "cluster.json", "score": rp.ROWS}
        if not os.path.isfile(os.path.join(folder, expected[stage.kind])):
            raise Failed(f"left no {expected[stage.kind]}: {typed}", 3)
        return code

    def stage_words(self, stage, prompt, folder, variants, budgets):
        if stage.kind == "cluster":
            return self.placeholders.stage_words(stage, prompt, folder)
        return self.placeholders.stage_words(stage, prompt, folder, variants, budgets)

    def condensed(self, stage, prompt, folder, without=()):
        """Returns {table: condensed} of a step's files. Times of rows of a score, made beside other work, are no
        result. without: as for store.condense.
        """
        if stage.kind == "cluster":
            names = [name for name in sorted(os.listdir(folder))
                     if name.endswith(".csv") and name not in LARGE]
        else:
            names = [rp.ROWS, *(name for name in rp.SIDE_TABLES
                                if os.path.isfile(os.path.join(folder, name)))]
        names += [name for name in stage.tables if name not in names]
        if stage.keep:
            names = [name for name in names if name in stage.keep]
        return {store.table_name(name): store.condense(
            store.read_plain(os.path.join(folder, name)), store.table_name(name), stage.columns,
            prompt.source, stage.kind != "score", without) for name in names}

    def merge(self, stage, prompt, record, tables, entries, part):
        """Adds to the store what a run made. record: existing entries to keep; None: start over."""
        variants = dict(record["variants"]) if record else {}
        gone = []  # points of changed settings
        for variant, entry in entries.items():
            before = variants.get(variant, entry)
            same = before["settings"] == entry["settings"]
            gone += [] if same else points_of([before])
            variants[variant] = {**entry, "budgets": list(dict.fromkeys(
                [*(before["budgets"] if same else ()), *entry["budgets"]]))}
        points = points_of(variants.values())
        files = set(record["files"] if record else ())
        for name in files if gone else files & set(tables):
            old = self.store.packed(stage.name, name).table(prompt.id).only(
                lambda variant: claims(points, variant) or not claims(gone, variant))
            tables = {**tables, name: store.merge(old, tables[name]) if name in tables else old}
        code = part.pop("code")
        self.store.put(stage.name, prompt.id, tables, {
            "stage": stage.name, "prompt": prompt.id, "source": prompt.source, "set": prompt.set,
            "seeds": self.seeds(stage), "code": code | (record["code"] if record else 0),
            "files": sorted(files | set(tables)), "key": self.key(stage, prompt),
            "parts": [*(record["parts"] if record else []), part],
            "variants": dict(sorted(variants.items()))})

    def seeds(self, stage):
        words = option_values(stage.options, "--seeds")
        return words[-1] if words else str((self.variants.config(stage) or {}).get("seeds", "1"))

    # --------------------------------------------------------------------------------- for reports

    def wanted(self, stage, record):
        """Returns keep(variant) for the variants in the plan. A record may hold more."""
        if stage.kind == "cluster":
            return lambda variant: True
        named, budgets = self.variants.named(stage), self.variants.budgets(stage)
        points = points_of(entry for name, entry in record["variants"].items() if name in named)
        shares = {float(one) for one in budgets}
        return lambda variant: claims(points, variant) and (
            not shares or not variant[2] or float(variant[2]) in shares)

    def view(self, stage_name, prompt_ids, name, plain):
        """view_now, once per file."""
        stage = self.plan.stages[stage_name]
        prompts = [self.plan.prompts[one] for one in prompt_ids]
        if any(self.record(stage, one) is None for one in prompts):  # a page is written before they are run
            return os.path.join(self.view_folder(stage), name)
        key = stage_name, tuple(prompt_ids), name, plain, *(self.holds(stage, one) for one in prompts)
        if key not in self.views:
            self.views[key] = self.view_now(stage, prompts, name, plain)
        return self.views[key]

    def view_folder(self, stage):
        return os.path.join(self.placeholders.work, "store", stage.name)

    def view_now(self, stage, prompts, name, plain):
        """Returns a file for a report's {STAGE/NAME}: `store` or `store.TABLE` is the store's own
        file if the plan names all of it; a CSV file's name is a copy without gzip, with the
        other tables beside it, and `` their folder.
        """
        wanted = {one.id: self.wanted(stage, self.record(stage, one)) for one in prompts}
        tables = {table for one in prompts for table in self.record(stage, one)["files"]}
        place = self.view_folder(stage)
        if name.partition(".")[0] == "store":
            table = name.removeprefix("store").removeprefix(".")
            if table not in tables:
                raise rp.PlanError(f"{{{stage.name}/{name}}}: the store has no such table")
            if not plain:
                return self.packed_view(stage, table, wanted, os.path.join(place, "packed"))
            name = self.plain_name(stage, table)
        for table in sorted(tables):
            whole = self.store.packed(stage.name, table)
            texts = [store.csv_text(whole.table(one).only(keep).rows) for one, keep in wanted.items()]
            write_text(os.path.join(place, self.plain_name(stage, table)),
                       store.csv_text([whole.header]) + "".join(texts))
        path = os.path.join(place, name)
        if not os.path.exists(path):
            raise rp.PlanError(f"{{{stage.name}/{name}}}: the store has no such table")
        return path

    @staticmethod
    def plain_name(stage, table):
        """Returns the step's name of a table."""
        alone = stage.kind == "cluster" or table.partition(".")[0] == "scores"
        return f"{table}.csv" if alone else f"rows.{table}.csv" if table else rp.ROWS

    def packed_view(self, stage, table, wanted, place):
        whole = self.store.packed(stage.name, table)
        kept = store.Packed(whole.path, whole.header)
        same = set(whole.parts) <= set(wanted)
        for one, keep in wanted.items():
            found = whole.table(one)
            rows = found.only(keep)
            if len(rows.rows) < len(found.rows):
                same = False
                kept.put(one, rows)
            elif found.rows:
                kept.parts[one] = whole.parts[one]
        if same:
            return whole.path
        path = os.path.join(place, store.file_of(stage.name, table))
        store.write_bytes(path, kept.data())
        return path
