"""Streaming writer of kvbench's trace format (docs/trace_format.md).

Raises TraceError for invalid input, OSError if the disk or device fails.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import os
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from kvbench.errors import TraceError
from kvbench.own import whole_file
from kvbench.text import storable
from kvbench.trace import digest
from kvbench.trace.parts import CHUNK_TOKENS, FUTURE_POSITIONS, MAX_POSITION, NAME, ROPE_LAYOUTS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from numpy.typing import ArrayLike

FORMAT = "kvbench-trace"
VERSION = 1
STORED = {"float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}
ROPES = ("post", "none")
MAX_LAYER = 1000000
SHARED = "shares_cache_of"


def to_bfloat16(array: ArrayLike) -> np.ndarray:
    """Returns the 16 bits of each float32, uint16, rounded to nearest even. Input must be finite."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    # 64 bits, so that the carry of the largest floats does not wrap around.
    return ((bits.astype(np.uint64) + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: ArrayLike) -> np.ndarray:
    """Returns float32 of bfloat16's bits (uint16); exact."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def array_of(tensor: Any) -> np.ndarray:
    """Returns a torch tensor for TraceWriter.write: bfloat16 as its bits."""
    tensor = tensor.detach().cpu()
    if str(tensor.dtype) != "torch.bfloat16":
        return tensor.numpy()
    import torch

    return tensor.view(torch.int16).numpy().view(np.uint16)


class TraceWriter:
    """Writes one trace in parts: PATH.tmp, renamed to PATH when complete.

    Context manager. A normal exit checks that every row of every dataset was written, and renames;
    an exception removes PATH.tmp and keeps the previous PATH. A file at PATH that is not a trace,
    or a foreign file at PATH.tmp, is rejected and kept.

    path     of the trace
    model    model id and revision; source: data set; created: date (default: today, UTC)
    dtype    "float16" | "bfloat16" | "float32", the element type of the model's cache
    rope     "post": q and k after rotation; "none": no rotation
    scale    s in exp(s <k, q>) for all layers; None: 1 / sqrt(d)
    gzip     level 1..9 (after shuffle); 0: none
    All datasets have fletcher32 and the attribute `sha256` (digest.py).
    """

    def __init__(self, path: str | os.PathLike[str], model: str, source: str, created: str | None = None,
                 dtype: str = "float16", rope: str = "post", scale: float | None = None, gzip: int = 4):
        self.path = os.fspath(path)
        if dtype not in STORED:
            raise self._error("", f"dtype: got `{dtype}`, expected {', '.join(STORED)}")
        if rope not in ROPES:
            raise self._error("", f"rope: got `{rope}`, expected post or none")
        if gzip not in range(10):
            raise self._error("", f"gzip: got {gzip}, expected 0 to 9")
        if created is None:
            created = datetime.datetime.now(datetime.UTC).date().isoformat()
        self.dtype = dtype
        self._gzip = gzip
        self._prompt: h5py.Group | None = None  # the open one
        self._layer: int | None = None  # the one begun last
        self._missing: dict[tuple[int, str], np.ndarray] = {}  # (layer, name) of the open prompt: bool [heads, rows]
        self._sizes: dict[tuple[str, int], tuple[int, int]] = {}  # (prompt, layer): (n, d)
        self._file: h5py.File = None
        self._root: dict[str, Any] = {"format": FORMAT, "version": VERSION, "dtype": dtype, "rope": rope,
                                      "model": storable(model), "source": storable(source),
                                      "created": storable(created)}
        if scale is not None:
            self._root["scale"] = self._positive("scale", scale)

    def __enter__(self) -> TraceWriter:
        self._whole = whole_file(self.path, self.path + ".tmp", "a trace", FORMAT)
        self._file = self._whole.__enter__()
        self._file.attrs.update(self._root)
        self._file.create_group("prompts")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        if error is not None:
            self._whole.__exit__(kind, error, trace)
            return
        with contextlib.ExitStack() as stack:
            stack.push(self._whole)
            self.end_prompt()
            if not len(self._file["prompts"]):
                raise self._error("", "no prompt was written")
            self._check_rope()
            digest.name_members(self._file)

    def begin_prompt(self, id: str, n_tokens: int, token_ids: ArrayLike | None = None,
                     text_id: str | None = None) -> None:
        """Opens the prompt `id` of n_tokens >= 1 tokens; the previous one must be complete. token_ids: int [n_tokens];
        text_id: the text's name in its source.
        """
        self.end_prompt()
        id = str(id)
        where = f"prompts/{id}"
        if not id or "/" in id or "\0" in id or id == ".":
            raise self._error("", f"prompt id: got `{id}`, expected a name without slashes")
        if storable(id) != id:
            raise self._error("", f"prompt id: got `{id}`, expected UTF-8")
        if id in self._file["prompts"]:
            raise self._error(where, "duplicate prompt")
        if n_tokens < 1:
            raise self._error(where, f"n_tokens: got {n_tokens}, expected at least 1")
        group = self._file["prompts"].create_group(id)
        group.create_group("layers")
        group.attrs["n_tokens"] = np.int64(n_tokens)
        if text_id is not None:
            group.attrs["text_id"] = storable(text_id)
        if token_ids is not None:
            token_ids = np.asarray(token_ids)
            if token_ids.shape != (n_tokens,):
                raise self._error(f"{where}/token_ids", f"shape: got {token_ids.shape}, expected {(n_tokens,)}")
            self._add(group, "token_ids", token_ids.astype(np.int32))
        self._prompt = group
        self._layer = None

    def begin_layer(self, layer: int, q_heads: int, kv_heads: int, nq: int, d: int, dv: int,
                    scale: float | None = None, fisher: float | None = None,
                    retrieval_heads: ArrayLike | None = None, with_q: bool = True, with_k: bool = True,
                    with_v: bool = True, sink_logit: ArrayLike | None = None,
                    window: int | None = None) -> None:
        """Creates a layer's datasets: q [q_heads, nq, d], k [kv_heads, n, d], v [kv_heads, n, dv].

        layer            index in the model; layers may come in any order and be interleaved
        nq               the last nq queries of the prompt are stored, 1 <= nq <= n
        scale            overrides the root's; fisher: the layer's weight, >= 0
        retrieval_heads  [kv_heads], non-zero = retrieval head
        with_q, ...      False omits the dataset; `kvbench cluster` needs keys only, a replay all three
        sink_logit       [q_heads], a logit without key and value in each head's denominator
        window           tokens that a query sees, itself included; None: all before it
        """
        if self._prompt is None:
            raise self._error("", "a layer before its prompt")
        n = int(self._prompt.attrs["n_tokens"])
        if not 0 <= layer <= MAX_LAYER:
            raise self._error(self._prompt.name, f"layer: got {layer}, expected 0 to {MAX_LAYER}")
        where = f"{self._prompt.name[1:]}/layers/{layer}"
        sizes = {"q_heads": q_heads, "kv_heads": kv_heads, "nq": nq, "d": d, "dv": dv}
        for name, size in sizes.items():
            if size < 1:
                raise self._error(where, f"{name}: got {size}, expected at least 1")
        if q_heads % kv_heads:
            raise self._error(where, f"got {q_heads} query heads, expected a multiple of the {kv_heads} KV heads")
        if nq > n:
            raise self._error(where, f"nq: got {nq}, expected at most n_tokens = {n}")
        if str(layer) in self._prompt["layers"]:
            raise self._error(where, "duplicate layer")
        group = self._prompt["layers"].create_group(str(layer))
        if scale is not None:
            group.attrs["scale"] = self._positive(f"{where}: scale", scale)
        if fisher is not None:
            if not (math.isfinite(fisher) and fisher >= 0):
                raise self._error(where, f"fisher: got {fisher}, expected a finite number >= 0")
            group.attrs["fisher"] = float(fisher)
        if retrieval_heads is not None:
            flags = np.asarray(retrieval_heads)
            if flags.shape != (kv_heads,):
                raise self._error(where, f"retrieval_heads: got shape {flags.shape}, expected {(kv_heads,)}")
            group.attrs["retrieval_heads"] = (flags != 0).astype(np.uint8)
        if sink_logit is not None:
            logits = np.asarray(sink_logit, np.float32)
            if logits.shape != (q_heads,) or not np.isfinite(logits).all():
                raise self._error(where, f"sink_logit: got shape {logits.shape}, expected {(q_heads,)} finite numbers")
            group.attrs["sink_logit"] = logits
        if window is not None:
            if window < 1:
                raise self._error(where, f"window: got {window}, expected at least 1")
            group.attrs["window"] = np.int64(window)
        shapes = {"q": (q_heads, nq, d), "k": (kv_heads, n, d), "v": (kv_heads, n, dv)}
        for (name, shape), wanted in zip(shapes.items(), (with_q, with_k, with_v)):
            if wanted:
                group.create_dataset(name, shape, STORED[self.dtype],
                                     chunks=(1, min(shape[1], CHUNK_TOKENS), shape[2]),
                                     **digest.filters(self._gzip))
                self._missing[layer, name] = np.ones(shape[:2], bool)
        self._layer = layer
        self._sizes[self._prompt.name.rpartition("/")[2], layer] = n, d

    def write(self, name: str, head: int, start_row: int, array: ArrayLike, layer: int | None = None) -> None:
        """Writes rows of one head or of several adjacent ones.

        name       "q", "k" or "v"; layer: default the one begun last
        head       the first head; start_row: the first row of the dataset
        array      [rows, width] for one head, [heads, rows, width] for more: float16, float32 or float64, or with
                   dtype bfloat16 its bits as uint16. Values are rounded to nearest; NaN, infinity and overflow are
                   rejected
        Every row must be written once.
        """
        layer = self._layer if layer is None else layer
        if self._prompt is None or layer is None or (layer, name) not in self._missing:
            raise self._error("", f"layer {layer}: `{name}` was not begun")
        where = f"{self._prompt.name[1:]}/layers/{layer}/{name}"
        data = self._prompt["layers"][str(layer)][name]
        array = np.asarray(array)
        if array.ndim == 2:
            array = array[None]
        if array.ndim != 3 or array.shape[2] != data.shape[2]:
            raise self._error(where, f"got shape {array.shape}, expected [heads, rows, {data.shape[2]}]")
        heads, rows = array.shape[:2]
        if not (0 <= head and head + heads <= data.shape[0] and 0 <= start_row and start_row + rows <= data.shape[1]):
            raise self._error(where, f"got heads {head}..{head + heads - 1}, rows {start_row}.."
                                     f"{start_row + rows - 1}, expected them within {data.shape}")
        missing = self._missing[layer, name][head:head + heads, start_row:start_row + rows]
        if not missing.all():
            at, row = np.argwhere(~missing)[0]
            raise self._error(where, f"head {head + at}, row {start_row + row} is written twice")
        try:
            data[head:head + heads, start_row:start_row + rows] = self._stored(array, where, head, start_row)
        except OSError as error:
            raise OSError(f"{self.path}: cannot be written: {error}") from None
        missing[:] = False

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
                                 chunks=(min(nq, CHUNK_TOKENS),), **digest.filters(self._gzip))
            self._missing[layer, "residual_norm"] = np.ones((1, nq), bool)
        norms = self._norms(where, norms, start_row)
        if norms.ndim != 1 or not 0 <= start_row <= nq - len(norms):
            raise self._error(where, f"got shape {norms.shape} from row {start_row}, expected rows within {nq}")
        missing = self._missing[layer, "residual_norm"][0, start_row:start_row + len(norms)]
        if not missing.all():
            raise self._error(where, f"row {start_row + int(np.argmin(missing))} is written twice")
        group["residual_norm"][start_row:start_row + len(norms)] = norms
        missing[:] = False

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

    def set_attribute(self, layer: int, name: str, value: Any) -> None:
        """Sets a further attribute of an open layer, which kvbench ignores."""
        self._layers()[str(layer)].attrs[name] = value

    def share_cache(self, layer: int, owner: int) -> None:
        """Declares the keys and values of an open layer to be those of an earlier one, `owner`, with its own cache."""
        layers = self._layers()
        where = f"{layers.name[1:]}/{layer}"
        if not owner < layer or str(owner) not in layers or SHARED in layers[str(owner)].attrs:
            raise self._error(where, f"{SHARED}: got {owner}, expected an earlier layer of the prompt with a "
                                     "cache of its own")
        for name in ("k", "v"):
            shapes = [layers[str(one)][name].shape if name in layers[str(one)] else None for one in (owner, layer)]
            if shapes[0] != shapes[1]:
                raise self._error(where, f"{SHARED}: layer {owner} has {name} of {shapes[0]}, expected {shapes[1]}")
        layers[str(layer)].attrs[SHARED] = np.int64(owner)

    def drop_layer(self, layer: int) -> None:
        """Removes an open layer of the open prompt."""
        layers = self._layers()
        del layers[str(layer)]
        self._missing = {key: rows for key, rows in self._missing.items() if key[0] != layer}
        del self._sizes[layers.parent.name.rpartition("/")[2], layer]

    def end_prompt(self) -> None:
        """Closes the open prompt, if any. Raises TraceError if it has no layer or rows are missing."""
        if self._prompt is None:
            return
        where = self._prompt.name[1:]
        if not len(self._prompt["layers"]):
            raise self._error(where, "no layer was written")
        for (layer, name), absent in self._missing.items():
            if absent.any():
                head, row = np.argwhere(absent)[0]
                raise self._error(f"{where}/layers/{layer}/{name}", f"head {head}, row {row} was never written")
        try:
            for layer, name in self._missing:
                digest.seal(self._prompt["layers"][str(layer)][name])
        except OSError as error:
            raise OSError(f"{self.path}: cannot be read back: {error}") from None
        self._missing.clear()
        self._prompt = None

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

    def _layers(self) -> h5py.Group:
        """Returns the layers of the open prompt. Raises TraceError if none is open."""
        if self._prompt is None:
            raise self._error("", "a layer before its prompt")
        return self._prompt["layers"]

    def _add(self, group: h5py.Group, name: str, array: np.ndarray, width: int | None = None) -> None:
        """Writes a whole array. width: of a matrix's chunks; None: its own."""
        rows, *rest = array.shape
        data = group.create_dataset(name, data=array, **digest.filters(self._gzip),
                                    chunks=(min(rows, CHUNK_TOKENS), *([width] if width else rest)))
        digest.seal(data, array)

    def _stored(self, array: np.ndarray, where: str, head: int, start_row: int) -> np.ndarray:
        """Returns `array` in the file's element type. Raises TraceError for unrepresentable values."""
        bits = self.dtype == "bfloat16" and array.dtype == np.uint16
        if not bits and array.dtype.kind != "f":
            raise self._error(where, f"got elements of type {array.dtype}, expected floating point")
        if bits:
            out, finite = array, (array & 0x7F80) != 0x7F80
        elif self.dtype == "bfloat16":
            with np.errstate(over="ignore"):
                single = array.astype(np.float32)
            out = to_bfloat16(single)
            finite = np.isfinite(single) & ((out & 0x7F80) != 0x7F80)
        else:
            with np.errstate(over="ignore"):
                out = array.astype(STORED[self.dtype])
            finite = np.isfinite(out)
        if not finite.all():
            at, row, element = np.argwhere(~finite)[0]
            value = from_bfloat16(array[at, row, element]) if bits else array[at, row, element]
            raise self._error(where, f"head {head + at}, row {start_row + row}, element {element}: "
                                     f"got {float(value)}, expected a finite {self.dtype}")
        return out

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

    def _positive(self, what: str, value: float) -> float:
        if not (math.isfinite(value) and value > 0):
            raise self._error("", f"{what}: got {value}, expected a finite number > 0")
        return float(value)

    def _error(self, where: str, what: str) -> TraceError:
        return TraceError(": ".join(part for part in (self.path, where, what) if part))
