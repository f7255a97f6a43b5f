#!/usr/bin/env python3
"""Chooses parameters on the development prompts, and shows what the choice is worth on others.

    kvbench replay dev.h5 --algorithm all:grid --budget 0.125 -o dev.csv
    kvbench list --grid > grids.csv
    scripts/tune.py choose dev.csv --grids grids.csv --settings tuned.toml --csv tuning.csv

    kvbench replay test.h5 --algorithm all --budget 0.125 -o all.csv
    kvbench replay test.h5 --config tuned.toml --budget 0.125 -o tuned.csv
    scripts/tune.py table all.csv --tuned tuned.csv --choice tuning.csv --csv both.csv

choose: of every method's settings (`NAME:grid`, `kvbench list NAME`) the one with the least mean of
--metric over prompts at the tables' budget. A prompt's figure is the mean over layers, heads and
seeds. A setting that is not `ok` on every head of every prompt is not chosen. --settings is a
configuration of kvbench with the chosen settings that are not the default, each as what it changes
of the default.

table: every method with its authors' setting and tuned, on prompts that the choice never saw, with
bootstrap intervals over prompts. --authors: rows of the authors' settings where these are not
kvbench's defaults; they stand in place of the defaults' rows.
"""

import sys

import compare_tables as ct
import kvbench_csv as kc
import kvbench_stats as ks
import numpy as np

HIGHER_BETTER = ("cosine", "mass_kept")
POINT = ["budget_requested", "algorithm", "params"]
CHOICE = ["algorithm", "budget", "metric", "prompts", "settings", "usable", "default", "tuned",
          "setting"]


def figures(paths, metric):
    """{(budget, algorithm, params): {prompt: mean over layers, heads and seeds}} of points that are
    `ok` on every head of their prompt; None where some prompt's is not."""
    frame = kc.read_results(paths, [metric, "seed", "budget_requested", *kc.HEAD_COLUMNS,
                                    *kc.SETTINGS])
    keys = [*kc.HEAD_COLUMNS, *POINT, "seed"]
    if frame.duplicated(keys).any():
        raise kc.CsvError(f"{', '.join(paths)}: rows stand twice")
    if frame[["prompt", "trace"]].drop_duplicates()["prompt"].duplicated().any():
        raise kc.CsvError(f"{paths[0]}: a prompt of one name in several traces")
    if len(frame[kc.SETTINGS].drop(columns="scores").drop_duplicates()) > 1:
        raise kc.CsvError(f"{paths[0]}: rows of several protocols, devices or windows")
    heads = frame.groupby("prompt")[["layer", "q_head"]].apply(lambda f: len(f.drop_duplicates()))
    out = {}
    # A budget is NaN for what has one size only: no setting to choose.
    for point, rows in frame.groupby(POINT, sort=False):
        good = rows["status"].map(kc.status_kind).eq("ok").all() and np.isfinite(rows[metric]).all()
        by_seed = rows.groupby(["prompt", "seed"]).size()
        whole = all(by_seed[p].eq(heads[p]).all() if p in by_seed else False for p in heads.index)
        out[point] = rows.groupby("prompt")[metric].mean() if good and whole else None
    return out


def varied(settings):
    """{params: text of the keys that differ among them}. A named method's may be absent."""
    parts = {text: kc.parse_params(text) for text in settings}
    keys = sorted({key for part in parts.values() for key in part})
    keys = [key for key in keys if len({part.get(key) for part in parts.values()}) > 1]
    return {text: ";".join(f"{key}={part[key]}" for key in keys if key in part)
            for text, part in parts.items()}


def changed(text, usual):
    """What of a setting is not the default's."""
    before = kc.parse_params(usual)
    return ";".join(f"{key}={value}" for key, value in kc.parse_params(text).items()
                    if before.get(key) != value)


EACH = ["algorithm", "setting", "prompts", "mean", "difference", "difference_low",
        "difference_high", "better", "worse"]


def each_setting(name, settings, found, usual, options):
    """A dict per usable setting: its mean, and paired what it changes of the default's figure."""
    sign = 1 if options.metric in HIGHER_BETTER else -1
    out = []
    for params, (_, text) in settings.items():
        mean, before = found[name, params], found[name, usual]
        if mean is None:
            continue
        apart = (mean - before).to_numpy() if before is not None else np.full(mean.size, np.nan)
        values = [np.nan] * 3 if before is None else interval(apart, options)
        out.append(dict(zip(EACH, [name, changed(text, settings[usual][1]) or "default", mean.size,
                                   mean.mean(), *values, int((apart * sign > 0).sum()),
                                   int((apart * sign < 0).sum())])))
    return sorted(out, key=lambda row: -sign * row["mean"])


def read_grids(path):
    """[(algorithm, setting, params)] of `kvbench list --grid`."""
    frame = kc.read_table([path], ["algorithm", "setting", "params"],
                          {"algorithm", "setting", "params"})
    return list(frame[["algorithm", "setting", "params"]].itertuples(index=False, name=None))


def row_settings(grids, rows):
    """{algorithm: {params in a row: (setting, text)}}. A row's values may have become those of its
    trace (rope=auto), so that rows are found by what differs among the grid's settings."""
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
            raise kc.CsvError(f"{name}: the rows' settings are not those of its grid")
        out[name] = {params: (by_text[texts[params]], texts[params]) for params in mine}
    return out


def choose(options):
    found = figures(options.tables, options.metric)
    budgets = {budget for budget, _, _ in found if budget == budget}
    if len(budgets) != 1:
        raise kc.CsvError(f"{options.tables[0]}: rows of {len(budgets)} budgets, expected one")
    found = {(name, params): mean for (budget, name, params), mean in found.items()
             if budget == budget}
    best = max if options.metric in HIGHER_BETTER else min
    rows, lines, each = [], [], []
    for name, settings in row_settings(read_grids(options.grids), list(found)).items():
        usable = {params: found[name, params].mean() for params in settings
                  if found[name, params] is not None}
        if not usable:
            continue
        usual = next(params for params, (setting, _) in settings.items() if setting == "default")
        if options.each:
            each += each_setting(name, settings, found, usual, options)
        # The default comes first: a tie is no reason to leave it.
        order = sorted(usable, key=lambda params: params != usual)
        chosen = best(order, key=usable.get)
        setting = changed(settings[chosen][1], settings[usual][1])
        rows.append([name, *budgets, options.metric, found[name, chosen].size, len(settings),
                     len(usable), usable.get(usual, np.nan), usable[chosen], setting])
        if setting:
            lines.append(f'  "{name}:{setting}",')
    if options.csv:
        ct.write_table(options.csv, CHOICE, [dict(zip(CHOICE, row)) for row in rows])
    if options.each:
        ct.write_table(options.each, EACH, each)
    if options.settings:
        ct.write_text(options.settings, "\n".join([
            "# Settings chosen by scripts/tune.py on the development prompts: of every method's grid",
            f"# the one of the best mean {options.metric} at budget {rows[0][1]:g}, where that is not "
            "the default.",
            "algorithm = [", *lines, "]", ""]))
    if options.markdown:
        titles = ["method", "settings", "default", "best", "chosen"]
        cells = [[r[0], str(r[4]), ct.number(r[6], options.digits), ct.number(r[7], options.digits),
                  f"`{r[8]}`" if r[8] else "the default"] for r in rows if r[4] > 1]
        ct.write_text(options.markdown, "\n".join(
            [f"Mean {options.metric} at {rows[0][1]:g} of the bytes over "
             f"{ks.counted(rows[0][3])}.", "", *ct.markdown_table(titles, cells)]) + "\n")


def one_setting(paths, metric):
    """{(budget, algorithm): (params, figures by prompt or None)}; one setting per algorithm."""
    out = {}
    for (budget, name, params), mean in figures(paths, metric).items():
        if budget != budget:
            continue
        if (budget, name) in out:
            raise kc.CsvError(f"{paths[0]}: {name} has several settings, expected one")
        out[budget, name] = (params, mean)
    return out


def interval(values, options):
    """(mean, low, high) over prompts."""
    low, high = ks.bootstrap_intervals(np.asarray(values)[:, None], resamples=options.resamples)[0]
    return float(np.mean(values)), low, high


TABLE = ["budget", "algorithm", "prompts", "setting", "authors", "authors_low", "authors_high",
         "tuned", "tuned_low", "tuned_high", "difference", "difference_low", "difference_high",
         "better", "worse"]


def table(options):
    usual = one_setting(options.tables, options.metric)
    if options.authors:
        usual.update(one_setting(options.authors, options.metric))
    tuned = {**one_setting(options.tables, options.metric),
             **one_setting(options.tuned, options.metric)}
    chosen = kc.read_table([options.choice], ["algorithm", "setting"], {"algorithm", "setting",
                           "metric"})
    settings = dict(zip(chosen["algorithm"], chosen["setting"]))
    sign = 1 if options.metric in HIGHER_BETTER else -1
    rows = []
    for (budget, name), (params, before) in usual.items():
        after_params, after = tuned[budget, name]
        if before is None or after is None:
            continue
        if list(before.index) != list(after.index):
            raise kc.CsvError(f"{name}: tuned rows are of other prompts")
        row = [budget, name, before.size, settings.get(name, ""), *interval(before, options)]
        if after_params == params:
            rows.append([*row, *row[4:7], 0.0, 0.0, 0.0, 0, 0])
            continue
        apart = (after - before).to_numpy()
        rows.append([*row, *interval(after, options), *interval(apart, options),
                     int((apart * sign > 0).sum()), int((apart * sign < 0).sum())])
    rows.sort(key=lambda row: (-row[0], -sign * row[7]))
    if options.csv:
        ct.write_table(options.csv, TABLE, [dict(zip(TABLE, row)) for row in rows])
    if options.markdown:
        ct.write_text(options.markdown, "\n".join(table_lines(rows, options)) + "\n")


def table_lines(rows, options):
    """Markdown: a table per budget."""
    out = []
    for budget in dict.fromkeys(row[0] for row in rows):
        here = [row for row in rows if row[0] == budget]
        titles = ["method", "authors' setting", "95 %", "tuned", "95 %", "tuned minus authors'",
                  "95 %", "better/worse"]
        cells = []
        for row in here:
            d = options.digits
            same = row[13] == row[14] == 0 and row[10] == 0
            cells.append([row[1], ct.number(row[4], d), ct.span(row[5], row[6], d),
                          ct.number(row[7], d), ct.span(row[8], row[9], d),
                          *(["-", "-", "-"] if same else
                            [f"{row[10]:+.{d}f}", ct.span(row[11], row[12], d),
                             f"{row[13]}/{row[14]}"])])
        out += [f"## Budget {budget:g}: {ks.counted(here[0][2])}", "",
                *ct.markdown_table(titles, cells), ""]
    return out[:-1]


def parse_arguments(arguments=None):
    parser = kc.plain_parser(__doc__)
    commands = parser.add_subparsers(required=True, metavar="choose|table")
    for name, run in (("choose", choose), ("table", table)):
        sub = commands.add_parser(name, description=__doc__,
                                  formatter_class=parser.formatter_class)
        sub.set_defaults(run=run)
        sub.add_argument("tables", nargs="+", metavar="OUT.csv", help="files of kvbench replay")
        sub.add_argument("--metric", default="rel_error", help="column [rel_error]")
        sub.add_argument("--csv", metavar="FILE.csv")
        sub.add_argument("--markdown", metavar="FILE.md", help="- is the terminal")
        sub.add_argument("--digits", type=int, default=3)
        sub.add_argument("--resamples", type=int, default=ks.RESAMPLES)
        if name == "choose":
            sub.add_argument("--grids", required=True, metavar="FILE.csv",
                             help="what `kvbench list --grid` prints")
            sub.add_argument("--settings", metavar="FILE.toml",
                             help="the chosen settings, as a configuration")
            sub.add_argument("--each", metavar="FILE.csv",
                             help="every setting with its mean and its difference to the default")
        else:
            sub.add_argument("--tuned", nargs="+", required=True, metavar="OUT.csv")
            sub.add_argument("--authors", nargs="+", metavar="OUT.csv")
            sub.add_argument("--choice", required=True, metavar="FILE.csv",
                             help="--csv of `tune.py choose`")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse_arguments(arguments)
    if not (options.csv or options.markdown or getattr(options, "settings", None)
            or getattr(options, "each", None)):
        options.markdown = "-"
    options.run(options)


if __name__ == "__main__":
    kc.run_main(main)
