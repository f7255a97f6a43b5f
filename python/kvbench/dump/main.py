"""Main function of kvbench-py dump. The command line is in options.py.

The model runs with an attention function registered in transformers' attention interface. It writes its inputs
(queries and keys after rotation, keys and values before repetition over a group) and returns the model's own
attention. Layers whose attention is not exp(s <k, q>) over all earlier tokens are rejected. See docs/dump.md.
"""

import argparse
import os

from transformers import AutoConfig, DynamicCache

from kvbench.dump.capture import ATTENTION, DTYPES, Capture, register
from kvbench.dump.check import describe
from kvbench.dump.extra import ExtraQueries
from kvbench.dump.fisher import fisher_information
from kvbench.dump.forward import check_own_attention, check_parts, needs_cache, torch_errors
from kvbench.dump.o_proj import OutputProjections
from kvbench.dump.options import parse_arguments
from kvbench.dump.prompts import device_type, load, load_weights, read_prompts, silence
from kvbench.dump.rope import RotaryTables, rope_types
from kvbench.progress import Progress, minutes, note
from kvbench.text import counted
from kvbench.trace.writer import TraceError, TraceWriter

# Number of queries that `kvbench replay` evaluates by default, and the most that a method scores
# with (attention-matching's ref_queries; snapkv's window is 32).
DEFAULT_QUERIES = ENOUGH_QUERIES = 256


# --- The model -------------------------------------------------------------------------------


def compute_dtype(device, dtype, asked):
    """Returns the type in which the model runs: the requested one, or float32 on a CPU, which emulates half types."""
    return asked or ("float32" if device_type(device) == "cpu" else dtype)


def load_model(args):
    """Returns the model in evaluation mode, the cache's dtype by name, and who chose it."""
    dtype, chosen = args.dtype, "--dtype"
    if dtype is None:
        chosen = "the model's configuration"
        config = load(AutoConfig.from_pretrained, "configuration", args).get_text_config()
        dtype = str(getattr(config, "dtype", None)).removeprefix("torch.")
        if dtype not in DTYPES:
            raise TraceError(f"{args.model}: its configuration says dtype {dtype}; expected "
                             f"--dtype {', '.join(DTYPES)}")
    compute = compute_dtype(args.device, dtype, args.compute_dtype)
    try:
        return load_weights(args, DTYPES[compute], ATTENTION), dtype, chosen
    except TraceError as error:
        if ATTENTION in str(error):  # Falcon, GPT-Neo: classes by the function's name
            raise TraceError(f"{args.model}: it does not use transformers' attention interface: unsupported") from None
        raise


def model_of(model):
    """Returns the name of a loaded model, as traces of it have it."""
    args = argparse.Namespace(model=model.name_or_path or type(model).__name__, revision=None, name=None)
    return model_name(args, model.config)


def model_name(args, config):
    """Returns model id and commit hash; for a folder its name without the path."""
    commit = getattr(config, "_commit_hash", None)
    folder = os.path.isdir(args.model)
    name = os.path.basename(os.path.abspath(args.model)) if folder else args.model
    revision = commit or args.revision
    return args.name or (f"{name} @ {revision}" if revision else name)


# --- Command line ----------------------------------------------------------------------------


def report_dtype(dtype, chosen, compute):
    """Reports the trace's element type, and its consequences if caches usually have another."""
    text = f"dtype {dtype} ({chosen})"
    if compute != dtype:
        text += f", the model runs in {compute}"
    if dtype == "float32":
        text += (": twice the bytes of float16 and bfloat16, in which models are served; byte budgets and the trace's "
                 "size follow it. --dtype float16 or bfloat16 says what is served")
    note(text)


def warn_scoring_queries(prompts, args):
    """Warns if too few queries precede the evaluated ones."""
    short = [text_id for _, text_id, ids in prompts if args.last_queries < len(ids)]
    left = args.last_queries - DEFAULT_QUERIES
    if not short or left >= ENOUGH_QUERIES:
        return
    what = (f"warning: --last-queries {args.last_queries}: kvbench evaluates the last {DEFAULT_QUERIES} queries by "
            "default, and methods that look at queries score tokens with those before them (`--scores past`)")
    if left <= 0:
        what += ("; none is left, so rows of snapkv, h2o, expected-attention and the like will be "
                 "`degenerate: no scoring queries`")
    else:
        what += (f"; {left} are left, fewer than some methods ask for, so snapkv, h2o, "
                 "expected-attention and the like choose worse than they would")
    note(f"{what}. Dump all queries (no --last-queries), or at least "
         f"{DEFAULT_QUERIES + ENOUGH_QUERIES}; or replay with fewer `--queries`")


def check_lengths(prompts, config, args, ropes):
    if args.extra and ropes & {"longrope", "dynamic"}:
        raise TraceError(f"--extra: {args.model}: its rotation depends on the prompt's length "
                         f"({', '.join(sorted(ropes))}): unsupported")
    limit = getattr(config, "max_position_embeddings", None)
    for _, text_id, ids in prompts:
        if limit and len(ids) > limit:
            text = f"{text_id}: {len(ids)} tokens, the model is made for {limit}"
            if not ropes:
                raise TraceError(f"{text}; see --max-tokens")
            note(f"note: {text}")
        if args.chunk and args.chunk < len(ids) and ropes & {"longrope", "dynamic"}:
            raise TraceError(f"--chunk: {args.model}: its rotation depends on the prompt's length "
                             f"({', '.join(sorted(ropes))}); expected a run without --chunk")


def check_runs(model, prompts, capture, extra, args):
    """Checks that short runs of the longest prompt give what the model gives by itself."""
    ids = max((ids for *_, ids in prompts), key=len)
    check_own_attention(model, ids, ATTENTION, args.model)
    capture.keeps_cache = needs_cache(model, ids)
    def cache():
        return DynamicCache(config=model.config)
    if args.chunk and args.chunk < len(ids):
        check_parts(model, ids, args.chunk, f"{args.model}: --chunk", cache(), cache() if capture.keeps_cache else None)
    if extra is not None and extra.sets:
        check_parts(model, ids, len(ids), f"{args.model}: --extra", DynamicCache(),
                    cache() if capture.keeps_cache else None, again=True)


def dump_prompts(writer, prompts, capture):
    layers = capture.model.config.get_text_config().num_hidden_layers
    if capture.args.layers is not None:
        layers = min(layers, max(capture.args.layers) + 1)
    with Progress(layers * sum(len(ids) for *_, ids in prompts)) as progress:
        capture.log = progress.write
        for at, (name, text_id, ids) in enumerate(prompts, 1):
            capture.layer_done = lambda layer, tokens, at=at, name=name: progress.step(
                tokens, f"{name} ({at} of {len(prompts)}), layer {layer + 1} of {layers}")
            begin = progress.spent()
            writer.begin_prompt(name, len(ids), ids, text_id)
            capture.rotary.prompt_begins(capture)
            capture.run(writer, ids)
            capture.rotary.prompt_ends(name)
            if capture.projections is not None:
                capture.projections.prompt_ends(name)
            if capture.extra is not None:
                capture.extra.run(writer, at - 1, name, text_id, ids)
            written = sum(map(capture.wanted, capture.seen - capture.prompt_skips))
            text = f"{name}: {len(ids)} tokens, {counted(written, 'layer')}, {minutes(progress.spent() - begin)}"
            if at < len(prompts):
                text += f"; {len(prompts) - at} more, about {minutes(progress.left())}"
            progress.write(text)


def main():
    args = parse_arguments()
    if os.path.lexists(args.output) and not args.overwrite:
        raise TraceError(f"{args.output}: exists, expected a new file or --overwrite")
    silence()
    register()
    model, dtype, chosen = load_model(args)
    prompts = read_prompts(args, model.get_input_embeddings().num_embeddings)
    for layer, deviation in sorted(dump(args, model, dtype, chosen, prompts).items()):
        note(f"layer {layer}: {describe(deviation, dtype)}")


def dump(args, model, dtype, chosen, prompts):
    """Writes the trace of a model that runs ATTENTION. prompts: as of read_prompts; the others: of load_model. Returns
    Capture's `check`.
    """
    config = model.config.get_text_config()
    ropes = rope_types(config)
    check_lengths(prompts, config, args, ropes)
    capture = Capture(args, model, dtype)
    capture.rotary = rotary = RotaryTables(model, args.layers, max(len(ids) for *_, ids in prompts))
    register(capture)
    extra = None
    if args.extra or args.add_scores:
        extra = ExtraQueries(args, model, capture)  # before any run: it reads files
    files = args.files or [args.token_ids]
    source = args.source or ", ".join(os.path.basename(path) for path in files)
    with torch_errors(args):
        check_runs(model, prompts, capture, extra, args)
        rotary.find(prompts[0][2])
        if args.o_proj:
            capture.projections = OutputProjections(model, args, dtype)
            capture.projections.find(prompts[0][2])
        rotates = bool(ropes) or rotary.reason is None
        with TraceWriter(args.output, model_name(args, model.config), source,
                         created=args.created, dtype=dtype,
                         rope="post" if rotates else "none", gzip=args.gzip) as writer:
            report_dtype(dtype, chosen, str(model.dtype).removeprefix("torch."))
            if args.last_queries:
                warn_scoring_queries(prompts, args)
            if args.fisher:
                capture.fisher = fisher_information(model, prompts, args)
            capture.extra = extra
            dump_prompts(writer, prompts, capture)
            if capture.projections is not None:
                note(f"output projections: {capture.projections.describe()}")
            if rotary.reason is None:
                note(f"rotary tables: {rotary.write(writer)}")
            elif rotates:
                note(f"warning: {args.model}: the trace gets no rotary tables (/rope): {rotary.reason}; methods that "
                     "turn keys and queries back (expected-attention) do without, or say that they cannot")
    return capture.check
