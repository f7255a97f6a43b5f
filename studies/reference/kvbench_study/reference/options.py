"""Makes the reference results: model, traces, replays, statistics, tables and figures.

    make reference                      # the whole plan, or what is left of it
    kvbench-study reference --dry-run      # list what is left, with durations

For each prompt: makes a trace, runs every stage on it, and deletes it (--keep keeps it). When all
prompts of a stage are done, its reports are made and copied to the results folder. Reports whose
files a stage reads come first: parameters are chosen on the development set. A step is one stage of
one prompt. It is repeated only if a dependency changed: prompt, model, layers, options or
configuration. Runs may be interrupted: the same command resumes.

The results folder keeps the results of steps, under store/: these are done on any machine. When
nothing is left, samples of every stage are computed again and compared (--samples) before "complete"
is reported. Rows made by another state of lib are kept while their sample agrees; otherwise their
steps are listed, and repeated with --stale.

With --prompts or --layers tables and figures are made only with --output, since they are not the
reference. Steps go to the store all the same, with --layers and no --output to one in the work folder.
"""

import os

from kvbench import command
from kvbench.text import list_parts
from kvbench_study.reference import plan as rp


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    add = parser.add_argument
    add("--plan", default=os.path.join(rp.ROOT, rp.USUAL), metavar="FILE.toml",
        help=f"what to do [{rp.USUAL}]")
    add("--dry-run", action="store_true", help="list what is left; do nothing")
    add("--only", type=list_parts, default=[], metavar="STAGE,...", help="only these stages")
    add("--prompts", **command.PROMPTS)
    add("--layers", **{**command.LAYERS, "help": "these layers, not those of the plan"})
    add("--max-minutes", type=command.above_0(), metavar="M", help="begin nothing that would end later")
    add("--keep", action="store_true", help="keep traces")
    add("--samples", type=command.count, default=2, metavar="N",
        help="variants to check per stage; 0 for none [2]")
    add("--stale", action="store_true", help="do steps again whose sample differs")
    add("-o", "--output", metavar="DIR", help="results folder")
    add("--work", metavar="DIR", help="folder of traces and rows")
    add("--kvbench", default=os.path.join(rp.ROOT, "build", "kvbench"), metavar="PROGRAM")
    add("--dump-python", default=os.path.join(rp.ROOT, "build", "dump-venv", "bin", "python"),
        metavar="PROGRAM", help="interpreter with torch [that of `make model`]")
    return parser.parse_args(arguments)
