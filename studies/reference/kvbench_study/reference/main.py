"""Main function of kvbench-study reference. The command line is in options.py."""

import glob
import importlib.util
import os
import sys
import time

from kvbench.text import counted, one_line
from kvbench_study.folders import NotOurs, claim_folder
from kvbench_study.reference import plan as rp
from kvbench_study.reference import store
from kvbench_study.reference.clock import Clock
from kvbench_study.reference.commands import Commands, Failed, Program, duration, read_json, say
from kvbench_study.reference.options import parse_arguments
from kvbench_study.reference.placeholders import Placeholders
from kvbench_study.reference.reports import Reports
from kvbench_study.reference.samples import Samples
from kvbench_study.reference.steps import Steps

NEEDED = ("numpy", "pandas", "matplotlib", "scipy")


def expect(modules):
    """Raises PlanError if a module is not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise rp.PlanError(f"{sys.executable} has no {', '.join(missing)}; "
                           "scripts/bootstrap.sh plot installs them", 3)


class Run:
    """One call: the chosen steps, and what is left of them."""

    def __init__(self, args):
        self.args, self.plan = args, rp.read_plan(args.plan)
        plan = self.plan
        self.layers = args.layers or plan.layers
        suffix = "-layers-" + ".".join(map(str, args.layers)) if args.layers else ""
        work = os.path.abspath(args.work or os.path.join(rp.ROOT, plan.work)) + suffix
        out = args.output or os.path.join(rp.ROOT, plan.out)
        self.publishes = bool(args.output) or not (args.prompts or args.layers)
        self.stages = self.chosen_stages()
        # Reports whose files a stage reads, and theirs, over all of their prompts.
        first = {r.name for stage in self.stages.values() for r in plan.before(stage)}
        self.first_reports = [r for r in plan.reports.values() if r.name in first]
        self.first_stages = {name for r in self.first_reports for name in r.stages}
        self.prompts = {name: [plan.prompts[id] for id in stage.prompts
                               if not args.prompts or id in args.prompts
                               or name in self.first_stages]
                        for name, stage in plan.stages.items()}
        self.commands = Commands()
        self.program = Program(args.kvbench)
        self.placeholders = Placeholders(plan, work, os.path.abspath(out), self.layers,
                                         self.program.path, sys.executable, args.dump_python)
        # Other layers are not part of the reference.
        folder = work if args.layers and not args.output else self.placeholders.out
        self.steps = Steps(plan, self.placeholders, self.program, self.commands, os.path.join(folder, "store"))
        self.sampled = set()
        self.reports = Reports(self.steps, self.prompts)
        self.chosen_reports = self.reports_of_chosen_stages()
        self.clock = Clock(plan, self.layers)
        self.learn()

    def chosen_stages(self):
        """Returns {name: stage} of --only and its dependencies."""
        for name in self.args.only:
            if name not in self.plan.stages:
                raise rp.PlanError(f"--only: no stage `{name}`; there are "
                                   + ", ".join(self.plan.stages))
        for name in self.args.prompts:
            if name not in self.plan.prompts:
                raise rp.PlanError(f"--prompts: no prompt `{name}`; there are "
                                   + ", ".join(self.plan.prompts))
        chosen = set(self.args.only or self.plan.stages)
        for stage in reversed(list(self.plan.stages.values())):
            if stage.name in chosen:
                chosen |= {name for report in self.plan.before(stage) for name in report.stages}
        return {name: stage for name, stage in self.plan.stages.items() if name in chosen}

    def reports_of_chosen_stages(self):
        """Returns the reports that read chosen stages alone, also through earlier reports."""
        found = {}
        for report in self.plan.reports.values() if self.publishes else ():
            if (set(report.after) <= set(found)
                    and all(name in self.stages and self.prompts[name] for name in report.stages)):
                found[report.name] = report
        return list(found.values())

    def learn(self):
        for stage in self.plan.stages.values():
            for prompt in self.prompts[stage.name]:
                self.clock.took(stage.name, self.steps.took(stage, prompt))
        for prompt in self.plan.prompts:
            found = read_json(os.path.join(self.placeholders.work, "traces", prompt + ".done.json"))
            if found and found.get("layers") == len(self.layers):
                self.clock.took("trace", found.get("seconds"))
        for report in self.plan.reports.values():
            found = read_json(os.path.join(self.reports.folder(report), "done.json"))
            if found:
                self.clock.took("report " + report.name, found.get("seconds"))

    def left(self):
        """Returns [(kind, prompt or None, stage or report or None, seconds)] in execution order."""
        out, undone, fresh, traces = [], set(), set(), set()

        def add_stages(stages):
            for prompt in self.plan.prompts.values():
                mine = [s for s in stages if prompt in self.prompts[s.name]
                        and (fresh & set(s.after) or not self.steps.done(s, prompt))]
                if mine and prompt.id not in traces and not self.steps.has_trace(prompt):
                    out.append(("trace", prompt, None, self.clock.expected("trace")))
                for stage in mine:
                    traces.add(prompt.id)
                    undone.add(stage.name)
                    out.append(("stage", prompt, stage, self.clock.expected(stage.name)))

        def add_reports(reports):
            for report in reports:
                if (undone & set(report.stages) or fresh & set(report.after)
                        or not self.reports.done(report)):
                    fresh.add(report.name)
                    out.append(("report", None, report,
                                self.clock.expected("report " + report.name)))

        first = [s for s in self.stages.values() if s.name in self.first_stages]
        add_stages(first)
        add_reports(self.first_reports)
        add_stages([s for s in self.stages.values() if s not in first])
        add_reports([r for r in self.chosen_reports if r not in self.first_reports])
        return out

    def check_tools(self, left):
        """Checks tools before the long part. The model's command may make the interpreter."""
        if any(kind == "report" for kind, *_ in left):
            expect(NEEDED)
        if any(kind != "report" for kind, *_ in left):
            expect(("h5py", "numpy"))
        dumps = any((self.plan.trace if kind == "trace" else what.options if kind == "stage" else ())
                    [:1] == ("dump",) for kind, _, what, _ in left)
        if dumps and not self.steps.lacks_model() and not os.access(self.args.dump_python, os.X_OK):
            raise rp.PlanError(f"{self.args.dump_python}: no such program; `make model` makes it",
                               3)

    def describe(self, step):
        kind, prompt, what, _ = step
        if kind == "report":
            return f"report {what.name}"
        return f"{prompt.id} " + ("trace" if kind == "trace" else what.name)

    def announce(self, left):
        total = sum(len(self.prompts[name]) for name in self.stages)
        rest = sum(kind == "stage" for kind, *_ in left)
        traces = sum(kind == "trace" for kind, *_ in left)
        reports = sum(kind == "report" for kind, *_ in left)
        if not left:
            say(f"done before: {counted(total, 'step')}, "
                + counted(len(self.chosen_reports), "report"))
            return
        say(f"left: {rest} of {counted(total, 'step')}, {counted(traces, 'trace')}, "
            f"{counted(reports, 'report')}; about " + duration(sum(step[3] for step in left)))
        if not self.publishes:
            say("the store grows, but no reports are made: a part of the prompts or layers, and no --output")

    def dry_run(self, left):
        for step in left:
            print(f"{self.describe(step)}\t{step[3]:.0f} s")
        self.announce(left)
        return 0

    def do(self, step):
        """Runs a step and returns its exit code, 0 or 1."""
        kind, prompt, what, _ = step
        if kind == "trace":
            self.clock.took("trace", self.steps.make_trace(prompt))
            return 0
        if kind == "stage":
            found = self.steps.run(what, prompt)
            self.clock.took(what.name, found["seconds"])
            return found["code"]
        self.clock.took("report " + what.name, self.reports.run(what)["seconds"])
        return 0

    def at(self, steps):
        """Returns the expected seconds of steps."""
        return sum(self.clock.expected("trace" if kind == "trace" else
                                       what.name if kind == "stage" else "report " + what.name)
                   for kind, _, what, _ in steps)

    def claim_folders(self):
        """Claims --work and --output. Raises PlanError if they hold foreign files."""
        try:
            if self.args.work:
                claim_folder(self.placeholders.work,
                            lambda folder: os.path.isfile(os.path.join(folder, "lock")))
            if self.args.output and self.publishes and os.path.isdir(self.placeholders.out):
                if not self.ours(self.placeholders.out):
                    raise NotOurs(f"{self.placeholders.out}: is neither empty nor a folder of reference "
                                  "results: name a new one")
        except NotOurs as error:
            raise rp.PlanError(str(error)) from None

    def ours(self, folder):
        """Returns whether a results folder is empty, has a store, or was made by a run."""
        found = os.listdir(folder)
        return not found or self.reports.made(folder) or "store" in found

    def work(self):
        begin = time.monotonic()
        if self.args.dry_run:
            return self.dry_run(self.left())
        self.check_tools(self.left())
        self.claim_folders()
        self.commands.catch()
        self.commands.lock(self.placeholders.work)
        self.steps.store.lock()
        self.steps.store.recover()
        self.steps.store.name_model(os.path.basename(self.plan.model["folder"]))
        if self.steps.lacks_model() and any(kind == "trace" for kind, *_ in self.left()):
            self.steps.make_model()
        if self.args.stale:
            for group, why, prompts in self.check_samples():
                say(f"done again: {group[0]}: {', '.join(p.id for p in prompts)}: {why}")
                for prompt in prompts:
                    self.steps.forget(self.plan.stages[group[0]], prompt)
        left = self.left()
        self.check_tools(left)
        self.announce(left)
        for prompt in self.plan.prompts.values():  # left by an interrupted run
            self.tidy(("trace", prompt, None, 0), left)
        last = max((i for i, step in enumerate(left) if step[2] in self.first_reports), default=-1)
        stopped = self.do_all(left, last + 1, begin)
        if last >= 0 and not stopped:  # an unchanged report may reduce what is left
            left = self.left()
        if not stopped:
            stopped = self.do_all(left, len(left), begin)
        if stopped:
            self.do_reports(left)
        if self.publishes:
            changed = self.reports.publish()
            if changed:
                say(f"results: {counted(changed, 'new file')} in "
                    + self.placeholders.read_name(self.placeholders.out))
        stale = self.finish_store() if not stopped else []
        failed = [f"{p.id} {name}" for name, stage in self.stages.items()
                  for p in self.prompts[name] if (self.steps.done(stage, p) or {}).get("code")]
        if failed:
            say(f"rows failed (column `status` says why) in {', '.join(failed)}")
        return 1 if failed or stale else 0

    def check_samples(self):
        """Runs Samples.check; removes its traces."""
        expect(("h5py", "numpy"))
        if self.steps.lacks_model():
            self.steps.make_model()
        try:
            return Samples(self, self.args.samples).check()
        finally:
            for prompt in self.sampled:
                self.steps.drop_trace(self.plan.prompts[prompt])
            self.sampled.clear()

    def finish_store(self):
        """Checks samples and reports completeness. Returns what is stale."""
        stale = self.check_samples() if self.args.samples else []
        for group, why, prompts in stale:
            say(f"stale: {group[0]}: {', '.join(p.id for p in prompts)}: rows of "
                + ("another state of the program" if Samples(self, 0).foreign(group) else
                   "this state of the program")
                + f" are not what it computes here: {why}; --stale does them again")
        size, files = store.size(self.steps.store.folder)
        say(f"the store: {size / 1e6:.1f} MB, {counted(files, 'file')}")
        every = sum(store.size(path)[0] for path in glob.glob(os.path.join(
            os.path.dirname(self.placeholders.out), "*", "store")))
        if every > store.LIMIT:
            say(f"the stores of all plans have {every / 1e6:.1f} MB, expected at most "
                f"{store.LIMIT / 1e6:.0f}")
        if not stale and self.args.samples and not (self.args.prompts or self.args.layers
                                                     or self.args.only) and not self.left():
            say(f"complete: {counted(sum(len(p) for p in self.prompts.values()), 'step')}, samples "
                f"of {counted(len(self.stages), 'stage')} agree")
        return stale

    def do_all(self, left, end, begin):
        """Runs the steps before `end`. Returns whether --max-minutes stopped it."""
        for i, step in enumerate(left[:end]):
            self.commands.check()
            ahead = left[i:i + (2 if step[0] == "trace" else 1)]
            if step[0] != "report" and self.too_late(begin, ahead):
                say(f"stopped by --max-minutes before {self.describe(step)}; left: about "
                    + duration(self.at(left[i:])))
                return True
            self.do_one(step, f"[{i + 1}/{len(left)}] ", left[i + 1:])
        return False

    def do_one(self, step, place, rest):
        start = time.monotonic()
        failed_rows = self.do(step)
        say(place + f"{self.describe(step)}: {duration(time.monotonic() - start)}"
            + (", some rows failed" if failed_rows else "")
            + (f"; left: about {duration(self.at(rest))}" if rest else ""))
        self.tidy(step, rest)

    def do_reports(self, left):
        """Makes the reports whose steps are done, after --max-minutes."""
        for kind, _, report, _ in left:
            if kind == "report" and self.reports.ready(report) and not self.reports.done(report):
                self.do_one((kind, None, report, 0), "", [])

    def too_late(self, begin, steps):
        """Returns whether these would end after --max-minutes. A trace comes with its first
        stage.
        """
        if not self.args.max_minutes:
            return False
        return time.monotonic() - begin + self.at(steps) > 60 * self.args.max_minutes

    def tidy(self, step, rest):
        """Deletes the prompt's trace after its last step."""
        prompt = step[1]
        if prompt is not None and not self.args.keep and all(s[1] != prompt for s in rest):
            self.steps.drop_trace(prompt)


def main(arguments=None):
    try:
        return Run(parse_arguments(arguments)).work()
    except Failed as error:
        print(one_line(f"kvbench-study reference: {error}"), file=sys.stderr)
        return error.exit_code
    except rp.PlanError as error:
        print(one_line(f"kvbench-study reference: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(one_line(f"kvbench-study reference: {error}"), file=sys.stderr)
        return 3
