"""Fits Q-Filters on a calibration set and adds their scores to a trace (Godey et al., 2025,
arXiv:2503.02812).

    kvbench-py qfilters fit dev-1.h5 dev-2.h5 -o filters.h5
    kvbench-py qfilters apply filters.h5 test.h5 -o test-q.h5
    kvbench replay test-q.h5 -o out.csv --algorithm external-scores:name=q-filters --budget 0.25

fit    writes one direction per layer and KV head. For each query head: the first right singular
       vector of all its queries (rotated, not centred), with a positive sum of projections. The
       direction is the mean over the group's query heads.
apply  copies TRACE and adds scores/q-filters: the inner product of each key with the direction;
       larger is kept. The prefix is 0: scores do not depend on the prompt. Calibration prompts are
       rejected, also when their tokens come from another file.

Departures from the authors' make_filters.py: all queries of a head, not 3000; the sign of the sum,
not of the majority. The authors store the opposite sign and keep the smallest.

File of filters (HDF5): attributes format = "kvbench-filters", version = 1, model, queries (per
query head), prompts (digests of the calibration prompts); layers/<l>: float32 [Hkv, d].
"""

import os

import h5py
import numpy as np

from kvbench import command
from kvbench.errors import TraceError
from kvbench.own import whole_file
from kvbench.text import counted, list_parts
from kvbench.trace import digest
from kvbench.trace.heads import check_format, open_hdf5, open_trace, read_rows, text_of
from kvbench.trace.parts import NAME
from kvbench.trace.values import read_stored, read_values
from kvbench.trace.writer import FORMAT as TRACE_FORMAT

FORMAT, VERSION = "kvbench-filters", 1


def main_direction(gram, total):
    """Returns the first right singular vector [d] of queries by their Gram matrix [d, d]; zeros if these are zero.
    total [d]: their sum, which fixes the sign.
    """
    if not np.trace(gram) > 0:
        return np.zeros(len(gram))
    vector = np.linalg.eigh(gram)[1][:, -1]  # ascending eigenvalues
    return -vector if vector @ total < 0 else vector


def project(keys, filters):
    """Returns scores [Hkv, n] of keys [Hkv, n, d] along filters [Hkv, d]."""
    return np.einsum("hnd,hd->hn", keys.astype(np.float64), filters.astype(np.float64)).astype(np.float32)


class Moments:
    """Sums over the queries of one layer that determine its filters."""

    def __init__(self, q_heads, kv_heads, d):
        self.shape = q_heads, kv_heads, d
        self.gram, self.total = np.zeros((q_heads, d, d)), np.zeros((q_heads, d))
        self.queries = 0

    def add(self, head, queries):
        """Adds queries [n, d] of one query head."""
        queries = queries.astype(np.float64)
        self.gram[head] += queries.T @ queries
        self.total[head] += queries.sum(axis=0)

    def filters(self):
        """Returns [Hkv, d]: the mean direction over the query heads of each group."""
        q_heads, kv_heads, d = self.shape
        each = np.array([main_direction(*moments) for moments in zip(self.gram, self.total)])
        return each.reshape(kv_heads, q_heads // kv_heads, d).mean(axis=1)


# --- Traces --------------------------------------------------------------------------------------

def prompts_of(file, wanted):
    """Returns [(id, group)] of an open trace. wanted: only these; raises TraceError if one is absent."""
    digest.check_members(file["prompts"])
    for name in wanted:
        if name not in file["prompts"]:
            raise TraceError(f"{file.filename}: --prompts: got `{name}`, expected some of {', '.join(file['prompts'])}")
    return [(name, group) for name, group in file["prompts"].items() if not wanted or name in wanted]


def layers_of(group):
    """Returns [(layer, group)] of a prompt, ascending."""
    digest.check_members(group["layers"])
    return [(layer, group[f"layers/{layer}"]) for layer in sorted(map(int, group["layers"]))]


def heads_of(data, dtype):
    """Yields the heads of q or k as float32 [rows, d]."""
    for head in range(len(data)):
        yield read_rows(data, dtype, head, 1)[0]


def digests_of(group):
    """Returns digests that identify a prompt: its token ids, and the first KV head's keys by layer."""
    out = [f"keys of layer {layer}: {digest.sha256_of(read_values(part['k'], slice(0, 1))[0])}"
           for layer, part in layers_of(group)]
    if "token_ids" in group:
        out.append(f"tokens: {digest.sha256_of(read_values(group['token_ids']).astype(np.int32))}")
    return out


def model_of(file):
    return text_of(file.attrs.get("model", ""))


# --- Both commands -------------------------------------------------------------------------------

def fit(paths, wanted=()):
    """Returns the filters of all queries of the prompts, as write_filters takes them."""
    moments, digests, model = {}, set(), None
    for path in paths:
        with open_trace(path) as file:
            dtype = text_of(file.attrs["dtype"])
            if model not in (None, model_of(file)):
                raise TraceError(f"{path}: model: got `{model_of(file)}`, expected `{model}`, as {paths[0]} has")
            model = model_of(file)
            for _, prompt in prompts_of(file, wanted):
                own = digests_of(prompt)
                if digests & {*own}:
                    raise TraceError(f"{path}: {prompt.name[1:]}: duplicate prompt")
                digests |= {*own}
                for layer, part in layers_of(prompt):
                    add_layer(moments, layer, part, dtype)
    counts = {layer: one.queries for layer, one in moments.items()}
    if len({*counts.values()}) > 1:
        few = min(counts, key=counts.get)
        raise TraceError(f"layer {few}: got {counts[few]} queries, expected {max(counts.values())}, as "
                         f"layer {max(counts, key=counts.get)} has: the prompts have different layers")
    return {"model": model, "queries": max(counts.values()), "prompts": sorted(digests),
            "layers": {layer: one.filters() for layer, one in moments.items()}}


def add_layer(moments, layer, part, dtype):
    """Adds a layer's queries to moments[layer]. Raises TraceError if shapes differ."""
    where = f"{part.file.filename}: {part.name[1:]}"
    if "q" not in part:
        raise TraceError(f"{where}: has no q, expected queries to take filters from")
    shape = part["q"].shape[0], part["k"].shape[0], part["q"].shape[2]
    one = moments.setdefault(layer, Moments(*shape))
    if one.shape != shape:
        raise TraceError(f"{where}: got {shape[0]} query heads, {shape[1]} KV heads, d = {shape[2]}, "
                         f"expected {one.shape[0]}, {one.shape[1]}, {one.shape[2]}, as in other prompts")
    for head, queries in enumerate(heads_of(part["q"], dtype)):
        one.add(head, queries)
    one.queries += part["q"].shape[1]


def write_filters(path, found):
    with whole_file(path, path + ".part", "filters", FORMAT) as file:
        file.attrs.update({"format": FORMAT, "version": VERSION, "model": found["model"], "queries": found["queries"]})
        # A dataset, since an attribute holds at most 64 KiB.
        file.create_dataset("prompts", data=np.array(found["prompts"], object), dtype=h5py.string_dtype())
        for layer, filters in found["layers"].items():
            digest.seal(file.create_dataset(f"layers/{layer}", data=filters.astype(np.float32)))


def read_filters(path):
    with open_hdf5(path) as file:
        check_format(file, path, FORMAT, VERSION)
        for name in ("prompts", "layers"):
            if name not in file:
                raise TraceError(f"{path}: {name}: is missing")
        layers = {int(layer): read_values(data) for layer, data in file["layers"].items()}
        for layer, filters in layers.items():
            if filters.ndim != 2 or not np.isfinite(filters).all():
                raise TraceError(f"{path}: layers/{layer}: expected finite numbers [Hkv, d]")
        return {"model": model_of(file), "queries": int(file.attrs["queries"]), "layers": layers,
                "prompts": [text_of(one) for one in read_stored(file["prompts"])]}


def apply(filters, path, output, name="q-filters", wanted=()):
    """Writes the trace `path` to `output` with scores/`name`, for the prompts `wanted` or all."""
    found, scored = read_filters(filters), {}
    with open_trace(path) as file:
        if model_of(file) != found["model"]:
            raise TraceError(f"{path}: model: got `{model_of(file)}`, expected `{found['model']}`, of "
                             f"which {filters} is")
        dtype = text_of(file.attrs["dtype"])
        for _, group in prompts_of(file, wanted):
            same = {*digests_of(group)} & {*found["prompts"]}
            if same:
                raise TraceError(f"{path}: {group.name[1:]}: is among the prompts of {filters} "
                                 f"({min(same).partition(':')[0]}), expected others: its filters have "
                                 "seen the evaluated queries")
            for layer, part in layers_of(group):
                check_layer(part, found["layers"].get(layer), name, filters)
                keys = np.array([*heads_of(part["k"], dtype)])
                scored[part.name] = project(keys, found["layers"][layer])
    if os.path.exists(output) and os.path.samefile(path, output):
        raise TraceError(f"{output}: is the trace itself, expected another file")
    with whole_file(output, output + ".part", "a trace", TRACE_FORMAT, copy=path) as file:
        for where, scores in scored.items():
            add_scores(file[where], name, scores)


def check_layer(part, filters, name, source):
    """Raises TraceError unless the layer can take scores/`name` of the filters [Hkv, d]."""
    where = f"{part.file.filename}: {part.name[1:]}"
    if filters is None:
        raise TraceError(f"{where}: not a layer of {source}")
    shape = part["k"].shape[0], part["k"].shape[2]
    if filters.shape != shape:
        raise TraceError(f"{where}: got {shape[0]} KV heads, d = {shape[1]}, expected "
                         f"{filters.shape[0]}, {filters.shape[1]}, as in {source}")
    if f"scores/{name}" in part:
        raise TraceError(f"{where}/scores/{name}: already exists, expected another --name")


def add_scores(part, name, scores):
    """Writes scores/`name` of a layer as TraceWriter.write_scores does."""
    group = part.require_group("scores")
    data = group.create_dataset(name, data=scores, chunks=(min(len(scores), 1024), scores.shape[1]),
                                **digest.filters(4))
    digest.seal(data)
    data.attrs["prefix"] = np.int64(0)
    for one in (part, group):
        if one is group or digest.MEMBERS in one.attrs:
            digest.name_members(one)


def main(arguments=None):
    parser = command.plain_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="fit|apply")
    page = {"description": __doc__, "formatter_class": parser.formatter_class}
    one = commands.add_parser("fit", help="filters from the queries of traces", **page)
    one.add_argument("inputs", nargs="+", metavar="TRACE.h5", help="development prompts")
    one.add_argument("-o", "--output", required=True, metavar="FILTERS.h5")
    two = commands.add_parser("apply", help="a trace with the scores of its keys", **page)
    two.add_argument("filters", metavar="FILTERS.h5")
    two.add_argument("trace", metavar="TRACE.h5", help="stays as it is")
    two.add_argument("-o", "--output", required=True, metavar="OUT.h5", help="the trace to write")
    two.add_argument("--name", default="q-filters", metavar="NAME", help="name of the scores [default: %(default)s]")
    for each in (one, two):
        each.add_argument("--prompts", type=list_parts, default=[], metavar="ID,...",
                          help="only these [default: all]")
    options = parser.parse_args(arguments)
    if options.command == "fit":
        found = fit(options.inputs, options.prompts)
        write_filters(options.output, found)
        print(f"{options.output}: {counted(len(found['layers']), 'layer')}, {found['queries']} queries per head")
        return
    if not NAME.fullmatch(options.name):
        raise TraceError(f"--name: got `{options.name}`, expected letters, digits, `-`, `_` and `.`, at most 100")
    apply(options.filters, options.trace, options.output, options.name, options.prompts)
