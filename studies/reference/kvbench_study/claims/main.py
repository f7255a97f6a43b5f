"""Judges claims of four papers from result tables of many sources.

    kvbench-study claims --fig2 fig2/*/rows.csv --cluster cluster/* --by source --csv claims.csv

Every claim has the form `figure < reference`, such as a ratio of errors below 1 or an exponent
below -1, and is tested in cells: a layer in one setting, such as T=2, or a kind of text at a
budget. The verdict uses the share of cells whose mean is on the claim's side and the mean over all
cells, each with its interval over units (--by: prompts or sources).

    holds here           the share's interval lies above 1/2, and the mean's interval on the claim's
                         side
    does not hold here   the share's interval lies below 1/2, and the mean's on the other side
    not decided          otherwise; `decide` lists what is open
    estimate             the claim is a bound with free constants, which no table can contradict, or
                         has no control of its kind
    -                    fewer than 8 units: no verdict

`Here` is this model with these texts and settings. `label` says what was tested:

    setting replicated   the authors' configuration, protocol and figure, on another model
    adapted              another protocol, configuration or figure
    assumption checked   an assumption of the paper

`differs` lists departures from the authors' setup. A cell's figure of a unit is a mean over heads
and seeds. A unit counts only with a finite figure and all rows `ok` in every cell it belongs to.
Cells are also counted for, against and open by simultaneous intervals (studentised bootstrap,
Holm's rule over the claim's cells, --alpha). Rows of --cells with the side `shown` do not count.
The docstrings in studies/reference/kvbench_study/claims/PAPER.py define each claim;
studies/reference/commands.md has the rules.

--csv FILE.csv: a row per claim, method and protocol. --cells FILE.csv: a row per cell. Without an
output the Markdown is printed. Claims without tables are skipped.
"""

from kvbench import command, units
from kvbench import stats as ks
from kvbench import tables as kt
from kvbench.comparison import options as compare_options
from kvbench.comparison import tables as ct
from kvbench_study.claims import balancekv, bumblebee, clustergen, kvreviver, page
from kvbench_study.claims import verdicts as cv


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    files = {"nargs": "+", "default": [], "metavar": "OUT.csv"}
    scores = {"nargs": "+", "default": [], "metavar": "SCORES.csv"}
    parser.add_argument("--fig2", help="configs/balancekv_fig2_authors.toml, BalanceKV's protocol", **files)
    parser.add_argument("--fig2-default", help="the same in the default protocol", **files)
    parser.add_argument("--cluster", nargs="+", default=[], metavar="DIR",
                        help="folders of kvbench cluster")
    parser.add_argument("--head-dim", type=command.positive, metavar="D", help="head width "
                        "of the model of --cluster, which needs it: logits are scaled by 1/sqrt(D)")
    parser.add_argument("--lambda-scores", help="kvbench-py score of bumblebee at several "
                        "lambda and budgets", **scores)
    parser.add_argument("--revive-scores", help="the same of kvreviver, kvreviver:vague=none and h2o",
                        **scores)
    parser.add_argument("--merging", help="kvreviver:vague=none,mean at budgets", **files)
    parser.add_argument("--equal", help="kvreviver at the same budgets", **files)
    parser.add_argument("--ratio", help="configs/kvreviver_ratio.toml", **files)
    parser.add_argument("--by", **units.BY)
    parser.add_argument("--records", **units.RECORDS)
    parser.add_argument("--alpha", type=compare_options.share, default=0.05, metavar="SHARE",
                        help="level of intervals; family-wise error over the cells of a claim [0.05]")
    parser.add_argument("--resamples", type=command.positive, default=ks.RESAMPLES, metavar="N",
                        help="at least N; more for many cells [10000]")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the bootstrap [0]")
    parser.add_argument("--csv", metavar="FILE.csv")
    parser.add_argument("--cells", metavar="FILE.csv")
    parser.add_argument("--markdown", metavar="FILE", help="- for stdout")
    options = parser.parse_args(arguments)
    if bool(options.merging) != bool(options.equal):
        parser.error("--merging and --equal: expected both or neither")
    if options.cluster and options.head_dim is None:
        parser.error("--cluster: expected --head-dim, the head width of its model, too")
    if not any(paths for paths, *_ in sources(options)):
        parser.error("expected tables: --fig2, --cluster or another")
    if not (options.csv or options.cells or options.markdown):
        options.markdown = "-"
    return options


def sources(options):
    """Returns (tables, their option, function that makes their claims)."""
    return ((options.fig2, "--fig2", balancekv.all_claims),
            (options.fig2_default, "--fig2-default", balancekv.all_claims),
            (options.cluster, "--cluster", clustergen.all_claims),
            (options.lambda_scores, "--lambda-scores", bumblebee.all_claims),
            (options.revive_scores, "--revive-scores", kvreviver.kvreviver_scores),
            (options.merging, "--merging and --equal",
             lambda paths, _: [kvreviver.kvreviver_sketch(paths, options.equal, options)]),
            (options.ratio, "--ratio", kvreviver.kvreviver_normals))


def claims(options):
    """Returns the unjudged claims whose tables are given."""
    out = []
    for paths, name, make in sources(options):
        if paths:
            out += make(paths, options)
        else:
            kt.note(f"claims that need {name} are left out")
    return out


def main(arguments=None):
    options = parse_arguments(arguments)
    found = cv.decide(claims(options), options)
    if options.csv:
        page.write_csv(options.csv, found)
    if options.cells:
        page.write_cells(options.cells, found)
    if options.markdown:
        ct.write_text(options.markdown, page.markdown(found, options))
