"""Command lines of the programs that read tables: parsers, argument types, one-line errors."""

import argparse
import contextlib
import logging
import math
import os
import sys

from kvbench.errors import CsvError, TraceError
from kvbench.programs import PIP, MissingModules
from kvbench.text import index_list, list_parts, one_line


class Parser(argparse.ArgumentParser):
    def error(self, message):
        print(one_line(f"{self.prog}: {message} (see --help)"), file=sys.stderr)
        sys.exit(2)


def plain_parser(doc):
    """Returns a parser without arguments. Its errors are one line."""
    return Parser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


PICTURES = (".png", ".pdf", ".svg")
NO_PICTURES = (".jpg", ".jpeg", ".gif", ".eps", ".ps", ".tif", ".tiff", ".webp", ".bmp")


def picture_files(text):
    """Returns the files of `-o TEXT`: STEM.png and STEM.pdf of a stem, otherwise the named ones. Raises CsvError."""
    parts = text.split(",")
    endings = [os.path.splitext(part)[1].lower() for part in parts]
    for part, ending in zip(parts, endings):
        if ending in NO_PICTURES:
            raise CsvError(f"-o: got `{part}`, expected a name that ends in .png, .pdf or .svg, or a stem")
    if all(ending in PICTURES for ending in endings):
        return parts
    if any(ending in PICTURES for ending in endings):
        raise CsvError(f"-o: got `{text}`, expected one stem, or names that all end in .png, .pdf or .svg")
    return [text + ".png", text + ".pdf"]


def _picture(text):
    try:
        picture_files(text)
    except CsvError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("-o: ")) from None
    return text


# Shared by programs that average or compare rows of several tables.
POOL = {"action": "store_true",
        "help": "pool rows that differ in model, dtype, precision, protocol, sink, recent, "
                "scores, device or n_queries; otherwise they are rejected"}


def figure_parser(doc, inputs, help_text):
    """Returns a parser with the files of a figure."""
    parser = plain_parser(doc)
    parser.add_argument("inputs", nargs="+", metavar=inputs, help=help_text)
    parser.add_argument("-o", "--output", required=True, metavar="STEM|FILE,...", type=_picture,
                        help="STEM (writes STEM.png and STEM.pdf), or file names in .png, .pdf or .svg")
    parser.add_argument("--caption", metavar="FILE", help="write the measured numbers, in words, to this file")
    return parser


def number(text):
    """Returns `0.25`, `25%` or `1/4` as a float. Raises ValueError."""
    part, slash, whole = text.partition("/")
    if slash:
        part, whole = float(part), float(whole)
        if not whole > 0:
            raise ValueError(text)
        return part / whole
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def number_list(text):
    """Returns `0.5,25%,1/8` as floats."""
    try:
        values = [number(part) for part in list_parts(text)]
    except ValueError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise argparse.ArgumentTypeError(f"got `{text}`, expected numbers with commas between")
    return values


def argument(read):
    """Returns a type of argparse from a function that raises ValueError with the reason."""
    def of_option(text):
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return of_option


# Options of several programs: one name, one meaning.
INDICES = {"type": argument(index_list), "metavar": "N|A:B[:STEP],..."}
LAYERS = {**INDICES, "default": [], "help": "only these layers; a range excludes its end"}
PROMPTS = {"type": list_parts, "default": [], "metavar": "ID,...", "help": "only these prompts"}
EXCLUDE = {"type": list_parts, "default": [], "metavar": "NAME,...", "help": "exclude these, such as oracle,exact"}
ALGORITHM = {"type": list_parts, "default": [], "metavar": "NAME,...", "help": "only these [default: all]"}
BUDGET = {"type": number_list, "default": [], "metavar": "RHO,...", "help": "only these budgets"}


def add_choice(add, budget=None):
    """Adds --algorithm, --exclude and --budget, which choose rows. add: of a parser; budget: another help."""
    add("--algorithm", **ALGORITHM)
    add("--exclude", **EXCLUDE)
    add("--budget", **(budget or BUDGET))


def check_named_files(parser, option, groups, what, metavar="NAME"):
    """Rejects repeated names, nouns `what`, and names without files in [[NAME, FILE...]]. metavar: of a name."""
    for name, *files in groups:
        if not files:
            parser.error(f"{option}: got {name} alone, expected {metavar} FILE...")
    if len({name for name, *_ in groups}) < len(groups):
        parser.error(f"{option}: a {what} comes twice, expected each once, with all its files")


def positive(text):
    """Returns a positive integer."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"got `{text}`, expected a number above 0")
    return int(text)


def count(text):
    """Returns an integer that is not negative."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"got `{text}`, expected a whole number")
    return int(text)


def above_0(most=math.inf, below=math.inf):
    """Returns a type of argparse: finite numbers above 0, at most `most` and below `below`."""
    end = f", at most {most:g}" if most < math.inf else f" and below {below:g}" if below < math.inf else ""

    def read(text):
        value = number(text)  # argparse reports a ValueError
        if not (0 < value <= most and value < below):
            raise argparse.ArgumentTypeError(f"got `{text}`, expected a number above 0{end}")
        return value
    read.__name__ = "number"
    return read


@contextlib.contextmanager
def notes_on_stderr():
    """Prints the notes of kvbench.tables on stderr, one line each."""
    handler, log = logging.StreamHandler(sys.stderr), logging.getLogger("kvbench")
    handler.format = lambda record: one_line(f"note: {record.getMessage()}")
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def run_main(main):
    """Runs `main` and returns its exit code. Prints an error as one line on stderr. Exit codes: 2 for CsvError,
    TraceError and a missing package; 3 for DeviceError, OSError and lack of memory; 130 for an interrupt.
    """
    try:
        with notes_on_stderr():
            return main() or 0
    except CsvError as error:
        code, text = error.exit_code, str(error)
    except (TraceError, MissingModules) as error:
        code, text = 2, str(error)
    except ModuleNotFoundError as error:
        code, text = 2, f"{sys.executable} has no {error.name}: pip install {PIP.get(error.name, error.name)}"
    except KeyboardInterrupt:
        code, text = 130, "interrupted"
    except MemoryError:
        code, text = 3, "out of memory"
    except OSError as error:
        code, text = 3, str(error)
    name = os.path.basename(sys.argv[0])
    print(one_line(text if text.startswith(name + ": ") else f"{name}: {text}"), file=sys.stderr)
    return code
