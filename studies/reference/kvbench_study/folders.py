"""Folders for output: those that kvbench did not make are not written to. scripts/own_folder.sh has the same rules."""

import os

MARK = ".made-by-kvbench"


class NotOurs(Exception):
    """The output path holds foreign files. One line."""


def claim_folder(folder, ours=None):
    """Creates or claims a folder for output.

    An absent or empty folder is claimed and marked with the file MARK. A marked folder, and one for
    which `ours(folder)` is true, is reused. Raises NotOurs for any other.
    """
    if os.path.isdir(folder):
        names = os.listdir(folder)
        if MARK in names:
            return
        if names and not (ours and ours(folder)):
            raise NotOurs(f"{folder}: {sorted(names)[0]} is there, and kvbench did not make this "
                          "folder: expected a new or empty one")
    elif os.path.lexists(folder):
        raise NotOurs(f"{folder}: is no folder")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, MARK), "w", encoding="utf-8") as file:
        file.write("Made by kvbench, which replaces its own files here.\n")
