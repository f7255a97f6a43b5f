"""Main function of kvbench-py score. The command line is in options.py.

The model reads each prompt once, except its last tokens. These are decoded over each compressed cache, which measures
the loss of likelihood, the change of predictions, and whether the model still answers the prompt's question. Without
--caches methods are replayed a few at a time: while kvbench makes the caches of the next few, the model decodes over
the previous ones, which are then deleted. See docs/score.md.
"""

import argparse
import collections
import contextlib
import os
import signal
import sys
import time

import torch
import transformers
from transformers import AutoTokenizer

from kvbench.api.run import ProgramError, program
from kvbench.caches.reader import CacheReader
from kvbench.dump.capture import register
from kvbench.dump.forward import torch_errors
from kvbench.dump.main import load_model, model_name
from kvbench.dump.prompts import check_tokenizer, load, silence
from kvbench.progress import Progress, note
from kvbench.score.attention import CompressedAttention
from kvbench.score.options import parse_arguments
from kvbench.score.plan import ReplayError, call, make_plan, protocol_of, resolve
from kvbench.score.prompts import Prompt, check_prompts, find_prompts, read_plan
from kvbench.score.questions import read_answers, with_tokens
from kvbench.score.replay import Replay, Tables, remove_orphans, work_folder
from kvbench.score.scorer import Scorer
from kvbench.score.table import Manifest, Table, key_of
from kvbench.text import counted
from kvbench.trace.heads import open_trace
from kvbench.trace.writer import TraceError


class Scoring:
    """The loaded model, which scores groups of prompts. names: of the prompts."""

    def __init__(self, args, names):
        self.args, self.at = args, None
        answers = {name: one for name, one in read_answers(args).items() if name in names}
        self.model, dtype, _ = load_model(args)
        self.tokenizer, self.answers = None, {}
        if answers:
            check_tokenizer(args)
            self.tokenizer = load(AutoTokenizer.from_pretrained, "tokenizer", args)
            self.answers = with_tokens(answers, self.tokenizer)
        self.attention = CompressedAttention(args, self.model, dtype)
        register(self.attention)

    def begin(self, prompt, reader, progress):
        """Reads a prompt, unless it is the current one."""
        if self.at == (prompt.trace, prompt.name):
            return
        progress.step(0, f"{prompt.name}: the model reads it")
        begin = time.monotonic()
        self.scorer = Scorer(self.args, self.model, self.attention, self.tokenizer, reader)
        deviation, kl = self.scorer.read_prompt(prompt, self.answers.get(prompt.name))
        self.at = prompt.trace, prompt.name
        said = f", KL over a whole cache {kl:.1e}" if self.args.self_check else ""
        note(f"{prompt.name}: read in {time.monotonic() - begin:.0f} s; {len(prompt.layers)} of "
             f"{len(self.attention.seen)} layers replaced; keys within {deviation:.1e} of the trace's{said}")

    def score(self, prompt, reader, tables, progress):
        """Writes the missing rows of a prompt."""
        base = os.path.basename(prompt.trace)
        groups = [one for one in prompt.groups if key_of(base, prompt.name, one) not in tables.scores.done]
        if groups:
            self.begin(prompt, reader, progress)
            for group, row in self.scorer.rows(prompt, groups):
                of_layers = self.of_layers(prompt, group, progress) if self.args.each_layer else ()
                tables.write(key_of(base, prompt.name, group), row, of_layers)
                one = 1 / (1 + len(prompt.layers)) if self.args.each_layer else 1
                progress.step(one, f"{round(progress.done + one)}/{progress.total} rows  {prompt.name} {group}")

    def of_layers(self, prompt, group, progress):
        """Yields the rows of single layers."""
        at, one = round(progress.done) + 1, 1 / (1 + len(prompt.layers))
        for row in self.scorer.rows_of_layers(prompt, group):
            progress.step(one, f"{at}/{progress.total} rows  {prompt.name} {group}, layer {row['layer']} alone")
            yield row


class Output(contextlib.ExitStack):
    """SCORES.csv, SCORES.layers.csv with --each-layer, and the Tables of a replay or None."""

    def __init__(self, args, replayed=None):
        super().__init__()
        self.replayed, self.by_layer = replayed, None
        path = args.output.removesuffix(".csv") + ".layers.csv"
        layers = collections.Counter()
        if args.each_layer and args.resume and os.path.exists(path):
            with Table(path, resume=True, by_layer=True) as table:
                layers = collections.Counter(key[:-1] for key in table.done)

        def whole(key, row):  # its row is written last, and kept only with all others
            return ((replayed is None or key in replayed.held)
                    and (not args.each_layer or layers[key] == int(row["layers"])))

        try:
            self.scores = self.enter_context(Table(args.output, args.resume, args.overwrite, whole))
            if args.each_layer:
                self.by_layer = self.enter_context(Table(path, args.resume, args.overwrite, by_layer=True,
                                                         wanted=lambda key, _: key[:-1] in self.scores.done))
            if replayed is not None:
                self.enter_context(replayed)
                replayed.begin(self.scores.done)
        except BaseException:
            self.close()
            raise

    def write(self, key, row, of_layers):
        for one in of_layers:
            self.by_layer.write(one)
        if self.replayed is not None:
            self.replayed.write(key)
            row = row | {"ratio": self.replayed.ratio(key)}
        self.scores.write(row)


def check_protocol(reader, what):
    if reader.protocol != "prefill":
        raise TraceError(f"{what}: protocol: got {reader.protocol}, expected prefill: the model decodes over "
                         "caches of a prompt's end")


def settings_of(args, name, **more):
    """Returns the settings that all rows of a table must share, and what may differ between runs."""
    return ({"model": name, "compute_dtype": args.compute_dtype, "answer_tokens": args.answer_tokens, **more},
            {"torch": torch.__version__, "transformers": transformers.__version__, "device": args.device,
             "threads": torch.get_num_threads()})


def of_caches(args):
    """Scores the caches of --caches. Returns the number of failed rows."""
    with CacheReader(args.caches) as reader:
        check_protocol(reader, ", ".join(args.caches))
        prompts = read_plan(args, reader)
        scoring = Scoring(args, {prompt.name for prompt in prompts})
        check_prompts(args, scoring.model, prompts, reader.queries)
        manifest = Manifest(args, *settings_of(args, model_name(args, scoring.model.config), sink=reader.sink,
                                               recent=reader.recent, queries=reader.queries,
                                               layers=args.layers and args.layers.text))
        with Output(args) as tables:
            manifest.write()
            done = tables.scores.done
            progress = tables.enter_context(Progress(sum(
                key_of(os.path.basename(prompt.trace), prompt.name, group) not in done
                for prompt in prompts for group in prompt.groups)))
            for prompt in prompts:
                scoring.score(prompt, reader, tables, progress)
    manifest.write(rows=round(progress.done), failed=tables.scores.failed)
    return tables.scores.failed


def of_replay(args):
    """Replays methods and scores their caches. Returns the number of failed rows."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # removes the caches
    try:
        args.program = args.program or program()
    except ProgramError as error:
        raise TraceError(str(error)) from None
    args.work = work_folder(args.work)
    remove_orphans(args.work)
    torch.set_num_threads(args.model_threads)
    prompts, begin = find_prompts(args), time.monotonic()
    read_answers(args)  # its errors come first
    replayed = Tables(args.rows, args.resume, args.overwrite)
    manifest = Manifest(args, *settings_of(args, model_name(args, argparse.Namespace()), **protocol_of(args),
                                           program=call(args.program, "--version").strip()))
    with Output(args, replayed) as tables:
        resolved = manifest.content["resolved"] = dict(manifest.earlier.get("resolved", {}))
        plan, there = make_plan(args, tables.scores.done, prompts, resolved)
        manifest.write()
        progress = tables.enter_context(Progress(sum(len(part.keys) for *_, part in plan)))
        note(f"{counted(progress.total, 'group')} to run in {counted(len(plan), 'part')}, {there} done")
        waited = score_parts(args, plan, manifest, tables, progress) if plan else 0.0
        progress.write(f"{counted(round(progress.done), 'group')} in {time.monotonic() - begin:.0f} s, of these "
                       f"{waited:.0f} s waiting for the replay")
    manifest.write(rows=round(progress.done), failed=tables.scores.failed)
    return tables.scores.failed


def score_parts(args, plan, manifest, tables, progress):
    """Replays and scores [(trace, prompt, Part)]. Returns the seconds that the model waited."""
    waited, replays = 0.0, [Replay(args, *plan[0])]
    try:
        scoring = Scoring(args, {name for _, name, _ in plan})
        for at, (trace, name, part) in enumerate(plan):
            begin = time.monotonic()
            progress.step(0, f"{name}: waits for the replay")
            replays[0].wait()
            waited += time.monotonic() - begin
            if at + 1 < len(plan):
                replays.append(Replay(args, *plan[at + 1]))
            tables.replayed.load(replays[0].rows)
            with CacheReader([replays[0].caches]) as reader, open_trace(trace) as file:
                check_protocol(reader, "--config")
                note_resolved(manifest, part, {group.key for group in reader.groups})
                scoring.score(Prompt(trace, name, file["prompts"][name], reader.groups), reader, tables, progress)
            replays.pop(0).close()
    finally:
        for one in replays:
            one.close()
    return waited


def note_resolved(manifest, part, made):
    """Stores resolved parameters in the manifest, for --resume."""
    found = resolve(part.keys, made)
    absent = [key for key in part.keys if key not in made and key[:2] not in found]
    if absent:
        raise ReplayError(f"kvbench replay: {absent[0]}: got no cache of it, expected one")
    known = manifest.content["resolved"]
    new = {":".join(key): params for key, params in found.items()}
    if new.items() - known.items():
        known.update(new)
        manifest.write()


def main():
    args = parse_arguments()
    args.dtype, args.name = args.compute_dtype, None  # read by load_model and model_name
    silence()
    register()
    with torch_errors(args), torch.inference_mode():
        failed = of_caches(args) if args.caches else of_replay(args)
    if failed:
        note(f"kvbench-py score: {counted(failed, 'row')} failed: {args.output}")
        return 1
