"""Folders and commands of kvbench-study reference: placeholders filled in for running and for
display.
"""

import glob
import os
import shlex

from kvbench_study import STUDY
from kvbench_study.reference import plan as rp

POLICY = "policy:"  # begins a variant that is a file of --policy


class Placeholders:
    """Fills in placeholders. work and out: folders; layers: of the traces.

    command(): words to run from the root of the source tree; typed(): the same for display, without
    local paths.
    """

    def __init__(self, plan, work, out, layers, kvbench, python, dump_python):
        self.plan, self.layers, self.out = plan, layers, out
        self.work, self.programs = work, (kvbench, python, dump_python)
        # view(stage, prompts, name, plain): a table of the store. Steps sets it.
        self.view = None

    def trace(self, prompt):
        """Named after the prompt, since the name is a column of its rows."""
        return os.path.join(self.work, "traces", prompt + ".h5")

    def folder(self, stage, prompt):
        """Folder of a step."""
        return os.path.join(self.work, stage, prompt)

    def report_folder(self, report):
        return os.path.join(self.work, "reports", report)

    def read_name(self, path):
        """Returns a path as in the README."""
        inside = os.path.relpath(path, rp.ROOT)
        return path if inside.startswith("..") else inside


    def fill(self, word, values, prompts, plain=False):
        """Returns [word] with its placeholders filled in; plain: tables without .gz."""
        out = [word]
        for match in rp.TABLE.finditer(word):
            stage, name = match[1], match[2]
            file = self.view(stage, prompts(stage), name, plain) if stage in self.plan.stages else os.path.join(
                self.report_folder(stage), name)
            out = [text.replace(match[0], file) for text in out]
        for key, value in values.items():
            out = [text.replace("{" + key + "}", value) for text in out]
        return out

    def values(self, prompt=None, **more):
        """Returns the placeholders that do not depend on a stage."""
        out = {"layers": ",".join(map(str, self.layers)), "kvbench": self.programs[0],
               "model": os.path.join(rp.ROOT, self.plan.model["folder"])}
        if prompt is not None:
            out.update(prompt=prompt.id, number=str(prompt.number), trace=self.trace(prompt.id))
        return {**out, **more}

    def expand(self, words, values, prompts=None, plain=False):
        """fill() of many words; {records}: the files of prompts."""
        out = []
        for word in words:
            if word == "{records}":
                for pattern in self.plan.records:
                    out += sorted(glob.glob(os.path.join(rp.ROOT, pattern)))
            else:
                out += self.fill(word, values, prompts, plain)
        return out

    def trace_words(self, prompt):
        return self.with_program(self.expand(self.plan.trace, self.values(prompt)))

    def stage_words(self, stage, prompt, folder, algorithms=None, budgets=None):
        """Returns a step's command. replay writes folder/rows.csv, cluster into folder, score as
        its words say. algorithms, budgets: replace those of the plan.
        """
        options = stage.options
        if algorithms is not None:
            options = without(options, ("--algorithm", "--budget"))
        words = self.expand(options, self.values(prompt, folder=folder), lambda _: [prompt.id])
        for one in stage.algorithms if algorithms is None else algorithms:
            words += self.variant_words(one, prompt)
        budgets = stage.budgets if budgets is None else budgets
        if budgets:
            words += ["--budget", ",".join(budgets)]
        if stage.kind == "score":
            return self.with_program(words)
        words = [self.programs[0], stage.kind, self.trace(prompt.id), *words]
        layers = [n for n in stage.layers if n in self.layers]
        if layers:
            words += ["--layers", ",".join(map(str, layers))]
        target = os.path.join(folder, rp.ROWS) if stage.kind == "replay" else folder
        return [*words, "-o", target]

    def policy(self, variant, prompt):
        """Returns the file of `policy:FILE`, or ""."""
        word = variant.removeprefix(POLICY)
        return "" if word == variant else os.path.join(
            rp.ROOT, *self.fill(word, self.values(prompt), lambda _: [""]))

    def variant_words(self, variant, prompt):
        """Returns the options of kvbench that select a variant."""
        policy = self.policy(variant, prompt)
        return ["--policy", policy] if policy else ["--algorithm", variant]

    def report_words(self, line, prompts, folder):
        """Returns (words, file for stdout or None) of a report's command, from `> FILE` at its
        end.
        """
        words, parts = [], shlex.split(line)
        for word in parts:
            words += self.expand([word], {**self.values(), "out": folder}, prompts,
                                 parts[0] == "kvbench")
        output = None
        if len(words) > 2 and words[-2] == ">":
            words, output = words[:-2], words[-1]
        return self.with_program(words), output

    def with_program(self, words):
        """Replaces the first word by an executable."""
        kvbench, python, dump_python = self.programs
        if words[0] == "kvbench":
            return [kvbench, *words[1:]]
        if words[0] == "dump":
            return [dump_python, *self.with_program(words[1:])[1:]]
        if words[0] == "kvbench-py":
            return [python, os.path.join(rp.ROOT, "scripts", "kvbench-py"), *words[1:]]
        if words[0] == "kvbench-study":
            return [python, os.path.join(STUDY, "kvbench-study"), *words[1:]]
        if words[0].endswith(".py"):
            return [python, os.path.join(rp.ROOT, words[0]), *words[1:]]
        return list(words)

    def typed(self, words):
        """Returns a line for display: paths from the root, similar words joined by braces as in
        bash.
        """
        names = dict(zip(self.programs, ("build/kvbench", "", "build/dump-venv/bin/python")))
        texts = [names.get(word) if names.get(word) is not None else self.short(word)
                 for word in words]
        return " ".join(shlex.quote(t) if "{" not in t else t for t in braces(texts) if t)

    def short(self, word):
        """Returns reports' files as in the results folder."""
        for report in self.plan.reports:
            word = word.replace(self.report_folder(report) + os.sep, self.out + os.sep)
        return word.replace(rp.ROOT + os.sep, "")


def without(options, names):
    """Removes these options and their values from a command line."""
    out, skip = [], False
    for word in options:
        if skip:
            skip = False
        elif word in names:
            skip = True
        elif not word.startswith(tuple(name + "=" for name in names)):
            out.append(word)
    return out


def braces(texts):
    """Joins neighbours that differ in one path component: a/{x,y}/rows.csv."""
    out, at = [], 0
    while at < len(texts):
        parts = texts[at].split("/")
        best = (1, texts[at])
        for i in range(len(parts)) if len(parts) > 2 else ():
            group = [parts[i]]
            for text in texts[at + 1:]:
                other = text.split("/")
                if len(other) != len(parts) or [*other[:i], *other[i + 1:]] != [*parts[:i], *parts[i + 1:]]:
                    break
                group.append(other[i])
            if len(group) > best[0]:
                joined = "{" + ",".join(group) + "}"
                best = (len(group), "/".join([*parts[:i], joined, *parts[i + 1:]]))
        out.append(best[1])
        at += best[0]
    return out
