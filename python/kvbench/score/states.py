"""The model's own cache, for kvbench-py score: copies of its layers, and layers that hold new tokens only."""

import copy
import functools

from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


def keys_only(layer):
    """Returns whether a layer of a cache has keys and values, and no other state."""
    return type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)


def copy_layer(layer):
    """Returns a copy of a layer of a cache, to decode with. Recurrent states change in place and are copied; keys and
    values grow by concatenation and are shared.
    """
    shared = (getattr(layer, "keys", None), getattr(layer, "values", None))
    return copy.deepcopy(layer, {id(one): one for one in shared})


class NewTokens:
    """Layer of the cache with keys and values only after the prefix, but the length of all: over_caches has the
    prefix, which would take a tenth of the time to copy.
    """

    def update(self, keys, values, *_, **__):
        if self.is_sliding:
            self.cumulative_length += keys.shape[-2]
        return DynamicLayer.update(self, keys, values)

    def get_seq_length(self, *_):
        return self.cumulative_length if self.is_sliding else self.prefix + DynamicLayer.get_seq_length(self)


@functools.cache
def with_new_tokens(kind, base):
    # Without the type's name, since transformers registers classes by it.
    return type(base.__name__, (base, kind), {"_layer_type": None})


def new_tokens(layer, prefix, base=NewTokens):
    """Returns a copy of a layer of the cache as `base`. prefix: the tokens that it has read."""
    kind = with_new_tokens(type(layer), base)
    out = kind.__new__(kind)
    vars(out).update(vars(copy_layer(layer)), prefix=prefix, keys=None, values=None, is_initialized=False)
    return out
