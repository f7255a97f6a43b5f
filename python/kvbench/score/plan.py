"""Plan of kvbench-py score with a replay: the program's plan without the finished groups. Needs no torch."""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import tomllib
from typing import Any

from kvbench.api.run import options_of, text_of
from kvbench.command import number_list
from kvbench.records import read_json
from kvbench.score.table import key_of
from kvbench.text import list_part
from kvbench.trace.writer import TraceError

POLICY = "policy"  # column `algorithm` of a policy's rows
HEADER = ["algorithm", "entries", "jobs", "rows", "job", "MiB", "parameters"]
OPTIONS = ("config", "scores", "sink", "recent", "queries", "precision", "memory_limit")  # passed to the program


class ReplayError(TraceError):
    """The program failed, with its message."""


@dataclasses.dataclass(frozen=True)
class Variant:
    """A method with one setting of its parameters.

    budgets   fractions; (None,) if its parameters fix its size
    seeds     (0,) if it is deterministic
    policy    its file, if it is a policy
    """

    algorithm: str
    params: str
    budgets: tuple[float | None, ...]
    seeds: tuple[int, ...]
    policy: str = ""

    @property
    def options(self) -> list[str]:
        """Returns the options of the program that select it."""
        if self.policy:
            return ["--policy", list_part(self.policy)]
        return ["--algorithm", f"{self.algorithm}:{self.params}" if self.params else self.algorithm]

    def keys(self) -> list[tuple[str, str, float | None, int]]:
        return [(self.algorithm, self.params, budget, seed) for budget in self.budgets for seed in self.seeds]


def read_budgets(text: str) -> tuple[float, ...]:
    """Parses `0.25,12.5%,1/8` without duplicates."""
    try:
        return tuple(dict.fromkeys(number_list(text)))
    except argparse.ArgumentTypeError as error:
        raise TraceError(f"--budget: {error}") from None


def read_seeds(text: str) -> tuple[int, ...]:
    """Parses `N` (0 to N-1), or a list of seeds and ranges A:B[:STEP]."""
    try:
        if text.isdecimal():
            return tuple(range(int(text)))
        out: list[int] = []
        for part in text.split(","):
            numbers = [int(one) for one in part.split(":")]
            out += range(*numbers) if len(numbers) in (2, 3) else numbers
            if len(numbers) > 3:
                raise ValueError
        return tuple(sorted(set(out)))
    except ValueError:
        raise TraceError(f"--seeds: got `{text}`, expected N, or seeds and ranges such as 0:5,7") from None


def read_config(path: str | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        with open(path, "rb") as file:
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"--config: {path}: {error}") from None
    except RecursionError:
        raise TraceError(f"--config: {path}: nested too deeply") from None


def common_options(args: Any) -> list[str]:
    """Returns the options of every call, without algorithms, budgets, seeds, prompts and files."""
    return options_of({"layers": args.layers and args.layers.text, **{name: getattr(args, name) for name in OPTIONS}})


def protocol_of(args: Any) -> dict[str, Any]:
    """Returns the options that determine rows, from the command line, the configuration or the defaults."""
    config = read_config(args.config)
    given = {"scores": args.scores, "sink": args.sink, "recent": args.recent, "queries": args.queries,
             "precision": args.precision, "layers": args.layers and args.layers.text, "heads": None}
    defaults = {"scores": "past", "sink": 16, "recent": 512, "queries": 256, "precision": "float32"}
    return {name: value if value is not None else config.get(name, defaults.get(name, "all"))
            for name, value in given.items()}


def call(program: str, *arguments: str) -> str:
    """Returns stdout of a call. Raises ReplayError with the last line of stderr."""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    except OSError as error:
        raise TraceError(f"--program: {program}: {error.strerror}") from None
    if done.returncode:
        raise ReplayError((done.stderr.strip().splitlines() or [f"{program}: failed"])[-1])
    return done.stdout


def read_plan_table(text: str) -> list[tuple[str, str, int]]:
    """Returns [(algorithm, params, entries)] of `kvbench replay --dry-run`."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.split() == HEADER:
            break
    else:
        raise ReplayError("kvbench replay --dry-run: no table of algorithms: expected a program of this version")
    out = []
    for line in lines:
        if not line.strip():
            break
        cells = line.split()
        # The last cell is missing without parameters, and may hold blanks.
        out.append((cells[0], line.split(None, 5)[5].strip() if len(cells) > 5 else "", int(cells[1])))
    return out


def find_variants(args: Any, trace: str, prompt: str) -> list[Variant]:
    """Returns [Variant] of the command line for a prompt of a trace, in the program's order."""
    config = read_config(args.config)
    common = ["replay", trace, *common_options(args), "--prompts=" + list_part(prompt), "--dry-run",
              f"--output={args.rows}.plan"]
    common += [f"--algorithm={one}" for one in args.algorithm or ()]
    common += [f"--policy={list_part(path)}" for path in args.policy]
    budget = args.budget if args.budget is not None else config.get("budget")
    seeds = args.seeds if args.seeds is not None else config.get("seeds")
    budgets = () if budget is None else read_budgets(text_of(budget))
    numbers = (0,) if seeds is None else read_seeds(text_of(seeds))
    own = [f"--budget={','.join(map(repr, budgets))}"] if budgets else []
    if seeds is not None:
        own.append(f"--seeds={text_of(seeds)}")
    call(args.program, *common, *own)  # rejects invalid options
    # The entries of two budgets and three seeds show what a method depends on.
    own = ["--budget=0.5,0.25"] if budgets else []
    out = []
    for algorithm, params, entries in read_plan_table(call(args.program, *common, *own, "--seeds=3")):
        if entries not in (1, 2, 3, 6):
            raise ReplayError(f"{algorithm}: got {entries} entries of two budgets and three seeds, "
                              "expected 1, 2, 3 or 6")
        draws = numbers if entries % 3 == 0 else (0,)
        if algorithm == POLICY:
            path = policy_of(params, args.policy)
            out.append(Variant(algorithm, params, (float(read_json(path)["budget"]),), draws, path))
        else:
            out.append(Variant(algorithm, params, budgets if entries % 2 == 0 else (None,), draws))
    return out


def policy_of(params: str, paths: list[str]) -> str:
    """Returns the file of a policy's rows, which have `name=NAME;sha256=...`."""
    name = params.removeprefix("name=").partition(";")[0]
    for path in paths:
        if os.path.splitext(os.path.basename(path))[0] == name:
            return path
    raise ReplayError(f"--policy: got no file of {name}, which the program runs: name it here, not in --config")


@dataclasses.dataclass
class Part:
    """One call of the program, which makes `keys`, for variants with the same missing budgets and seeds."""

    variants: list[Variant]
    budgets: tuple[float | None, ...]
    seeds: tuple[int, ...]

    @property
    def keys(self) -> list[tuple[str, str, float | None, int]]:
        return [key for one in self.variants for key in one.keys()]

    def options(self) -> list[str]:
        out = []
        for one in self.variants:
            out += one.options
        if self.budgets != (None,):
            out.append("--budget=" + ",".join(map(repr, self.budgets)))
        out.append("--seeds=" + ",".join(f"{seed}:{seed + 1}" for seed in self.seeds))
        return out


def resolve(planned: list[tuple], made: set[tuple]) -> dict[tuple[str, str], str]:
    """Returns {(algorithm, params): params in the rows} where a method resolved `auto`. planned, made: keys
    (algorithm, params, budget, seed).
    """
    out = {}
    for key in sorted({*planned} - made, key=str):
        algorithm, params, *rest = key
        asked = dict(part.split("=", 1) for part in params.split(";") if part)
        for other in sorted(made - {*planned}, key=str):
            got = dict(part.split("=", 1) for part in other[1].split(";") if part)
            if (other[0], *other[2:]) == (algorithm, *rest) and got.keys() == asked.keys() and all(
                    asked[name] in (got[name], "auto") for name in asked):
                out[algorithm, params] = other[1]
    return out


def shorten_first(parts: list[Part]) -> list[Part]:
    """Splits the first part, since the model waits for it."""
    if not parts or len(parts[0].variants) < 2:
        return parts
    first, short = parts[0], max(1, len(parts[0].variants) // 4)
    return [Part(some, first.budgets, first.seeds)
            for some in (first.variants[:short], first.variants[short:])] + parts[1:]


def parts_of(variants: list[Variant], done: set, groups: int) -> list[Part]:
    """Returns [Part] for the keys that are not in `done`, of about `groups` caches each."""
    waiting: dict[tuple, list[Variant]] = {}
    for one in variants:
        missing = [key for key in one.keys() if key not in done]
        budgets = tuple(b for b in one.budgets if any(key[2] == b for key in missing))
        # By budget, since seeds may be missing at one budget only.
        by_seeds: dict[tuple, list] = {}
        for budget in budgets:
            by_seeds.setdefault(tuple(key[3] for key in missing if key[2] == budget), []).append(budget)
        for seeds, some in by_seeds.items():
            waiting.setdefault((tuple(some), seeds), []).append(
                dataclasses.replace(one, budgets=tuple(some), seeds=seeds))
    # A fixed size can join any budgets, which saves a call.
    for budgets, seeds in [*waiting]:
        others = [place for place in waiting if place[1] == seeds and place[0] != (None,)]
        if budgets == (None,) and others:
            waiting[others[0]] = waiting.pop((budgets, seeds)) + waiting[others[0]]
    out = []
    for (budgets, seeds), some in waiting.items():
        step = max(1, groups // (len(budgets) * len(seeds)))
        out += [Part(some[at:at + step], budgets, seeds) for at in range(0, len(some), step)]
    return out


def make_plan(args: Any, finished: set, prompts: list[tuple[str, str]], resolved: dict[str, str]
              ) -> tuple[list[tuple[str, str, Part]], int]:
    """Returns [(trace, prompt, Part)] of the missing groups, and the number of finished ones.

    finished: keys of the table of scores; resolved: {ALGORITHM:PARAMS: params in the rows} where these differ
    """
    out: list[tuple[str, str, Part]] = []
    there = 0
    for trace, name in prompts:
        variants = find_variants(args, trace, name)
        done = set()
        for key in (key for one in variants for key in one.keys()):
            algorithm, params, *rest = key
            own = algorithm, resolved.get(f"{algorithm}:{params}", params), *rest
            if key_of(os.path.basename(trace), name, argparse.Namespace(key=own)) in finished:
                done.add(key)
        there += len(done)
        parts = parts_of(variants, done, args.groups)
        out += [(trace, name, part) for part in (parts if out else shorten_first(parts))]
    return out, there
