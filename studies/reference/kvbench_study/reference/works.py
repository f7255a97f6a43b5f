"""Works of a stage in a store of kvbench-study reference (store.py), for shell scripts.

    python3 -m kvbench_study.reference.works STORE STAGE    # its prompts, one a line; none without it
    python3 -m kvbench_study.reference.works STORE STAGE TABLE ID... -o FILE    # the rows of those that it has

The second prints FILE if there are such rows, otherwise nothing. TABLE: `rows`, `layers`, `scores`, ...
"""

import argparse
import sys

from kvbench_study.reference import plan as rp
from kvbench_study.reference import store


def run(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", metavar="STORE")
    parser.add_argument("stage", metavar="STAGE")
    parser.add_argument("table", nargs="?", metavar="TABLE")
    parser.add_argument("ids", nargs="*", metavar="ID")
    parser.add_argument("-o", "--output", metavar="FILE")
    args = parser.parse_args(arguments)
    try:
        found = store.Store(args.store)
        known = found.records().get(args.stage, {})
        if args.table is None:
            for prompt in known:
                print(prompt)
            return 0
        whole = found.packed(args.stage, "" if args.table == "rows" else args.table)
        whole.parts = {prompt: part for prompt, part in whole.parts.items() if prompt in args.ids and prompt in known}
        if whole.parts:
            store.write_bytes(args.output, whole.data())
            print(args.output)
        return 0
    except rp.PlanError as error:
        print(f"works: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(run())
