"""Bits of keys and values in result rows of quantizers and A@Q.

Bits are the parameters `k_bits` and `v_bits`, or `bits` for both, or if these are `auto` those of
`diag`. Without quantization they are those of the trace's element type.
"""

import numpy as np

from kvbench import tables as kt
from kvbench.plot import frame as kfr
from kvbench.plot import summary

NAMES = ("k_bits", "v_bits", "bits")
SIZES = (*summary.SIZE_PARAMETERS, *NAMES)  # they vary along a line and are not in its name
ELEMENT_BITS = {"float32": 32, "float64": 64}  # of a trace's element type; default 16
ALL_TOKENS = "all tokens"
USED = 0.95  # points that hold a smaller share of their budget are of another size (plot.pareto)
SAME_SHARE = 1.01


def parts_of(algorithm, params):
    """Returns (A, its parameters, Q, its parameters) without sizes and bits. A is "" if all tokens are held, Q if none
    are quantized.
    """
    values = kt.parse_params(params)
    own = {key: value for key, value in values.items() if key not in SIZES}
    method, stored, quantizer = algorithm.partition("@")
    if not stored:
        return ("", {}, algorithm, own) if "k_bits" in values else (algorithm, own, "", {})
    before = method + "."
    mine = {key.removeprefix(before): value for key, value in own.items() if key.startswith(before) or key == "fit"}
    rest = {key: value for key, value in own.items() if not key.startswith(before) and key != "fit"}
    return ("" if method == "exact" else method), mine, quantizer, rest


def names_of(pairs, common=False):
    """Returns a label per (name, parameters), with those that differ; common: only those that all have."""
    out = []
    for name, params in pairs:
        alike = [other for of, other in pairs if of == name]
        shown = [key for key in params
                 if len({other[key] for other in alike if key in other}) > 1
                 and not (common and any(key not in other for other in alike))]
        out.append(" ".join([name, *(f"{key}={params[key]}" for key in shown)]))
    return out


def explicit_bits(frame):
    """Returns (bits of keys, bits of values) of every row, NaN if unknown."""
    text = frame["diag"].astype(str)
    said = {}
    for name, part in (("k", "k_bits"), ("v", "v_bits")):
        said[name] = text.str.extract(rf"(?:^|;){part}=(\d+)(?:;|$)")[0].astype(float)
    both = text.str.extract(r"(?:^|;)bits=(\d+)(?:/(\d+))?(?:;|$)").astype(float)
    said["k"] = said["k"].fillna(both[0])
    said["v"] = said["v"].fillna(both[1].fillna(both[0]))
    out = {}
    for name in ("k", "v"):
        fixed = {}
        for params in frame["params"].unique():
            values = kt.parse_params(params)
            found = [values[key] for key in (f"{name}_bits", "bits") if values.get(key, "auto") != "auto"]
            fixed[params] = float(found[0]) if found and found[0].isdecimal() else np.nan
        out[name] = frame["params"].map(fixed).astype(float).fillna(said[name])
    return out["k"], out["v"]


def shares(frame):
    """Returns the share of the middle's tokens that each row keeps, 0 to 1; of made entries by their bytes without
    scales and weights, with values as wide as keys.
    """
    outside = frame["sink"] + frame["recent"]
    middle = (frame["n_tokens"] - outside).where(lambda count: count > 0)
    kept = frame["tokens_kept"] - outside
    if "aux_bytes" in frame.columns:
        token = frame["full_bytes"] / frame["n_tokens"]
        coded = token * (frame["k"] + frame["v"]) / (2 * element_bits(frame))
        made = (frame["bytes"] - frame["aux_bytes"] - outside * token) / coded
        kept = kept.where(kept > 0, made)
    return (kept / middle).clip(0, 1)


def element_bits(frame):
    return frame["dtype"].map(ELEMENT_BITS).fillna(16.0)


def read(rows, y, algorithms, layers, pool):
    """Returns (measured rows of quantizers, of A@Q and of plain methods, facts) with the columns method, quantizer
    (labels, "" for none), whole (all tokens are held), extra (a quantizer's parameters that are not in its label), k,
    v (bits), share (of the middle's tokens). Raises CsvError if no row has bits.
    """
    frame = kfr.measured_rows(rows, ["middle_ratio", "n_tokens", "sink", "recent", "tokens_kept", "bytes",
                                     "full_bytes", "diag", y], algorithms, layers, pool)
    path = kt.source_of(frame)
    facts = kfr.facts_of(frame)
    pairs = list(frame[["algorithm", "params"]].drop_duplicates().itertuples(index=False, name=None))
    parts = [parts_of(*pair) for pair in pairs]
    if not any(part[2] for part in parts):
        raise kt.CsvError(f"{path}: no row has a number of bits; expected rows of a quantizer "
                          "(quant-kivi) or of A@Q (h2o@quant-kivi)")
    methods = names_of([part[:2] for part in parts])
    quantizers = names_of([part[2:] for part in parts], common=True)
    full = names_of([part[2:] for part in parts])
    labels = {}
    for pair, part, method, quantizer, long in zip(pairs, parts, methods, quantizers, full):
        extra = [word for word in long.split()[1:] if word not in quantizer.split()]
        labels[pair] = (method if part[0] else "", quantizer, " ".join(extra))
    of_row = [labels[pair] for pair in zip(frame["algorithm"], frame["params"])]
    for i, name in enumerate(("method", "quantizer", "extra")):
        frame[name] = [label[i] for label in of_row]
    frame["whole"] = frame["method"] == ""
    frame["k"], frame["v"] = explicit_bits(frame)
    plain = frame["quantizer"] == ""
    for name in ("k", "v"):
        frame[name] = frame[name].mask(plain, element_bits(frame))
    unknown = frame["k"].isna() | frame["v"].isna()
    kt.note_each(frame[unknown], "{}: rows left out whose number of bits is not known: {count}", "algorithm")
    frame = frame[~unknown].copy()
    if not (frame["quantizer"] != "").any():
        raise kt.CsvError(f"{path}: no row of a quantizer says its number of bits")
    frame["share"] = shares(frame)
    return frame, facts


def points(frame, facts, y):
    """Returns one row per point of `read`: algorithm, method, quantizer, extra, whole, k, v,
    budget_requested, mean, sd, x (middle_ratio), share, apart (less than USED of the budget).
    """
    keys = ["algorithm", "params", "method", "quantizer", "extra", "whole", "k", "v", "budget_requested"]
    table = kfr.points(frame.assign(label=frame["algorithm"]), keys, y, x="middle_ratio", share="share")
    table = table.assign(apart=table["x"] < USED * table["budget_requested"], label=table["algorithm"])
    return kfr.above_rounding(kfr.keep(table, frame, facts=facts), y).reset_index(drop=True)


def bits_text(k, v):
    """Returns `4`, or `4/2` for keys and values."""
    return f"{k:g}" if k == v else f"{k:g}/{v:g}"


def bits_name(text):
    keys, unlike, values = text.partition("/")
    return f"keys {keys}, values {values} bits" if unlike else f"{text} bit{'s' * (text != '1')}"
