"""kvbench.compress, kvbench.load_cache and kvbench.judge. Importing this needs no torch."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvbench.api.method import evaluate
from kvbench.api.run import path_list, run
from kvbench.errors import TraceError
from kvbench.generate.chosen import QUERIES, choose

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd

    from kvbench.generate.cache import CompressedCache


def _of_torch() -> Any:
    try:
        from kvbench.generate import cache
    except ImportError as error:
        raise TraceError(f"{sys.executable} cannot import {error.name}, expected torch and transformers: pip install "
                         "'kvbench[dump]'") from None
    return cache


def load_cache(model: Any, trace: str | os.PathLike[str],
               caches: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, prompt: str | None = None,
               algorithm: str | None = None, budget: float | None = None, seed: int | None = None
               ) -> CompressedCache:
    """Returns a prompt's cache of a caches file, to generate with.

        cache = kvbench.load_cache(model, "t.h5", "c.h5", algorithm="adakv", budget=0.125)
        model.generate(cache.input_ids, past_key_values=cache, max_new_tokens=64)

    model     a causal model of transformers: the one that the trace was dumped from
    trace     with token ids; caches: made from it, one file or the parts of one run (--export-caches, writer)
    prompt, algorithm, budget, seed   choose one prompt and one group; None: the only one

    The cache holds all tokens of the prompt but the last `queries` of the caches file, which `generate` decodes. Layers
    without caches stay exact. Raises TraceError as kvbench-py score does.
    """
    return _of_torch().read_cache(model, os.fspath(trace), path_list(caches), prompt, algorithm, budget, seed)


def compress(model: Any, prompt: Any, algorithm: str | dict[str, dict[str, Any]] | None = None,
             budget: float | None = None, *, policy: str | os.PathLike[str] | None = None, sink: int = 16,
             recent: int = 64, seed: int = 0, scores: str = "past", **params: Any) -> CompressedCache:
    """Returns the compressed cache of a prompt, to generate with.

        cache = kvbench.compress(model, prompt, "h2o@quant-kivi", 0.125)
        model.generate(cache.input_ids, past_key_values=cache, max_new_tokens=64)

    model      a causal model of transformers
    prompt     token ids [n] or [1, n], or a text: the cache holds all but the last token, which `generate` decodes
    algorithm  one method, as of `--algorithm` without lists, or {"snapkv": {"window": 32}}; or policy, a file
               (docs/policies.md)
    budget     fraction of the middle's bytes; None: the parameters or the policy set the size
    sink, recent   first and last tokens of the cache that stay exact
    seed       of random methods
    scores     queries that methods use: "past", of the tokens that the cache holds, or "all"
    params     parameters of the method: window=32, **{"h2o.reduce": "max"}

    The model reads the prompt three times (queries, keys and values; its exact cache; checks). A temporary trace has as
    many bytes as its queries, keys and values; TMPDIR is its place. The cache is held in float32, codes as the values
    that they stand for: it shows what a method does to the text, not its memory or speed.

    Raises PressError and ProgramError for the method, TraceError for the model and the prompt.
    """
    chosen = choose(algorithm, policy, params, sink=sink, recent=recent, seed=seed, budget=budget, later=QUERIES)
    if not chosen.sized and budget is None:
        raise TraceError(f"{chosen.name}: got no budget, expected a fraction of the middle's bytes")
    return _of_torch().read_and_compress(model, prompt, chosen, budget, scores)


def judge(model: Any, prompt: Any, methods: Sequence[str | dict[str, dict[str, Any]] | Callable[..., Any]],
          budget: float | Sequence[float] = (0.5, 0.25, 0.125), *, sink: int = 16, recent: int = 512,
          queries: int = 256, seeds: int = 1, scores: str = "past") -> pd.DataFrame:
    """Returns the rows of kvbench-py score (docs/score.md): what a model loses over the caches of methods.

        rows = kvbench.judge(model, text, ["snapkv,h2o", {"adakv": {"window": 64}}, my_function], budget=0.125)
        print(rows.pivot_table("kl", "algorithm", "budget_requested"))

    model    a causal model of transformers
    prompt   a text, or token ids [n] or [1, n]: its last `queries` tokens are decoded over the caches
    methods  algorithms of `kvbench replay`, and functions as of kvbench.evaluate
    budget, sink, recent, queries, seeds, scores   as in kvbench.evaluate

    Raises ProgramError for an unknown method, MethodError for a function that fails, TraceError for the model.
    """
    options: dict[str, Any] = {"sink": sink, "recent": recent, "queries": queries, "seeds": seeds, "scores": scores}
    models, caches = _of_torch(), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "prompt.h5")
        models.write_prompt(model, models.ids_of(model, prompt), trace)
        for method in methods:
            caches.append(os.path.join(folder, f"{len(caches)}.h5"))
            if callable(method):
                evaluate(trace, method, budget, caches=caches[-1], errors="raise", progress=False, **options)
            else:
                run("replay", trace, output=caches[-1] + ".csv", algorithm=method, budget=budget,
                    export_caches=caches[-1], **options)
        return models.judged(model, trace, caches)
