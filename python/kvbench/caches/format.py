"""Names, checks and rounding shared by the writer and the reader of caches files (docs/trace_format.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from kvbench.trace.writer import TraceError, from_bfloat16, to_bfloat16

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

FORMAT = "kvbench-caches"
VERSION = 1
PROTOCOLS = ("prefill", "stream")
SCORES = ("past", "all", "none")
SCOPES = ("head", "layer", "layers")
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}  # of an element
DATASETS = ("k", "v", "log_weight", "token", "k_den", "log_weight_den", "counted")  # of an entry
POSITIONS = ("token", "counted")  # integer datasets
LARGEST = np.iinfo(np.int64).max  # position
# Attributes of an entry, by type.
COUNTS = ("aux_bytes", "payload_bytes", "quantised", "transient_bytes", "scoring_queries")
NUMBERS = ("compress_ms",)
TEXTS = ("infeasible", "failed", "degenerate", "diag")
ATTRIBUTES = (*COUNTS, *NUMBERS, *TEXTS)
# Attributes of an entry without arrays.
ABSENT = ("infeasible", "failed")


def round_to(array: ArrayLike, dtype: str) -> np.ndarray:
    """Rounds `array` to nearest even in a trace's element type.

    dtype  "float16": float16; "float32": float32; "bfloat16": float32 representable in bfloat16
    Overflow gives infinity.
    """
    with np.errstate(over="ignore"):
        single = np.asarray(array).astype(np.float16 if dtype == "float16" else np.float32)
    if dtype != "bfloat16":
        return single
    finite = np.isfinite(single)
    # to_bfloat16 takes finite input.
    return np.where(finite, from_bfloat16(to_bfloat16(np.where(finite, single, 0))), single)


def params_text(params: str | Mapping[str, Any]) -> str:
    """Returns `key=value;key=value` with sorted keys, from a dict or text."""
    if not isinstance(params, str):
        params = ";".join(f"{key}={value}" for key, value in params.items())
    parts = [part.partition("=") for part in params.split(";") if part]
    for key, equals, _ in parts:
        if not key or not equals:
            raise TraceError(f"params: got `{params}`, expected key=value;key=value")
    if len({key for key, _, _ in parts}) < len(parts):
        raise TraceError(f"params: got `{params}`, expected each key once")
    return ";".join(f"{key}={value}" for key, _, value in sorted(parts))


def check_entry(where: str, sizes: tuple[int | None, int | None], quantised: int,
                k: np.ndarray | None, v: np.ndarray | None, log_weight: np.ndarray | None,
                token: np.ndarray | None, k_den: np.ndarray | None,
                log_weight_den: np.ndarray | None, counted: np.ndarray | None) -> None:
    """Raises TraceError unless an entry is valid (docs/trace_format.md).

    where  file and path for the message; sizes: (d, dv), None if unknown. Arrays in the order of
    DATASETS.
    """
    def fail(what: str, got: object, expected: str) -> NoReturn:
        raise TraceError(f"{where}: {what}: got {got}, expected {expected}")

    for name, array, width in (("k", k, sizes[0]), ("v", v, sizes[1]), ("k_den", k_den, sizes[0])):
        if array is None and name == "k_den":
            continue
        if array is None:
            fail(name, "nothing", "a dataset")
        if array.ndim != 2 or (width is not None and array.shape[1] != width):
            fail(f"{name}: shape", list(array.shape), f"[B, {'d' if width is None else width}]")
    assert k is not None and v is not None
    if len(v) != len(k):
        fail("v: rows", len(v), f"{len(k)}, as k has")
    if k_den is not None and k_den.shape[1] != k.shape[1]:
        fail("k_den: width", k_den.shape[1], f"{k.shape[1]}, as k has")
    rows_den = len(k) if k_den is None else len(k_den)
    for name, array, rows in (("log_weight", log_weight, len(k)), ("token", token, len(k)),
                              ("log_weight_den", log_weight_den, rows_den)):
        if array is not None and array.shape != (rows,):
            fail(f"{name}: shape", list(array.shape), f"[{rows}]")
    for name, array in (("k", k), ("v", v), ("log_weight", log_weight), ("k_den", k_den),
                        ("log_weight_den", log_weight_den)):
        if array is None:
            continue
        if array.dtype.kind != "f" or array.dtype.itemsize not in (2, 4, 8):
            fail(f"{name}: elements", array.dtype, "16-, 32- or 64-bit floats")
        weight = name.startswith("log")
        with np.errstate(over="ignore"):
            single = array.astype(np.float32, copy=False)
        bad = ~(np.isfinite(single) | ((array == -np.inf) if weight else False))
        if bad.any():
            at = np.argwhere(bad)[0]
            fail(f"{name}{[int(i) for i in at]}", array[tuple(at)],
                 "a float32 or -inf" if weight else "a finite float32")
    if token is not None:
        if token.dtype.kind not in "iu":
            fail("token: elements", token.dtype, "integers")
        held = token[token >= 0]
        wrong = (token < -1) | (token > LARGEST)
        if wrong.any():
            fail("token", int(token[wrong][0]), "a position, or -1")
        if len(np.unique(held)) < len(held):
            fail("token", f"{np.sort(held)[:-1][np.diff(np.sort(held)) == 0][0]} twice", "each position once")
    if counted is None:
        return
    if counted.ndim != 1 or counted.dtype.kind not in "iu":
        fail("counted", f"{counted.dtype} of shape {list(counted.shape)}", "integers [C]")
    if ((counted < 0) | (counted > LARGEST)).any() or (np.diff(counted.astype(np.int64)) <= 0).any():
        fail("counted", counted.tolist(), "ascending positions")
    if len(counted) > quantised:
        fail("counted", f"{len(counted)} tokens", f"at most the {quantised} quantised")
    both = np.intersect1d(counted, [] if token is None else token)
    if len(both):
        fail("counted", both[0], "no position that token holds exactly")
