#!/usr/bin/env python3
"""Runs a `kvbench replay` as an array of Slurm jobs and merges the shards.

    scripts/slurm/run.py TRACE... -o OUT.csv --shards N [--config FILE.toml] [-- OPTIONS]

Submits the array, waits, resubmits shards that failed, ran out of time or were killed, and merges. Each
attempt resumes the previous one. Shards are OUT.shard-I-of-N.csv, each with a .log. If this program is
interrupted, the jobs continue; the same command then waits for them and submits only missing shards.
KVBENCH: program (default: kvbench). docs/cli.md has examples.
"""

# Standard library only, and Python 3.6: it runs on login nodes.
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
           127: "kvbench was not found"}  # exit codes after which a retry is useless
OWN = ("-o", "--output", "--shard", "--resume", "--overwrite", "--dry-run", "--config")


class Failure(Exception):
    """A one-line message and an exit code."""

    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


def say(text):
    print("run.py: " + text, file=sys.stderr, flush=True)


def read_text(path):
    """The text of a file; empty if unreadable, which is reported elsewhere."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def plural(count, what):
    return "{} {}{}".format(count, what, "" if count == 1 else "s")


def run_tool(name, command):
    """Runs a program that reports its own errors. Throws Failure with its exit code."""
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise Failure(code, "{} ended with {}".format(name, code))


def call(command, **more):
    """Standard output of a program. Throws OSError unless it exits with 0."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          universal_newlines=True, check=False, **more)
    if done.returncode != 0:
        raise OSError("{} ended with {}: {}".format(command[0], done.returncode,
                                                    done.stderr.strip().replace("\n", "; ")))
    return done.stdout


def manifest_of_whole(table):
    """The manifest of a complete table; None without a manifest or with missing rows."""
    try:
        with open(table + ".json", encoding="utf-8") as file:
            manifest = json.load(file)
        rows = sum(end - begin for begin, end in manifest["plan"]["row_ranges"])
        return manifest if manifest["end"] is not None and manifest["rows"] == rows else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # RecursionError: deep nesting
        return None


class Run:
    """A replay in N shards."""

    def __init__(self, options, replay):
        self.options = options
        self.out = options.output
        self.count = options.shards
        self.replay = replay  # arguments of kvbench replay
        place = hashlib.sha256(os.path.abspath(self.out).encode()).hexdigest()[:12]
        self.name = "kvbench-" + place  # job name, by which a later call finds this run

    def part(self, index, ending=".csv"):
        return "{}.shard-{}-of-{}{}".format(self.out[:-len(".csv")], index, self.count, ending)

    def check_record(self):
        """Throws Failure if OUT.run.json records another command: shards must not be mixed."""
        path = self.out[:-len(".csv")] + ".run.json"
        record = {"shards": self.count, "arguments": self.replay, "files": {}}
        if self.options.config:
            with open(self.options.config, "rb") as text:
                record["files"]["config"] = hashlib.sha256(text.read()).hexdigest()
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
            raise Failure(2, "{}: not a record of an earlier run, expected a record or no file".format(path))
        for what, now in record.items():
            if then.get(what) != now:
                raise Failure(2, "{}: {} differ: got {}, expected {}; repeat the earlier command "
                                 "or set another --output".format(path, what, json.dumps(now),
                                                                      json.dumps(then.get(what))))

    def finished(self, index):
        return manifest_of_whole(self.part(index)) is not None

    def running(self):
        """Pending or running shards; None if Slurm does not answer."""
        try:
            lines = call(["squeue", "--noheader", "--array", "--user", getpass.getuser(), "--name",
                          self.name, "--format", "%K"]).split()
        except OSError as error:
            say("{}; retrying".format(error))
            return None
        return {int(word) for word in lines if word.isdigit()}

    def wait(self):
        """Waits until no task of this run is in the queue."""
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
        """(exit code or None, message) of the last attempt, from its log."""
        try:
            with open(self.part(index, ".log"), encoding="utf-8", errors="replace") as file:
                lines = file.read().splitlines()
        except OSError:
            return None, "no log, the task did not start"
        begins = [i for i, line in enumerate(lines) if line.startswith("replay.sbatch: begin")]
        last = lines[begins[-1] if begins else 0:]
        code = next((int(line.split()[-1]) for line in reversed(last)
                     if re.match(r"replay\.sbatch: exit code \d+$", line)), None)
        errors = [line for line in last if "error:" in line]
        if code == 130:
            return code, "interrupted, by the time limit or scancel"
        if code is None:
            return code, errors[-1] if errors else "killed" if begins else "the task did not start"
        return code, errors[-1] if errors else "exit code {}".format(code)

    def all_parts(self):
        """Submits until every shard is complete."""
        attempts = dict.fromkeys(range(1, self.count + 1), 0)
        self.wait()  # for jobs of an earlier call
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
                why = USELESS.get(code, "unfinished after {}".format(
                    plural(attempts[index], "attempt")))
                raise Failure(code if code == 2 else 3,
                              "shard {}/{}: {}; see {}. Finished rows are kept; repeat the command "
                              "to resume".format(index, self.count, why, self.part(index, ".log")))
            self.submit(missing)
            for index in missing:
                attempts[index] += 1
            self.wait()

    def merge(self):
        parts = [self.part(i) for i in range(1, self.count + 1)]
        run_tool("kvbench merge", [self.options.kvbench, "merge", *parts, "-o", self.out])

    def show(self):
        """Runs --summarize and --plot."""
        if self.options.summarize:
            run_tool("kvbench summarize", [self.options.kvbench, "summarize", self.out])
        for figure in self.options.plot:
            stem = "{}.{}".format(self.out[:-len(".csv")], figure)
            run_tool("kvbench-py plot " + figure, [sys.executable, KVBENCH_PY, "plot", figure, self.out, "-o", stem])


def read_arguments(arguments):
    """(options of this program, arguments of kvbench replay)."""
    own, replay = arguments, []
    if "--" in arguments:
        at = arguments.index("--")
        own, replay = arguments[:at], arguments[at + 1:]
    parser = argparse.ArgumentParser(
        prog="run.py", usage="%(prog)s TRACE... -o OUT.csv --shards N [OPTION...] [-- REPLAY OPTION...]",
        description=__doc__.split("\n\n", 1)[0] + "\n\n" + __doc__.split("\n\n", 2)[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Options of kvbench replay follow after --. Exit code: 0; 1, some rows failed; 2, bad "
               "usage or input;\n3, Slurm or a machine failed, or shards are unfinished after all "
               "attempts; 130, interrupted.")
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="trace files, visible on all nodes")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.csv", help="table to write")
    parser.add_argument("--shards", type=int, required=True, metavar="N", help="number of shards")
    parser.add_argument("--config", metavar="FILE.toml", help="TOML file with options of kvbench replay")
    parser.add_argument("--retries", type=int, default=3, metavar="N",
                        help="further attempts per shard (default: %(default)s)")
    parser.add_argument("--sbatch", action="append", default=[], metavar="OPTION",
                        help="option of sbatch, such as --sbatch=--time=4:00:00; may be repeated")
    parser.add_argument("--poll", type=float, default=30.0, metavar="SECONDS",
                        help="interval of queue polls (default: %(default)s)")
    parser.add_argument("--summarize", action="store_true", help="print kvbench summarize at the end")
    parser.add_argument("--plot", action="append", default=[], metavar="FIGURE",
                        help="run kvbench-py plot FIGURE on OUT.csv at the end; may be repeated")
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
            parser.error("{} after --: run.py sets this option".format(word))
    # A regular expression instead of a TOML parser, which needs Python 3.11.
    config = re.compile(r"""^\s*["']?export-caches["']?\s*=""", re.M)
    if (any(word.split("=")[0] == "--export-caches" for word in replay)
            or options.config and config.search(read_text(options.config))):
        parser.error("--export-caches: all shards would write one file; run `kvbench replay --shard I/N` "
                     "with a file per shard instead (kvbench evaluate reads several)")
    for program in ("sbatch", "squeue"):
        if shutil.which(program) is None:
            parser.error("{}: no such program; is this a login node of Slurm?".format(program))
    if shutil.which(options.kvbench) is None:
        parser.error("{}: no such program; build it or set KVBENCH".format(options.kvbench))
    options.kvbench = os.path.abspath(shutil.which(options.kvbench))
    for figure in options.plot:
        # Check the figure's name before the run.
        asked = subprocess.run([sys.executable, KVBENCH_PY, "plot", figure, "--help"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
        if asked.returncode:
            parser.error("--plot: " + asked.stderr.strip())
    for file in options.traces + ([options.config] if options.config else []):
        if not os.path.isfile(file):
            parser.error("{}: no such file".format(file))
    config = ["--config", options.config] if options.config else []
    return options, options.traces + config + replay


def main():
    options, replay = read_arguments(sys.argv[1:])
    try:
        run = Run(options, replay)
        run.check_record()
        if os.path.exists(options.output):
            say("{} exists; nothing to run".format(options.output))
        else:
            run.all_parts()
            run.merge()
        manifest = manifest_of_whole(options.output)
        if manifest is None:
            raise Failure(2, "{}: not a complete table, expected no file or the table of an earlier "
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
        say("interrupted; queued jobs continue. Repeat the command to resume, or cancel them: "
            "scancel --name={}".format(run.name))
        return 130


if __name__ == "__main__":
    sys.exit(main())
