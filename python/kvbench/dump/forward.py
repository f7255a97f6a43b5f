"""Runs of the base model, and checks on a short prefix: that the capture leaves the model as it
is, and that the model runs in parts.
"""

import contextlib
import inspect

import torch
from transformers import DynamicCache

from kvbench.dump.check import CHECK_LIMIT
from kvbench.errors import TraceError

PREFIX = 64  # tokens of the short runs


@contextlib.contextmanager
def torch_errors(args):
    """Turns errors of devices and missing kernels into OSError and MemoryError."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise MemoryError from None
    except RuntimeError as error:
        raise OSError(f"{args.model}: {str(error).splitlines()[0]}") from None


def cache_argument(model):
    """Returns the name of the cache among the model's arguments; transformers renames it."""
    names = inspect.signature(model.forward).parameters
    return "cache" if "cache" in names and "past_key_values" not in names else "past_key_values"


def forward(model, ids, cache=None):
    """Returns the last hidden states [tokens, hidden]: logits of a long prompt would outweigh its cache."""
    base = model.base_model
    tokens = torch.as_tensor(ids, device=model.device)[None]
    given = {} if cache is None else {cache_argument(base): cache}
    with torch.inference_mode():
        return base(input_ids=tokens, use_cache=cache is not None, **given)[0][0]


def deviation(got, expected):
    """Returns the relative deviation (Frobenius norm)."""
    got, expected = got.double(), expected.double()
    return float((got - expected).norm() / expected.norm())


def limit(model):
    return CHECK_LIMIT[str(model.dtype).removeprefix("torch.")]


def refusal(where, model, what, error):
    first = str(error).strip().split("\n")[0]
    return TraceError(f"{where}: {type(model).__name__} {what} ({type(error).__name__}: {first}): unsupported")


def check_own_attention(model, ids, name, where):
    """Raises TraceError unless hidden states are those of the model's own attention: some models ask for the name."""
    ids = ids[:PREFIX]
    try:
        captured = forward(model, ids)
    except (MemoryError, RuntimeError, TraceError):
        raise
    except Exception as error:  # a model's code may raise anything
        raise refusal(where, model, "does not run", error) from None
    found = {}
    for own in ("sdpa", "eager") if model._supports_sdpa else ("eager",):
        try:
            model.set_attn_implementation(own)
            found[own] = deviation(captured, forward(model, ids))
        except (MemoryError, RuntimeError, TraceError):
            raise
        except Exception as error:  # SDPA lacks a feature
            found[own] = refusal(where, model, f"does not run with its own `{own}`", error)
            continue
        finally:
            model.set_attn_implementation(name)
        if found[own] <= limit(model):
            return
    text = " and ".join(f"its own `{own}` by {off:.2g}" for own, off in found.items()
                        if not isinstance(off, TraceError))
    if not text:
        raise found[own]
    raise TraceError(f"{where}: {type(model).__name__} depends on the name of its attention function: its "
                     f"hidden states deviate from those of {text}, limit {limit(model):g}: unsupported")


def needs_cache(model, ids):
    """Returns whether a cache changes hidden states: layers of Gemma 3n in older releases share caches only then."""
    ids = ids[:PREFIX]
    try:
        kept = forward(model, ids, DynamicCache(config=model.config))
    except (MemoryError, torch.OutOfMemoryError, TraceError):
        raise
    except Exception:  # models that do not take transformers' cache
        return False
    return not deviation(kept, forward(model, ids)) <= limit(model)


def check_parts(model, ids, step, where, cache, whole=None, again=False):
    """Raises TraceError unless the model gives the hidden states of a whole run when it runs in
    parts of `step` tokens.

    cache   an empty one; whole: another for the whole run, or None
    again   remove the last part from the cache and run it once more
    """
    ids = ids[:PREFIX]
    step = min(step, -(-len(ids) // 3))
    starts = range(0, len(ids), step)
    whole = forward(model, ids, whole)
    try:
        parts = [forward(model, ids[start:start + step], cache) for start in starts]
        if again:
            cache.crop(starts[-1] - len(ids))
            parts[-1] = forward(model, ids[starts[-1]:], cache)
    except (MemoryError, torch.OutOfMemoryError, TraceError):
        raise
    except Exception as error:  # a model's code may raise anything
        raise refusal(where, model, "does not run in parts", error) from None
    off = deviation(torch.cat(parts), whole)
    if not off <= limit(model):
        raise TraceError(f"{where}: {type(model).__name__} in parts deviates from a whole run by {off:.2g}, "
                         f"limit {limit(model):g} (recurrent layers?): unsupported")
