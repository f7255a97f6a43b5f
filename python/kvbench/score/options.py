"""Command line of kvbench-py score."""

from kvbench.dump.options import DTYPES, OF_TRACES, Parser, add_model, count, names, positive


def parse_arguments():
    """Parses sys.argv. Imports nothing, so that --help needs no torch."""
    parser = Parser(prog="kvbench-py score", description="Puts compressed KV caches into the model that "
                    "they were made from, and scores the model.")
    add = parser.add_argument
    add_model(add, OF_TRACES)
    add("--trace", required=True, nargs="+", metavar="T.h5", help="traces with token ids")
    add("--caches", required=True, nargs="+", metavar="C.h5", help="caches made from these traces; "
        "several files are parts of one run")
    add("-o", "--output", required=True, metavar="SCORES.csv", help="a row per prompt and group")
    add("--prompts", type=names, metavar="ID,...", help="only these prompts [default: all that the "
        "caches hold]")
    add("--algorithms", type=names, metavar="NAME,...", help="only groups of these algorithms")
    add("--prompt-records", nargs="+", metavar="FILE.jsonl", help="records with `id`, `answer` "
        "and optionally `wrong`, other answers: scores their likelihood after the prompts, and whether "
        "the model gives the answer")
    add("--answer-tokens", type=count, default=16, metavar="N", help="maximum length of the model's answer "
        "in tokens, 0 for none [default: 16]")
    add("--compute-dtype", choices=DTYPES, default="float32",
        help="type in which the model runs [default: float32]")
    add("--device", default="cpu", help="cpu, cuda, cuda:1, ... [default: cpu]")
    add("--chunk", type=positive, metavar="N", help="prefill N tokens at a time")
    add("--batch", type=positive, default=4, metavar="N", help="decode over up to N caches at a time, "
        "within 512 MiB of logits [default: 4]")
    add("--self-check", action="store_true", help="check all queries of each prompt over a cache with all of the "
        "model's keys and values, not the first 16, and report the KL")
    old = parser.add_mutually_exclusive_group()
    old.add_argument("--resume", action="store_true", help="keep the rows of SCORES.csv, compute missing "
                     "and failed ones")
    old.add_argument("--overwrite", action="store_true", help="replace SCORES.csv")
    return parser.parse_args()
