"""pip's build backend: scikit-build-core's, and on the terminal, where pip shows nothing of a build,
what is compiled, how long that takes and how far it is."""

import contextlib
import os
import re
import threading

from scikit_build_core import build as _build
from scikit_build_core.build import (  # noqa: F401  (pip looks for these here)
    build_sdist,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_wheel,
)

BUILD = "build/pip"  # tool.scikit-build.build-dir of pyproject.toml
CPU_MINUTES = 8  # of the compiler, on the machine of docs/performance.md


def counted(build):
    """(objects made, objects in all) of a Ninja build, (0, 0) before there is one."""
    with contextlib.suppress(OSError):
        with open(os.path.join(build, "build.ninja"), encoding="utf-8") as file:
            wanted = set(re.findall(r"^build (CMakeFiles/kvbench(?:_lib)?\.dir/\S+\.o):", file.read(), re.M))
        with open(os.path.join(build, ".ninja_log"), encoding="utf-8") as file:
            made = {line.split("\t")[3] for line in file if line.count("\t") >= 4}
        return len(made & wanted), len(wanted)
    return 0, 0


@contextlib.contextmanager
def said(build=BUILD, terminal="/dev/tty"):
    """Within, the terminal says how far the build is; nothing where there is none."""
    try:
        stream = open(terminal, "w", encoding="utf-8")
    except OSError:
        yield
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    stream.write(f"\nkvbench: compiles its program, about {max(1, round(CPU_MINUTES / cores))} minutes on "
                 f"{cores} cores; `make wheel` does it once for many machines\n")
    stream.flush()
    over = threading.Event()

    def tell():
        while not over.wait(1):
            made, wanted = counted(build)
            if wanted:
                stream.write(f"\rkvbench: {made} of {wanted} compiled ")
                stream.flush()

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        stream.write("\n")
        stream.close()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """As PEP 517 says; `make wheel` gives a build folder of its own."""
    build = (config_settings or {}).get("build-dir", BUILD)
    with said(build):
        return _build.build_wheel(wheel_directory, config_settings, metadata_directory)
