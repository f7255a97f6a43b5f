"""Another Python for programs of the source tree where this one lacks modules: the first python3 on the
PATH may be one of pyenv or conda.
"""

import os
import subprocess
import sys

from kvbench import programs

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
_TRIED = "KVBENCH_PYTHON_WAS_CHOSEN"  # set after a restart, so that there is only one


def other_python(needs):
    """Returns an interpreter with the modules, or ''. Tries $PYTHON, or else the environment of `make model`
    (for programs that run a model), the python3s on the PATH and /usr/bin/python3.
    """
    environment = dict(os.environ)
    ours = os.path.join(ROOT, "build", "dump-venv", "bin", "python")
    if "torch" in needs and "PYTHON" not in os.environ and os.access(ours, os.X_OK):
        environment["PYTHON"] = ours
    return subprocess.run(
        [os.path.join(ROOT, "scripts", "find_python.sh"), *needs, "--prefer", "h5py", "sklearn"], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout.strip()


def restart(needs):
    """Restarts the running program, once, with a Python that has the modules, if this one lacks some."""
    if _TRIED not in os.environ and programs.absent(needs):
        found = other_python(needs)
        if found:
            os.execve(found, [found, os.path.realpath(sys.argv[0]), *sys.argv[1:]], {**os.environ, _TRIED: "1"})
