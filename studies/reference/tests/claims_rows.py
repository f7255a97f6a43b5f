"""Rows with planted effects, for tests of kvbench-study claims."""

import itertools
import json
import math

import numpy as np

LAYERS = (0, 3)
KINDS = ("prose", "code")
AUTHORS = "bias=plain;center=padded;denominator=uniform;select=repo;step=repo;temp=0.1"


def prompts_of(count):
    return [f"p{i}" for i in range(count)]


def write_records(path, count, sources=None, kinds=KINDS, **fields):
    """Records of prompts_of(count): kinds in turn; prompt i is of source i % sources, else its own."""
    with open(path, "w", encoding="utf-8") as file:
        for i, name in enumerate(prompts_of(count)):
            record = {"id": name, "text": "", "source": f"s{i % (sources or count):02}",
                      "kind": kinds[i % len(kinds)], **fields}
            file.write(json.dumps(record) + "\n")
    return str(path)


def halving_rows(ratio, prompts=8, rate=-0.5, uniform_rate=-0.5, noise=0.02, ts=(1, 2, 3, 4),
                 setting="", layers=LAYERS):
    """balancekv and uniform at T halvings of 800 tokens. ratio(layer, T): extra factor of balancekv.

    Errors are exact powers of the tokens kept, times a prompt's difficulty and noise. setting: more
    params of balancekv.
    """
    rng = np.random.default_rng(3)
    for prompt, layer, head, t in itertools.product(prompts_of(prompts), layers, (0, 1), ts):
        hard = 1 + int(prompt[1:]) % 3
        for name, slope in (("balancekv", rate), ("uniform", uniform_rate)):
            kept = 800 / 2**t
            error = hard * (kept / 800)**slope * math.exp(noise * rng.standard_normal())
            error *= (1 + head) * (ratio(layer, t) if name == "balancekv" else 1)
            more = setting if name == "balancekv" else ""
            yield {"prompt": prompt, "layer": layer, "q_head": head, "algorithm": name,
                   "params": ";".join(part for part in (f"T={t}", more) if part),
                   "tokens_kept": 20 + kept, "rel_error": error, "rel_error_mean": error,
                   "eps_fro": 2 * error}


def score_row(prompt, algorithm, params, budget, kl, **more):
    return {"trace": "t.h5", "prompt": f"p{prompt}", "algorithm": algorithm, "params": params,
            "budget_requested": budget, "seed": 0, "layers": 30, "kl": kl, "status": "ok", **more}


def lambda_scores(kl, prompts=12, noise=0.01, budgets=(0.2, 0.1), phis=("log", "power")):
    """Scores of bumblebee over lambda 0 to 1; kl(kind, lambda, prompt's number)."""
    rng = np.random.default_rng(4)
    for prompt, budget, phi, step in itertools.product(range(prompts), budgets, phis, range(11)):
        value = kl(KINDS[prompt % 2], step / 10, prompt) * math.exp(noise * rng.standard_normal())
        yield score_row(prompt, "bumblebee", f"lambda={step / 10:g};phi={phi}", budget, value)


def revive_scores(kl, prompts=12, noise=0.01, budgets=(0.5, 0.25)):
    """Scores of h2o and kvreviver in both forms; kl(form, kind), form: `stream`, `batch`, `none fisher`,
    `none uniform` or `h2o`."""
    rng = np.random.default_rng(9)
    forms = {"stream": "estimate=sum;layer_budget=fisher;prefill=stream;vague=sketch",
             "batch": "estimate=sum;layer_budget=uniform;prefill=batch;vague=sketch",
             "none fisher": "estimate=sum;layer_budget=fisher;prefill=batch;vague=none",
             "none uniform": "estimate=sum;layer_budget=uniform;prefill=batch;vague=none", "h2o": "heavy_ratio=0.5"}
    for prompt, budget, (form, params) in itertools.product(range(prompts), budgets, forms.items()):
        for seed in range(2 if "sketch" in params else 1):
            value = kl(form, KINDS[prompt % 2]) * math.exp(noise * rng.standard_normal())
            yield score_row(prompt, "h2o" if form == "h2o" else "kvreviver", params, budget,
                            value * (1 + seed), seed=seed)


def revive_rows(part_ratio, prompts=8, estimate="sum"):
    """kvreviver with errors that are part_ratio(layer, part) times the bound, but for noise."""
    rng = np.random.default_rng(5)
    for prompt, layer, head in itertools.product(prompts_of(prompts), LAYERS, (0, 1)):
        noise = math.exp(0.02 * rng.standard_normal())
        diag = ("vague=30;cells=15;k_bound=2;v_bound=3;"
                f"k_error={2 * part_ratio(layer, 'k') * noise};"
                f"v_error={3 * part_ratio(layer, 'v') * noise}")
        for query in (0, 1):  # two query heads of a KV head repeat it
            yield {"prompt": prompt, "layer": layer, "kv_head": head, "q_head": 2 * head + query,
                   "algorithm": "kvreviver", "diag": diag,
                   "params": f"candidate_ratio=0.4;estimate={estimate};recent_ratio=0.4;"
                             "vague=sketch;vague_ratio=0.2"}
