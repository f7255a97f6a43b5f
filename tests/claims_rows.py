"""Rows with planted effects, for tests of kvbench-py claims."""

import itertools
import math

import numpy as np

LAYERS = (0, 3)


def prompts_of(count):
    return [f"p{i}" for i in range(count)]


def halving_rows(ratio, prompts=8, rate=-0.5, uniform_rate=-0.5, noise=0.02, ts=(1, 2, 3, 4)):
    """balancekv and uniform at T halvings of 800 tokens. ratio(layer, T): extra factor of balancekv.

    Errors are exact powers of the tokens kept, times a prompt's difficulty and noise.
    """
    rng = np.random.default_rng(3)
    for prompt, layer, head, t in itertools.product(prompts_of(prompts), LAYERS, (0, 1), ts):
        hard = 1 + int(prompt[1:]) % 3
        for name, slope in (("balancekv", rate), ("uniform", uniform_rate)):
            kept = 800 / 2**t
            error = hard * (kept / 800)**slope * math.exp(noise * rng.standard_normal())
            error *= (1 + head) * (ratio(layer, t) if name == "balancekv" else 1)
            yield {"prompt": prompt, "layer": layer, "q_head": head, "algorithm": name,
                   "params": f"T={t}", "tokens_kept": 20 + kept, "rel_error": error,
                   "eps_fro": 2 * error}


def lambda_rows(error, prompts=8, noise=0.01):
    """bumblebee over lambda 0 to 1, both phi; error(layer, lambda, prompt's number)."""
    rng = np.random.default_rng(4)
    for prompt, layer, phi, step in itertools.product(range(prompts), LAYERS, ("log", "power"),
                                                      range(11)):
        yield {"prompt": f"p{prompt}", "layer": layer, "algorithm": "bumblebee",
               "params": f"lambda={step / 10:g};phi={phi}",
               "rel_error": error(layer, step / 10, prompt) * math.exp(
                   noise * rng.standard_normal())}


def revive_rows(part_ratio, prompts=6, estimate="sum"):
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
