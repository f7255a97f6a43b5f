"""Which Python runs a program of scripts/: the first `python3` on the PATH may lack its packages."""

import os
import subprocess
import sys

from kvbench import ROOT

# Set in the second interpreter, which looks for no third.
_TRIED = "KVBENCH_PYTHON_WAS_CHOSEN"


def without(error, modules, packages):
    """To be called where an import failed; does not return.

    A program of scripts/ goes on with an interpreter that has the modules (scripts/find_python.sh),
    where there is one. Otherwise one line says what is missing, and the exit code is 2.

    modules   names to import; packages: those of Debian that have them
    """
    script = os.path.realpath(getattr(sys.modules["__main__"], "__file__", None) or "")
    scripts = os.path.join(ROOT, "scripts")
    if os.path.dirname(script) == scripts and _TRIED not in os.environ:
        found = subprocess.run(
            [os.path.join(scripts, "find_python.sh"), *modules, "--prefer", "h5py", "sklearn"],
            capture_output=True, text=True, check=False).stdout.strip()
        if found:
            os.execve(found, [found, script, *sys.argv[1:]], {**os.environ, _TRIED: "1"})
    print(missing(error, packages), file=sys.stderr)
    sys.exit(2)


# What models need; in pyproject.toml, `dump`.
MODEL_PACKAGES = ("torch", "'transformers>=4.56'", "h5py", "numpy")
GGUF_PACKAGES = ("gguf", "accelerate", "sentencepiece")


def without_torch(error, name, packages=MODEL_PACKAGES):
    """To be called where an import of torch, transformers or the like failed; does not return.

    One line says how to install the packages, which Debian does not have; exit code 2.
    """
    print(f"{name}: {sys.executable} cannot import {error.name}: expected torch, transformers 4.56 or "
          f"newer and others. In an environment of your own: pip install {' '.join(packages)}; or "
          f"`make model`, then build/dump-venv/bin/python scripts/{name}", file=sys.stderr)
    sys.exit(2)


def missing(error, packages):
    """What to say of an ImportError of a package that Debian has."""
    return (f"{sys.executable} has no {error.name}. On Debian: apt install {packages}, then run "
            "this with /usr/bin/python3")
