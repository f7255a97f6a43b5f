"""Optional parts of a trace (docs/trace_format.md): rotary tables, output projections, norms of the
residual stream. For writer.TraceWriter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from kvbench.trace.digest import filters

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import ArrayLike

    from kvbench.errors import TraceError

ROPE_LAYOUTS = ("half", "interleaved")
# Positions of a rotary table beyond the prompt, for methods that expect future queries (expected-attention: 512).
FUTURE_POSITIONS = 512
CHUNK_TOKENS = 1024  # tokens per head and chunk, as in the C++ writer


class OptionalParts:
    """Base of TraceWriter, which sets the attributes."""

    dtype: str
    _file: h5py.File
    _gzip: int
    _root: dict[str, Any]
    _prompt: h5py.Group | None  # the open one
    _layer: int | None  # the one begun last
    _missing: dict[tuple[int, str], np.ndarray]  # (layer, name) of the open prompt: bool [heads, rows]
    _sizes: dict[tuple[str, int], tuple[int, int]]  # (prompt, layer): (n, d)

    if TYPE_CHECKING:
        def _error(self, where: str, what: str) -> TraceError: ...
        def _add(self, group: h5py.Group, name: str, array: np.ndarray, width: int | None = None) -> None: ...
        def _stored(self, array: np.ndarray, where: str, head: int, start_row: int) -> np.ndarray: ...

    def write_rope(self, cos: ArrayLike, sin: ArrayLike, layout: str, layers: Iterable[int] | None = None) -> None:
        """Writes rotary tables by position, for all layers or for a list of them.

        cos, sin  [n_max, rope_dim / 2], as the model has them, with an attention factor; stored as float32. n_max must
                  reach FUTURE_POSITIONS beyond the longest prompt
        layout    pairs of the first rope_dim channels: "half": i and i + rope_dim / 2; "interleaved": 2 i and 2 i + 1
        layers    call again until each layer of the trace has its own; None: one for all
        """
        if layout not in ROPE_LAYOUTS:
            raise self._error("rope", f"layout: got `{layout}`, expected {' or '.join(ROPE_LAYOUTS)}")
        if self._root["rope"] != "post":
            raise self._error("rope", f"got tables for `{self._root['rope']}`, expected rope "
                                      "`post`: without a rotation there are none")
        tables = {"cos": np.asarray(cos), "sin": np.asarray(sin)}
        shape = tables["cos"].shape
        for name, table in tables.items():
            if table.ndim != 2 or 0 in table.shape or table.shape != shape:
                raise self._error(f"rope/{name}", f"got shape {table.shape}, expected [n_max, "
                                                  "rope_dim / 2], the same for cos and sin")
            if table.dtype.kind != "f" or not np.isfinite(table).all():
                raise self._error(f"rope/{name}", "expected finite floating point")
        root = self._file.require_group("rope")
        first = None
        for layer in [None] if layers is None else layers:
            where = root if layer is None else root.create_group(str(layer))
            for name, table in tables.items():
                if first is not None:
                    where[name] = first[name]  # a link, since layers of one kind share a table
                    continue
                self._add(where, name, table.astype(np.float32))
            where.attrs["layout"] = layout
            first = where

    def _check_rope(self) -> None:
        """Checks that tables are long enough, no wider than keys, and complete."""
        root = self._file.get("rope")
        if root is None:
            return
        for (prompt, layer), (n, d) in self._sizes.items():
            own = root if "cos" in root else root.get(str(layer))
            if own is None:
                raise self._error("rope", f"has no table for layer {layer}, expected one for each layer of the trace")
            rows, half = own["cos"].shape
            if rows < n + FUTURE_POSITIONS:
                raise self._error(own.name[1:], f"got {rows} positions, expected at least {n + FUTURE_POSITIONS}: "
                                                f"prompt {prompt} and {FUTURE_POSITIONS}")
            if 2 * half > d:
                raise self._error(own.name[1:], f"got {2 * half} channels that turn, layer {layer} has keys of {d}")

    def write_o_proj(self, array: ArrayLike, layer: int | None = None) -> None:
        """Writes the output projection of an open layer with q and v.

        array  [hidden, q_heads * dv], columns by head, without a bias: in the element type of the trace (bfloat16 as
               its bits, uint16), or float32, stored unchanged
        layer  default the one begun last
        """
        layer, where, group = self._begun(layer, "o_proj", "qv")
        array = np.asarray(array)
        own = np.dtype("uint16" if self.dtype == "bfloat16" else self.dtype)
        if array.dtype not in (own, np.float32):
            raise self._error(where, f"got elements of type {array.dtype}, expected {self.dtype} or float32")
        heads, dv = group["q"].shape[0], group["v"].shape[2]
        if array.ndim != 2 or not len(array) or array.shape[1] != heads * dv:
            raise self._error(where, f"got shape {array.shape}, expected [hidden, {heads} * {dv}]")
        bits = array.dtype == np.uint16
        finite = (array & 0x7F80) != 0x7F80 if bits else np.isfinite(array)
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            raise self._error(where, f"row {row}, column {column}: expected finite values")
        self._add(group, "o_proj", array, dv)

    def share_o_proj(self, prompt: str, layer: int | None = None) -> bool:
        """Links the projection of the same layer in an earlier prompt. Returns whether there is one."""
        layer, _, group = self._begun(layer, "o_proj", "qv")
        earlier = self._file.get(f"prompts/{prompt}/layers/{layer}/o_proj")
        if earlier is not None:
            group["o_proj"] = earlier
        return earlier is not None

    def write_residual_norm(self, start_row: int, norms: ArrayLike, layer: int | None = None) -> None:
        """Writes norms of the residual stream to which the layer's attention output is added.

        start_row  the first stored query of `norms`, [rows]: finite, >= 0; all rows of the layer must be written once
        """
        layer, where, group = self._begun(layer, "residual_norm", "q")
        nq = group["q"].shape[1]
        if "residual_norm" not in group:
            group.create_dataset("residual_norm", (nq,), np.float32,
                                 chunks=(min(nq, CHUNK_TOKENS),), **filters(self._gzip))
            self._missing[layer, "residual_norm"] = np.ones((1, nq), bool)
        norms = self._norms(where, norms, start_row)
        if norms.ndim != 1 or not 0 <= start_row <= nq - len(norms):
            raise self._error(where, f"got shape {norms.shape} from row {start_row}, expected rows within {nq}")
        missing = self._missing[layer, "residual_norm"][0, start_row:start_row + len(norms)]
        if not missing.all():
            raise self._error(where, f"row {start_row + int(np.argmin(missing))} is written twice")
        group["residual_norm"][start_row:start_row + len(norms)] = norms
        missing[:] = False

    def _norms(self, where: str, norms: ArrayLike, start_row: int = 0) -> np.ndarray:
        """Returns norms as float32. Raises TraceError unless they are finite and >= 0."""
        with np.errstate(over="ignore"):
            out = np.asarray(norms).astype(np.float32)
        bad = ~(np.isfinite(out) & (out >= 0))
        if bad.any():
            row = int(np.argmax(bad))
            raise self._error(where, f"row {start_row + row}: got {out.flat[row]}, expected finite numbers >= 0")
        return out

    def _begun(self, layer: int | None, name: str, needed: str) -> tuple[int, str, h5py.Group]:
        """Returns index, path of `name` and group of an open layer, which must have the datasets `needed`."""
        layer = self._layer if layer is None else layer
        if layer is None or self._prompt is None or str(layer) not in self._prompt["layers"]:
            raise self._error("", f"layer {layer}: `{name}` before the layer was begun")
        where = f"{self._prompt.name[1:]}/layers/{layer}/{name}"
        group = self._prompt["layers"][str(layer)]
        for part in needed:
            if part not in group:
                raise self._error(where, f"the layer has no {part}, which this belongs to")
        if name == "o_proj" and name in group:
            raise self._error(where, "is written twice")
        return layer, where, group
