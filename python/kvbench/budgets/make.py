"""A policy from a model and prompts: kvbench-py policy without a step's name.

Dumps the prompts, replays the algorithms to choose from, and chooses. With --measure the model is also scored with one
layer compressed at a time, which gives the layers' sensitivities.
"""

import contextlib
import glob
import os

import kvbench
from kvbench import command
from kvbench.api.run import ProgramError, options_of, program, run
from kvbench.budgets.choose import BOTH, VARY
from kvbench.budgets.steps import Steps, call, kvbench_py
from kvbench.budgets.tables import EQUAL
from kvbench.dump.options import DTYPES, add_model
from kvbench.errors import CsvError
from kvbench.hashing import file_sha256
from kvbench.progress import Progress, silence
from kvbench.records import read_lines
from kvbench.text import counted, list_part

MEASURED = "h2o,local,snapkv,h2o@quant-kivi"  # for the sensitivities: at least three, which run in windows too
CHOICES = "h2o@quant-kivi,snapkv"
SIZES = (4, 3, 2, 1, 0.5, 0.25)  # budgets of the choices, relative to --budget
FEWEST = 2  # sources, with --measure
NEEDED = ("model", "prompts", "budget", "output")
WINDOWS = ("sink", "recent", "queries")


def add_options(parser):
    add = parser.add_argument_group("a policy of a model, in one command").add_argument
    add_model(lambda *names, **more: add(*names, **{**more, "required": False}))
    add("--prompts", nargs="+", metavar="FILE", help="development prompts: texts, or .jsonl files with a record per "
        "prompt")
    add("--budget", type=command.above_0(most=1), metavar="RHO",
        help="mean over layers of the fraction of the middle's full bytes")
    add("-o", "--output", metavar="POLICY.json", help="the policy")
    add("--work", metavar="FOLDER", help="intermediate files; a later run takes those whose inputs are the same "
        "[default: POLICY.steps]")
    add("--algorithm", default=CHOICES, metavar="NAME,...", help="algorithms to choose from [default: %(default)s]")
    add("--measure", action="store_true", help="measure with the model what an error in each layer costs, on "
        "prompts of at least two sources [default: the same in all layers]")
    add("--vary", choices=VARY, default=BOTH, help="what may differ between layers [default: %(default)s]")
    add("--per", choices=("layer", "head"), default="layer",
        help="choose for each layer, or for each KV head [default: %(default)s]")
    add("--set", metavar="SET", help="only records with this `set`, such as dev")
    add("--max-prompts", type=command.positive, metavar="N", help="only the first N prompts")
    add("--max-tokens", type=command.positive, metavar="N", help="cut longer prompts to N tokens")
    add("--dtype", choices=DTYPES, help="element type of the cache [default: the model's]")
    add("--sink", type=command.count, metavar="TOKENS", help="first tokens, uncompressed [default: 16]")
    add("--recent", type=command.count, metavar="TOKENS", help="last tokens, uncompressed [default: 512]")
    add("--queries", type=command.count, metavar="N", help="last queries, evaluated [default: 256]")
    add("--markdown", metavar="FILE", help="report [default: stdout]")


def check_options(parser, options):
    missing = [name for name in NEEDED if not getattr(options, name)]
    if missing:
        parser.error("expected a step, or " + ", ".join("-o" if name == "output" else f"--{name}" for name in NEEDED)
                     + f": {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")


def given(options, *names):
    """Returns those options of a command line that have a value."""
    return options_of({name: getattr(options, name) for name in names})


def records_of(options):
    """Returns [(id, source)] of the prompts, None where a file does not say it."""
    out = []
    for path in options.prompts:
        if not os.path.isfile(path):
            raise CsvError(f"{path}: no such file")
        if not path.lower().endswith(".jsonl"):
            out.append((None, None))
            continue
        for _, record in read_lines(path, CsvError):
            if isinstance(record, dict) and options.set in (None, record.get("set")):
                out.append((record.get("id"), record.get("source")))
    return out[:options.max_prompts]


def check_sources(options, records):
    """Raises CsvError for fewer sources than sensitivities are means over."""
    sources = {source or f"prompt {at}" for at, (_, source) in enumerate(records)}
    if len(sources) < FEWEST:
        raise CsvError(f"--prompts: {', '.join(options.prompts)}: got {counted(len(sources), 'source')}, expected at "
                       f"least {FEWEST}: sensitivities are means over sources")


def files_of(model):
    """Returns what tells whether a model is the same: sizes and times of a folder's files."""
    if not os.path.isdir(model):
        return model
    return {one.name: [one.stat().st_size, one.stat().st_mtime_ns]
            for one in sorted(os.scandir(model), key=lambda one: one.name) if one.is_file()}


class Making:
    """The steps of one command line. policy: main() of kvbench-py policy, for its own steps."""

    def __init__(self, options, policy):
        self.options, self.policy = options, policy
        self.records = records_of(options)
        if options.measure:
            check_sources(options, self.records)
        try:
            self.program, self.version, self.of_program = program(), kvbench.__version__, run("--version").strip()
        except ProgramError as error:
            raise CsvError(str(error)) from None
        self.steps = Steps(options.work or options.output.removesuffix(".json") + ".steps",
                           5 if options.measure else 3)
        more = given(options, "revision", "device", "trust_remote_code")
        self.model, self.same_model = ["--model", options.model, *more], [files_of(options.model), *more]
        self.trace, self.sensitivities = self.path("dev.h5"), self.path("sensitivities.json")
        self.scores, self.alone, self.layers = (self.path(f"alone.{name}csv") for name in
                                                ("scores.", "scores.layers.", "layers."))
        self.windows, self.budget = given(options, *WINDOWS), f"--budget={options.budget!r}"

    def path(self, name):
        return self.steps.path(name)

    def run(self):
        self.dump()
        if self.options.measure:
            self.score()
            self.measure()
        self.replay()
        self.choose()

    def dump(self):
        words = ["--o-proj", *given(self.options, "set", "max_prompts", "max_tokens", "dtype")]
        self.steps.run("dump", "queries, keys and values of the prompts", lambda _: kvbench_py(
            "dump", *self.options.prompts, *self.model, *words, "-o", self.trace, "--overwrite"), [self.trace],
            words=words, inputs=sums(self.options.prompts), model=self.same_model, version=self.version)

    def score(self):
        words = ["--each-layer", f"--algorithm={MEASURED}", self.budget, *self.windows]
        self.steps.run("score", "the model's loss with one layer compressed at a time", lambda begun: kvbench_py(
            "score", self.trace, *self.model, *words, "-o", self.scores, "--rows", self.path("alone.csv"),
            how(begun, self.scores, self.path("alone.csv")), table=self.scores), [self.scores, self.alone, self.layers],
            words=words, inputs=sums([self.trace]), model=self.same_model, version=[self.version, self.of_program])

    def measure(self):
        known = {str(name) for name, _ in self.records if name is not None}
        whole = any(source for _, source in self.records) and set(kvbench.read_trace(self.trace).prompts) <= known
        by_source = self.options.prompts if whole else []
        self.steps.run("measure", "what an error in each layer costs", lambda _: self.policy([
            "measure", self.scores, "--alone", self.alone, "--layer-table", self.layers,
            *(["--records", *by_source] if by_source else []), "-o", self.sensitivities, "--markdown",
            self.path("sensitivities.md")]), [self.sensitivities],
            inputs=sums([self.scores, self.alone, self.layers, *by_source]), version=self.version)

    def replay(self):
        sizes = [self.options.budget * size for size in SIZES]
        budgets = ",".join(repr(size) for size in sizes if size <= 1)
        words = [f"--algorithm={self.options.algorithm}", f"--budget={budgets}", *self.windows]
        names = {self.path(f"dev-{at}.csv"): name for at, name in enumerate(kvbench.read_trace(self.trace).prompts)}
        self.curves = [table.removesuffix(".csv") + ".layers.csv" for table in names]
        self.steps.run("replay", "errors of the algorithms to choose from", lambda begun: replay(
            self.program, self.trace, [*words, how(begun, *names)], names), self.curves,
            words=words, inputs=sums([self.trace]), version=self.of_program)

    def choose(self):
        self.steps.always("choose", f"a mean budget of {self.options.budget:g}")
        costs = self.sensitivities if self.options.measure else EQUAL
        self.policy(["choose", costs, *self.curves, self.budget, "-o", self.options.output,
                     *given(self.options, "vary", "per", "markdown")])


def sums(files):
    """Returns what files hold, wherever they stand: [[name, SHA-256]]."""
    return [[os.path.basename(file), file_sha256(file)] for file in files]


def how(begun, *tables):
    """Returns how a step makes its tables. One that begins removes those of other inputs, which it would not go on with
    if it is interrupted before it has replaced all.
    """
    for table in () if begun else tables:
        for path in glob.glob(glob.escape(table.removesuffix("csv")) + "*"):
            if not path.endswith(".lock"):
                os.remove(path)
    return "--resume" if begun else "--overwrite"


def replay(own, trace, words, prompts):
    """Replays {table: prompt}, one after the other. On a terminal the program shows its own progress."""
    with Progress(len(prompts)) as progress:
        for at, (table, name) in enumerate(prompts.items(), 1):
            progress.step(0, f"prompt {at} of {len(prompts)}: {name}")
            with silence() if progress.terminal else contextlib.nullcontext():
                call(own, "replay", trace, f"--prompts={list_part(name)}", *words, "-o", table, table=table)
            progress.step(1, progress.text)

