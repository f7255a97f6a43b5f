"""Command line of kvbench-py judge."""

import os

from kvbench.dump.options import DTYPES, OF_TRACES, Parser, add_model, count, names, positive


def parse_arguments(arguments=None):
    """Parses `arguments` or sys.argv. Imports nothing, so that --help needs no torch."""
    parser = Parser(prog="kvbench-py judge", description="Replays methods on a trace and scores the "
                    "model over what each leaves of the cache, a few methods at a time: the rows of "
                    "kvbench replay and those of kvbench-py score, without a file of all caches "
                    "(docs/score.md).")
    add = parser.add_argument
    add_model(add, OF_TRACES)
    add("--trace", required=True, nargs="+", metavar="T.h5", help="traces with token ids")
    add("--prompt-records", nargs="+", metavar="FILE.jsonl", help="records with `id`, `answer` "
        "and optionally `wrong`, other answers: scores their likelihood after the prompts, and whether "
        "the model gives the answer")
    add("--ids", type=names, metavar="ID,...", help="only these prompts [default: all of the traces]")
    add("-o", "--output", required=True, metavar="ROWS.csv", help="the rows of kvbench replay; "
        "ROWS.layers.csv beside it, where the traces hold output projections")
    add("--scores", required=True, metavar="SCORES.csv", help="a row per prompt, method, budget and "
        "seed, as in kvbench-py score")
    add("--each-layer", action="store_true", help="also compress one layer at a time: SCORES.layers.csv, a "
        "row per layer")
    replay = parser.add_argument_group("options of kvbench replay")
    add = replay.add_argument
    add("--algorithm", action="append", metavar="NAME,...[:KEY=VALUES...]", help="may be repeated")
    add("--policy", type=names, action="extend", default=[], metavar="P.json,...", help="policies (docs/policies.md)")
    add("--config", metavar="FILE.toml", help="options of kvbench replay, overridden by those here")
    add("--budget", metavar="RHO,...", help="fractions of the middle's full bytes")
    add("--seeds", metavar="N|A:B[:STEP],...", help="[default: 1]")
    add("--sink", type=count, metavar="TOKENS", help="first tokens, uncompressed [default: 16]")
    add("--recent", type=count, metavar="TOKENS", help="last tokens, uncompressed [default: 512]")
    add("--queries", type=count, metavar="N", help="last queries, evaluated [default: 256]")
    add("--scoring", choices=("past", "all"), help="queries that methods may score with: replay's "
        "--scores [default: past]")
    add("--precision", choices=("float32", "float64"), help="precision of the replay [default: float32]")
    add("--memory-limit", metavar="BYTES", help="memory limit of the replay")
    machine = parser.add_argument_group("model and machine")
    add = machine.add_argument
    add("--program", metavar="KVBENCH", help="the program kvbench [default: that of this package]")
    add("--answer-tokens", type=count, default=16, metavar="N", help="maximum length of the model's answer "
        "in tokens, 0 for none [default: 16]")
    add("--compute-dtype", choices=DTYPES, default="float32", help="type in which the model runs "
        "[default: float32]")
    add("--device", default="cpu", help="device of the model: cpu, cuda, ... [default: cpu]")
    add("--chunk", type=positive, metavar="N", help="prefill N tokens at a time")
    add("--batch", type=positive, default=4, metavar="N", help="decode over up to N caches at a time, "
        "within 512 MiB of logits [default: 4]")
    add("--groups", type=positive, default=24, metavar="N", help="replay about N caches at a time; two "
        "such parts are kept [default: 24]")
    add("--replay-threads", type=positive, metavar="N", help="threads of the replay, which runs beside "
        "the model [default: all cores]")
    add("--model-threads", type=positive, metavar="N", help="threads of the model [default: all "
        "cores]")
    add("--work", metavar="FOLDER", help="folder of temporary caches [default: /dev/shm if present, "
        "otherwise TMPDIR]")
    old = parser.add_mutually_exclusive_group()
    old.add_argument("--resume", action="store_true", help="keep the rows of both tables, compute missing "
                     "ones (also of new methods, budgets, seeds or prompts) and failed ones")
    old.add_argument("--overwrite", action="store_true", help="replace both tables")
    args = parser.parse_args(arguments)
    if not (args.algorithm or args.policy or args.config):
        parser.error("expected --algorithm, --policy, or --config with one")
    if os.path.abspath(args.output) == os.path.abspath(args.scores):
        parser.error("-o and --scores: got one file, expected two")
    cores = os.cpu_count() or 1
    # Twice the cores, with passive waiting: fastest, docs/score.md.
    args.replay_threads = args.replay_threads or cores
    args.model_threads = args.model_threads or cores
    return args
