"""Chooses parameters on development prompts and evaluates them on others.

    kvbench replay dev.h5 --algorithm all:grid --budget 0.125 -o dev.csv
    kvbench list --grid > grids.csv
    kvbench-py tune choose dev.csv --grids grids.csv --settings tuned.toml --csv tuning.csv

    kvbench replay test.h5 --algorithm all --budget 0.125 -o all.csv
    kvbench replay test.h5 --config tuned.toml --budget 0.125 -o tuned.csv
    kvbench-py tune table all.csv --tuned tuned.csv --choice tuning.csv --csv both.csv

choose: picks, of every method's settings (`NAME:grid`, `kvbench list NAME`), the one with the
smallest mean of --metric over prompts at the tables' budget. A prompt's figure is the mean over
layers, heads and seeds. A setting must be `ok` on every head of every prompt. --settings writes a
configuration of kvbench with the chosen settings that differ from the default.

table: compares the authors' setting with the tuned one on unseen prompts, with bootstrap intervals
over prompts (--by source: over sources, each the mean of its prompts). --authors: rows of the
authors' settings where these are not kvbench's defaults; they replace the defaults' rows.

--metric residual_rel_error and out_rel_error are per layer: --layer-table OUT.layers.csv names the side
tables of all other tables, and a prompt's figure is the mean over layers and seeds.
"""


import numpy as np

from kvbench import command, units
from kvbench import stats as ks
from kvbench import tables as kt
from kvbench.comparison import tables as ct
from kvbench.outputs import check_outputs
from kvbench.text import counted

POINT = ["budget_requested", "algorithm", "params"]
DIFFERENCE = ["difference", "difference_low", "difference_high", "better", "worse"]
CHOICE = ["algorithm", "budget", "metric", "prompts", "settings", "usable", "default", "tuned", "setting"]
EACH = ["algorithm", "setting", "prompts", "mean", *DIFFERENCE]
TABLE = ["budget", "algorithm", "prompts", "setting", "authors", "authors_low", "authors_high",
         "tuned", "tuned_low", "tuned_high", *DIFFERENCE]


def figures(paths, options):
    """Returns {(budget, algorithm, params): {unit: mean over layers, heads and seeds}}; None for a point that is not
    `ok` on every head. The unit is a prompt, or a source with --by source (the mean of its prompts).
    """
    metric = options.metric
    of_layers = metric in kt.LAYER_METRICS
    frame = kt.read_results(paths, [*([] if of_layers else [metric]), "seed", "budget_requested",
                                    *kt.HEAD_COLUMNS, *kt.SETTINGS])
    if frame[["prompt", "trace"]].drop_duplicates()["prompt"].duplicated().any():
        raise kt.CsvError(f"{paths[0]}: a prompt of one name in several traces")
    mixed = kt.differing(frame.drop(columns="scores"))
    if mixed:
        raise kt.CsvError(f"{paths[0]}: rows differ in {', '.join(mixed)}, expected one protocol and one model")
    of = None
    if options.by == "source":
        of = dict(zip(frame["prompt"], units.sources_of(frame, options.records, paths[0])))
    heads = frame.groupby("prompt")[["layer", "q_head"]].apply(lambda f: len(f.drop_duplicates()))
    if of_layers:
        frame[metric] = layer_figures(frame, options)
    out = {}
    # NaN: a method of fixed size, without settings.
    for point, rows in frame.groupby(POINT, sort=False):
        good = rows["status"].map(kt.status_kind).eq("ok").all() and np.isfinite(rows[metric]).all()
        by_seed = rows.groupby(["prompt", "seed"]).size()
        whole = all(by_seed[p].eq(heads[p]).all() if p in by_seed else False for p in heads.index)
        mean = rows.groupby("prompt")[metric].mean()
        mean = mean if of is None else mean.groupby(of).mean()
        out[point] = mean if good and whole else None
    return out


def layer_figures(frame, options):
    """Returns the metric of each row's layer from --layer-table; NaN without a line. Layers have equally many heads,
    so means over rows are means over layers.
    """
    keys = ["trace", "prompt", "layer", *POINT, "seed"]
    layers = kt.read_table(options.layer_table, [*keys, options.metric], kt.TEXT_COLUMNS, ())
    kt.reject_duplicates(layers, keys, options.layer_table[0])
    return frame[keys].merge(layers, on=keys, how="left")[options.metric].to_numpy()


def varied(settings):
    """Returns {params: text of the keys that differ among them}. Parameters of a nested method may be absent."""
    parts = {text: kt.parse_params(text) for text in settings}
    keys = sorted({key for part in parts.values() for key in part})
    keys = [key for key in keys if len({part.get(key) for part in parts.values()}) > 1]
    return {text: ";".join(f"{key}={part[key]}" for key in keys if key in part) for text, part in parts.items()}


def sign_of(options):
    """Returns 1 if a larger figure is better, otherwise -1."""
    return 1 if options.metric in kt.HIGHER_BETTER else -1


def interval(name, values, options):
    """Returns {name: mean over prompts, name_low, name_high}."""
    low, high = ks.bootstrap_intervals(np.asarray(values)[:, None], resamples=options.resamples)[0]
    return {name: float(np.mean(values)), f"{name}_low": low, f"{name}_high": high}


def paired(after, before, options):
    """Returns the columns DIFFERENCE: paired changes by prompt."""
    apart = (after - before).to_numpy()
    wins = apart * sign_of(options)
    return {**interval("difference", apart, options), "better": int((wins > 0).sum()), "worse": int((wins < 0).sum())}


def each_setting(name, settings, found, usual, options):
    """Returns a dict per usable setting, best first: its mean and its paired difference from the default."""
    before, out = found[name, usual], []
    for params, (_, text) in settings.items():
        mean = found[name, params]
        if mean is None:
            continue
        row = {"algorithm": name, "setting": kt.changed_params(text, settings[usual][1]) or "default",
               "prompts": mean.size, "mean": mean.mean()}
        # No figure of the default: no comparison.
        row |= paired(mean, before, options) if before is not None else {"better": 0, "worse": 0}
        out.append(row)
    return sorted(out, key=lambda row: -sign_of(options) * row["mean"])


def read_grids(path):
    """Returns [(algorithm, setting, params)] of `kvbench list --grid`."""
    frame = kt.read_table([path], ["algorithm", "setting", "params"], {"algorithm", "setting", "params"})
    return list(frame[["algorithm", "setting", "params"]].itertuples(index=False, name=None))


def row_settings(grids, rows):
    """Returns {algorithm: {params in a row: (setting, text)}}. A row may hold values taken from the
    trace (rope=auto), so rows are matched by the parameters that differ within the grid.
    """
    out = {}
    for name in dict.fromkeys(algorithm for algorithm, _, _ in grids):
        declared = {params: setting for algorithm, setting, params in grids if algorithm == name}
        short = varied(declared)
        by_text = {short[params]: setting for params, setting in declared.items()}
        mine = [params for algorithm, params in rows if algorithm == name]
        texts = varied(mine)
        if not mine:
            continue
        if sorted(texts.values()) != sorted(short.values()):
            raise kt.CsvError(f"{name}: the rows' settings are not those of its grid")
        out[name] = {params: (by_text[texts[params]], texts[params]) for params in mine}
    return out


def choose(options):
    found = figures(options.tables, options)
    budgets = {budget for budget, _, _ in found if budget == budget}
    if len(budgets) != 1:
        raise kt.CsvError(f"{options.tables[0]}: rows of {len(budgets)} budgets, expected one")
    found = {(name, params): mean for (budget, name, params), mean in found.items() if budget == budget}
    best = max if sign_of(options) > 0 else min
    budget, = budgets
    rows, lines, each = [], [], []
    for name, settings in row_settings(read_grids(options.grids), list(found)).items():
        usable = {params: found[name, params].mean() for params in settings if found[name, params] is not None}
        if not usable:
            kt.note(f"{name} is left out: no setting is ok on every head of every prompt")
            continue
        usual = next(params for params, (setting, _) in settings.items() if setting == "default")
        if options.each:
            each += each_setting(name, settings, found, usual, options)
        # The default comes first, so that it wins ties.
        order = sorted(usable, key=lambda params: params != usual)
        chosen = best(order, key=usable.get)
        setting = kt.changed_params(settings[chosen][1], settings[usual][1])
        rows.append({"algorithm": name, "budget": budget, "metric": options.metric,
                     "prompts": found[name, chosen].size, "settings": len(settings),
                     "usable": len(usable), "default": usable.get(usual, np.nan),
                     "tuned": usable[chosen], "setting": setting})
        if setting:
            lines.append(f'  "{name}:{setting}",')
    if not rows:
        raise kt.CsvError(f"{options.tables[0]}: got no setting of the grids that is ok on every head of every prompt, "
                          "expected one")
    if options.csv:
        ct.write_table(options.csv, CHOICE, rows)
    if options.each:
        ct.write_table(options.each, EACH, each)
    if options.settings:
        ct.write_text(options.settings, "\n".join([
            "# Settings chosen by kvbench-py tune on the development prompts: of every method's grid",
            f"# the one of the best mean {options.metric} at budget {budget:g}, where that is not the default.",
            "algorithm = [", *lines, "]", ""]))
    if options.markdown:
        titles = ["method", "settings", "default", "best", "chosen"]
        cells = [[row["algorithm"], str(row["settings"]), ct.number(row["default"], options.digits),
                  ct.number(row["tuned"], options.digits),
                  f"`{row['setting']}`" if row["setting"] else "the default"]
                 for row in rows if row["settings"] > 1]
        ct.write_text(options.markdown, "\n".join(
            [f"Mean {options.metric} at {budget:g} of the bytes over "
             f"{counted(rows[0]['prompts'], options.by)}.", "", *ct.markdown_table(titles, cells)]) + "\n")


def one_setting(paths, options):
    """Returns {(budget, algorithm): figures by prompt or None}; one setting per algorithm."""
    out = {}
    for (budget, name, _), mean in figures(paths, options).items():
        if budget != budget:
            continue
        if (budget, name) in out:
            raise kt.CsvError(f"{paths[0]}: {name} has several settings, expected one")
        out[budget, name] = mean
    return out


def table(options):
    usual = one_setting(options.tables, options)
    if options.authors:
        usual.update(one_setting(options.authors, options))
    of_settings = one_setting(options.tuned, options)
    tuned = {**one_setting(options.tables, options), **of_settings}
    chosen = kt.read_table([options.choice], ["algorithm", "setting"], {"algorithm", "setting", "metric"})
    settings = dict(zip(chosen["algorithm"], chosen["setting"]))
    rows = []
    for (budget, name), before in usual.items():
        if (budget, name) not in tuned:
            raise kt.CsvError(f"{options.authors[0]}: {name} at budget {budget:g}: got no rows of it in the other "
                              "tables, expected them")
        after = tuned[budget, name]
        if settings.get(name) and (budget, name) not in of_settings:  # otherwise its default would pass for the setting
            kt.note(f"{name} at budget {budget:g} is left out: {options.tuned[0]} has no rows of {settings[name]}")
            continue
        if before is None or after is None:
            kt.note(f"{name} at budget {budget:g} is left out: rows that are not ok on every head of every prompt")
            continue
        if list(before.index) != list(after.index):
            raise kt.CsvError(f"{name}: tuned rows are of other prompts")
        rows.append({"budget": budget, "algorithm": name, "prompts": before.size,
                     "setting": settings.get(name, ""),
                     **interval("authors", before, options), **interval("tuned", after, options),
                     **paired(after, before, options)})
    rows.sort(key=lambda row: (-row["budget"], -sign_of(options) * row["tuned"]))
    if options.csv:
        ct.write_table(options.csv, TABLE, rows)
    if options.markdown:
        ct.write_text(options.markdown, "\n".join(table_lines(rows, options)) + "\n")


def table_lines(rows, options):
    """Returns Markdown: a table per budget."""
    digits, out = options.digits, []

    def span(row, name):
        return ct.interval(row[name + "_low"], row[name + "_high"], digits, ct.number)

    for budget in dict.fromkeys(row["budget"] for row in rows):
        here = [row for row in rows if row["budget"] == budget]
        titles = ["method", "authors' setting", "95 %", "tuned", "95 %", "tuned minus authors'", "95 %", "better/worse"]
        cells = [[row["algorithm"], ct.number(row["authors"], digits), span(row, "authors"),
                  ct.number(row["tuned"], digits), span(row, "tuned"),
                  *(["-", "-", "-"] if row["difference"] == row["better"] == row["worse"] == 0 else
                    [f"{row['difference']:+.{digits}f}", span(row, "difference"),
                     f"{row['better']}/{row['worse']}"])] for row in here]
        out += [f"## Budget {budget:g}: {counted(here[0]['prompts'], options.by)}", "",
                *ct.markdown_table(titles, cells), ""]
    return out[:-1]


def parse_arguments(arguments=None):
    parser = command.plain_parser(__doc__)
    commands = parser.add_subparsers(required=True, metavar="choose|table")
    for name, run in (("choose", choose), ("table", table)):
        sub = commands.add_parser(name, description=__doc__, formatter_class=parser.formatter_class)
        sub.set_defaults(run=run)
        sub.add_argument("tables", nargs="+", metavar="OUT.csv", help="files of kvbench replay")
        sub.add_argument("--metric", default="rel_error", metavar="COLUMN",
                         help="figure to compare [default: %(default)s]")
        sub.add_argument("--layer-table", nargs="+", metavar="OUT.layers.csv",
                         help="tables of whole layers, for a metric of theirs")
        sub.add_argument("--csv", metavar="FILE.csv")
        sub.add_argument("--markdown", metavar="FILE", help="- for stdout")
        sub.add_argument("--digits", type=command.count, default=3, metavar="N",
                         help="digits in tables [default: %(default)s]")
        sub.add_argument("--resamples", type=command.positive, default=ks.RESAMPLES, metavar="N",
                         help="of the bootstrap [default: %(default)s]")
        sub.add_argument("--by", **units.BY)
        sub.add_argument("--records", **units.RECORDS)
        if name == "choose":
            sub.add_argument("--grids", required=True, metavar="FILE.csv", help="output of `kvbench list --grid`")
            sub.add_argument("--settings", metavar="FILE.toml", help="the chosen settings, as a configuration")
            sub.add_argument("--each", metavar="FILE.csv",
                             help="every setting with its mean and its difference to the default")
        else:
            sub.add_argument("--tuned", nargs="+", required=True, metavar="OUT.csv")
            sub.add_argument("--authors", nargs="+", metavar="OUT.csv")
            sub.add_argument("--choice", required=True, metavar="FILE.csv", help="--csv of `kvbench-py tune choose`")
    options = parser.parse_args(arguments)
    if (options.metric in kt.LAYER_METRICS) != bool(options.layer_table):
        parser.error(f"--layer-table: expected with --metric {' or '.join(kt.LAYER_METRICS)}, and with no other")
    inputs = [*options.tables, *(options.layer_table or []), *options.records]
    if options.run is choose:
        check_outputs([*inputs, options.grids], [options.csv, options.markdown, options.settings, options.each])
    else:
        check_outputs([*inputs, *options.tuned, *(options.authors or []), options.choice],
                      [options.csv, options.markdown])
    return options


def main(arguments=None):
    options = parse_arguments(arguments)
    if not (options.csv or options.markdown or getattr(options, "settings", None) or getattr(options, "each", None)):
        options.markdown = "-"
    options.run(options)
