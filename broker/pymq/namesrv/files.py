"""Small files that are replaced as a whole."""

import os
from pathlib import Path


class NotSynced(OSError):
    """The new content is there, but a power loss may bring the old one back."""


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically: whatever happens, either the old or the new content is there.

    Raises:
        NotSynced: it was replaced, but it is unknown whether the disk keeps that.
        OSError: it cannot be written; the old content is there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    try:
        _sync_folder(path.parent)
    except OSError as error:
        raise NotSynced(
            error.errno,
            f"{error.strerror}: the new content is in the file, and in effect, but the disk does "
            "not confirm that it stays; look after the disk, and do it again",
        ) from error


def _sync_folder(path: Path) -> None:
    """Have a new name in a folder on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
