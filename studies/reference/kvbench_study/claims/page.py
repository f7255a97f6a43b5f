"""Tables and Markdown page of kvbench-study claims."""

import math

from kvbench import stats as ks
from kvbench.comparison import tables as ct
from kvbench.text import counted
from kvbench_study.claims import verdicts as cv

COLUMNS = ["claim", "paper", "where", "statement", "method", "protocol", "figure", "reference",
           "prompts", "value", "low", "high", "p", "p_holm", "cells", "share", "share_low",
           "share_high", "cells_for", "cells_against", "cells_open", "verdict", "decide", "label",
           "differs"]
CELL_COLUMNS = ["claim", "method", "protocol", "figure", "layer", "setting", "prompts", "value",
                "reference", "low", "high", "p", "side"]


def cell_row(claim, cell, figure, reference, counts):
    finite = cell.finite
    return {"claim": claim.id, "method": claim.method, "protocol": claim.protocol, "figure": figure,
            "layer": cell.layer, "setting": cell.setting, "prompts": len(finite),
            "value": claim.scale(finite.mean()) if len(finite) else math.nan,
            "reference": reference, "low": claim.scale(cell.low), "high": claim.scale(cell.high),
            "p": cell.p, "side": cell.side if counts else "shown"}


def cell_rows(claim):
    out = [cell_row(claim, cell, claim.figure, claim.reference, True) for cell in claim.tested]
    return out + [cell_row(claim, cell, figure, reference, False)
                  for figure, reference, cell in claim.shown]


def claim_row(claim):
    return {"claim": claim.id, **{name: getattr(claim, name) for name in COLUMNS
                                  if hasattr(claim, name)},
            "cells": len(claim.tested), "cells_for": claim.count("for"),
            "cells_against": claim.count("against"), "cells_open": claim.count("open")}


def write_csv(path, claims):
    ct.write_table(path, COLUMNS, [claim_row(claim) for claim in claims])


def write_cells(path, claims):
    ct.write_table(path, CELL_COLUMNS, [row for claim in claims for row in cell_rows(claim)])


def short(value):
    return "-" if math.isnan(value) else f"{value:.3g}"


def spanned(value, low, high):
    return short(value) + ("" if math.isnan(low) else f" [{short(low)}, {short(high)}]")


def piped(text):
    return str(text).replace("|", "\\|")


def named(claim):
    return f"`{claim.id}` ({', '.join(part for part in (claim.method, claim.protocol) if part)})"


def introduction(options):
    return (f"Each claim is put as `figure < reference`. Share: of its cells (a layer, or a kind of text, in "
            f"one setting), those whose mean lies on the claim's side; value: the mean over {options.by}s "
            f"of their means over cells; intervals of {100 * (1 - options.alpha):g} % over "
            f"{options.by}s. `{cv.HOLDS}`: the share's interval lies above 1/2 and the mean's on the "
            f"claim's side; `{cv.FAILS}`: below 1/2, and on the other side; else `{cv.UNDECIDED}`. "
            "Here: on this model, these texts and settings. "
            f"`{cv.ESTIMATE}`: free constants, which no table can contradict, or no control of its kind. "
            f"`{cv.NONE}`: fewer than {cv.FEWEST} {options.by}s. For / against / open: cells by simultaneous intervals "
            "(studentised bootstrap, Holm's rule over the claim's cells). p: signed-rank test of the "
            f"mean, corrected over the claims that can get a verdict. Tested as: `{cv.REPLICATED}`, the "
            f"authors' configuration, protocol and figure; `{cv.ADAPTED}`, with what differs listed "
            f"below; `{cv.ASSUMPTION}`, what the paper assumes for what it concludes.")


def markdown(claims, options):
    lines = [introduction(options), "", *reach(claims, options), "",
             f"| claim | where | tested as | figure | value | share | for / against / open | "
             f"{options.by}s | p | verdict |",
             "| --- | --- | --- | --- | --- | --- | --- | ---: | ---: | --- |"]
    for claim in claims:
        sides = " / ".join(str(claim.count(side)) for side in ("for", "against", "open"))
        cells = [named(claim), f"{claim.paper}, {claim.where}", claim.label,
                 f"{claim.figure} < {claim.reference:g}", spanned(claim.value, claim.low, claim.high),
                 spanned(claim.share, claim.share_low, claim.share_high), sides, claim.prompts,
                 short(claim.p_holm), claim.verdict]
        lines.append("| " + " | ".join(map(piped, cells)) + " |")
    lines += ["", "What is claimed, and what differs from what the authors did:", ""]
    lines += [f"- {named(claim)}: {claim.statement}. " + (f"Differs: {claim.differs}." if claim.differs
                                                           else "") for claim in claims]
    for title, chosen, text in (
            (f"Units that are left out, without a figure in some cell ({options.by}s):",
             [claim for claim in claims if claim.prompts < claim.units],
             lambda claim: f"{claim.units - claim.prompts} of {claim.units}"),
            ("What would decide:", [claim for claim in claims if claim.verdict == cv.UNDECIDED],
             lambda claim: claim.decide),
            ("Cells against, the strongest first:",
             [claim for claim in claims if claim.judged and claim.count("against")], worst_cells)):
        if chosen:
            lines += ["", title, "", *(f"- {named(claim)}: {text(claim)}." for claim in chosen)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def reach(claims, options):
    """Resolution at the number of units."""
    words = [claim for claim in claims if claim.judged and claim.prompts >= cv.FEWEST]
    out = []
    for n in sorted({claim.prompts for claim in words}):
        least = min(1.0, len(words) * ks.min_p(n))
        out.append(f"{counted(n, options.by)}: the least p of a claim is {ks.min_p(n):.2g}, "
                   f"{least:.2g} corrected over {counted(len(words), 'claim')}; of a cell by the same "
                   "test, corrected over " + ", ".join(
                       f"{m} cells {min(1.0, m * ks.min_p(n)):.2g}" for m in sorted(
                           {len(claim.tested) for claim in words if claim.prompts == n})) + ".")
    few = sum(claim.judged and claim.prompts < cv.FEWEST for claim in claims)
    if few:
        out.append(f"{counted(few, 'claim')} with fewer than {cv.FEWEST} {options.by}s: estimates, no verdicts.")
    return ["Reach. " + " ".join(out)] if out else ["Reach. No claim here can get a verdict."]


def worst_cells(claim, count=3):
    cells = sorted((cell for cell in claim.tested if cell.side == "against"),
                   key=lambda cell: -cell.finite.mean())
    text = "; ".join(f"{cell.name}: " + spanned(*(claim.scale(x) for x in (
        cell.finite.mean(), cell.low, cell.high))) for cell in cells[:count])
    return text + (f"; {len(cells) - count} more" if len(cells) > count else "")
