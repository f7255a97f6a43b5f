"""Main function of kvbench-py judge. The command line is in options.py.

Methods are replayed a few at a time. While kvbench makes the caches of the next few, the model
decodes over the previous ones, which are then deleted. See docs/score.md.
"""

import argparse
import collections
import contextlib
import os
import signal
import sys
import time

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvbench.api.run import ProgramError, program
from kvbench.caches.reader import CacheReader
from kvbench.dump.capture import ATTENTION, note
from kvbench.dump.main import load_model, model_name
from kvbench.judge.options import parse_arguments
from kvbench.judge.plan import ReplayError, call, find_variants, parts_of, protocol_of, resolve, shorten_first
from kvbench.judge.replay import Replay, Tables, remove_orphans, work_folder
from kvbench.progress import Progress
from kvbench.score.attention import CompressedAttention
from kvbench.score.main import load_tokenizer, prepare, versions
from kvbench.score.prompts import Prompt, check_model, check_prompts
from kvbench.score.questions import read_answers
from kvbench.score.scorer import Scorer
from kvbench.score.table import Manifest, Table, key_of
from kvbench.trace.heads import open_trace
from kvbench.trace.writer import TraceError


def find_prompts(args):
    """Returns [(trace, prompt)] in the traces' order. Raises TraceError for a duplicate prompt."""
    out, seen = [], {}
    for path in args.trace:
        with open_trace(path) as file:
            for name in file["prompts"]:
                if name in seen:
                    raise TraceError(f"{path}: prompts/{name}: is also in {seen[name]}")
                seen[name] = path
                if args.ids is None or name in args.ids:
                    out.append((path, name))
    absent = sorted(set(args.ids or ()) - {*seen})
    if absent:
        raise TraceError(f"--ids: no prompt {absent[0]} in the traces, they have "
                         f"{', '.join(sorted(seen))}")
    return out


class Judge:
    """The loaded model and the tables."""

    def __init__(self, args, tables, table, by_layer, manifest, answers):
        self.args, self.tables, self.table, self.answers = args, tables, table, answers
        self.by_layer = by_layer  # the table of --each-layer, or None
        self.manifest = manifest
        self.scorer = self.at = None
        self.waited = self.scored = 0.0  # seconds

    def load(self, prompts):
        """prompts: names to read."""
        model, dtype, _ = load_model(self.args)
        self.tokenizer, self.answers = load_tokenizer(self.args, self.answers, prompts)
        self.attention = CompressedAttention(self.args, model, dtype)
        ALL_ATTENTION_FUNCTIONS.register(ATTENTION, self.attention)
        self.model = model
        return model

    def begin(self, prompt, reader):
        """Reads a prompt, unless it is the current one."""
        if self.at == (prompt.trace, prompt.name):
            return
        begin = time.monotonic()
        check_prompts(self.args, self.model, [prompt], reader)
        self.scorer = Scorer(self.args, self.model, self.attention, self.tokenizer, reader)
        self.scorer.begin(prompt.ids, set(prompt.layers), self.answers.get(prompt.name))
        deviation = check_model(self.args, prompt, self.attention.exact, self.scorer.prefix)
        self.scorer.self_check(prompt.layers)
        self.at = prompt.trace, prompt.name
        note(f"{prompt.name}: read in {time.monotonic() - begin:.0f} s; {len(prompt.layers)} of "
             f"{len(self.attention.seen)} layers replaced; keys within {deviation:.1e} of the trace's")

    def score(self, trace, name, replay, progress):
        self.tables.load(replay.rows)
        with CacheReader([replay.caches]) as reader, open_trace(trace) as file:
            if reader.protocol != "prefill":
                raise TraceError(f"--config: protocol: got {reader.protocol}, expected prefill: the "
                                 "model decodes over caches of a prompt's end")
            self.note_resolved(replay.part, {group.key for group in reader.groups})
            prompt = Prompt(trace, name, file["prompts"][name], reader.groups)
            self.begin(prompt, reader)
            base = os.path.basename(trace)
            groups = [group for group in reader.groups
                      if key_of(base, name, group) not in self.table.done]
            for group, row in self.scorer.rows(prompt, groups):
                if self.by_layer is not None:
                    for of_layer in self.scorer.rows_of_layers(prompt, group):
                        self.by_layer.write(of_layer)
                self.tables.write(key_of(base, name, group))
                self.table.write(row)
                progress.step(1, f"{progress.done + 1}/{progress.total} groups  {name} {group}")

    def note_resolved(self, part, made):
        """Stores resolved parameters in the manifest, for --resume."""
        found = resolve(part.keys, made)
        absent = [key for key in part.keys if key not in made and key[:2] not in found]
        if absent:
            raise ReplayError(f"kvbench replay: {absent[0]}: got no cache of it, expected one")
        known = self.manifest.content["resolved"]
        new = {":".join(key): params for key, params in found.items()}
        if new.items() - known.items():
            known.update(new)
            self.manifest.write()

    def run(self, plan, progress):
        """plan: [(trace, prompt, Part)]."""
        replays = [Replay(self.args, *plan[0])]
        try:
            self.load(list(dict.fromkeys(name for _, name, _ in plan)))
            for at, (trace, name, _) in enumerate(plan):
                begin = time.monotonic()
                replays[0].wait()
                self.waited += time.monotonic() - begin
                if at + 1 < len(plan):
                    replays.append(Replay(self.args, *plan[at + 1]))
                begin = time.monotonic()
                self.score(trace, name, replays[0], progress)
                self.scored += time.monotonic() - begin
                replays.pop(0).close()
        finally:
            for one in replays:
                one.close()


def make_plan(args, table, prompts, resolved):
    """Returns [(trace, prompt, Part)] of the missing groups, and the number of finished keys.

    resolved: {ALGORITHM:PARAMS: params in the rows} where these differ
    """
    out, there = [], 0
    for trace, name in prompts:
        variants = find_variants(args, trace, name)
        base = os.path.basename(trace)
        done = {key for one in variants for key in one.keys()
                if row_key(base, name, resolved, key) in table.done}
        there += len(done)
        parts = parts_of(variants, done, args.groups)
        out += [(trace, name, part) for part in (parts if out else shorten_first(parts))]
    return out, there


def row_key(trace, prompt, resolved, key):
    algorithm, params, *rest = key
    params = resolved.get(f"{algorithm}:{params}", params)
    return key_of(trace, prompt, argparse.Namespace(key=(algorithm, params, *rest)))


def layers_path(scores):
    return scores.removesuffix(".csv") + ".layers.csv"


def count_layers(args):
    """Returns {key of a group: its rows in an existing table of --each-layer}."""
    path = layers_path(args.scores)
    if not (args.each_layer and args.resume and os.path.exists(path)):
        return {}
    with Table(path, resume=True, by_layer=True) as table:
        return collections.Counter(key[:-1] for key in table.done)


def settings_of(args, name):
    """Returns the settings that all rows of the tables must share."""
    return {"model": name, "compute_dtype": args.compute_dtype, "answer_tokens": args.answer_tokens,
            "program": call(args.program, "--version").strip(), **protocol_of(args)}


def main():
    args = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # removes the caches
    try:
        args.program = args.program or program()
    except ProgramError as error:
        raise TraceError(str(error)) from None
    args.work = work_folder(args.work)
    remove_orphans(args.work)
    prepare(args)
    torch.set_num_threads(args.model_threads)
    prompts, answers = find_prompts(args), read_answers(args)
    tables = Tables(args.output, args.resume, args.overwrite)
    name = model_name(args, argparse.Namespace())
    manifest = Manifest(argparse.Namespace(output=args.scores, trace=args.trace, caches=(),
                                           resume=args.resume), settings_of(args, name), versions(args))
    begin = time.monotonic()
    # A group's row is written after those of its layers, and is kept only with them.
    layers = count_layers(args)

    def whole(key, row):
        return key in tables.held and (not args.each_layer or layers.get(key, 0) == int(row["layers"]))

    with Table(args.scores, args.resume, args.overwrite, whole) as table, contextlib.ExitStack() as stack, \
            tables, torch.inference_mode():
        by_layer = stack.enter_context(Table(
            layers_path(args.scores), args.resume, args.overwrite, lambda key, _: key[:-1] in table.done,
            by_layer=True)) if args.each_layer else None
        tables.begin(table.done)
        resolved = manifest.content["resolved"] = dict(manifest.earlier.get("resolved", {}))
        plan, there = make_plan(args, table, prompts, resolved)
        manifest.write()
        progress = Progress(sum(len(part.keys) for *_, part in plan))
        note(f"{progress.total} groups to run in {len(plan)} parts, {there} done")
        judge = Judge(args, tables, table, by_layer, manifest, answers)
        try:
            if plan:
                judge.run(plan, progress)
        except torch.OutOfMemoryError:
            raise MemoryError from None
        except RuntimeError as error:
            raise OSError(f"{args.model}: {str(error).splitlines()[0]}") from None
        progress.write(f"{progress.done} groups in {time.monotonic() - begin:.0f} s: {judge.scored:.0f} s "
                     f"with the model, {judge.waited:.0f} s waiting for the replay")
    manifest.write(rows=progress.done, failed=table.failed)
    if table.failed:
        note(f"kvbench-py judge: {table.failed} rows failed: {args.scores}")
        return 1
