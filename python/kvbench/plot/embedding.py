"""Deterministic t-SNE by scikit-learn.

van der Maaten and Hinton, Visualizing data using t-SNE, JMLR 2008; sklearn.manifold.TSNE
(Barnes-Hut) from the first two principal components, with a fixed random state.
"""

import concurrent.futures
import multiprocessing

import numpy as np

from kvbench import programs
from kvbench import tables as kt

PERPLEXITY = 30.0  # scikit-learn's default
MIN_POINTS = 5  # minimum for neighbourhoods


def require_sklearn():
    try:
        programs.expect_modules("t-SNE", ("sklearn", "threadpoolctl"))
    except programs.MissingModules as error:
        raise kt.CsvError(str(error)) from None


def embed(points, seed=0, perplexity=PERPLEXITY):
    """Returns the embedding [n, 2] of points [n, d], float64; equal points stay on one spot. perplexity: neighbours,
    at most (n - 1) / 3. Raises CsvError for n < 5 and coordinates that are not finite.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    points = np.asarray(points, dtype=np.float64)
    n = len(points)
    if n < MIN_POINTS:
        raise kt.CsvError(f"t-SNE: got {n} points, expected at least {MIN_POINTS}")
    if not np.isfinite(points).all():
        raise kt.CsvError("t-SNE: got a coordinate that is not finite, expected numbers only")
    if not np.ptp(points, axis=0).any():
        return np.zeros((n, 2))  # the scale of the start would be 0 / 0
    if points.shape[1] < 2:
        points = np.column_stack([points, np.zeros(n)])  # the start needs two components
    tsne = TSNE(n_components=2, init="pca", learning_rate="auto", random_state=seed,
                perplexity=min(perplexity, (n - 1) / 3))
    # One thread, since parallel sums vary in the last bit.
    with threadpool_limits(limits=1):
        return tsne.fit_transform(points).astype(np.float64)


def embed_all(sets, jobs, seed=0, perplexity=PERPLEXITY):
    """`embed` of each of `sets`, up to `jobs` at a time; the result does not depend on `jobs`."""
    require_sklearn()
    if jobs <= 1 or len(sets) <= 1:
        return [embed(points, seed, perplexity) for points in sets]
    # spawn, since OpenMP does not survive a fork.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(min(jobs, len(sets)), mp_context=context) as pool:
        count = len(sets)
        return list(pool.map(embed, sets, [seed] * count, [perplexity] * count))
