"""kill -9 at any moment: what has a file's name is the old file or the whole new one.

KVBENCH_KILLS      how many kills in each test (default 40; 20 of a replay)
KVBENCH_KILL_SEED  of moments and commands (default 1)
"""

import csv
import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
import unittest

import killing
from script_case import KVBENCH, FolderCase, missing, read_bytes, untimed, write_bytes

MISSING = missing("h5py", "numpy")
if not MISSING:
    from kvbench import caches as kc

KILLS = int(os.environ.get("KVBENCH_KILLS", "40"))
REPLAY_KILLS = int(os.environ.get("KVBENCH_KILLS", "20"))
SEED = int(os.environ.get("KVBENCH_KILL_SEED", "1"))
WINDOWS = ("--sink", "4", "--recent", "16", "--queries", "8")
SHAPE = ("--layers", "4", "--q-heads", "2", "--kv-heads", "2", "--n", "256", "--d", "16", "--dv", "8")


class Command:
    """One command line, what it wrote before, and what it writes when nobody disturbs it.

    folder    it runs here
    words     the command line that is killed; ADD replaces where an earlier run is there
    earlier   the command line of that run, which gives other files
    tables    files, the one that tells that the others are whole last
    manifest  a file that differs in each run by its times; None: there is none
    """

    def __init__(self, folder, words, earlier, tables, manifest=None, add=(), grows=False):
        self.folder, self.words, self.earlier, self.add = folder, words, earlier, add
        self.tables, self.manifest, self.grows = tables, manifest, grows
        self.names = {*tables, *({manifest} if manifest else ())}

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, *words):
        subprocess.run([KVBENCH, *words], cwd=self.folder, check=True, capture_output=True)

    def there(self):
        """Bytes by name of the files that a run may have written, whatever their names."""
        out = {}
        for root, _, names in os.walk(self.folder):
            for name in names:
                path = os.path.join(root, name)
                if os.path.relpath(path, self.folder) not in self.inputs:
                    out[os.path.relpath(path, self.folder)] = read_bytes(path)
        return out

    def clear(self):
        for name in self.there():
            os.remove(self.path(name))

    def learn(self):
        """Runs both command lines undisturbed."""
        self.inputs = set()
        self.inputs = set(self.there())
        self.run(*self.earlier)
        self.old = self.there()
        self.clear()
        self.run(*self.words)
        self.new = self.there()
        self.rows = {name: untimed(self.path(name)) for name in self.tables if self.grows}
        self.clear()

    def restore(self):
        for name, data in self.old.items():
            os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
            write_bytes(self.path(name), data)


def killed_at(moment, words, folder):
    """Runs a program and kills it after so many seconds; None, or the seconds that it took where it ended first."""
    start = time.monotonic()
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            child.wait(moment)
            return time.monotonic() - start
        except subprocess.TimeoutExpired:
            child.kill()
            return None


@unittest.skipIf(not KVBENCH, "KVBENCH names no program")
class KillTest(FolderCase):
    def commands(self):
        inputs = self.path("inputs")
        os.mkdir(inputs)

        def prepare(*words):
            subprocess.run([KVBENCH, *words], cwd=inputs, capture_output=True, check=True)

        prepare("synth", "-o", "t.h5", *SHAPE)
        replay = ("replay", "t.h5", "--algorithm", "uniform:T=1", "--kept", "--per-query", *WINDOWS)
        for seeds, name in (("20", ""), ("2", "old")):
            for i in "12":
                prepare(*replay, "--seeds", seeds, "--shard", f"{i}/2", "-o", f"{name}{i}.csv")
        for name, *method in (("c", "uniform", "--seeds", "4"), ("old", "local")):
            prepare("replay", "t.h5", "--budget", "0.5", *WINDOWS, "-o", f"{name}.csv", "--export-caches",
                    f"{name}.h5", "--algorithm", *method)
        tables = [f"c/{name}.csv" for name in ("attention", "coverage", "delta", "growth", "keys", "norms", "spectrum")]
        cluster = ("cluster", "t.h5", "-o", "c", "--pca", "3")
        evaluate = ("evaluate", "t.h5", "-o", "e.csv", "--kept", "--caches")
        made = {
            "synth": dict(words=("synth", "-o", "s.h5", *SHAPE),
                          earlier=("synth", "-o", "s.h5", *SHAPE, "--seed", "1"), tables=["s.h5"]),
            "summarize": dict(words=("summarize", "1.csv", "2.csv", "--csv", "s.csv"),
                              earlier=("summarize", "1.csv", "--csv", "s.csv", "--by", "layer"),
                              tables=["s.csv"]),
            "merge": dict(words=("merge", "1.csv", "2.csv", "-o", "m.csv"),
                          earlier=("merge", "old1.csv", "old2.csv", "-o", "m.csv"),
                          tables=["m.kept.csv", "m.queries.csv", "m.csv"], manifest="m.csv.json", add=("--overwrite",)),
            "cluster": dict(words=cluster, earlier=(*cluster, "--points", "none", "--max-k", "4"),
                            tables=[*tables, "c/points.csv"], manifest="c/cluster.json", add=("--overwrite",)),
            "evaluate": dict(words=(*evaluate, "c.h5"), earlier=(*evaluate, "old.h5"),
                             tables=["e.kept.csv", "e.csv"], manifest="e.csv.json", add=("--overwrite",), grows=True),
        }
        out = {}
        for name, what in made.items():
            folder = self.path(name)
            shutil.copytree(inputs, folder)
            out[name] = Command(folder, **what)
            out[name].learn()
            self.assertEqual(set(out[name].new), out[name].names, name)
        return out

    def judge(self, command, old, there, what):
        """The files after a kill; `old`: those before the run."""
        manifest = there.get(command.manifest)
        if manifest is not None:
            self.assertEqual(json.loads(manifest)["format"], "kvbench-manifest", what)
        named = {name: data for name, data in there.items() if name in command.names | set(old)}
        if command.grows:
            self.judge_growing(command, old, named, what)
            return
        for name in command.tables:
            if name in named:
                self.assertTrue(named[name] in (old.get(name), command.new[name]),
                                f"{what}: {name}, {len(named[name])} bytes, is torn")
        # The last file of a run stands beside all others, those of one run.
        last = command.tables[-1] if command.manifest != "c/cluster.json" else command.manifest
        if last not in named:
            return
        if named[last] == old.get(last):
            self.assertTrue(named == old, f"{what}: {sorted(named)}")
        else:
            self.assertEqual(set(named), command.names, what)
            for name in command.tables:
                self.assertTrue(named[name] == command.new[name], f"{what}: {name}")
            if manifest is not None:
                self.assertIsNotNone(json.loads(manifest)["end"], what)

    def judge_growing(self, command, old, named, what):
        """Times differ from run to run: the lines are whole, and none is of another run."""
        if named.get("e.csv") == old.get("e.csv") and "e.csv" in old:
            self.assertTrue(named == old, f"{what}: {sorted(named)}")
            return
        for name in command.tables if "e.csv" in named else ():
            if name in named:
                header, *lines = named[name].split(b"\n")
                self.assertEqual(header, command.new[name].split(b"\n")[0], f"{what}: {name}")
                for line in lines[:-1]:
                    self.assertGreaterEqual(line.count(b","), header.count(b","), what)

    def trial(self, command, over, what, disturb):
        """Runs the command under `disturb(words, folder)`, judges, and then runs it to the end."""
        command.clear()
        if over:
            command.restore()
        old = command.there()
        disturb([KVBENCH, *command.words, *(command.add if over else ())], command.folder)
        self.judge(command, old, command.there(), what)
        if command.grows and not over:
            command.run(*command.words, "--resume")
        else:
            command.run(*command.words, *command.add)
        there = command.there()
        self.assertEqual(set(there), command.names, what)  # nothing unfinished is left
        for table in command.tables:
            if command.grows:
                self.assertEqual(untimed(command.path(table)), command.rows[table], what)
            else:
                self.assertTrue(there[table] == command.new[table], f"{what}: {table}")

    @unittest.skipIf(killing.LIBC is None, "no system calls known here")
    def test_an_extended_table(self):
        """Killed before any change of a file, --extend goes on, and no row is lost on the way."""
        folder = self.folder
        self.done("synth", "-o", self.path("t.h5"), *SHAPE)
        replay = ["replay", "t.h5", "--algorithm", "uniform:T=1", "--kept", *WINDOWS, "--threads", "1"]
        more = ["--seeds", "6", "--algorithm", "local:T=2"]
        whole = Command(folder, (*replay, *more, "-o", "e.csv"), (*replay, "-o", "e.csv"),
                        ["e.kept.csv", "e.csv"], manifest="e.csv.json", grows=True)
        whole.learn()
        whole.restore()
        words = [*whole.words, "--extend"]
        counted = killing.run_until([KVBENCH, *words], folder, 0)
        if counted is None:
            self.skipTest("tracing is not allowed here")
        self.assertEqual(untimed(whole.path("e.csv")), whole.rows["e.csv"])
        logged = 0
        draw = random.Random(SEED)
        # Half of them the last ones: only these have no table under its name.
        last = max(1, counted[0] - KILLS // 2)
        calls = [*draw.sample(range(1, last), min(KILLS // 2, last - 1)), *range(last, counted[0] + 1)]
        for call in calls:
            what = f"seed {SEED}: before change {call} of {counted[0]}"
            whole.clear()
            whole.restore()
            had = of_any_plan(whole.old["e.csv"].decode())
            killing.run_until([KVBENCH, *words], folder, call)
            in_log = "e.csv" not in whole.there()  # its rows are in the log
            if in_log:
                whole.run("merge", "e.csv.log", "-o", "now.csv")
                os.rename(whole.path("now.csv"), whole.path("e.csv"))
            self.assertLessEqual(had, of_any_plan(whole.there()["e.csv"].decode()), what)
            for name in set(whole.there()) - {"e.csv.log"} if in_log else ():
                os.remove(whole.path(name))
            logged += in_log
            whole.run(*whole.words, "--extend")
            there = whole.there()
            self.assertEqual(set(there), whole.names, what)
            for table in whole.tables:
                self.assertEqual(untimed(whole.path(table)), whole.rows[table], what)
            self.assertLessEqual(had, of_any_plan(there["e.csv"].decode()), what)
        if KILLS >= 40:
            self.assertTrue(0 < logged < len(calls), f"{logged} of {len(calls)} in the log alone")

    @unittest.skipIf(killing.LIBC is None, "no system calls known here")
    def test_before_calls_that_change_files(self):
        commands = self.commands()
        draw = random.Random(SEED)
        points = {}
        for name, command in commands.items():
            for over in (False, True):
                command.clear()
                if over:
                    command.restore()
                counted = killing.run_until(
                    [KVBENCH, *command.words, *(command.add if over else ())], command.folder, 0)
                if counted is None:
                    self.skipTest("tracing is not allowed here")
                self.assertGreater(counted[0], 5, name)
                points[name, over] = [(name, over, call + 1) for call in range(counted[0])]
        # As many of each command: some write a hundred times as often as others.
        share = max(1, KILLS // len(points))
        chosen = [point for calls in points.values()
                  for point in draw.sample(calls, min(share, len(calls)))]
        killed = 0
        for name, over, call in chosen:
            def disturb(words, folder):
                nonlocal killed
                killed += killing.run_until(words, folder, call)[1]

            self.trial(commands[name], over, f"seed {SEED}: {name}, "
                       f"{'over an earlier run' if over else 'anew'}, before change {call}",
                       disturb)
        calls = sum(map(len, points.values()))
        print(f"seed {SEED}: killed before {killed} of {calls} calls")
        self.assertGreater(killed, len(chosen) * 3 // 4)


def of_any_plan(text):
    """Rows of a table without what depends on the plan: the run and the checksum."""
    rows = list(csv.DictReader(io.StringIO(text)))
    return {tuple(value for name, value in row.items() if name not in ("run_id", "row_crc"))
            for row in rows}


def contents(path):
    """{(group, place): what an entry of a caches file holds, but for its time}."""
    out = {}
    with kc.CacheReader(path) as reader:
        for group in reader.groups:
            for place in sorted(group.locations):
                entry = vars(group.read(*place)).copy()
                attributes = entry.pop("attributes")
                attributes.pop("compress_ms", None)
                out[group.key, place] = attributes, {
                    name: array if array is None else (array.dtype, array.shape, array.tobytes())
                    for name, array in entry.items()}
    return out


@unittest.skipIf(not KVBENCH, "KVBENCH names no program")
@unittest.skipIf(MISSING, f"{sys.executable} lacks {', '.join(MISSING)}")
class ResumeTest(FolderCase):
    """A replay that is killed and resumed, and killed again, until it ends."""

    OPTIONS = ("--algorithm", "uniform:T=1", "--algorithm", "bumblebee", "--algorithm", "kvreviver",
               "--budget", "0.5", "--seeds", "6", "--kept", "--per-query", *WINDOWS)
    TABLES = ("o.csv", "o.kept.csv", "o.queries.csv")

    def check(self, draw, kills, *options):
        """Kills so many times."""
        words = [KVBENCH, "replay", "t.h5", *self.OPTIONS, "-o", "o.csv", *options]
        caches = "c.h5" in options
        seconds = killed_at(None, words, self.folder)
        expected = {name: untimed(self.path(name)) for name in self.TABLES}
        names = set(os.listdir(self.folder))
        held = contents(self.path("c.h5")) if caches else None
        killed = 0
        while killed < kills:
            for name in names - {"t.h5"}:
                os.remove(self.path(name))
            moments = []
            for attempt in range(1 + draw.randrange(4)):
                moments.append(draw.uniform(0.0, 1.0) * seconds)
                took = killed_at(moments[-1], words + ["--resume"] * (attempt > 0), self.folder)
                if took is not None:
                    seconds = min(seconds, took)
                    break
                killed += 1
            subprocess.run([*words, "--resume"], cwd=self.folder, capture_output=True, check=True)
            what = f"seed {SEED}: {' '.join(options)}, killed after " + ", ".join(
                f"{moment * 1000:.1f} ms" for moment in moments)
            self.assertEqual(set(os.listdir(self.folder)), names, what)
            for name in self.TABLES:
                self.assertEqual(untimed(self.path(name)), expected[name], f"{what}: {name}")
            if caches:
                self.assertEqual(contents(self.path("c.h5")), held, what)

    def test_resumed_runs_are_whole(self):
        draw = random.Random(SEED)
        self.done("synth", "-o", self.path("t.h5"), *SHAPE)
        for options in ((), ("--export-caches", "c.h5")):
            with self.subTest(options):
                self.check(draw, REPLAY_KILLS // 2, *options)
            for name in os.listdir(self.folder):
                if name != "t.h5":
                    os.remove(self.path(name))
