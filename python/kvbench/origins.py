"""Where the rows of a table come from, by the manifest beside it."""

import os

from kvbench import checksums

NAMES = ["model", "dtype", "precision"]


def of_table(path):
    """{name of a trace: {one of NAMES: text}} of the manifest beside a table, as far as it is one.

    Raises checksums.ChangedError where the manifest cannot be read.
    """
    found = checksums.manifest_of(path)
    manifest = found[1] if found else {}
    run = manifest.get("configuration")
    traces = manifest.get("traces")
    out = {}
    for trace in traces if isinstance(traces, list) else []:
        if isinstance(trace, dict) and isinstance(trace.get("path"), str):
            said = {**trace, "precision": run.get("precision") if isinstance(run, dict) else ""}
            out[os.path.basename(trace["path"])] = {
                name: said[name] if isinstance(said.get(name), str) else "" for name in NAMES}
    return out
