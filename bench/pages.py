"""What the programs that fill docs/performance.md share."""

import os
import subprocess
import sys

# What limits kvbench and its peers (OpenBLAS, PyTorch, MKL, oneDNN) to AVX2.
AVX2 = {"KVBENCH_ISA": "avx2", "OPENBLAS_CORETYPE": "HASWELL", "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"}


def use_fast_openblas():
    """Before NumPy is imported: Debian's OpenBLAS takes new processors for old ones. As the Makefile.
    With --isa avx2 on the command line everything is limited to AVX2.
    """
    if "--isa" in sys.argv and sys.argv[sys.argv.index("--isa") + 1:][:1] == ["avx2"]:
        os.environ.update(AVX2)
    elif os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            fast = "SKYLAKEX" if "avx512f" in file.read() else "HASWELL"
        os.environ.setdefault("OPENBLAS_CORETYPE", fast)


def run(command, **more):
    """stdout of a command that must succeed; else one message and exit code 1."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        fail(command, done.returncode, done.stderr)
    return done.stdout


def fail(command, code, text):
    program = os.path.basename(sys.argv[0])
    sys.stderr.write(f"{program}: {' '.join(command)}: exit code {code}\n{text}")
    sys.exit(1)


def open_for_writing(path):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    return open(path, "w", newline="", encoding="utf-8")


def duration(seconds):
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def parts(path, program):
    """The page before and after the lines between `<!-- PROGRAM -->` and `<!-- end of PROGRAM -->`, these
    included. Without such lines: one message and exit code 2. Call it before what takes long.
    """
    begin, end = f"<!-- {program} -->\n", f"<!-- end of {program} -->\n"
    try:
        with open(path, encoding="utf-8") as file:
            before, found, rest = file.read().partition(begin)
    except OSError as error:
        refuse(f"{path}: {error.strerror}")
    _, last, after = rest.partition(end)
    if not found or not last:
        refuse(f"{path}: expected the lines {begin.strip()} and {end.strip()}")
    return before + begin, end + after


def refuse(text):
    """Ends the program: bad input, exit code 2."""
    sys.stderr.write(f"{os.path.basename(sys.argv[0])}: {text}\n")
    sys.exit(2)


def renew(path, program, text):
    """Replaces what stands on the page between the lines of parts()."""
    before, after = parts(path, program)
    with open(path, "w", encoding="utf-8") as file:
        file.write(before + text + after)
