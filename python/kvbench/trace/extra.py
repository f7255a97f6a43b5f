"""Extra queries and scores of a layer (docs/trace_format.md), for writer.TraceWriter.

A set of extra queries follows the prompt: a repetition of it (KVzip), a second question. Its
segments have their own keys. Scores come from other programs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from kvbench.trace import digest
from kvbench.trace.parts import CHUNK_TOKENS, OptionalParts

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

NAME = re.compile("[A-Za-z0-9._-]{1,100}")
MAX_POSITION = 2**31 - 1


class ExtraParts(OptionalParts):
    """Base of TraceWriter."""

    def write_extra(self, name: str, q: ArrayLike, k: ArrayLike, position: ArrayLike,
                    prefix: int | None = None, about: tuple[int, int] | None = None,
                    residual_norm: ArrayLike | None = None, layer: int | None = None) -> None:
        """Writes the next segment of the set `name` of an open layer with q.

        name           letters, digits, `-`, `_` and `.`
        q, k           [q_heads, m, d], [kv_heads, m, d], rotated at their own positions; types as in write()
        position       [m], ascending: positions of the rotation
        prefix         prompt tokens that the model had read, 0 to n; None: unknown, and methods reject the set
        about          (first, last): the tokens [first, last) that the segment is about; None: none
        residual_norm  [m], norms of the residual stream of the queries; None: unknown
        layer          default the one begun last
        """
        layer, where, group = self._begun(layer, f"extra/{name}", "qk")
        self._check_name(where, name)
        n, (q_heads, _, d), kv_heads = group["k"].shape[1], group["q"].shape, len(group["k"])
        at = len(group[f"extra/{name}"]) if f"extra/{name}" in group else 0
        where = f"{where}/{at}"
        q, k, position = np.asarray(q), np.asarray(k), np.asarray(position)
        m = q.shape[1] if q.ndim == 3 else 0
        for part, array, heads in (("q", q, q_heads), ("k", k, kv_heads)):
            if not m or array.shape != (heads, m, d):
                raise self._error(f"{where}/{part}", f"got shape {array.shape}, expected "
                                                     f"[{heads}, m, {d}], m at least 1")
        if (position.shape != (m,) or position.dtype.kind not in "iu" or position[0] < 0
                or position[-1] > MAX_POSITION or not (np.diff(position.astype(np.int64)) > 0).all()):
            raise self._error(f"{where}/position", f"expected {m} integers from 0 on, each above the one before")
        attributes = self._prefix(where, prefix, n)
        if about is not None:
            first, last = (int(one) for one in about)
            end = n if prefix is None else prefix
            if not 0 <= first <= last <= end:
                raise self._error(where, f"about: got [{first}, {last}), expected tokens within [0, {end})")
            attributes |= {"first": np.int64(first), "last": np.int64(last)}
        if residual_norm is not None:
            residual_norm = self._norms(f"{where}/residual_norm", residual_norm)
            if residual_norm.shape != (m,):
                raise self._error(f"{where}/residual_norm", f"got shape {residual_norm.shape}, expected {(m,)}")
        stored = {part: self._stored(array, f"{where}/{part}", 0, 0) for part, array in (("q", q), ("k", k))}
        segment = group.create_group(f"extra/{name}/{at}")
        for part, array in stored.items():
            data = segment.create_dataset(part, data=array, **digest.filters(self._gzip),
                                          chunks=(1, min(m, CHUNK_TOKENS), d))
            digest.seal(data)
        self._add(segment, "position", position.astype(np.int32))
        if residual_norm is not None:
            self._add(segment, "residual_norm", residual_norm)
        segment.attrs.update(attributes)

    def write_scores(self, name: str, array: ArrayLike, prefix: int | None = None, layer: int | None = None) -> None:
        """Writes scores of the tokens of an open layer with k.

        array   [kv_heads, n], any finite floating point; stored as float32
        prefix  prompt tokens that the program had read, as in write_extra
        """
        layer, where, group = self._begun(layer, f"scores/{name}", "k")
        self._check_name(where, name)
        if f"scores/{name}" in group:
            raise self._error(where, "is written twice")
        array, shape = np.asarray(array), group["k"].shape[:2]
        if array.shape != shape or array.dtype.kind != "f":
            raise self._error(where, f"got {array.dtype} of shape {array.shape}, expected floating "
                                     f"point of shape {shape}")
        with np.errstate(over="ignore"):
            array = array.astype(np.float32)
        if not np.isfinite(array).all():
            head, token = np.argwhere(~np.isfinite(array))[0]
            raise self._error(where, f"head {head}, token {token}: expected finite values")
        attributes = self._prefix(where, prefix, shape[1])
        scores = group.require_group("scores")
        self._add(scores, name, array)
        scores[name].attrs.update(attributes)

    def _prefix(self, where: str, prefix: int | None, n: int) -> dict[str, np.int64]:
        """Returns the attributes; empty if unknown."""
        if prefix is None:
            return {}
        if not 0 <= prefix <= n:
            raise self._error(where, f"prefix: got {prefix}, expected 0 to n_tokens = {n}")
        return {"prefix": np.int64(prefix)}

    def _check_name(self, where: str, name: str) -> None:
        if not NAME.fullmatch(name):
            raise self._error(where, f"name: got `{name}`, expected letters, digits, `-`, `_` and `.`, at most 100")
