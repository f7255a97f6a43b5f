"""Converts foreign dumps of queries, keys and values to a kvbench trace (docs/trace_format.md); with --kept a caches
file to the positions that each head keeps, as JSON (docs/generation.md).

Reads .npz, .npy, .hdf5, .safetensors and .pt files; bfloat16 is bit-exact. Patterns over names select
arrays, and --axes names their axes:

  kvbench-py convert dump.npz -o out.h5 --axes 'batch head token dim' \\
      --q 'layer_{layer}.q' --k 'layer_{layer}.k' --v 'layer_{layer}.v'

  one array with all layers and prompts   --k keys --axes 'layer prompt token head dim'
  a file per prompt                       --k '{prompt}.safetensors::layers.{layer}.k'
  a vector-search set (train, test)       --k train --q test --axes 'token dim' --layer 0
  a past_key_values saved by torch.save   no patterns: recognised (a tuple of (k, v) per layer, or
                                          a cache's key_cache and value_cache)

--rope-theta and --rope-layout add rotary tables, which some methods need to rotate keys and queries
back (expected-attention). Use them for plain rotations only: they are wrong for scaled frequencies
(llama3, yarn, linear, ...), which a dump does not show.

{layer} matches digits, {prompt} any text without a slash; `FILE::NAME` also matches the file name.
The array of a .npy file is named after the file without .npy; nested names of a .pt file are joined
by dots: `past_key_values.3.0`.

Without --q or --v the trace is partial: `kvbench info` and `kvbench cluster` accept it, `kvbench
replay` needs all three. Queries are the last ones of the prompt. Padding, and keys from before the
rotary embedding, cannot be detected: remove padding, and do not convert such keys.

Memory: one array of a .npz or .hdf5 at a time; one head of other files.
"""

import argparse
import os
import sys

from kvbench.caches.kept import export_kept
from kvbench.command import Parser, positive
from kvbench.convert import rope as convert_rope
from kvbench.convert.arrays import ELEMENT_TYPES
from kvbench.convert.views import gather, kv_heads
from kvbench.text import one_line
from kvbench.trace.writer import STORED, TraceError, TraceWriter, from_bfloat16


def element_type(found, asked):
    """Returns the trace's dtype, and the arrays' dtypes that are rounded to it."""
    arrays = {id(view.array): view.array for views in found.values() for view in views.values()}
    kinds = {}
    for array in arrays.values():
        kind = array.dtype
        if kind == "uint16" and asked == "bfloat16":
            kind = "bfloat16"
        if kind == "uint16":
            raise TraceError(f"{array.where()}: got 16-bit integers, expected floating point; if "
                             "they are the bits of bfloat16, say --dtype bfloat16")
        if kind not in ELEMENT_TYPES:
            raise TraceError(f"{array.where()}: got elements of type {kind}, expected {', '.join(ELEMENT_TYPES)}")
        kinds.setdefault(kind, array)
    if asked is None and (len(kinds) > 1 or "float64" in kinds):
        what = " and ".join(f"{kind} ({array.name})" for kind, array in kinds.items())
        raise TraceError(f"{next(iter(kinds.values())).path}: got {what}, expected one type of "
                         f"{', '.join(STORED)}, or --dtype with the one that the model's cache has")
    dtype = asked or next(iter(kinds))
    exact = (dtype, "float16", "bfloat16") if dtype == "float32" else (dtype,)
    return dtype, [kind for kind in kinds if kind not in exact]


def same_rows(a, b):
    """Returns None, or the first (token, element) at which two heads differ."""
    differ = a != b
    if not differ.any():
        return None
    return tuple(int(i) for i in divmod(int(differ.argmax()), a.shape[1]))


def note(text):
    print(one_line(f"note: {text}"), file=sys.stderr)


class Filler:
    """Writes views into an open trace; holds only the last loaded array."""

    def __init__(self, writer, options):
        self.writer = writer
        self.options = options
        self.array = None
        self.values = None

    def load(self, array):
        if self.array is not array:
            self.values = None  # before the next one is read
            self.values = array.load()
            self.array = array
        return self.values

    def fill(self, layer, role, view):
        values = self.load(view.array)
        repeat = 1 if role == "q" else self.options.undo_repeat
        first_row = 0
        if role == "q" and self.options.last_queries:
            first_row = max(0, view.extent("token") - self.options.last_queries)
        bits = self.values.dtype == "uint16"
        references = 0
        before = None
        for head in range(view.extent("head")):
            rows = view.head(values, head)[first_row:]
            if head % repeat:
                at = same_rows(before, rows)
                if at:
                    raise TraceError(
                        f"{view.array.where()}: layer {layer}: heads {head - 1} and {head} differ "
                        f"at token {at[0]}, element {at[1]} ({before[at]} and {rows[at]}), "
                        f"expected groups of {repeat} equal heads (--undo-repeat)")
            else:
                references += role == "k" and head % 2 and same_rows(before, rows) is None
                self.write(role, head // repeat, rows, layer, view, bits)
            before = rows
        if role == "k" and repeat == 1 and references and references == view.extent("head") // 2:
            note(f"{view.array.where()}: layer {layer}: neighbouring KV heads are equal; if they were repeated over "
                 "query groups, --undo-repeat G undoes it, and only then are memory ratios right")

    def write(self, role, head, rows, layer, view, bits):
        if bits and self.writer.dtype != "bfloat16":
            rows = from_bfloat16(rows)
        try:
            self.writer.write(role, head, 0, rows, layer=layer)
        except TraceError as error:
            raise TraceError(f"{view.array.where()}: {error}") from None


def convert(options):
    found = gather(options)
    dtype, rounded = element_type(found, options.dtype)
    prompts = {}
    for (prompt, layer), views in found.items():
        prompts.setdefault(prompt, {})[layer] = views
    source = options.source or ", ".join(os.path.basename(path) for path in options.inputs)
    with TraceWriter(options.output, options.model, source, options.created, dtype, options.rope,
                     options.scale, options.gzip) as writer:
        if options.rope_theta is not None:
            convert_rope.write_rope(writer, [views["k"] for views in found.values()], options)
        filler = Filler(writer, options)
        for prompt, layers in prompts.items():
            n = next(iter(layers.values()))["k"].extent("token")
            writer.begin_prompt(prompt, n)
            for layer, views in sorted(layers.items()):
                heads = kv_heads(views, options.undo_repeat)
                k, q, v = views["k"], views.get("q"), views.get("v")
                nq = min(q.extent("token"), options.last_queries or n) if q else n
                writer.begin_layer(layer, q.extent("head") if q else heads, heads, nq,
                                   k.extent("dim"), v.extent("dim") if v else k.extent("dim"),
                                   with_q=q is not None, with_v=v is not None)
            # By array, so that an array of several layers is read once per prompt.
            jobs = [(layer, role, view) for role in "qkv" for layer, views in sorted(layers.items())
                    for held, view in views.items() if held == role]
            for job in jobs:
                filler.fill(*job)
    for kind in rounded:
        note(f"{kind} is rounded to {dtype}")
    absent = [role for role in "qv" if role not in next(iter(found.values()))]
    if absent:
        note(f"{options.output} has no {' and no '.join(absent)}: `kvbench cluster` takes it, "
             "`kvbench replay` needs q, k and v")


def parse_arguments(arguments=None):
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("inputs", nargs="+", metavar="IN", help=".npz, .npy, .hdf5, .h5, .safetensors, .pt or .pth")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.h5", help="trace to write")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing OUT.h5")
    parser.add_argument("--kept", action="store_true", help="IN are caches files of a run: write what heads keep")
    names = parser.add_argument_group("which arrays")
    names.add_argument("--q", metavar="PATTERN", help="names of the query arrays")
    names.add_argument("--k", metavar="PATTERN", help="names of the key arrays")
    names.add_argument("--v", metavar="PATTERN", help="names of the value arrays")
    names.add_argument("--key-only", action="store_true", help="convert keys only")
    names.add_argument("--axes", metavar="NAMES",
                       help="axes of the arrays, in order: batch (or prompt), layer, "
                            "head, token, dim; token and dim must be among them")
    for role in "qkv":
        names.add_argument(f"--{role}-axes", metavar="NAMES", help=f"those of {role}, where they differ from --axes")
    names.add_argument("--layer", type=int, metavar="N", help="layer of arrays whose name and axes give none")
    names.add_argument("--prompt-id", metavar="ID", default="p0",
                       help="prompt name if no pattern gives one; those along an axis are p0, p1, ... [default: p0]")
    values = parser.add_argument_group("what they hold")
    values.add_argument("--dtype", choices=tuple(STORED),
                        help="element type of the model's cache [default: the arrays']; bfloat16 "
                             "also says that 16-bit integers are its bits")
    values.add_argument("--rope", choices=("post", "none", "pre"), default="post",
                        help="post: q and k after the rotary embedding; none: the model has none. "
                             "pre is rejected [default: post]")
    convert_rope.add_options(values)
    values.add_argument("--scale", type=float, metavar="S", help="s in exp(s <k, q>) [default: 1/sqrt(dim)]")
    values.add_argument("--undo-repeat", type=positive, default=1, metavar="G",
                        help="k and v repeat each KV head for G query heads: check, and keep one")
    values.add_argument("--last-queries", type=positive, metavar="N",
                        help="keep only the last N queries [default: all]")
    values.add_argument("--model", default="", metavar="MODEL", help="model id and revision")
    values.add_argument("--source", default="", help="data set [default: the files' names]")
    values.add_argument("--created", metavar="DATE", help="[default: today]")
    values.add_argument("--gzip", type=int, default=4, metavar="LEVEL", help="0 to 9 [default: 4]")
    options = parser.parse_args(arguments)
    if options.rope == "pre":
        raise TraceError("--rope: got pre, expected post or none: inner products of keys from "
                         "before the rotation are not the model's logits; dump them after it")
    convert_rope.check_options(options)
    if options.layer is not None and options.layer < 0:
        raise TraceError(f"--layer: got {options.layer}, expected at least 0")
    if options.key_only and (options.q or options.v):
        raise TraceError("--key-only: got --q or --v as well, expected neither")
    if os.path.exists(options.output) and not options.overwrite:
        raise TraceError(f"{options.output}: exists, expected a new file or --overwrite")
    if any(os.path.abspath(options.output) == os.path.abspath(path) for path in options.inputs):
        raise TraceError(f"{options.output}: is also an input, expected another file")
    return options


def main():
    options = parse_arguments()
    if options.kept:
        export_kept(options.inputs, options.output)
    else:
        convert(options)
