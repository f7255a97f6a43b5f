"""Fills the tables of a page from result files.

    kvbench-study page-tables studies/reference/README.md             # rewrites the tables
    kvbench-study page-tables --check studies/reference/README.md     # exit code 1 if one differs

A table is enclosed by two lines:

    <!-- table: studies/reference/results/models/losses.csv | where budget=0.125 |
         name method | show mean, low..high=95 %, difference:+ | sort mean | rows h2o snapkv -->
    <!-- end -->

file      CSV file, relative to the source tree; `LABEL=FILE LABEL=FILE` joins several by name, each
          with its own columns
where     use only rows with these values (!=: without them); numbers are compared by value
name      columns that form a row's name, in code font. `label` is the algorithm with its varying
          params; `params.KEY` is one parameter, here and in pivot
show      columns: COLUMN[=TITLE][:FORMAT]; LOW..HIGH is an interval. FORMAT is Python's (default: .3f;
          + shows the sign)
pivot     COLUMN[=VALUE,...]: a column per value (or per listed value, in that order), for each of `show`
sort      COLUMN of the file or, with pivot, a value of the pivot column; -COLUMN: largest first
rows      use only rows of these names; `rows -NAME` excludes one
first     N: use only the first N rows
join      FILE NAME CONDITION...: columns of FILE beside those of the table, in rows whose name equals its
          column NAME; conditions as for where. `joined` lists the columns as `show` does
"""

import math
import os
import re
import shlex
import sys

from kvbench import command
from kvbench import tables as kt
from kvbench_study import ROOT

BLOCK = re.compile(r"^<!-- table: (?P<spec>.*?) -->\n(?P<body>.*?)^<!-- end -->$", re.M | re.S)
KEYS = ("where", "name", "show", "pivot", "sort", "rows", "first", "join", "joined")


def parse(spec):
    """{key: text}, with the files as {label: path} under `files`."""
    parts = [" ".join(part.split()) for part in spec.split("|")]
    out = {"files": {}}
    for word in shlex.split(parts[0]):
        label, _, path = word.rpartition("=")
        out["files"][label] = path
    for part in parts[1:]:
        key, _, text = part.partition(" ")
        if key not in KEYS or key in out:
            raise kt.CsvError(f"table {parts[0]}: got `{part}`, expected one each of "
                              + ", ".join(KEYS))
        out[key] = text
    for key in ("name", "show", *(("join", "joined") if {"join", "joined"} & set(out) else ())):
        if key not in out:
            raise kt.CsvError(f"table {parts[0]}: `{key}` is missing")
    return out


def spec_of_join(spec):
    """The join as a table of its own."""
    words = shlex.split(spec["join"])
    if len(words) < 2:
        raise kt.CsvError(f"join: got `{spec['join']}`, expected FILE NAME CONDITION...")
    path, name, *conditions = words
    return path, {"name": name, "show": spec["joined"], "where": shlex.join(conditions)}


def read(path):
    """A frame of text; empty fields are ''."""
    frame = kt.read_table([os.path.join(ROOT, path)], [], ())
    return frame.astype(str).where(frame.notna(), "")


def as_number(text):
    try:
        return float(text)
    except ValueError:
        return math.nan


def same(cell, value):
    a, b = as_number(cell), as_number(value)
    return cell == value if math.isnan(a) or math.isnan(b) else a == b


def select(frame, where, path):
    for word in shlex.split(where):
        column, _, value = word.partition("=")
        wanted = not column.endswith("!")
        column = column.rstrip("!")
        need(frame, column, path)
        frame = frame[frame[column].map(lambda cell, value=value: same(cell, value)) == wanted]
        if frame.empty:
            raise kt.CsvError(f"{path}: no row with {word}")
    return frame


def need(frame, column, path):
    if column not in frame.columns:
        raise kt.CsvError(f"{path}: no column `{column}`; there are {', '.join(frame.columns)}")


def shown(text):
    """[(column, high column or None, title, format)] of `show`."""
    out = []
    for item in text.split(","):
        head, _, style = item.strip().partition(":")
        columns, _, title = head.partition("=")
        low, _, high = columns.partition("..")
        style = style or ".3f"
        out.append((low, high or None, title or columns.replace("_", " "),
                    "+.3f" if style == "+" else style))
    return out


def cell(row, low, high, style):
    if high:
        ends = [text(row[low], style), text(row[high], style)]
        return "-" if "-" in ends else f"{ends[0]} to {ends[1]}"
    return text(row[low], style)


def text(value, style):
    number = as_number(value)
    if style == "s" or (math.isnan(number) and value):
        return value or "-"
    if not math.isfinite(number):
        return "-"
    return format(int(number) if style == "d" else number, style)


def short(value):
    """A number in short form, other text unchanged."""
    number = as_number(value)
    return value if math.isnan(number) else f"{number:g}"


def cells_of(path, spec, label):
    """({name: {title: cell}}, titles, {name: {sort key: number}}) of one file."""
    frame = read(path)
    columns = shown(spec["show"])
    names = [word.strip() for word in spec["name"].split(",")]
    pivot, _, picked = spec.get("pivot", "").partition("=")
    if {"algorithm", "params"} <= set(frame.columns):
        keys = sorted(set(re.findall(r"(?<![\w.])params\.(\w+)", " ".join(
            [*names, pivot, spec.get("where", "")]))))
        for key in keys:
            frame["params." + key] = [kt.parse_params(params).get(key, "")
                                      for params in frame["params"]]
        frame = select(frame, spec.get("where", ""), path)
        frame = kt.add_labels(frame.copy(), ignore=keys, short=True)
    else:
        frame = select(frame, spec.get("where", ""), path)
    for column in [*(c for low, high, _, _ in columns for c in (low, high)), *names, pivot]:
        if column:
            need(frame, column, path)
    if picked:
        frame = frame[frame[pivot].map(lambda cell: any(same(cell, v) for v in picked.split(",")))]
    out, titles, sorts = {}, {}, {}  # titles: {title: value of the pivot}
    for _, row in frame.iterrows():
        name = ", ".join(row[n] for n in names)
        place = short(row[pivot]) if pivot else ""
        at = out.setdefault(name, {})
        for low, high, title, style in columns:
            own = title if not pivot or len(columns) > 1 else ""
            whole = " ".join(part for part in (label, own, place) if part)
            if whole in at:
                raise kt.CsvError(f"{path}: several rows of {name}, {whole}")
            at[whole] = cell(row, low, high, style)
            titles.setdefault(whole, place)
        keys = sorts.setdefault(name, {})
        keys.update({place: row[columns[0][0]]} if pivot else dict(row))
    order = [short(value) for value in picked.split(",")] if picked else []
    return out, sorted(titles, key=lambda title: order.index(titles[title]) if order else 0), sorts


def table(text_of_spec):
    """Lines of Markdown."""
    spec = parse(text_of_spec)
    rows, titles, order = {}, [], {}
    for label, path in spec["files"].items():
        found, columns, sorts = cells_of(path, spec, label)
        for name, values in found.items():
            rows.setdefault(name, {}).update(values)
        titles += columns
        order = order or sorts
    if "join" in spec:
        found, columns, _ = cells_of(*spec_of_join(spec), "")
        for name in rows.keys() & found.keys():
            rows[name].update(found[name])
        titles += columns
    key = spec.get("sort")
    names = list(rows)
    if key:
        sign = -1 if key.startswith("-") else 1
        key = key.lstrip("-")
        if not any(key in keys for keys in order.values()):
            raise kt.CsvError(f"table {text_of_spec.split('|')[0]}: sort: no `{key}`")

        def place(name):
            number = as_number(order.get(name, {}).get(key, ""))
            return math.inf if math.isnan(number) else sign * number
        names.sort(key=place)
    picked = shlex.split(spec.get("rows", ""))
    leave = {word[1:] for word in picked if word.startswith("-")}
    take = [word for word in picked if not word.startswith("-")]
    for word in [*leave, *take]:
        if word not in rows:
            raise kt.CsvError(f"table {text_of_spec.split('|')[0]}: rows: no `{word}`; there are "
                              + ", ".join(rows))
    names = [n for n in names if n not in leave and (not take or n in take)]
    names = names[:int(spec.get("first", len(names)))]
    head = spec["name"].replace("label", "algorithm").replace("params.", "").replace("_", " ")
    lines = [f"| {head} | " + " | ".join(titles) + " |", "| --- |" + " ---: |" * len(titles)]
    lines += [f"| `{name}` | " + " | ".join(rows[name].get(t, "-") for t in titles) + " |"
              for name in names]
    return lines


def filled(page):
    """The page with its tables rewritten."""
    return BLOCK.sub(lambda match: f"<!-- table: {match['spec']} -->\n"
                     + "\n".join(table(match["spec"])) + "\n<!-- end -->", page)


def main(arguments=None):
    parser = command.plain_parser(__doc__)
    parser.add_argument("pages", nargs="+", metavar="PAGE.md")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a table differs")
    options = parser.parse_args(arguments)
    differs = []
    for path in options.pages:
        try:
            with open(path, encoding="utf-8") as file:
                page = file.read()
        except OSError as error:
            raise kt.CsvError(f"{path}: {error.strerror}") from None
        new = filled(page)
        if new == page:
            continue
        differs.append(path)
        if not options.check:
            with open(path, "w", encoding="utf-8") as file:
                file.write(new)
    if differs and options.check:
        print(f"tables differ from their files: {', '.join(differs)}; run kvbench-study page-tables",
              file=sys.stderr)
        sys.exit(1)
