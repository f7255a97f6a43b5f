#!/usr/bin/env python3
"""Runs one `kvbench replay` as an array of Slurm jobs, and merges the parts into one table.

    scripts/slurm/run.py TRACE... -o OUT.csv --shards N [--config FILE.toml] [-- OPTIONS]

Submits the array, waits, submits again what failed, ran out of time or was killed, and merges. Each
attempt continues where the one before stopped. The parts are OUT.shard-I-of-N.csv, with a .log each.
Interrupt it at any time: the jobs run on, and the same command again waits for them and submits only
what is missing. KVBENCH names the program (default: kvbench). docs/cluster_runs.md has examples.
"""

# Standard library alone, and nothing newer than Python 3.6: it runs on login nodes.
import argparse
import getpass
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
KVBENCH_PY = os.path.join(HERE, "..", "kvbench-py")
USELESS = {2: "an option or an input is wrong", 126: "kvbench cannot be run",
           127: "kvbench was not found"}  # exit codes after which another attempt ends alike
OWN = ("-o", "--output", "--out", "--shard", "--resume", "--overwrite", "--dry-run", "--config")


class Failure(Exception):
    """One line for the terminal, and the exit code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def say(text):
    print("run.py: " + text, file=sys.stderr, flush=True)


def read_text(path):
    """A file's text, an empty one where it cannot be read (which is said elsewhere)."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def plural(count, what):
    return "{} {}{}".format(count, what, "" if count == 1 else "s")


def run_tool(name, command):
    """Runs a program that says itself what is wrong; Failure with its exit code."""
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise Failure(code, "{} ended with {}".format(name, code))


def call(command, **more):
    """Standard output of a program that must end with 0."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, check=False, **more)
    if done.returncode != 0:
        raise OSError("{} ended with {}: {}".format(command[0], done.returncode,
                                                    done.stderr.strip().replace("\n", "; ")))
    return done.stdout


def manifest_of_whole(table):
    """The manifest of a table that is whole: it says which rows there must be, and that the run ended.

    None where there is none, or rows are missing.
    """
    try:
        with open(table + ".json", encoding="utf-8") as file:
            manifest = json.load(file)
        rows = sum(end - begin for begin, end in manifest["plan"]["row_ranges"])
        return manifest if manifest["end"] is not None and manifest["rows"] == rows else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # the last: deep nesting
        return None


class Run:
    """One replay in N parts."""

    def __init__(self, options, replay):
        self.options = options
        self.out = options.output
        self.count = options.shards
        self.replay = replay  # arguments of kvbench replay
        place = hashlib.sha256(os.path.abspath(self.out).encode()).hexdigest()[:12]
        self.name = "kvbench-" + place  # of the jobs: this run is found by it again

    def part(self, index, ending=".csv"):
        return "{}.shard-{}-of-{}{}".format(self.out[:-len(".csv")], index, self.count, ending)

    def check_record(self):
        """Parts of another command must not be mixed with this one's: OUT.run.json says whose."""
        path = self.out[:-len(".csv")] + ".run.json"
        record = {"shards": self.count, "arguments": self.replay, "files": {}}
        for name in ("config", "shard_costs"):
            file = getattr(self.options, name)
            if file:
                with open(file, "rb") as text:
                    record["files"][name] = hashlib.sha256(text.read()).hexdigest()
        if not os.path.exists(path):
            with open(path + ".tmp", "w", encoding="utf-8") as file:
                json.dump(record, file, indent=2)
            os.replace(path + ".tmp", path)
            return
        try:
            with open(path, encoding="utf-8") as file:
                then = json.load(file)
        except (ValueError, RecursionError):
            then = None
        if not isinstance(then, dict):
            raise Failure(2, "{}: is no record of an earlier run, expected none or one".format(path))
        for what, now in record.items():
            if then.get(what) != now:
                raise Failure(2, "{}: {} differ: got {}, expected {}; repeat the command that began "
                                 "here, or give another --output".format(path, what, json.dumps(now),
                                                                      json.dumps(then.get(what))))

    def finished(self, index):
        return manifest_of_whole(self.part(index)) is not None

    def running(self):
        """Shards that are pending or running; None where Slurm does not answer."""
        try:
            lines = call(["squeue", "--noheader", "--array", "--user", getpass.getuser(), "--name",
                          self.name, "--format", "%K"]).split()
        except OSError as error:
            say("{}; asking again".format(error))
            return None
        return {int(word) for word in lines if word.isdigit()}

    def wait(self):
        """Until no task of this run is in the queue."""
        before = None
        while True:
            tasks = self.running()
            if tasks is not None and not tasks:
                return
            if tasks is not None and tasks != before:
                say("{} in the queue".format(plural(len(tasks), "shard")))
                before = tasks
            time.sleep(self.options.poll)

    def submit(self, shards):
        log = "{}.shard-%a-of-{}.log".format(self.out[:-len(".csv")].replace("%", "%%"), self.count)
        command = ["sbatch", "--parsable", "--export=ALL", "--job-name=" + self.name,
                   "--array=" + ",".join(map(str, shards)),
                   "--output=" + log]
        command += self.options.sbatch + [os.path.join(HERE, "replay.sbatch"), self.out,
                                          str(self.count)] + self.replay
        try:
            job = call(command, env=dict(os.environ, KVBENCH=self.options.kvbench)).strip()
        except OSError as error:
            raise Failure(3, str(error)) from error
        say("job {}: {}: {}".format(job.split(";")[0], plural(len(shards), "shard"),
                                    ",".join(map(str, shards))))

    def ended(self, index):
        """(exit code or None, what to tell) of the last attempt, by its log."""
        try:
            with open(self.part(index, ".log"), encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            return None, "no log: it never began"
        begins = [i for i, line in enumerate(lines) if line.startswith("replay.sbatch: begin")]
        last = lines[begins[-1] if begins else 0:]
        code = next((int(line.split()[-1]) for line in reversed(last)
                     if re.match(r"replay\.sbatch: exit code \d+$", line)), None)
        errors = [line for line in last if "error:" in line]
        if code == 130:
            return code, "interrupted, by the time limit or scancel"
        if code is None:
            return code, errors[-1] if errors else "killed" if begins else "it never began"
        return code, errors[-1] if errors else "exit code {}".format(code)

    def all_parts(self):
        """Submits until every part is whole."""
        attempts = dict.fromkeys(range(1, self.count + 1), 0)
        self.wait()  # for those that an earlier run of this program submitted
        while True:
            missing = [i for i in attempts if not self.finished(i)]
            if not missing:
                return
            hopeless = []
            for index in missing:
                if attempts[index] > 0:
                    code, why = self.ended(index)
                    say("shard {}/{}: {}".format(index, self.count, why))
                    if code in USELESS or attempts[index] > self.options.retries:
                        hopeless.append((index, code))
            if hopeless:
                index, code = hopeless[0]
                why = USELESS.get(code, "{} and still unfinished".format(
                    plural(attempts[index], "attempt")))
                raise Failure(code if code == 2 else 3,
                              "shard {}/{}: {}; see {}. The rows that are done stay: the same command "
                              "goes on".format(index, self.count, why, self.part(index, ".log")))
            self.submit(missing)
            for index in missing:
                attempts[index] += 1
            self.wait()

    def merge(self):
        parts = [self.part(i) for i in range(1, self.count + 1)]
        run_tool("kvbench merge", [self.options.kvbench, "merge", *parts, "-o", self.out])

    def show(self):
        """What --summarize and --plot ask for."""
        if self.options.summarize:
            run_tool("kvbench summarize", [self.options.kvbench, "summarize", self.out])
        for figure in self.options.plot:
            stem = "{}.{}".format(self.out[:-len(".csv")], figure)
            run_tool("kvbench-py plot " + figure, [sys.executable, KVBENCH_PY, "plot", figure, self.out, "-o", stem])


def read_arguments(arguments):
    """Options of this program, and the arguments of kvbench replay."""
    own, replay = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        own, replay = arguments[:at], arguments[at + 1:]
    if any(word.split("=")[0] == "--out" for word in own):
        say("note: --out is now --output")  # argparse takes it as short for that
    parser = argparse.ArgumentParser(
        prog="run.py", usage="%(prog)s TRACE... -o OUT.csv --shards N [OPTION...] [-- REPLAY OPTION...]",
        description=__doc__.split("\n\n", 1)[0] + "\n\n" + __doc__.split("\n\n", 2)[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Options of kvbench replay follow after --. Exit code: 0; 1: some rows failed; 2: bad "
               "usage or input;\n3: Slurm or a machine failed, or shards are unfinished after all "
               "attempts; 130: interrupted.")
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="trace files, which all nodes see")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.csv", help="table to write")
    parser.add_argument("--shards", type=int, required=True, metavar="N", help="parts of the replay")
    parser.add_argument("--config", metavar="FILE.toml", help="options of kvbench replay")
    parser.add_argument("--shard-costs", metavar="TABLE.csv",
                        help="parts of equal time by this table (docs/cluster_runs.md)")
    parser.add_argument("--retries", type=int, default=3, metavar="N",
                        help="further attempts for a shard (default: %(default)s)")
    parser.add_argument("--sbatch", action="append", default=[], metavar="OPTION",
                        help="option of sbatch, e.g. --sbatch=--time=4:00:00; may be repeated")
    parser.add_argument("--poll", type=float, default=30.0, metavar="SECONDS",
                        help="time between two looks at the queue (default: %(default)s)")
    parser.add_argument("--summarize", action="store_true", help="print kvbench summarize at the end")
    parser.add_argument("--plot", action="append", default=[], metavar="FIGURE",
                        help="draw OUT.csv at the end, as kvbench-py plot FIGURE; may be repeated")
    options = parser.parse_args(own)
    options.kvbench = os.environ.get("KVBENCH", "kvbench")
    if not options.output.endswith(".csv"):
        parser.error("--output: got '{}', expected a name that ends in .csv".format(options.output))
    for name, least in (("shards", 1), ("retries", 0)):
        if getattr(options, name) < least:
            parser.error("--{}: got {}, expected at least {}".format(name, getattr(options, name),
                                                                      least))
    if not options.poll > 0:
        parser.error("--poll: got {}, expected more than 0".format(options.poll))
    for word in replay:
        if word.split("=")[0] in OWN:
            parser.error("{} after --: run.py sets it itself".format(word))
    # A line of a configuration, without a reader of TOML: Python has one since 3.11.
    config = re.compile(r"""^\s*["']?export-caches["']?\s*=""", re.M)
    if (any(word.split("=")[0] == "--export-caches" for word in replay)
            or options.config and config.search(read_text(options.config))):
        parser.error("--export-caches: all shards would write one file; export from `kvbench replay "
                     "--shard I/N`, each to a file of its own (kvbench evaluate reads several)")
    for program in ("sbatch", "squeue"):
        if shutil.which(program) is None:
            parser.error("{}: no such program; is this a login node of Slurm?".format(program))
    if shutil.which(options.kvbench) is None:
        parser.error("{}: no such program; build it or set KVBENCH".format(options.kvbench))
    options.kvbench = os.path.abspath(shutil.which(options.kvbench))
    for figure in options.plot:
        # Now, not after hours.
        asked = subprocess.run([sys.executable, KVBENCH_PY, "plot", figure, "--help"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        if asked.returncode:
            parser.error("--plot: " + asked.stderr.strip())
    for file in options.traces + [f for f in (options.config, options.shard_costs) if f]:
        if not os.path.isfile(file):
            parser.error("{}: no such file".format(file))
    before = options.traces[:]
    for name in ("config", "shard_costs"):
        if getattr(options, name):
            before += ["--" + name.replace("_", "-"), getattr(options, name)]
    return options, before + replay


def main():
    options, replay = read_arguments(sys.argv[1:])
    try:
        run = Run(options, replay)
        run.check_record()
        if os.path.exists(options.output):
            say("{} is there; nothing to run".format(options.output))
        else:
            run.all_parts()
            run.merge()
        manifest = manifest_of_whole(options.output)
        if manifest is None:
            raise Failure(2, "{}: exists and is no whole table, expected none or that of an earlier "
                             "run".format(options.output))
        run.show()
        return int(manifest["failures"] > 0)
    except Failure as failure:
        say("error: {}".format(failure))
        return failure.code
    except OSError as error:
        say("error: {}".format(error))
        return 3
    except KeyboardInterrupt:
        say("interrupted; jobs in the queue run on, and the same command goes on. To end them: "
            "scancel --name={}".format(run.name))
        return 130


if __name__ == "__main__":
    sys.exit(main())
