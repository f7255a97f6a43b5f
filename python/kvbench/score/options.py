"""Command line of kvbench-py score."""

import os

from kvbench.command import INDICES, Parser, count, positive
from kvbench.dump.options import DTYPES, OF_TRACES, add_model, names
from kvbench.text import list_parts

# Options of kvbench replay, and of a run with it; not with --caches.
OF_REPLAY = ("rows", "policy", "config", "budget", "seeds", "sink", "recent", "queries", "scores", "precision",
             "memory_limit", "program", "groups", "replay_threads", "model_threads", "work")


def parse_arguments(arguments=None):
    """Parses `arguments` or sys.argv. Imports nothing, so that --help needs no torch."""
    parser = Parser(prog="kvbench-py score", description="Scores the model over compressed KV caches: those of "
                    "--caches, or those that kvbench replay makes in the same run, a few methods at a time, without "
                    "a file of all caches (docs/score.md).")
    add = parser.add_argument
    add("trace", nargs="+", metavar="TRACE.h5", help="traces with token ids")
    add_model(add, OF_TRACES)
    add("--caches", nargs="+", metavar="C.h5", help="caches made from these traces; several files are parts of one "
        "run [default: replay]")
    add("-o", "--output", required=True, metavar="SCORES.csv", help="a row per prompt, method, budget and seed")
    add("--algorithm", action="append", metavar="NAME,...[:KEY=VALUES...]", help="methods to replay, may be "
        "repeated; with --caches names, only their groups")
    add("--prompts", type=names, metavar="ID,...", help="only these prompts [default: all]")
    add("--layers", **INDICES, help="compress only these layers, others stay exact; a range excludes its end "
        "[default: all]")
    add("--records", nargs="+", default=[], metavar="FILE.jsonl", help="records with `id`, `answer` and optionally "
        "`wrong`, other answers: scores their likelihood after the prompts, and whether the model gives the answer")
    add("--each-layer", action="store_true", help="also compress one layer at a time: SCORES.layers.csv, a "
        "row per layer")
    add("--answer-tokens", type=count, default=16, metavar="N", help="maximum length of the model's answer "
        "in tokens, 0 for none [default: 16]")
    add("--compute-dtype", choices=DTYPES, default="float32", help="type in which the model runs [default: float32]")
    add("--chunk", type=positive, metavar="N", help="prefill N tokens at a time")
    add("--batch", type=positive, default=4, metavar="N", help="decode over up to N caches at a time, "
        "within 512 MiB of logits [default: 4]")
    add("--self-check", action="store_true", help="check all queries of each prompt over a cache with all of the "
        "model's keys and values, not the first 16, and report the KL")
    old = parser.add_mutually_exclusive_group()
    old.add_argument("--resume", action="store_true", help="keep the rows, compute missing ones (also of new methods, "
                     "budgets, seeds or prompts) and failed ones")
    old.add_argument("--overwrite", action="store_true", help="replace the tables")
    add = parser.add_argument_group("replay, without --caches").add_argument
    add("--rows", metavar="ROWS.csv", help="the rows of kvbench replay; ROWS.layers.csv beside it, where the traces "
        "hold output projections")
    add("--policy", type=names, action="extend", default=[], metavar="P.json,...", help="policies (docs/policies.md)")
    add("--config", metavar="FILE.toml", help="options of kvbench replay, overridden by those here")
    add("--budget", metavar="RHO,...", help="fractions of the middle's full bytes")
    add("--seeds", metavar="N|A:B[:STEP],...", help="[default: 1]")
    add("--sink", type=count, metavar="TOKENS", help="first tokens, uncompressed [default: 16]")
    add("--recent", type=count, metavar="TOKENS", help="last tokens, uncompressed [default: 512]")
    add("--queries", type=count, metavar="N", help="last queries, evaluated [default: 256]")
    add("--scores", choices=("past", "all"), help="queries that methods may score with [default: past]")
    add("--precision", choices=("float32", "float64"), help="precision of the replay [default: float32]")
    add("--memory-limit", metavar="BYTES", help="memory limit of the replay")
    add("--program", metavar="KVBENCH", help="the program kvbench [default: that of this package]")
    add("--groups", type=positive, metavar="N", help="replay about N caches at a time; two such parts are kept "
        "[default: 24]")
    add("--replay-threads", type=positive, metavar="N", help="threads of the replay, which runs beside "
        "the model [default: all cores]")
    add("--model-threads", type=positive, metavar="N", help="threads of the model [default: all cores]")
    add("--work", metavar="FOLDER", help="folder of temporary caches [default: /dev/shm if 4 GiB are free there, "
        "otherwise TMPDIR]")
    args = parser.parse_args(arguments)
    if args.caches:
        for name in OF_REPLAY:
            if getattr(args, name) not in (None, []):
                parser.error(f"--{name.replace('_', '-')}: got --caches too, expected it with a replay only")
        args.algorithm = [name for text in args.algorithm or () for name in list_parts(text)]
        return args
    if not (args.algorithm or args.policy or args.config):
        parser.error("expected --caches, or --algorithm, --policy, or --config with one")
    if not args.rows:
        parser.error("--rows: expected a file for the rows of the replay")
    if os.path.abspath(args.output) == os.path.abspath(args.rows):
        parser.error("-o and --rows: got one file, expected two")
    cores = os.cpu_count() or 1
    # Twice the cores, with passive waiting: fastest, docs/score.md. Set before torch is loaded: spinning threads
    # would take the replay's cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    args.groups = args.groups or 24
    args.replay_threads = args.replay_threads or cores
    args.model_threads = args.model_threads or cores
    return args
