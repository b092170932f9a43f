"""Temporary directories that do not outlive their process for long, even if that is killed.

A directory is locked for as long as its process lives, or a child made by ``fork``. Whoever makes
another one removes those that nobody holds any more.
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

#: Only directories with this name are ever removed.
PREFIX = "pymq-scratch-"
#: Until a directory is locked it is called so.
_NEW_PREFIX = ".new-"


class Scratch:
    """A temporary directory.

    Args:
        parent: where it is made; by default where Python makes such directories (``TMPDIR``).

    Attributes:
        path: of the directory, which is empty.

    Raises:
        OSError: it cannot be made.
    """

    def __init__(self, parent: Path | None = None) -> None:
        self._parent = parent or Path(tempfile.gettempdir())
        sweep(self._parent)
        made = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX + PREFIX, dir=self._parent))
        self._fd: int | None = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        self.path = made.rename(made.with_name(made.name.removeprefix(_NEW_PREFIX)))

    def remove(self) -> None:
        """Remove it with everything in it; idempotent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(fd)


def sweep(parent: Path) -> int:
    """Remove directories whose processes were killed; return how many."""
    count = 0
    for path in parent.glob(f"{PREFIX}*"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # somebody else's, or gone by now
        try:
            if os.fstat(fd).st_uid == os.getuid():
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
                count += 1
        except OSError:
            pass  # it is in use
        finally:
            os.close(fd)
    return count
