"""Build backend: scikit-build-core, with progress on the terminal, since pip hides the build."""

import contextlib
import os
import re
import threading

from scikit_build_core import build as _build
from scikit_build_core.build import (  # noqa: F401  (hooks of PEP 517)
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

BUILD = "build/pip"  # tool.scikit-build.build-dir of pyproject.toml
CPU_MINUTES = 8  # compile time on the machine of docs/performance.md


def compiled(build):
    """(compiled objects, all objects) of a Ninja build; (0, 0) before it starts."""
    with contextlib.suppress(OSError):
        with open(os.path.join(build, "build.ninja"), encoding="utf-8") as file:
            wanted = set(re.findall(r"^build (CMakeFiles/kvbench(?:_lib)?\.dir/\S+\.o):", file.read(), re.M))
        with open(os.path.join(build, ".ninja_log"), encoding="utf-8") as file:
            made = {line.split("\t")[3] for line in file if line.count("\t") >= 4}
        return len(made & wanted), len(wanted)
    return 0, 0


@contextlib.contextmanager
def shown_progress(build=BUILD, terminal="/dev/tty"):
    """Shows the progress of the build on the terminal, if there is one."""
    try:
        stream = open(terminal, "w", encoding="utf-8")
    except OSError:
        yield
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    stream.write(f"\nkvbench: compiling the program takes about {max(1, round(CPU_MINUTES / cores))} minutes on "
                 f"{cores} cores; `make wheel` builds a wheel for many machines\n")
    stream.flush()
    over = threading.Event()

    def show():
        while not over.wait(1):
            made, wanted = compiled(build)
            if wanted:
                stream.write(f"\rkvbench: {made} of {wanted} compiled ")
                stream.flush()

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        stream.write("\n")
        stream.close()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517. `make wheel` sets its own build folder."""
    build = (config_settings or {}).get("build-dir", BUILD)
    with shown_progress(build):
        return _build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 660."""
    with shown_progress():
        return _build.build_editable(wheel_directory, config_settings, metadata_directory)
