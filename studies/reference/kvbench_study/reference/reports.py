"""Reports of kvbench-study reference: tables and figures over whole stages, copied atomically to the
results folder.
"""

import filecmp
import os
import re
import shutil
import time

from kvbench_study.reference import plan as rp
from kvbench_study.reference import sources
from kvbench_study.reference.commands import Failed, read_json, write_json, write_text

STATE = ("done.json", "log.txt")
PAGE = "# Reference results: "  # start of the page of every results folder


def published(files):
    """Returns the files of a report that its results folder gets: no files by prompt, which stages
    read, and no PDF beside a PNG.
    """
    return [name for name in files if os.sep not in name and name.removesuffix(".pdf") + ".png" not in files]


class Reports:
    """prompts: {stage: its Prompts}, read by reports."""

    def __init__(self, steps, prompts):
        self.steps, self.plan, self.placeholders = steps, steps.plan, steps.placeholders
        self.commands, self.prompts = steps.commands, prompts
        self.scripts = rp.digest("".join(
            rp.file_digest(os.path.join(rp.ROOT, path)) for path in sources.of_reports()))

    def folder(self, report):
        return os.path.join(self.placeholders.work, "reports", report.name)

    def ready(self, report):
        """Returns whether every step that it reads is done."""
        return all(self.prompts[name] for name in report.stages) and all(
            self.steps.done(self.plan.stages[name], prompt)
            for name in report.stages for prompt in self.prompts[name]) and all(
            self.done(self.plan.reports[name]) for name in report.after)

    def inputs(self, report):
        """Returns the inputs of a ready report."""
        done = {f"{name}/{p.id}": self.steps.holds(self.plan.stages[name], p)
                for name in report.stages for p in self.prompts[name]}
        # Reports that it reads.
        done |= {name: self.inputs(self.plan.reports[name]) for name in report.after}
        return {"run": list(report.run), "scripts": self.scripts, "steps": done}

    def done(self, report):
        if not self.ready(report):
            return None
        found = read_json(os.path.join(self.folder(report), "done.json"))
        return found if found and found.get("inputs") == self.inputs(report) else None

    def lines(self, report, folder, shown):
        """Returns [(words, file for stdout, the same for display)]; shown: the folder for
        display.
        """
        def ids(name):
            return [p.id for p in self.prompts[name]] if name in self.plan.stages else [""]

        out = []
        for line in report.run:
            words, output = self.placeholders.report_words(line, ids, folder)
            typed, target = self.placeholders.report_words(line, ids, shown)
            text = self.placeholders.typed(typed)
            out.append((words, output, text + (f" > {target}" if target else "")))
        return out

    def run(self, report):
        folder = self.folder(report)
        part = folder + ".part"
        shutil.rmtree(part, ignore_errors=True)
        os.makedirs(part)
        start = time.monotonic()
        typed = []
        for words, output, text in self.lines(report, part, self.placeholders.read_name(self.placeholders.out)):
            self.commands.run(words, os.path.join(part, "log.txt"), text, output)
            typed.append(text)
        files = sorted(os.path.relpath(os.path.join(place, name), part)
                       for place, _, names in os.walk(part) for name in names if name not in STATE)
        if not files:
            raise Failed(f"report {report.name}: its commands left no file", 3)
        found = {"inputs": self.inputs(report), "commands": typed, "files": files,
                 "seconds": round(time.monotonic() - start, 2)}
        write_json(os.path.join(part, "done.json"), found)
        shutil.rmtree(folder, ignore_errors=True)
        os.rename(part, folder)
        return found

    # ------------------------------------------------------------------------------- results

    def left(self, report):
        """Returns the files that an earlier run of a report left in the results folder. Without its done.json those
        that its commands name.
        """
        found = read_json(os.path.join(self.folder(report), "done.json"))
        names = published(found["files"]) if found else sorted({
            name for line in report.run for name in re.findall(r"\{out\}/([\w.-]+)", line)})
        return [name for name in names if os.path.isfile(os.path.join(self.placeholders.out, name))]

    def publish(self):
        """Updates the results folder. Returns the number of changed files."""
        wanted = {}
        for report in self.plan.reports.values():
            found = self.done(report)
            if found:
                for name in published(found["files"]):
                    wanted[name] = os.path.join(self.folder(report), name)
        whole = [s for s in self.plan.stages.values() if self.prompts[s.name] and all(
            self.steps.done(s, p) for p in self.prompts[s.name])]
        if not wanted and not whole:
            return 0
        page = os.path.join(self.placeholders.work, "reports", "README.md")
        write_text(page, self.readme(whole))
        # The page first, since it identifies an interrupted run's folder.
        wanted = {"README.md": page, **wanted}
        changed = sum(self.put(path, name) for name, path in wanted.items())
        self.remove_others({*wanted, *(name for report in self.plan.reports.values() if not self.done(report)
                                       for name in self.left(report))})
        return changed

    @staticmethod
    def made(folder):
        """Returns whether a run made the folder, by its page."""
        try:
            with open(os.path.join(folder, "README.md"), encoding="utf-8") as file:
                return file.read(len(PAGE)) == PAGE
        except (OSError, UnicodeDecodeError):
            return False

    def put(self, path, name):
        """Copies a changed file into the results folder, atomically."""
        target = os.path.join(self.placeholders.out, name)
        if os.path.isfile(target) and filecmp.cmp(path, target, shallow=False):
            return 0
        os.makedirs(os.path.dirname(target), exist_ok=True)
        part = os.path.join(self.placeholders.work, "reports", "publish.part")
        shutil.copyfile(path, part)
        try:
            os.replace(part, target)
        except OSError:  # another file system: copy beside it first
            shutil.copyfile(part, target + ".part")
            os.replace(target + ".part", target)
        return 1

    def remove_others(self, wanted):
        """Removes files of earlier runs that neither a report of the plan left nor this run made."""
        path = os.path.join(self.placeholders.work, "reports", "published.json")
        known = read_json(path) or {}
        out = os.path.abspath(self.placeholders.out)
        for name in known.get(out, []):
            old = os.path.join(out, name)
            if name not in wanted and os.path.isfile(old):
                os.remove(old)
        write_json(path, {**known, out: sorted(wanted)})

    def command(self):
        plan = self.placeholders.read_name(os.path.abspath(self.plan.path))
        if plan == rp.USUAL:
            return "make reference"
        if plan.startswith(rp.PLANS):
            return "make reference PLAN=" + plan.removeprefix(rp.PLANS).removesuffix(".toml")
        return f"kvbench-study reference --plan {plan}"

    def readme(self, stages):
        """Returns the generated page of the results folder."""
        any_prompt = rp.Prompt("PROMPT", "", 0, "")
        layers = self.placeholders.layers
        programs = sorted({self.steps.done(s, p)["program"]["version"]
                           for s in stages for p in self.prompts[s.name]})
        words = self.placeholders.typed(self.placeholders.trace_words(any_prompt))
        lines = [
            f"{PAGE}{self.plan.title}", "",
            f"Generated by `{self.command()}`. Tables and figures are reproducible, their last digits only on the same "
            "kind of processor; the times in `store/` are not. Run commands in the repository root. "
            "Columns: `--help` of a script, docs/schema.md.", "",
            f"- Layers: {', '.join(map(str, layers))}.",
            f"- Program: {'; '.join(programs)}.",
            f"- The model: `{self.placeholders.typed(list(self.plan.model['run']))}`.",
            "- One trace per prompt, deleted after use:", "", f"      {words}", "",
            "## Stages", "",
            "One command per prompt. `store/records.json` holds what its runs depended on.", ""]
        listed = {}  # prompts: the first stage with these
        for stage in stages:
            mine = [p.id for p in self.prompts[stage.name]]
            folder = self.placeholders.folder(stage.name, any_prompt.id)
            typed = self.placeholders.typed(self.placeholders.stage_words(stage, any_prompt, folder))
            count = f"{len(mine)} prompt" + ("" if len(mine) == 1 else "s")
            first = listed.setdefault(tuple(mine), stage.name)
            if first != stage.name and len(mine) > 1:
                prompts = f"{count}, those of {first}."
            else:
                prompts = f"{count}: {', '.join(mine)}." + (f" {stage.fewer}" if stage.fewer else "")
            lines += [f"### {stage.name}", "", f"{stage.title} {prompts}", "", f"    {typed}", ""]
        absent = [s for s in self.plan.stages if s not in {w.name for w in stages}]
        lines += ["## Tables and pictures", ""] if self.plan.reports else []
        for report in self.plan.reports.values():
            found = self.done(report)
            names = published(found["files"]) if found else self.left(report)
            if not found and not names:
                absent.append(report.name)
                continue
            files = ", ".join(f"[{n}]({n})" for n in names) or "in the work folder, one per prompt"
            said = "" if found else " An earlier run made them; what they read may have changed since."
            lines += [f"### {report.title}", "", f"Files: {files}.{said}", ""]
            lines += [line for text in (found["commands"] if found else ()) for line in (f"    {text}", "")]
        if absent:
            lines += ["## Not made yet", "", ", ".join(dict.fromkeys(absent)) + ".", ""]
        return "\n".join(lines)
