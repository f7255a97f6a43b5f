"""Claims of BalanceKV. Each function's docstring defines one claim."""

import numpy as np

from kvbench import tables as kt
from kvbench_study.claims import tables
from kvbench_study.claims import verdicts as cv

PROTOCOL = {"protocol": "prefill", "sink": 256, "recent": 256, "n_queries": 256}  # the paper's
LAYERS, HALVINGS = (0, 1, 4), {1, 2, 3, 4}  # of its figure 2: the 1st, 2nd and 5th layer
# Named settings: that of the authors' figure 2 (their public code, `balancekv:authors`, with their
# notebook's temp), that of their code's programs, and kvbench's default, which was chosen on
# development prompts. Rows may omit default values.
FIGURE2 = "balancekv:authors;temp=0.1"
AUTHORS = {"step": "repo", "select": "repo", "center": "padded", "bias": "plain",
           "denominator": "uniform"}
SETTINGS = {
    FIGURE2: {**AUTHORS, "temp": "0.1"},
    "balancekv:authors": {**AUTHORS, "temp": "1"},
    "balancekv": {"step": "greedy", "select": "weighted", "center": "block", "bias": "weighted",
                  "denominator": "shared", "temp": "1"},
}
# What the settings other than figure 2's are.
OTHERS = {"balancekv:authors": "temp=1, as the authors' programs have it, not 0.1 as in figure 2's notebook",
          "balancekv": "kvbench's default setting, chosen on development prompts"}
MODEL = "another model, other texts"


def setting_of(params):
    """Returns the name of a row's setting, or None."""
    for name, wanted in SETTINGS.items():
        if all(params.get(key, default) == wanted[key]
               for key, default in SETTINGS["balancekv"].items()):
            return name
    return None


def halvings(paths, options):
    """Returns ({setting: its rows and those of uniform}, protocol) with columns T and `middle`
    (kept tokens of the middle).
    """
    frame = tables.read_rows(paths, ["rel_error", "rel_error_mean", "eps_fro", "tokens_kept"], options)
    protocol = tables.protocol_of(frame)
    parsed = {text: kt.parse_params(text) for text in frame["params"].unique()}
    frame["T"] = frame["params"].map({text: params.get("T", "") for text, params in parsed.items()})
    tables.as_numbers(frame, "T")
    frame = frame[frame["algorithm"].isin(["balancekv", "uniform"]) & frame["T"].notna()].copy()
    if set(frame["algorithm"]) != {"balancekv", "uniform"}:
        raise kt.CsvError(f"{paths[0]}: expected rows of balancekv and uniform with T=1, 2, ...")
    # Methods may keep another number of tokens than requested.
    frame["middle"] = frame["tokens_kept"] - frame["sink"] - frame["recent"]
    names = {text: setting_of(params) for text, params in parsed.items()}
    ours = frame["algorithm"] == "balancekv"
    found = frame["params"].map(names)
    if found[ours].isna().any():
        raise kt.CsvError(f"{paths[0]}: balancekv with {frame.loc[ours & found.isna(), 'params'].iloc[0]}: "
                          "expected the authors' setting (balancekv:authors, temp=0.1 or 1) or the default")
    out = {}
    for name in SETTINGS:
        part = frame[~ours | (found == name)].copy()
        if (part["algorithm"] == "balancekv").any():
            tables.add_parameters(part, ["T"], paths[0])  # rejects other differences
            tables.as_numbers(part, "T")
            check_halvings(part, paths[0])
            out[name] = part
    return out, protocol


def check_halvings(frame, path):
    for name, ts in frame.groupby("algorithm")["T"]:
        if ts.nunique() < 3:
            raise kt.CsvError(f"{path}: {name}: rows of {ts.nunique()} T, expected 3 or more for an "
                              "exponent")


def differences(frame, method):
    """Returns the differences from the paper's experiment, layers aside."""
    out = [MODEL]
    if method in OTHERS:
        out.append(OTHERS[method])
    if set(frame["T"]) != HALVINGS:
        out.append("other T")
    apart = [f"{name} {frame[name].iloc[0]}" if isinstance(value, str) else
             f"{name} {frame[name].iloc[0]:g} in place of {value}" for name, value in PROTOCOL.items()
             if not (frame[name] == value).all()]
    return [*out, ", ".join(apart)] if apart else out


def balancekv_figure2(frame, protocol, method):
    """BalanceKV's error is below uniform sampling's at every T and layer.

    Figure: rel_error_mean, the mean over queries as in the authors' notebook, of balancekv over that
    of uniform at the same T (means over heads and seeds), as a geometric mean over units. The
    notebook's denominator leaves out negative entries: its values are about sqrt 2 times as large,
    of both methods. A cell is a layer at a T. Also shown: the ratio of the means over layers, by T.
    Replicated with the notebook's setting in the paper's protocol, at its layers and T; other
    layers are an adapted claim.
    """
    found = tables.grids(frame, "rel_error_mean", ["algorithm", "T"])
    differs = differences(frame, method)
    groups = [(cv.ADAPTED, "; ".join([*differs, "other layers"]), lambda layer: layer not in LAYERS)]
    if differs == [MODEL]:
        groups.insert(0, (cv.REPLICATED, MODEL, lambda layer: layer in LAYERS))
    else:
        groups = [(cv.ADAPTED, groups[0][1], lambda layer: True)]
    out = []
    for label, differs, mine in groups:
        claim = cv.Claim(
            "balancekv-figure2", "BalanceKV", "section 4.1, figure 2",
            "For each layer and compression rate the error is below that of uniform sampling",
            protocol, "rel_error_mean over that of uniform", 1.0, True, label, differs, method=method)
        for t in sorted(t for name, t in found if name == "balancekv" and ("uniform", t) in found):
            ours, other = (grid[[layer for layer in grid.columns if mine(layer)]]
                           for grid in (found["balancekv", t], found["uniform", t]))
            if ours.shape[1]:
                claim.add(tables.log_ratio(ours, other), cv.text_of(T=t))
                claim.show(tables.log_ratio(tables.over_layers(ours), tables.over_layers(other)),
                           cv.text_of(T=t))
        if claim.tested:
            claim.protocol += ", layers " + ", ".join(dict.fromkeys(str(cell.layer)
                                                                    for cell in claim.tested))
            out.append(claim)
    return out


def exponents(frame, metric):
    """Returns {(algorithm, over layers): Grid of slopes of log(metric) on log(kept tokens of the middle)
    over T}; NaN if a T is missing.
    """
    errors = tables.grids(frame, metric, ["algorithm", "T"])
    kept = tables.grids(frame, "middle", ["algorithm", "T"])
    out = {}
    for name in ("balancekv", "uniform"):
        ts = sorted(t for algorithm, t in errors if algorithm == name)
        for whole, pick in ((False, lambda grid: grid), (True, tables.over_layers)):
            with np.errstate(divide="ignore", invalid="ignore"):
                xs, ys = ([np.log(pick(some[name, t])) for t in ts] for some in (kept, errors))
            out[name, whole] = tables.slopes(xs, ys)
    return out


# Scope of theorem 3.1 against these rows.
STREAM = ("the theorem is of the stream algorithm (MergeAndReduce over batches by the values' norms); "
          "here SoftmaxBalance halves a finished prompt T times")


def balancekv_rate(slopes, protocol, method, metric):
    """How BalanceKV's error falls with memory: an estimate, no verdict.

    Theorem 3.1: memory O*(e^(2 r^2 / sqrt d) / epsilon) for precision epsilon of equation (2), O*
    without polynomials in d and log n. It is an upper bound with free constants for a stream
    algorithm, so four T cannot contradict it. Read as a rate: epsilon ~ 1/memory, exponent -1. The
    omitted factor of theorem 3.3 that depends on memory, T = log2(n/t), steepens the line: T 2^T
    over T = 1..4 falls as memory^-1.66. Figure: per unit the least-squares slope of log(error) on
    log(kept tokens of the middle) over T; error: mean over heads and seeds of `rel_error` or
    `eps_fro` (epsilon of equation (2)). A cell is a layer. Also shown: the slope of the mean over
    layers, and uniform sampling's (theory: -1/2 for draws from a far larger set, -0.65 for T = 1..4
    without replacement, error ~ sqrt(2^T - 1)).
    """
    claim = cv.Claim(
        f"balancekv-rate-{metric}", "BalanceKV", "theorem 3.1, section 2.3",
        "The error falls as 1/memory or faster, if the bound is read as a rate", protocol,
        f"exponent of {metric} in kept tokens", -1.0, differs=STREAM, judged=False, method=method)
    claim.add(slopes["balancekv", False])
    claim.show(slopes["balancekv", True])
    for whole in (False, True):
        claim.show(slopes["uniform", whole],
                   figure=f"exponent of uniform's {metric}", reference=-0.5)
    return claim


def balancekv_faster(slopes, protocol, method, metric):
    """How much faster BalanceKV's error falls with memory than uniform sampling's: an estimate.

    Section 2.3: independent sampling has "a 1/epsilon^2 dependence" of memory on epsilon, BalanceKV
    1/epsilon; both are bounds with free constants. Figure: the slope of balancekv_rate minus
    uniform sampling's at the same unit, which cancels effects of finite n. A cell is a layer. The
    bounds differ by -1/2.
    """
    claim = cv.Claim(
        f"balancekv-faster-{metric}", "BalanceKV", "section 2.3, theorem 3.1",
        "The error falls faster with memory than that of uniform sampling", protocol,
        f"exponent of {metric} minus uniform's", 0.0, differs=STREAM, judged=False, method=method)
    for whole in (False, True):
        apart = slopes["balancekv", whole] - slopes["uniform", whole]
        if whole:
            claim.show(apart)
        else:
            claim.add(apart)
    return claim


def all_claims(paths, options):
    found, protocol = halvings(paths, options)
    out = []
    for method, frame in found.items():
        out += balancekv_figure2(frame, protocol, method)
        for metric in ("rel_error", "eps_fro"):
            slopes = exponents(frame, metric)
            out += [balancekv_rate(slopes, protocol, method, metric),
                    balancekv_faster(slopes, protocol, method, metric)]
    return out
