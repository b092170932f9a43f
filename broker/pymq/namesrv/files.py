"""Small files that are replaced as a whole."""

import os
from pathlib import Path


def replace_file(path: Path, text: str) -> None:
    """Replace a file atomically: whatever happens, either the old or the new content is there.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is durable, too
    finally:
        os.close(folder)
