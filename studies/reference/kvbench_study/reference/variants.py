"""Variants of a stage: the unit in which the store of kvbench-study reference grows.

A variant is one word of --algorithm without commas and sets: `snapkv`, `balancekv:T=1,2`,
`h2o:grid`. `policy:FILE.json` is a word of --policy; FILE may hold `{prompt}`. Sets (`all`,
`@merging`, `snap*`) expand to the algorithms that the program lists for the stage's protocol. A dry run
on the prompt's trace determines the rows of a variant.
"""

import os
import subprocess
import tomllib

from kvbench.text import parse_json
from kvbench_study.reference import plan as rp


def split_words(words):
    """Returns variants and sets in values of --algorithm: `a,b:x=1,2` is `a` and `b:x=1,2`."""
    out = []
    for word in words:
        names, colon, values = word.partition(":")
        parts = [name for name in names.split(",") if name]
        out += [*parts[:-1], *(name + colon + values for name in parts[-1:])]
    return out


def is_set(variant):
    name = variant.partition(":")[0]
    return name == "all" or name.startswith("@") or "*" in name or "?" in name


def option_values(options, name):
    """Returns the values of a repeatable option."""
    out = [word.removeprefix(name + "=") for word in options if word.startswith(name + "=")]
    return out + [options[i + 1] for i, word in enumerate(options[:-1]) if word == name]


def matches(declared, params):
    """Returns whether a row's params are those of a plan, where the trace may have set `auto`."""
    if declared == params:
        return True
    mine = [part.partition("=") for part in declared.split(";")]
    other = [part.partition("=") for part in params.split(";")]
    return len(mine) == len(other) and all(
        a[0] == b[0] and a[2] in ("auto", b[2]) for a, b in zip(mine, other))


def claims(points, variant):
    """Returns whether one of [(algorithm, params)] is that of (algorithm, params, budget)."""
    return any(name == variant[0] and matches(params, variant[1]) for name, params in points)


class Variants:
    """program: path of kvbench; placeholders: fills in placeholders of a stage's options."""

    def __init__(self, program, placeholders):
        self.program, self.placeholders = program, placeholders
        self.sets, self.grids = {}, None

    def ask(self, *words):
        done = subprocess.run([self.program, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise rp.PlanError(f"{self.program} {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def config(self, stage):
        """Returns {option: value} of the stage's --config; None if it does not exist yet."""
        out = {}
        for word in option_values(stage.options, "--config"):
            for path in self.placeholders.fill(word, self.placeholders.values(), lambda _: [""]):
                try:
                    with open(path if path.startswith("/") else f"{rp.ROOT}/{path}", "rb") as file:
                        out |= tomllib.load(file)
                except FileNotFoundError:
                    return None
                except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
                    raise rp.PlanError(f"{path}: {error}") from None
                except RecursionError:
                    raise rp.PlanError(f"{path}: nested too deeply") from None
        return out

    def settled(self, stage):
        """Returns the configuration without the parts that may grow, for the step's key."""
        found = self.config(stage)
        return found if found is None else {key: value for key, value in found.items()
                                            if key not in ("algorithm", "budget")}

    def budgets(self, stage):
        if stage.budgets:
            return list(stage.budgets)
        words = option_values(stage.options, "--budget")
        if words:
            return [f"{float(one):g}" for one in words[-1].split(",") if one]
        found = (self.config(stage) or {}).get("budget", [])
        return [f"{one:g}" for one in (found if isinstance(found, list) else [found])]

    def named(self, stage):
        """Returns {variant: whether from a set} of a stage; None if its configuration does not
        exist.
        """
        if stage.kind == "cluster":
            return {}
        words = list(stage.algorithms) or option_values(stage.options, "--algorithm")
        if not words:
            found = self.config(stage)
            if found is None:
                return None
            words = found.get("algorithm", [])
            words = words if isinstance(words, list) else [words]
        out = {}
        for variant in split_words(words):
            policies = {self.placeholders.policy(variant, self.placeholders.plan.prompts[one])
                        for one in stage.prompts} - {""}
            if not all(map(os.path.isfile, policies)):
                return None
            if is_set(variant):
                name, colon, values = variant.partition(":")
                for one in self.members(name, self.protocol(stage)):
                    out.setdefault(one + colon + values, True)
            else:
                out[variant] = False
        return out

    def protocol(self, stage):
        known = [(self.config(stage) or {}).get("protocol", "prefill")]
        return (known + option_values(stage.options, "--protocol"))[-1]

    def members(self, name, protocol):
        if name not in self.sets:
            words = ["list", "--json"] if name == "all" else ["list", name, "--json"]
            self.sets[name] = parse_json(self.ask(*words))
        return [one["name"] for one in self.sets[name] if protocol in one["protocols"]]

    def settings(self, variant, prompt):
        """Returns a digest of the current settings of `NAME:grid`, or of a policy; "" for other
        variants.
        """
        policy = self.placeholders.policy(variant, prompt)
        if policy:
            return rp.file_digest(policy)[:16]
        name, _, values = variant.partition(":")
        if values != "grid":
            return ""
        if self.grids is None:
            self.grids = self.ask("list", "--grid").splitlines()
        return rp.digest("\n".join(line for line in self.grids if line.startswith(name + ",")))[:16]

    def points(self, variant, budgets, options, prompt, of_set):
        """Returns [[algorithm, params]] of its rows on a prompt's trace, or a text with the reason if
        a set brought it and it has none: sets skip what the trace or protocol does not allow.
        """
        trace = self.placeholders.trace(prompt.id)
        words = ["replay", trace, *options, *self.placeholders.variant_words(variant, prompt),
                 *(["--budget", ",".join(budgets)] if budgets else []), "--dry-run", "-o",
                 trace + ".rows.csv"]
        try:
            said = self.ask(*words).splitlines()
        except rp.PlanError as error:
            if not of_set:
                raise
            return str(error).rpartition("error: ")[2]
        begin = next(i for i, line in enumerate(said) if line.startswith("algorithm ")) + 1
        out = []
        for line in said[begin:]:
            cells = line.split(maxsplit=5)
            if len(cells) < 5:
                break
            out.append([cells[0], cells[5] if len(cells) > 5 else ""])
        return out
