"""Command line of kvbench-py dump."""

from kvbench.command import INDICES, Parser, positive
from kvbench.text import list_parts

DTYPES = ("float16", "bfloat16", "float32")


def names(text):
    return list_parts(text) or [""]


def kept_heads(args, kv_heads):
    """Returns the KV heads of --kv-heads that a layer with `kv_heads` has."""
    return [head for head in range(kv_heads) if args.kv_heads is None or head in args.kv_heads]


def add_model(add, which=""):
    """Adds --model and options for loading it. which: suffix of its help."""
    add("--model", required=True, metavar="MODEL", help=f"id on the hub, or folder{which}")
    add("--revision", help="branch, tag or commit of the model")
    add("--trust-remote-code", action="store_true", help="run code that comes with the model")
    add("--device", default="cpu", metavar="cpu|cuda[:i]", help="of the model: cpu, cuda, cuda:1, ... [default: cpu]")


# Suffix for programs that read traces.
OF_TRACES = ": the one that the traces were dumped from"


def parse_arguments(arguments=None):
    """Parses `arguments` or sys.argv. Imports nothing, so that --help needs no torch."""
    parser = Parser(description="Dumps queries, keys and values of a Hugging "
                    "Face causal language model as a kvbench trace.")
    add = parser.add_argument
    add_model(add)
    add("--name", help="model name in the trace [default: id @ commit]")
    add("-o", "--output", required=True, metavar="T.h5", help="the trace")
    add("--overwrite", action="store_true", help="replace an existing T.h5")
    add("files", nargs="*", metavar="PROMPTS", help="texts (a prompt each), or .jsonl files with a record per prompt")
    add("--token-ids", metavar="FILE.jsonl", help="instead of PROMPTS: a list of token ids, or an object with "
        "`input_ids`, per prompt; needs no tokenizer")
    add("--field", help="the record's field that is the prompt [default: text; in LongBench's "
        "records context, a blank line, input]")
    add("--template", metavar="TEXT|@FILE", help="prompt with {field} for the record's fields")
    add("--set", metavar="SET", help="only records whose field `set` is this, such as dev or test")
    add("--prompts", type=names, metavar="ID,...", help="only records of these ids")
    add("--source", help="name of the data in the trace [default: the prompt file's name]")
    add("--created", metavar="DATE", help="date in the trace [default: today]")
    add("--max-prompts", type=positive, metavar="N", help="only the first N prompts")
    add("--max-tokens", type=positive, metavar="N", help="cut longer prompts to N tokens")
    add("--truncate", choices=("middle", "right"), default="middle", help="middle: keep the first "
        "N/2 and the last; right: keep the first N [default: middle]")
    add("--layers", **INDICES, help="layers of the model; a range excludes its end [default: all]")
    add("--kv-heads", **INDICES, help="KV heads, with the query heads of their groups [default: all]")
    add("--last-queries", type=positive, metavar="N", help="store the last N queries only")
    add("--dtype", choices=DTYPES, help="element type of the cache, and so of the trace [default: the model's]")
    add("--compute-dtype", choices=DTYPES, help="type in which the model runs [default: float32 on "
        "the CPU, where float16 takes twice as long; otherwise --dtype]")
    add("--chunk", type=positive, metavar="N", help="prefill N tokens at a time with a KV cache")
    add("--gzip", type=int, choices=range(10), default=4, metavar="0..9", help="compression, 0: none [default: 4]")
    add("--fisher", action="store_true", help="store each layer's Fisher information (KVReviver)")
    add("--fisher-tokens", type=positive, default=2048, metavar="N",
        help="tokens per sample of --fisher; bounds its memory [default: 2048]")
    add("--o-proj", action="store_true", help="store each layer's output projection, and the norm "
        "of the residual stream that its output is added to")
    add("--extra", action="append", metavar="SET", help="queries that look back at each prompt, as a set of its "
        "layers: repeat (KVzip: the prompt repeated in chunks of 2048 tokens), or text:FILE.jsonl (records with "
        "`text`, and `id` of the prompt or in the prompts' order; the set is called as the file); may be repeated")
    add("--evaluated", type=positive, default=256, metavar="N", help="the prompt's last N tokens, "
        "which extra queries do not see: at least replay's --queries [default: 256]")
    add("--add-scores", action="append", metavar="NAME=FILE.npz", help="scores of another program, arrays PROMPT/LAYER "
        "[kv_heads, n], and `prefix` (or PROMPT/prefix), the tokens that it had read; may be repeated")
    add("--attn-check", action="store_true", help="recompute exact attention from what is stored, "
        "compare with the model's, report the largest relative deviation of each layer")
    add("--inexact", choices=("refuse", "skip", "keep"), default="refuse", help="layers whose "
        "attention is neither causal nor causal within a window (soft capping, ...): refuse the dump, "
        "leave them out, or keep them with an attribute `inexact` [default: refuse]")
    args = parser.parse_args(arguments)
    if bool(args.files) == bool(args.token_ids):
        parser.error("expected either PROMPTS or --token-ids")
    if args.token_ids and (args.set is not None or args.prompts is not None):
        parser.error("--set and --prompts need PROMPTS")
    return args
