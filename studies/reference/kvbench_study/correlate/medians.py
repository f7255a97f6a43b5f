"""Medians over the values of resampled prompts."""

import numpy as np


def pooled_medians(values, prompts, cells, counts):
    """Returns [r, cells]: the weighted median of a cell's values, each counted as often as its
    prompt is drawn.

    values, prompts, cells [n]: a value, the index of its prompt and of its cell. counts [r,
    prompts].
    """
    out = np.empty((len(counts), cells.max() + 1))
    for cell in range(out.shape[1]):
        mine = np.flatnonzero(cells == cell)
        mine = mine[np.argsort(values[mine], kind="stable")]
        ordered = values[mine]
        # below[v]: count of each prompt among the v smallest values.
        below = np.zeros((len(mine) + 1, counts.shape[1]), np.int64)
        np.add.at(below, (np.arange(1, len(mine) + 1), prompts[mine]), 1)
        below = below.cumsum(axis=0)
        total = counts @ below[-1]
        out[:, cell] = (_at_rank(ordered, below, counts, (total + 1) // 2)
                        + _at_rank(ordered, below, counts, total // 2 + 1)) / 2
    return out


def _at_rank(ordered, below, counts, rank):
    """Returns the value of this 1-based rank in each resample, by bisection."""
    low, high = np.ones(len(counts), np.int64), np.full(len(counts), len(ordered), np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        enough = (below[middle] * counts).sum(axis=1) >= rank
        high = np.where(enough, middle, high)
        low = np.where(enough, low, middle + 1)
    return ordered[low - 1]
