"""The KL divergence as a sum over layers, and its fit.

    KL = sum_l s_l e_l^2

e_l is layer l's `residual_rel_error`, s_l > 0 its sensitivity in nats. To first order the layers'
errors reach the logits as a sum; if they are uncorrelated, the squared error of the logits is a
weighted sum of squares, and the KL divergence is quadratic in the error of the logits.
"""

import numpy as np
from scipy import optimize

from kvbench.errors import CsvError

RIDGE = 0.03  # held-out errors hardly differ between .001 and .1 (docs/policies.md)
FOLDS = 5


def fit(squares, kl, ridge=RIDGE):
    """Returns s [layers] for squares [n, layers] and kl [n], both positive.

    Minimises the mean square of log(predicted / kl), plus `ridge` times the variance of log s over
    layers, which few cells determine.
    """
    target = np.log(kl)
    layers = squares.shape[1]

    def cost(logs):
        weights = np.exp(logs)
        sums = squares @ weights
        off = np.log(sums) - target
        apart = logs - logs.mean()
        gradient = 2 / len(kl) * ((off / sums) @ squares) * weights + 2 * ridge / layers * apart
        return np.mean(off ** 2) + ridge * np.mean(apart ** 2), gradient

    start = np.full(layers, np.mean(target - np.log(squares.sum(axis=1))))
    found = optimize.minimize(cost, start, jac=True, method="L-BFGS-B", options={"maxiter": 2000})
    return np.exp(found.x)


def measure(squares, alone):
    """Returns log s [units, layers], means over cells, of squares and KL of single layers [units, cells, layers]."""
    return np.log(alone / squares).mean(axis=1)


def parts_of(method):
    """Returns the names in a method's label: {h2o, quant-kivi} of `h2o@quant-kivi k_bits=4`."""
    return set(method.split()[0].replace("@", "+").split("+"))


def folds_of(units, folds=FOLDS):
    """Returns [units]: the fold of each unit; at most as many folds as units."""
    return np.arange(units) % min(folds, units)


def cross_fit(squares, kl, methods, ridge=RIDGE, folds=FOLDS):
    """Returns predictions [units, cells], each from other units and other methods.

    squares [units, cells, layers], kl [units, cells]; methods: the label of each cell. A cell is predicted from the
    units of other folds and the methods that share no name with its own (neither `h2o` nor `snapkv@quant-kivi` for
    `h2o@quant-kivi`). Requires two units. Raises CsvError for a method without another to fit.
    """
    fold = folds_of(len(kl), folds)
    out = np.full(kl.shape, np.nan)
    for method in dict.fromkeys(methods):
        mine = np.array([other == method for other in methods])
        train = np.array([not parts_of(other) & parts_of(method) for other in methods])
        if not train.any():
            raise CsvError(f"{method}: got only methods that share a name with it, expected one that shares none")
        for at in range(fold.max() + 1):
            rest = squares[fold != at][:, train]
            weights = fit(rest.reshape(-1, rest.shape[-1]), kl[fold != at][:, train].ravel(), ridge)
            out[np.ix_(fold == at, mine)] = squares[fold == at][:, mine] @ weights
    return out
