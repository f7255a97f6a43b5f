"""Main function of kvbench-py press. The command line is in options.py.

The model reads each prompt up to the evaluated queries with a press of kvpress. What the press kept
of the middle, per layer and KV head, becomes an entry of a caches file. See docs/python.md.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import logging
import os
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import kvpress
import torch
import transformers

from kvbench.caches.writer import CacheWriter
from kvbench.dump.capture import DTYPES
from kvbench.dump.forward import torch_errors
from kvbench.dump.prompts import load_weights, silence
from kvbench.errors import TraceError
from kvbench.press import classes
from kvbench.press.expression import Expression, PressError, build, parse
from kvbench.press.groups import PressGroup
from kvbench.press.options import parse_arguments
from kvbench.press.run import Layer, run_press
from kvbench.press.windows import Windows, keep_windows
from kvbench.progress import note, progress_bar
from kvbench.score.prompts import TracePrompt, find_prompts
from kvbench.trace.heads import open_trace


def press_classes() -> dict[str, type]:
    """Returns {name: class} of the installed kvpress."""
    return {name: one for name, one in vars(kvpress).items()
            if inspect.isclass(one) and issubclass(one, kvpress.BasePress)}


class Prompt(TracePrompt):
    """One prompt of a trace."""

    def windows(self, args: argparse.Namespace) -> Windows:
        """Returns the tokens given to the press, and their windows."""
        out = Windows(len(self.ids) - args.queries, args.sink, args.recent - args.queries)
        if out.middle < 1:
            raise TraceError(f"{self.where}: got {len(self.ids)} tokens, expected more than --sink {args.sink} and "
                             f"--recent {args.recent}: there is no middle")
        return out


def read_prompts(args: argparse.Namespace) -> list[Prompt]:
    """Returns the prompts of the traces, filtered by --prompts."""
    out = []
    for path, name in find_prompts(args):
        with open_trace(path) as file:
            out.append(Prompt(path, name, file["prompts"][name]))
    return out


def check_prompts(args: argparse.Namespace, model: Any, prompts: list[Prompt]) -> None:
    for prompt in prompts:
        prompt.windows(args)
        prompt.check_tokens(args, model)


def check_model(args: argparse.Namespace, prompt: Prompt, layers: dict[int, Layer]) -> None:
    """Raises TraceError unless the model's keys are the trace's."""
    for layer in prompt.heads:
        if layer not in layers:
            raise TraceError(f"{prompt.where}/layers/{layer}: the model {args.model} has no such layer")
    for layer in {min(prompt.heads), max(prompt.heads)}:
        keys = layers[layer].keys
        prompt.check_keys(args, layer, keys, slice(keys.shape[1]))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences libraries, and restores the log level."""
    before = logging.root.manager.disable
    silence()
    try:
        yield
    finally:
        logging.disable(before)


def write_press(args: argparse.Namespace, expression: Expression, group: PressGroup | None,
                prompt: Prompt, model: Any, writer: CacheWriter, press_types: dict[str, type]) -> PressGroup:
    """Runs one press on one prompt and returns its group, created for the first prompt."""
    windows = prompt.windows(args)
    press = build(expression, press_types)
    budget = keep_windows(press, windows) if args.windows == "kept" else None
    torch.manual_seed(args.seed)
    layers = run_press(model, press, expression, prompt.ids[:windows.tokens], prompt.heads)
    check_model(args, prompt, layers)
    if group is None:
        group = PressGroup(writer, expression, "as-is" if budget is None else "kept", budget, args.seed,
                           {"kvpress": version("kvpress"), "torch": str(torch.__version__),
                            "transformers": transformers.__version__})
    group.put(prompt.trace, prompt.name, layers, prompt.heads, windows)
    return group


def check_presses(args: argparse.Namespace, press_types: dict[str, type]) -> list[Expression]:
    """Returns the presses of the command line. Rejects those that are never run, before the model is loaded."""
    out = [parse(text, press_types) for text in args.press]
    for expression in out:
        classes.check(expression)
        build(expression, press_types)
    twice = [str(one) for one in out if out.count(one) > 1]
    if twice:
        raise PressError(f"--press: {twice[0]}: duplicate press")
    return out


def main(arguments: Sequence[str] | None = None) -> None:
    args = parse_arguments(arguments)
    if os.path.lexists(args.output) and not args.overwrite:
        raise TraceError(f"{args.output}: exists, expected a new file or --overwrite")
    with quiet():
        press_types = press_classes()
        presses = check_presses(args, press_types)
        prompts = read_prompts(args)
        with CacheWriter(args.output, args.trace, args.sink, args.recent, args.queries) as writer:
            model = load_weights(args, DTYPES[args.compute_dtype], "sdpa")  # an attention that kvpress patches
            check_prompts(args, model, prompts)
            with torch_errors(args):
                write_presses(args, presses, prompts, model, writer, press_types)


def write_presses(args: argparse.Namespace, presses: list[Expression], prompts: list[Prompt],
                  model: Any, writer: CacheWriter, press_types: dict[str, type]) -> None:
    """Runs all presses on all prompts, a group per press."""
    steps = [(expression, prompt) for expression in presses for prompt in prompts]
    group: PressGroup | None = None
    with progress_bar(len(steps), "press") as bar:
        begin = time.monotonic()
        for at, (expression, prompt) in enumerate(steps, 1):
            group = write_press(args, expression, group, prompt, model, writer, press_types)
            bar.update()
            if at % len(prompts) == 0:
                note(f"{expression}: {len(prompts)} prompts in {time.monotonic() - begin:.0f} s; {group.finish()}")
                group, begin = None, time.monotonic()
