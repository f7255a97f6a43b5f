"""Judges claims of four papers from result tables of many prompts.

    kvbench-py claims --fig2 fig2/*/rows.csv --cluster cluster/* --csv claims.csv

Every claim is put as `a figure lies below a reference`: a ratio of errors below 1, an exponent
below -1. It is asked of every cell (a layer in one setting, such as T=2), never of a mean over
layers alone. A cell's figure per prompt is a mean over heads and seeds; intervals and p are over
prompts (studentised bootstrap) and simultaneous over the cells of a claim (Holm's rule, --alpha).

    holds here           every cell's interval lies below the reference
    does not hold here   some cell's interval lies wholly on the other side, or is the reference
                         itself
    not decided          all else; `decide` says what would decide it, `about` by the normal
                         approximation

`Here` is this model, these prompts and settings. `label` says what was tested:

    setting replicated   the authors' configuration, protocol and figure, on another model
    adapted              another protocol or figure; the comment of the claim lists what differs
    assumption checked   what the paper assumes for what it concludes

A prompt counts in a cell where every head of the layer is there with status ok and a finite figure.
A cell with fewer than 4 prompts stays open. `value` in the table of claims is the mean over cells
and prompts, with an interval for itself alone; it decides nothing. Rows of the layer `all` and
others with the side `shown` in the table of cells decide nothing either. What a claim measures
exactly, and what is against it: the comment of its function in python/kvbench/claims/PAPER.py.
docs/statistics.md has the rules.

--csv FILE.csv: a row per claim and protocol. --cells FILE.csv: a row per cell. Without any output
the Markdown goes to the terminal. A claim whose tables are not given is left out.
"""

from kvbench import command
from kvbench import stats as ks
from kvbench import tables as kt
from kvbench.claims import balancekv, bumblebee, clustergen, kvreviver
from kvbench.claims import verdicts as cv
from kvbench.compare import main as compare
from kvbench.compare import tables as ct


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    files = {"nargs": "+", "default": [], "metavar": "OUT.csv"}
    parser.add_argument("--fig2", help="configs/balancekv_fig2.toml, BalanceKV's protocol", **files)
    parser.add_argument("--fig2-default", help="the same in the default protocol", **files)
    parser.add_argument("--cluster", nargs="+", default=[], metavar="DIR",
                        help="folders of kvbench cluster")
    parser.add_argument("--head-dim", type=command.positive, default=64, metavar="D", help="of the "
                        "model of --cluster: logits are scaled by 1/sqrt(D) [64]")
    parser.add_argument("--lambda", dest="lambdas", help="configs/bumblebee_lambda.toml", **files)
    parser.add_argument("--merging", help="kvreviver:vague=none,mean at budgets", **files)
    parser.add_argument("--equal", help="kvreviver at the same budgets", **files)
    parser.add_argument("--ratio", help="configs/kvreviver_ratio.toml", **files)
    parser.add_argument("--alpha", type=compare.share, default=0.05,
                        help="chance of any false cell of a claim [0.05]")
    parser.add_argument("--resamples", type=command.positive, default=ks.RESAMPLES, metavar="N",
                        help="at least; more for many cells [10000]")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the bootstrap [0]")
    parser.add_argument("--csv", metavar="FILE.csv")
    parser.add_argument("--cells", metavar="FILE.csv")
    parser.add_argument("--markdown", metavar="FILE", help="- for the terminal")
    options = parser.parse_args(arguments)
    if bool(options.merging) != bool(options.equal):
        parser.error("--merging and --equal: expected both or neither")
    if not (options.fig2 or options.fig2_default or options.cluster or options.lambdas
            or options.merging or options.ratio):
        parser.error("expected tables: --fig2, --cluster or another")
    if not (options.csv or options.cells or options.markdown):
        options.markdown = "-"
    return options


def claims(options):
    """Every claim that has its tables, not judged yet."""
    sources = ((options.fig2, "--fig2", balancekv.all_claims),
               (options.fig2_default, "--fig2-default", balancekv.all_claims),
               (options.cluster, "--cluster",
                lambda paths: clustergen.all_claims(paths, options.head_dim)),
               (options.lambdas, "--lambda", bumblebee.all_claims),
               (options.merging, "--merging and --equal",
                lambda paths: [kvreviver.kvreviver_sketch(paths, options.equal)]),
               (options.ratio, "--ratio", kvreviver.kvreviver_bounds))
    out = []
    for paths, name, make in sources:
        if paths:
            out += make(paths)
        else:
            kt.note(f"claims that need {name} are left out")
    return out


def main(arguments=None):
    options = parse_arguments(arguments)
    found = [cv.decide_claim(claim, options) for claim in claims(options)]
    if options.csv:
        cv.write_csv(options.csv, found)
    if options.cells:
        cv.write_cells(options.cells, found)
    if options.markdown:
        ct.write_text(options.markdown, cv.markdown(found, options))
