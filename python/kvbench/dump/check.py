"""--attn-check: compares a layer's attention with kvbench's definition, and measures the effect of rounding.

Two deviations of attention outputs over some queries (Frobenius norm, relative, worst head), each with a limit from
rounding analysis:

own        the model's output from exact attention, in double, over the model's inputs. Shows a wrong formula,
           whatever the trace's type. Grows with the logits, which the model rounds.
rounding   exact attention over the stored inputs from that over the model's inputs: the effect of the trace's type.
           Large key norms give logits whose last digit matters. The limit holds for every input of the type.
"""

from dataclasses import dataclass

import torch

# Unit roundoff.
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
# Minimum limit of `own` by the model's type, whose probabilities and sums are rounded too.
CHECK_LIMIT = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
ACCUMULATED = 4 * ROUNDOFF["float32"]  # of a logit's terms, summed in float32
LARGEST = 50.0  # largest exponent of a meaningful bound


@dataclass
class Deviation:
    """Deviation of one layer. logits: the largest size of a logit's terms."""

    own: float = 0.0
    own_limit: float = 0.0
    rounding: float = 0.0
    rounding_limit: float = 0.0
    logits: float = 0.0

    def join(self, other):
        """Returns the worse of two deviations, by part."""
        own = other if worse(self.own, self.own_limit, other.own, other.own_limit) else self
        rounding = other if worse(self.rounding, self.rounding_limit, other.rounding, other.rounding_limit) else self
        return Deviation(own.own, own.own_limit, rounding.rounding, rounding.rounding_limit,
                         max(self.logits, other.logits))


def worse(first, first_limit, second, second_limit):
    """Returns whether the second is larger relative to its limit; NaN is largest."""
    if first != first or not second_limit:
        return False
    return not first_limit or not second / second_limit <= first / first_limit


def attention(q, k, v, scale, unseen, sink):
    """Returns (weights [rows, n], output [rows, dv], logits) of one head, in double. sink: logit [1, 1], or [1, 0]."""
    logits = q @ k.T * scale
    seen = logits.masked_fill(unseen, -torch.inf)
    weights = torch.cat([seen, sink.expand(len(seen), -1)], -1).softmax(-1)[:, :len(k)]
    return weights, weights @ v, logits


def bound(weights, v, output, logit_error, roundoff):
    """Returns the largest relative change of `output` if logits change by at most logit_error
    [rows, n] and weights and values by `roundoff`.

    A weight p_j becomes p_j e^(x_j) / sum p e^x with |x| <= d: it changes by at most p_j (e^(d_j +
    D) - 1), D = log sum p e^d, including a sink's share.
    """
    d = logit_error.clamp(max=LARGEST)
    sink = (1 - weights.sum(-1, keepdim=True)).clamp(min=0)
    total = ((weights * d.exp()).sum(-1, keepdim=True) + sink).log()
    size = v.norm(dim=-1)
    moved = (weights * torch.expm1((d + total).clamp(max=LARGEST))) @ size * (1 + roundoff)
    return float((moved + roundoff * (weights @ size)).norm() / output.norm())


def compare(q, k, v, scale, last, own, compute, stored, window=None, sinks=None):
    """Returns the Deviation of one layer's heads over some of its queries.

    q, own     [Hq, rows, d], [Hq, rows, dv]: queries and the model's output; k, v [Hkv, n, ...]
    last       [rows]: last visible token of each query, of at most `window`
    sinks      [Hq] logits without key and value, or None
    compute    the model's type; stored: the trace's
    """
    group = len(q) // len(k)
    at = torch.arange(k.shape[1], device=k.device)[None]
    unseen = at > last[:, None]
    if window is not None:
        unseen |= at <= last[:, None] - window
    sinks = torch.empty(len(q), 0) if sinks is None else sinks.detach().reshape(-1, 1)
    worst = Deviation()
    for head in range(len(q)):
        parts = q[head], k[head // group], v[head // group]
        q_, k_, v_ = (part.double() for part in parts)
        sink = sinks[None, head].to(q_)
        weights, exact, logits = attention(q_, k_, v_, scale, unseen, sink)
        sizes = q_.abs() @ k_.abs().T * abs(scale)
        error = ACCUMULATED * sizes
        if compute != "float32":
            error = error + ROUNDOFF[compute] * logits.abs()
        found = Deviation(logits=float((weights * sizes).sum(-1).max()))
        found.own = float((exact - own[head].double()).norm() / own[head].double().norm())
        found.own_limit = max(CHECK_LIMIT[compute], bound(weights, v_, exact, error, ROUNDOFF[compute]))
        if stored != compute:
            kept = [part.to(getattr(torch, stored)).double() for part in parts]
            u = ROUNDOFF[stored]
            moved = attention(*kept, scale, unseen, sink)[1]
            found.rounding = float((moved - exact).norm() / exact.norm())
            # Both factors of each term are rounded; the last part covers the doubles here.
            found.rounding_limit = bound(weights, v_, exact, (2 * u + u * u) * sizes, u) + 1e-12
        worst = worst.join(found)
    return worst


def reason(found, compute, stored):
    """Returns why a layer is inexact by its Deviation; None if it is exact."""
    if not found.own <= found.own_limit:
        return (f"attention that deviates from exact attention by {found.own:.2g}, limit "
                f"{found.own_limit:.2g}, over the inputs as the model has them in {compute}: it is "
                "not what kvbench computes, whatever the trace's type")
    if not found.rounding <= found.rounding_limit:
        wider = "float32" if stored == "bfloat16" else "bfloat16 or float32"
        return (f"queries, keys or values that {stored} cannot hold: rounding them moves attention by "
                f"{found.rounding:.2g}, limit {found.rounding_limit:.2g}, while the model's "
                f"attention is exact; expected --dtype {wider}")
    return None


def describe(found, stored):
    text = f"largest relative deviation from exact attention {found.own:.2e}"
    if found.rounding_limit:
        text += (f"; rounding to {stored} moves it by {found.rounding:.2e} (limit "
                 f"{found.rounding_limit:.2g}, by logits of size {found.logits:.3g})")
    return text
