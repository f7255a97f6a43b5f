"""Named arrays of .npy, .npz, .hdf5, .safetensors and .pt files; shapes are known before values are read.

`open_arrays(path)` lists a file's arrays. `Array.load()` maps the file where possible (.npy, .safetensors, .pt) and
reads whole members of .npz and .hdf5. bfloat16 arrays are their 16 bits in uint16.

No code from a file is run: object arrays are rejected, and .pt is read with torch's `weights_only`. Raises TraceError.
"""

import math
import os
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvbench.text import one_line, parse_json
from kvbench.trace.writer import TraceError, array_of

ELEMENT_TYPES = ("float16", "bfloat16", "float32", "float64")
SAFETENSORS_TYPES = {"F16": ("float16", "<f2"), "BF16": ("bfloat16", "<u2"),
                     "F32": ("float32", "<f4"), "F64": ("float64", "<f8")}
# what zipfile, zlib and numpy raise for damaged files
DAMAGED = (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error, tokenize.TokenError)
# limit of the format's own library
SAFETENSORS_MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class Array:
    """One array of a file. dtype: one of ELEMENT_TYPES, or another name from the file."""

    path: str
    name: str
    shape: tuple
    dtype: str
    read: Callable

    def where(self):
        return f"{self.path}: {self.name}"

    def load(self):
        """Returns the values, [*shape]; bfloat16 as uint16 bits."""
        try:
            return self.read()
        except (*DAMAGED, MemoryError) as error:
            raise TraceError(f"{self.where()}: cannot be read: {reason(error)}") from None


def reason(error):
    """Returns a library's error in one line."""
    return one_line(error)[:300] or type(error).__name__


def open_arrays(path):
    """Returns the arrays of a file in order. The suffix determines the container."""
    kind = os.path.splitext(path)[1].lower()
    if kind not in READERS:
        raise TraceError(f"{path}: unknown kind of file `{kind}`, expected {', '.join(READERS)}")
    if not os.path.isfile(path):
        raise TraceError(f"{path}: no such file")
    try:
        arrays = READERS[kind](path)
    except (RecursionError, MemoryError):  # raised by Python's parsers for nested headers
        raise TraceError(f"{path}: cannot be read as {kind}: nested too deeply, or too large for the memory") from None
    except DAMAGED as error:
        raise TraceError(f"{path}: cannot be read as {kind}: {reason(error)}") from None
    if not arrays:
        raise TraceError(f"{path}: holds no arrays")
    return arrays


def _numpy_dtype_name(dtype):
    if dtype == np.uint16 or dtype == np.dtype("V2"):
        return "uint16"  # bits of bfloat16, if the user says so; V2 comes from ml_dtypes
    return dtype.name


def _native(values):
    """Converts to native byte order; bits to uint16."""
    if values.dtype == np.dtype("V2"):
        return values.view(np.uint16)
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _open_npy(path):
    values = np.load(path, mmap_mode="r", allow_pickle=False)
    name = os.path.splitext(os.path.basename(path))[0]
    return [Array(path, name, values.shape, _numpy_dtype_name(values.dtype),
                  lambda: _native(np.load(path, mmap_mode="r", allow_pickle=False)))]


def _open_npz(path):
    def reader(key):
        def read():
            with np.load(path, allow_pickle=False) as archive:
                return _native(archive[key])
        return read

    arrays = []
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if not member.endswith(".npy"):
                continue
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                header = (np.lib.format.read_array_header_1_0 if version == (1, 0)
                          else np.lib.format.read_array_header_2_0)
                shape, _, dtype = header(stream)
            name = member[:-len(".npy")]
            arrays.append(Array(path, name, shape, _numpy_dtype_name(dtype), reader(name)))
    return arrays


def _open_hdf5(path):
    """Datasets by their path, without links to other files."""
    import h5py

    def reader(name):
        def read():
            with h5py.File(path) as file:
                return _native(file[name][...])
        return read

    arrays = []

    def collect(name, item):
        if isinstance(item, h5py.Dataset):
            if item.external:
                raise TraceError(f"{path}: {name}: its values are in other files, expected them in this one")
            arrays.append(Array(path, name, item.shape or (), _numpy_dtype_name(item.dtype), reader(name)))

    with h5py.File(path) as file:
        file.visititems(collect)  # follows no soft or external links
    return arrays


def _open_safetensors(path):
    """Parses the header, since numpy's front end lacks bfloat16: its length in 8 bytes, JSON {name: entry}, data."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, SAFETENSORS_MAX_HEADER):
            raise TraceError(f"{path}: not a safetensors file: a header of {length} bytes in a file of {size}")
        header = parse_json(file.read(length).decode("utf-8"))
    if not isinstance(header, dict):
        raise TraceError(f"{path}: not a safetensors file: its header is no JSON object")
    return [_safetensors_entry(path, name, entry, 8 + length, size)
            for name, entry in header.items() if name != "__metadata__"]


def _safetensors_entry(path, name, entry, data_start, file_size):
    try:
        begin, end = (int(x) for x in entry["data_offsets"])
        shape = tuple(int(x) for x in entry["shape"])
        kind = str(entry["dtype"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise TraceError(f"{path}: {name}: damaged header entry, expected dtype, shape and data_offsets") from None
    dtype, storage = SAFETENSORS_TYPES.get(kind, (kind, None))
    if not 0 <= begin <= end <= file_size - data_start or any(extent < 0 for extent in shape):
        raise TraceError(f"{path}: {name}: data at [{begin}, {end}) reach past the file's "
                         f"{file_size - data_start} bytes of data: truncated or damaged")
    if storage and end - begin != math.prod(shape) * np.dtype(storage).itemsize:
        raise TraceError(f"{path}: {name}: {end - begin} bytes, expected "
                         f"{math.prod(shape) * np.dtype(storage).itemsize} for shape {list(shape)}")
    return Array(path, name, shape, dtype, lambda: np.memmap(path, storage, "r", data_start + begin, shape))


def _open_torch(path):
    try:
        import torch
    except ImportError:
        raise TraceError(f"{path}: reading .pt needs PyTorch, which this Python lacks; expected a "
                         "Python with torch, or the arrays as .npz or .safetensors") from None
    import pickle
    options = {"map_location": "cpu", "weights_only": True}
    try:
        try:
            root = torch.load(path, mmap=True, **options)
        except RuntimeError:  # files before torch 1.6 are not archives and cannot be mapped
            root = torch.load(path, **options)
    except pickle.UnpicklingError as error:
        culprit = re.search(r"GLOBAL (\S+)", str(error))
        what = f"an object `{culprit[1]}`" if culprit else "something"
        raise TraceError(f"{path}: holds {what} that could run code on loading and is not loaded, "
                         "expected tensors in lists, tuples and dicts") from None
    except (RuntimeError, AttributeError, TypeError, KeyError) as error:
        raise TraceError(f"{path}: cannot be read as .pt: {reason(error)}") from None

    arrays = []

    def collect(item, names):
        if isinstance(item, torch.Tensor):
            dtype = str(item.dtype).removeprefix("torch.")
            strided = item.layout == torch.strided
            arrays.append(Array(path, ".".join(names) or "tensor", tuple(item.shape),
                                dtype if strided else str(item.layout),
                                lambda: array_of(item)))
        elif isinstance(item, dict):
            for key, value in item.items():
                collect(value, [*names, str(key)])
        elif isinstance(item, (list, tuple)):
            for index, value in enumerate(item):
                collect(value, [*names, str(index)])

    collect(root, [])
    return arrays


READERS = {".npz": _open_npz, ".npy": _open_npy, ".hdf5": _open_hdf5, ".h5": _open_hdf5,
           ".safetensors": _open_safetensors, ".pt": _open_torch, ".pth": _open_torch}
