"""Command lines of the programs that read tables: parsers, types of options, one-line errors."""

import argparse
import math
import sys

from kvbench.tables import CsvError


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        print(f"{self.prog}: {message} (see --help)", file=sys.stderr)
        sys.exit(2)


def plain_parser(doc):
    """Parser without arguments yet. Its errors are one line."""
    return _Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def argument_parser(doc, inputs="OUT.csv", help_text="files of kvbench replay"):
    """Parser with what every figure takes: input files and -o."""
    parser = plain_parser(doc)
    parser.add_argument("inputs", nargs="+", metavar=inputs, help=help_text)
    parser.add_argument("-o", "--output", required=True, metavar="STEM",
                        help="writes STEM.png and STEM.pdf")
    return parser


def name_list(text):
    """`a,b` as a list, for argparse; empty parts are dropped."""
    return [part for part in text.split(",") if part]


def number_list(text):
    """`0.5,0.25` as floats, for argparse."""
    try:
        values = [float(part) for part in name_list(text)]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise argparse.ArgumentTypeError(f"got `{text}`, expected numbers with commas between")
    return values


def positive(text):
    """A number of bins, for argparse."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got `{text}`, expected a number above 0")
    return int(text)


def run_main(main):
    """Runs `main`; a CsvError becomes one line on stderr and the error's exit code."""
    try:
        main()
    except CsvError as error:
        print(f"{sys.argv[0].rpartition('/')[2]}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
