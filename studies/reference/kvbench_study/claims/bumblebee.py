"""Claims of BumbleBee. Each function's docstring defines one claim.

lambda is judged by the model: a single head's error favours lambda = 0 by construction, since
coverage serves tokens that the scoring queries do not attend to.
"""

from kvbench import tables as kt
from kvbench_study.claims import scores, tables
from kvbench_study.claims import verdicts as cv

LAMBDAS = (0.2, 0.4)  # the paper's best, both ends included
LAMBDA = 0.3
DIFFERS = "the model's KL divergence in place of task scores, another model, other texts"


def inside(value):
    return LAMBDAS[0] - 1e-9 <= value <= LAMBDAS[1] + 1e-9


def lambda_tables(paths, options):
    """Returns ({(budget, phi): log KL [(kind, of), lambdas]}, protocol)."""
    frame = scores.read(paths, ["bumblebee"], options)
    tables.add_parameters(frame, ["lambda", "phi"], paths[0])
    tables.as_numbers(frame, "lambda")
    frame["lambda"] = frame["lambda"].round(6)
    if frame["lambda"].isna().any():
        raise kt.CsvError(f"{paths[0]}: bumblebee: rows without a lambda")
    out = {(float(budget), phi): scores.table_of(part, ["lambda"])
           for (budget, phi), part in frame.groupby(["budget_requested", "phi"])}
    return out, scores.protocol_of(frame)


def bumblebee_extremes(found, protocol):
    """lambda = 0 (attention alone) and lambda = 1 (facility location alone) are worse than 0.3: two
    claims, since one extreme may hide the other.

    Section 6.3: "The extreme cases (lambda in {0, 1}) ... yield suboptimal performance"; appendix D
    uses 0.3 on LongBench. Figure: KL divergence at lambda = 0.3 over that at the extreme, geometric
    mean over units. lambda is fixed beforehand. A cell is a kind of text (or a task) at a budget
    and a phi.
    """
    out = []
    for end in (0.0, 1.0):
        claim = cv.Claim(f"bumblebee-lambda-{end:g}", "BumbleBee", "section 6.3, appendix D",
                         f"lambda = 0.3 loses less than lambda = {end:g}", protocol,
                         f"KL at 0.3 over that at {end:g}", 1.0, True, differs=DIFFERS, method="bumblebee")
        for (budget, phi), table in found.items():
            if LAMBDA in table and end in table:
                scores.add_cells(claim, table[LAMBDA] - table[end], budget=budget, phi=phi)
        out.append(claim)
    return out


def bumblebee_range(found, protocol):
    """The best lambda lies within 0.2 to 0.4.

    Appendix D: "lambda in {0.2, 0.3} perform the best across both evaluated models"; 0.2 and 0.4
    were tuned for XSUM. Figure: KL divergence at the best lambda inside [0.2, 0.4] over that at the
    best one outside, geometric mean over units. Both are chosen per unit, budget and phi on all
    other units, of any kind, by mean log KL, since the range with more lambdas would win by luck on
    the same texts. A cell is a kind of text (or a task) at a budget and a phi. Also shown: the best
    of all lambdas over 0.3.
    """
    claim = cv.Claim("bumblebee-range", "BumbleBee", "appendix D, section 6.4",
                     "The best lambda lies within 0.2 to 0.4", protocol,
                     "KL at the best lambda inside over that outside", 1.0, True,
                     differs=DIFFERS + "; lambda chosen on other texts of any kind, not of one task",
                     method="bumblebee")
    for (budget, phi), table in found.items():
        near, far = ([value for value in table if inside(value) == wanted]
                     for wanted in (True, False))
        if not near or not far:
            continue
        best = {name: scores.leave_one_out_choice(table[some])[0]
                for name, some in (("near", near), ("far", far), ("all", list(table)))}
        scores.add_cells(claim, best["near"] - best["far"], budget=budget, phi=phi)
        if LAMBDA in table:
            scores.add_cells(claim, best["all"] - table[LAMBDA], "KL at the best of all lambdas over 0.3",
                             False, budget=budget, phi=phi)
    return claim


def all_claims(paths, options):
    found, protocol = lambda_tables(paths, options)
    return [*bumblebee_extremes(found, protocol), bumblebee_range(found, protocol)]
