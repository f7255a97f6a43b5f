#!/usr/bin/env python3
"""What bench_device.cu measures, done in PyTorch on the same card: a named peer for its times.

Written as a user of PyTorch would write it, out of whole-tensor operations, with no kernel of its
own. Shapes are those of bench_device.cu: d = dv = 128, a group of 4 query heads, 256 evaluated
queries, random numbers. One JSON line per piece of work and element type on stdout:

  {"name": "KERNEL/n", "dtype": "float32", "device": "cuda", "seconds": 0.001, "repeats": 20}

`seconds` is the median. On a card, lines named card/... give its own rates instead: bytes/s of a
copy within its memory, flop/s of products of 8192 x 8192 matrices.

  bench/peer_torch.py --device cuda > peer.jsonl
  bench/peer_torch.py --device cpu --n 1024         # to try it without a card

Exit code 1: some piece failed (too little memory, say) and has no line; 2: bad usage; 3: no
PyTorch, or the device is not there.
"""

import argparse
import json
import math
import statistics
import sys
import time

try:
    import torch
except ImportError:
    torch = None

WIDTH, GROUP, QUERIES, BLOCK, CENTERS, CANDIDATES = 128, 4, 256, 256, 512, 256
SHORT, LONG = 32768, 131072
CHUNK = 1024  # rows of an n x n matrix that exist at a time


def exact_attention(q, k, v, scale):
    """Outputs [g, m, dv] of queries [g, m, d], the last m positions of keys [n, d]."""
    from torch.nn.attention.bias import causal_lower_right
    heads, m, _ = q.shape
    n = k.shape[0]
    return torch.nn.functional.scaled_dot_product_attention(
        q[None], k.expand(1, heads, *k.shape), v.expand(1, heads, *v.shape),
        attn_mask=causal_lower_right(m, n), scale=scale)[0]


def attention_sums(q, k, scale, chunk=CHUNK):
    """Sums [g, n] of what each key gets from queries [g, m, d], the last m positions."""
    heads, m, _ = q.shape
    n = k.shape[0]
    sums = torch.zeros(heads, n, dtype=q.dtype, device=q.device)
    places = torch.arange(n, device=q.device)
    for begin in range(0, m, chunk):
        end = min(m, begin + chunk)
        seen = n - m + end
        logits = q[:, begin:end] @ k[:seen].T * scale
        future = places[:seen] > places[n - m + begin:seen, None]
        logits.masked_fill_(future, -math.inf)
        sums[:, :seen] += torch.softmax(logits, dim=-1).sum(dim=1)
    return sums


def partial_sums(q, k, v, rows, weight, scale):
    """Numerator [g, m, dv], denominator [g, m] and shift [g, m] over `rows` of keys and values."""
    logits = q @ k[rows].T * scale + math.log(weight)
    shift = logits.amax(dim=-1, keepdim=True)
    terms = torch.exp(logits - shift)
    return terms @ v[rows], terms.sum(dim=-1), shift[..., 0]


def balance_blocks(k, v, uniforms, scale, block=BLOCK):
    """Signs [n] of self-balancing walks over blocks of tokens; n is a multiple of `block`.

    P(+1) = 1/2 - y_j / G_jj with G_ij = exp(s <k_i, k_j>) <v_i, v_j> over centred keys, as
    `balancekv` with step=self: all blocks side by side, a block's tokens one after another.
    """
    keys = k.reshape(-1, block, k.shape[1])
    keys = keys - keys.mean(dim=1, keepdim=True)
    values = v.reshape(-1, block, v.shape[1])
    draws = uniforms.reshape(-1, block)
    exponents = scale * (keys @ keys.transpose(1, 2))
    inner = values @ values.transpose(1, 2)
    own = (torch.diagonal(exponents, dim1=1, dim2=2)
           + torch.log(torch.diagonal(inner, dim1=1, dim2=2)))
    later = torch.ones(block, block, dtype=torch.bool, device=k.device).triu(1)
    shift = exponents.masked_fill(~later, -math.inf).amax(dim=1)
    # Exponents are at most 0 where a later token reads them.
    factors = torch.exp((exponents - shift[:, None]).masked_fill(~later, -math.inf)) * inner
    relative = torch.exp(shift - own)
    sums = torch.zeros_like(draws)
    signs = torch.empty_like(draws)
    for i in range(block):
        push = torch.where(sums[:, i] == 0, 0.0, sums[:, i] * relative[:, i])
        signs[:, i] = torch.where(draws[:, i] < (0.5 - push).clamp(0, 1), 1.0, -1.0)
        sums.addcmul_(factors[:, i], signs[:, i, None])
    return signs.reshape(-1)


def k_center(x, count):
    """Greedy k-center from row 0: centres [count], each row's squared distance to its nearest."""
    centers = torch.zeros(count, dtype=torch.long, device=x.device)
    squared = torch.full((x.shape[0],), math.inf, dtype=x.dtype, device=x.device)
    for number in range(count):
        if number > 0:
            centers[number] = squared.argmax()
        difference = x - x[centers[number]]
        squared = torch.minimum(squared, (difference * difference).sum(dim=1))
    return centers, squared


def unit_rows(k):
    return k / k.norm(dim=1, keepdim=True)


def coverage_gains(units, candidates, best):
    """Gains [candidates] of facility location with max(0, cos), where `best` [n] is had already."""
    return ((units[candidates] @ units.T).clamp_(min=0) - best).clamp_(min=0).sum(dim=1)


def coverage_singletons(units, chunk=CHUNK):
    """Each row's gain [n] where nothing is had."""
    return torch.cat([(units[begin:begin + chunk] @ units.T).clamp_(min=0).sum(dim=1)
                      for begin in range(0, len(units), chunk)])


def most_similar(k, to, others, chunk=CHUNK):
    """For each row of `others` the place in `to` of the key with the largest cosine."""
    targets = unit_rows(k[to])
    return torch.cat([(k[others[begin:begin + chunk]] @ targets.T).argmax(dim=1)
                      for begin in range(0, len(others), chunk)])


class Inputs:
    """Random tensors of one head, as bench_device.cu has them; queries are `nq` x d per head."""

    def __init__(self, n, nq, dtype, device):
        generator = torch.Generator(device=device).manual_seed(1)

        def normal(norm, *shape):
            x = torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)
            return (x * (norm / math.sqrt(WIDTH))).to(dtype)

        self.n, self.scale = n, 1.0 / math.sqrt(WIDTH)
        self.k, self.v = normal(10.0, n, WIDTH), normal(1.0, n, WIDTH)
        self.q = normal(3.0, GROUP, nq, WIDTH)
        self.uniforms = torch.rand(n, generator=generator, device=device).to(dtype)
        self.even = torch.arange(0, n, 2, device=device)
        self.odd = torch.arange(1, n, 2, device=device)


def pieces(x, queries):
    """name -> work on inputs x; `queries`: how many evaluated ones."""
    last = x.q[:, -queries:]
    block = min(BLOCK, x.n)
    whole = x.n // block * block
    units = unit_rows(x.k)
    candidates = torch.arange(0, x.n, max(1, x.n // CANDIDATES), device=x.k.device)
    best = (units @ units[1]).clamp(min=0)
    return {
        "exact_attention": lambda: exact_attention(last, x.k, x.v, x.scale),
        "attention_sums_all": lambda: attention_sums(x.q, x.k, x.scale),
        "attention_sums_last": lambda: attention_sums(last, x.k, x.scale),
        "partial_sums": lambda: partial_sums(last, x.k, x.v, x.even, 2.0, x.scale),
        "balance_blocks": lambda: balance_blocks(x.k[:whole], x.v[:whole], x.uniforms[:whole],
                                                 x.scale, block),
        "k_center": lambda: k_center(x.k, min(CENTERS, x.n)),
        "coverage_gains": lambda: coverage_gains(units, candidates, best),
        "coverage_singletons": lambda: coverage_singletons(units),
        "most_similar": lambda: most_similar(x.k, x.even, x.odd),
    }


SIZES = {
    "exact_attention": (SHORT, LONG), "balance_blocks": (SHORT, LONG),
    "attention_sums_all": (SHORT,), "attention_sums_last": (SHORT,), "partial_sums": (SHORT,),
    "k_center": (LONG,), "coverage_gains": (SHORT,), "coverage_singletons": (SHORT,),
    "most_similar": (SHORT,),
}


def seconds_of(run, device, budget=1.0):
    """Median time of one call and how many were timed: up to 20 or `budget` seconds, at least 3."""
    def once():
        if device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            return 1e-3 * begin.elapsed_time(end)
        begin = time.perf_counter()
        run()
        return time.perf_counter() - begin

    once()  # memory, libraries and kernels are loaded by the first call
    times = []
    while len(times) < 3 or (len(times) < 20 and sum(times) < budget):
        times.append(once())
    return statistics.median(times), len(times)


def say(**line):
    print(json.dumps(line), flush=True)


def measure_card(device):
    side = 8192
    source = torch.ones(1 << 30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    seconds, repeats = seconds_of(lambda: target.copy_(source), device)
    say(name="card/copy", device=device.type, rate=2.0 * source.numel() / seconds, repeats=repeats)
    del source, target
    for name, dtype, tf32 in (("float64_matrix", torch.float64, False),
                              ("tf32_matrix", torch.float32, True),
                              ("bf16_matrix", torch.bfloat16, False)):
        a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        torch.backends.cuda.matmul.allow_tf32 = tf32
        seconds, repeats = seconds_of(lambda a=a, b=b: a @ b, device)
        torch.backends.cuda.matmul.allow_tf32 = False
        say(name=f"card/{name}", device=device.type, rate=2.0 * side**3 / seconds, repeats=repeats)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, ... or cpu [cuda]")
    parser.add_argument("--n", type=int, help="tokens of every piece, instead of its own")
    parser.add_argument("--only", help="names of pieces, separated by commas: " + ", ".join(SIZES))
    options = parser.parse_args(arguments)
    if options.n is not None and options.n < 2:
        parser.error(f"--n: got {options.n}, expected 2 or more")
    chosen = options.only.split(",") if options.only else list(SIZES)
    for name in chosen:
        if name not in SIZES:
            parser.error(f"--only: got '{name}', expected some of {', '.join(SIZES)}")
    if torch is None:
        print(f"peer_torch.py: {sys.executable} has no torch", file=sys.stderr)
        return 3
    try:
        device = torch.device(options.device)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError(f"got '{options.device}', expected cuda or cpu")
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        print(f"peer_torch.py: --device: {str(error).splitlines()[0]}", file=sys.stderr)
        return 3
    torch.backends.cuda.matmul.allow_tf32 = False
    failed = 0
    with torch.no_grad():
        if device.type == "cuda":
            measure_card(device)
        for n in sorted({options.n} if options.n else {n for name in chosen for n in SIZES[name]}):
            names = [name for name in chosen if options.n or n in SIZES[name]]
            nq = n if "attention_sums_all" in names else min(QUERIES, n)
            for dtype in (torch.float64, torch.float32, torch.bfloat16):
                inputs = Inputs(n, nq, dtype, device)
                work = pieces(inputs, min(QUERIES, n))
                for name in names:
                    # Eight bits of mantissa are for attention alone; selections need more.
                    if dtype == torch.bfloat16 and name != "exact_attention":
                        continue
                    kind = str(dtype).removeprefix("torch.")
                    try:
                        seconds, repeats = seconds_of(work[name], device)
                    except RuntimeError as error:
                        failed += 1
                        print(f"peer_torch.py: {name}/{n} in {kind}: {str(error).splitlines()[0]}",
                              file=sys.stderr)
                        continue
                    say(name=f"{name}/{n}", dtype=kind, device=device.type, seconds=seconds,
                        repeats=repeats)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
