"""Rotary tables of kvbench-py convert, from its options."""

import numpy as np

from kvbench.command import above_0
from kvbench.trace.parts import FUTURE_POSITIONS, ROPE_LAYOUTS
from kvbench.trace.writer import TraceError


def add_options(group):
    group.add_argument("--rope-theta", type=above_0(), metavar="THETA",
                       help="base of the rotary embedding, for example 10000: writes its tables")
    group.add_argument("--rope-layout", choices=ROPE_LAYOUTS,
                       help="paired channels: half: i and i + ROPE_DIM/2 (Llama and "
                            "most in transformers); interleaved: 2i and 2i + 1 (GPT-J, Cohere)")
    group.add_argument("--rope-dim", type=int, metavar="N",
                       help="only the first N channels turn [default: all of the keys']")


def check_options(options):
    if options.rope_theta is None and (options.rope_layout or options.rope_dim is not None):
        raise TraceError("--rope-layout, --rope-dim: got no --rope-theta, expected all that makes the tables")
    if options.rope_theta is not None:
        if options.rope_layout is None:
            raise TraceError(f"--rope-theta: got no --rope-layout, expected "
                             f"{' or '.join(ROPE_LAYOUTS)}: a wrong one is worse than none")
        if options.rope != "post":
            raise TraceError(f"--rope-theta: got it with --rope {options.rope}, expected post")


def rotary_tables(theta, dim, count):
    """Returns cos and sin [count, dim / 2], float32, as models compute them; frequencies theta^(-2 i / dim)."""
    frequencies = (1.0 / theta**(np.arange(0, dim, 2) / dim)).astype(np.float32)
    angles = np.arange(count, dtype=np.float32)[:, None] * frequencies
    return np.cos(angles), np.sin(angles)


def write_rope(writer, keys, options):
    """Writes /rope for all layers by --rope-theta. keys: views of the layers' keys."""
    narrowest = min(keys, key=lambda view: view.extent("dim"))
    dim = narrowest.extent("dim") if options.rope_dim is None else options.rope_dim
    if dim % 2 or not 2 <= dim <= narrowest.extent("dim"):
        raise TraceError(f"--rope-dim: got {dim}, expected an even number from 2 to "
                         f"{narrowest.extent('dim')}, the dim of {narrowest.array.where()}")
    if options.rope_dim is None and any(view.extent("dim") != dim for view in keys):
        raise TraceError("--rope-theta: the layers' keys differ in dim, expected --rope-dim")
    count = max(view.extent("token") for view in keys) + FUTURE_POSITIONS
    writer.write_rope(*rotary_tables(options.rope_theta, dim, count), options.rope_layout)
