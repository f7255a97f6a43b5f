"""A transformers cache that holds compressed caches, for kvbench.compress and kvbench.load_cache.

Prompts are read, checked and decoded by what kvbench-py score uses (kvbench.score): the attention over caches is one.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import AutoTokenizer, DynamicCache
from transformers.cache_utils import Cache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from kvbench.caches.reader import CacheGroup, CacheReader
from kvbench.dump.capture import ATTENTION, DTYPES, register
from kvbench.dump.main import dump
from kvbench.dump.options import parse_arguments
from kvbench.errors import TraceError
from kvbench.generate.chosen import Chosen
from kvbench.score.attention import CompressedAttention, OverCaches
from kvbench.score.main import check_protocol
from kvbench.score.prompts import Failed, Prompt, read_plan
from kvbench.score.scorer import Scorer
from kvbench.score.states import NewTokens, new_tokens
from kvbench.score.table import COLUMNS

PREFIX = "kvbench_over_"  # attention functions that see compressed caches, before the name of the model's own
NOT_PLAIN = ("softcap", "position_bias", "s_aux")  # arguments of attention that the caches' would ignore


class CompressedLayer(NewTokens):
    """A layer of new tokens whose attention also sees the compressed prompt.

    over   the caches, with `pending`: whether a layer has stored keys and not yet attended to them
    layer  its index
    """

    over: Any
    layer: int
    prefix: int
    keys: Any
    values: Any
    is_initialized: bool
    is_sliding: bool
    cumulative_length: int

    def update(self, keys: Any, values: Any, *_: Any, **__: Any) -> Any:
        if self.over.pending:
            raise TraceError(f"layer {self.layer}: its attention does not see the compressed cache: a cache belongs to "
                             "the model that it was made with")
        if len(keys) != 1:
            raise TraceError(f"got a batch of {len(keys)}, expected one sequence over a compressed cache")
        self.over.pending = True
        out = super().update(keys, values)
        out[0].kvbench_layer = self
        return out

    def attend(self, query: Any, key: Any, value: Any, mask: Any, scale: float, options: dict[str, Any]) -> Any:
        """Returns attention over the prompt's caches and the new tokens, [1, rows, Hq, dv]."""
        self.over.pending = False
        given = [name for name in NOT_PLAIN if options.get(name) is not None]
        if given:
            raise TraceError(f"layer {self.layer}: attention with `{given[0]}`: unsupported over compressed caches")
        if mask is not None and self.layer not in self.over.windows:
            last = mask[..., -1, :]
            if not bool((last if last.dtype == torch.bool else last == 0).all()):
                raise TraceError(f"layer {self.layer}: a mask hides tokens: unsupported over compressed caches")
        with torch.no_grad():
            return self.over.over_caches(self.layer, query, key, value, scale)

    def crop(self, max_length: int) -> None:
        """Forgets tokens after the first `max_length`, or the last -max_length; not those of the prompt."""
        left = max_length - self.prefix if max_length >= 0 else self.get_seq_length() + max_length - self.prefix
        if left < 0:
            raise ValueError(f"got {max_length}, expected to keep the {self.prefix} tokens that are compressed")
        if self.is_initialized:
            gone = max(0, self.keys.shape[-2] - left)
            self.keys, self.values = self.keys[..., :left, :], self.values[..., :left, :]
            if self.is_sliding:
                self.cumulative_length -= gone


def compressed_layer(layer: Any, prefix: int, at: int, over: Any) -> Any:
    """Returns a CompressedLayer in place of a layer of a cache. prefix: its length before new tokens."""
    out = new_tokens(layer, prefix, CompressedLayer)
    out.over, out.layer = over, at
    over.pending = False
    return out


class CompressedCache(DynamicCache):
    """What a transformers model has read of a prompt, compressed: an argument `past_key_values`.

    input_ids  [1, n], the prompt; all but its last tokens are read
    group      the method
    status     "ok", or why an entry is degenerate
    """

    def __init__(self, layers: list[Any], input_ids: Any, group: CacheGroup, status: str):
        Cache.__init__(self, layers=layers)
        self.input_ids, self.status = input_ids, status
        self.group = str(group)

    def __repr__(self) -> str:
        return f"CompressedCache({self.group}, {self.get_seq_length()} tokens)"


def attention(own: str, module: Any, query: Any, key: Any, value: Any, attention_mask: Any,
              scaling: float | None = None, dropout: float = 0.0, **options: Any) -> Any:
    """Attention function of a model with `own`, which it is unless the keys are of a CompressedLayer."""
    layer = getattr(key, "kvbench_layer", None)
    if layer is not None:
        scale = query.shape[-1]**-0.5 if scaling is None else float(scaling)
        return layer.attend(query, key, value, attention_mask, scale, options), None
    function = (ALL_ATTENTION_FUNCTIONS[own] if own in ALL_ATTENTION_FUNCTIONS
                else sys.modules[type(module).__module__].eager_attention_forward)
    return function(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **options)


def attach(model: Any) -> None:
    """Lets a model's attention see compressed caches. Without one it stays as it is."""
    own = model.config._attn_implementation
    if not own.startswith(PREFIX):
        ALL_MASK_ATTENTION_FUNCTIONS.register(PREFIX + own, ALL_MASK_ATTENTION_FUNCTIONS[own])
        ALL_ATTENTION_FUNCTIONS.register(PREFIX + own, functools.partial(attention, own))
        model.set_attn_implementation(PREFIX + own)


@contextlib.contextmanager
def capturing(model: Any) -> Iterator[None]:
    """Runs the model with the attention function ATTENTION, without gradients, and attaches it afterwards."""
    attach(model)
    own, training = model.config._attn_implementation, model.training
    register()
    model.set_attn_implementation(ATTENTION)
    try:
        with torch.no_grad():
            yield model.eval()
    finally:
        model.set_attn_implementation(own)
        model.train(training)
        register()  # forgets the prompt


def dtype_of(model: Any) -> str:
    name = str(model.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise TraceError(f"got a model of {name}, expected {', '.join(DTYPES)}")
    return name


def read_cache(model: Any, trace: str, paths: list[str], prompt: str | None, algorithm: str | None,
               budget: float | None, seed: int | None) -> CompressedCache:
    """See kvbench.load_cache."""
    with reading(model, trace, paths, prompt, algorithm) as (scorer, prompts):
        if len(prompts) > 1:
            raise TraceError(f"prompt: got {', '.join(one.name for one in prompts)}, expected one of them")
        own, = prompts
        groups = [one for one in own.groups if own.name in one.prompts()
                  and budget in (None, one.budget) and seed in (None, one.seed)]
        if len(groups) != 1:
            there = "; ".join(map(str, groups or own.groups))
            raise TraceError(f"{', '.join(paths)}: got {len(groups)} groups, expected one: algorithm, budget and seed "
                             f"choose of {there}")
        return filled(scorer, own, groups[0])


@contextlib.contextmanager
def reading(model: Any, trace: str, paths: list[str], prompt: str | None = None, algorithm: str | None = None
            ) -> Iterator[tuple[Scorer, list[Prompt]]]:
    """Gives a Scorer of a model, and the prompts of a trace that caches files hold."""
    args = argparse.Namespace(
        model=model.name_or_path or type(model).__name__, trace=[trace], layers=None,
        prompts=None if prompt is None else [prompt], algorithm=[] if algorithm is None else [algorithm],
        compute_dtype=dtype_of(model), chunk=None, self_check=False, answer_tokens=0, batch=4)
    with CacheReader(paths) as reader, capturing(model):
        check_protocol(reader, ", ".join(paths))
        prompts = read_plan(args, reader)
        register(seen := CompressedAttention(args, model, args.compute_dtype))
        yield Scorer(args, model, seen, None, reader, endless=True), prompts


def filled(scorer: Scorer, prompt: Prompt, group: CacheGroup) -> CompressedCache:
    """Returns the cache of a group."""
    scorer.read_prompt(prompt)
    try:
        entries, degenerate = prompt.entries(group, scorer.attention)
    except Failed as failed:
        raise TraceError(f"{group}: {failed}") from None
    scorer.place([entries])
    over = OverCaches(scorer.n, scorer.prefix, scorer.sink, scorer.recent)
    over.caches, over.windows = scorer.attention.caches, scorer.attention.windows
    layers = scorer.layers(lambda layer, prefix, at: compressed_layer(layer, prefix, at, over))
    return CompressedCache(layers, scorer.ids, group, degenerate or "ok")


def ids_of(model: Any, prompt: Any) -> np.ndarray:
    """Returns token ids [n] of a text, or of token ids [n] or [1, n]."""
    if isinstance(prompt, str):
        prompt = AutoTokenizer.from_pretrained(model.name_or_path)(prompt)["input_ids"]
    ids = np.asarray(torch.as_tensor(prompt).cpu(), np.int64)
    if ids.ndim == 2 and len(ids) == 1:
        ids = ids[0]
    if ids.ndim != 1:
        raise TraceError(f"prompt: got shape {list(ids.shape)}, expected [n] or [1, n]: one prompt")
    return ids


def read_and_compress(model: Any, prompt: Any, chosen: Chosen, budget: float | None, scores: str) -> CompressedCache:
    """See kvbench.compress."""
    ids = ids_of(model, prompt)
    windows = chosen.options["sink"] + chosen.options["recent"]
    if len(ids) <= windows:
        raise TraceError(f"prompt: got {len(ids)} tokens, expected more than {windows}: sink, recent and the token "
                         "that is decoded")
    with tempfile.TemporaryDirectory() as folder:
        trace, caches = (os.path.join(folder, name) for name in ("t.h5", "c.h5"))
        write_prompt(model, ids, trace)
        chosen.replay(trace, caches, budget, scores)
        return read_cache(model, trace, [caches], None, None, None, None)


def judged(model: Any, trace: str, caches: list[str]) -> pd.DataFrame:
    """See kvbench.judge."""
    with reading(model, trace, caches) as (scorer, (prompt,)):
        scorer.read_prompt(prompt)
        rows = [row for _, row in scorer.rows(prompt, prompt.groups)]
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.drop(columns=[name for name in COLUMNS if name.startswith(("answer", "choice", "wrong"))])


def write_prompt(model: Any, ids: np.ndarray, path: str) -> None:
    """Dumps a prompt as kvbench-py dump does, with output projections where the model has such."""
    dtype = dtype_of(model)
    variants: list[list[str]] = [["--o-proj"], []]
    for more in variants:
        args = parse_arguments(["--model", model.name_or_path or type(model).__name__, "-o", path, "--token-ids",
                                "input_ids", "--gzip", "0", "--dtype", dtype, *more])
        args.device = str(model.device)
        try:
            # The notes of the program.
            with capturing(model), contextlib.redirect_stderr(io.StringIO()):
                dump(args, model, dtype, "the model", [("p0", "input_ids", ids)])
            return
        except TraceError:
            if not more:
                raise
