"""SHA-256 in hexadecimal. Needs the standard library only."""

import hashlib
import os


def sha256(content: bytes | str) -> str:
    """Returns the SHA-256 of bytes, or of text in UTF-8."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Returns the SHA-256 of a file. Raises OSError."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
