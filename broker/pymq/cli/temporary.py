"""What ``pymq up`` makes for as long as it runs: a store in memory, a file that tells its ports.

The ports file is for tests in any language: it is there, whole, when the servers are ready, and it
is gone when they are. It holds one JSON object::

    {"nameServer": "127.0.0.1:41563", "broker": "127.0.0.1:37251", "pid": 4711, ...}
"""

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from pymq.errors import ConfigurationError

_log = logging.getLogger(__name__)

#: A file system in memory, where the system has one; with less room the log would soon be full.
MEMORY_ROOT = Path("/dev/shm")
MEMORY_BYTES_LEAST = 1 << 30
#: Files there take memory in full when they are created, and there are two.
SEGMENT_BYTES = 64 << 20
DISK_FREE_ENOUGH_BYTES = 128 << 20


@contextlib.contextmanager
def memory_store() -> Iterator[Path]:
    """Yield the path of a store that is gone at the end, in memory if there is room.

    Raises:
        ConfigurationError: there is no room for it anywhere.
    """
    from pymq.testing.scratch import Scratch

    parent = MEMORY_ROOT if _room(MEMORY_ROOT) >= MEMORY_BYTES_LEAST else None
    if parent is None:
        _log.warning(
            "--memory: %s has less than %d MiB, so messages are in a temporary directory (TMPDIR) "
            "that is deleted at the end",
            MEMORY_ROOT,
            MEMORY_BYTES_LEAST >> 20,
        )
    try:
        scratch = Scratch(parent)
    except OSError as error:
        raise ConfigurationError(f"--memory: no temporary directory: {error}") from error
    try:
        yield scratch.path / "store"
    finally:
        scratch.remove()


def _room(path: Path) -> int:
    """Return how much can be written there, by us."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize if os.access(path, os.W_OK | os.X_OK) else 0


class PortsFile:
    """The file that tells the ports.

    Args:
        path: where; what one that runs no more has left there is removed, or somebody would believe
            it.

    Raises:
        ConfigurationError: no file can be written there, or it is that of one that runs.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        #: What becomes the file once it is whole.
        self._part = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        self._text = ""
        if (other := _owner(self._path)) is not None:
            raise ConfigurationError(
                f"--ports-file {path}: it is that of process {other} which runs; name another "
                "file, or remove this one if that process is not `pymq up`"
            )
        try:
            self._path.unlink(missing_ok=True)
            self._part.write_text("")  # not there itself: somebody may wait for it
            self._part.unlink()
        except OSError as error:
            raise ConfigurationError(
                f"--ports-file {path}: {error.strerror}; name a file in a directory that exists "
                "and can be written"
            ) from error

    def write(self, facts: dict[str, str]) -> None:
        """Write it, whole or not at all.

        Raises:
            ConfigurationError: it cannot be written any more.
        """
        self._text = json.dumps({**facts, "pid": os.getpid()}) + "\n"
        try:
            self._part.write_text(self._text, encoding="utf-8")
            self._part.replace(self._path)
        except OSError as error:
            raise ConfigurationError(f"--ports-file {self._path}: {error}") from error

    def remove(self) -> None:
        """Remove it, unless it is another one's by now; idempotent."""
        try:
            if self._text and self._path.read_text(encoding="utf-8") == self._text:
                self._path.unlink()
        except OSError as error:
            _log.debug("%s is not removed: %s", self._path, error)
        self._text = ""


def _owner(path: Path) -> int | None:
    """Return the process that has written a ports file, if it is another one and runs."""
    try:
        pid = json.loads(path.read_bytes())["pid"]
    except (OSError, ValueError, LookupError, TypeError):
        return None  # there is none, or it is something else
    if not isinstance(pid, int) or pid <= 0 or pid == os.getpid():
        return None
    try:
        os.kill(pid, 0)
    except PermissionError:
        return pid  # somebody else's
    except (OSError, OverflowError):
        return None
    return pid
