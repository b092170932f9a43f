"""Groups in one file of one machine; the process that has the lock of its directory leads.

::

    DIR/groups.json   {"broker-a":{"cluster":...,"masterEpoch":3,...},...}, replaced atomically;
                      a line for each group
    DIR/lock          locked by the process that uses DIR

A change is on the disk, synced, before it is answered. When it is not certain whether it got there,
nothing is answered any more: the disk, not this process, says what holds after a restart.
"""

import asyncio
import fcntl
import logging
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pymq.controller.groups import GroupState
from pymq.controller.stores.interface import Leader, Stored, not_leader, unavailable
from pymq.errors import ConfigurationError, RemoteProtocolError
from pymq.protocol import fastjson

_log = logging.getLogger(__name__)

GROUPS_NAME = "groups.json"
LOCK_NAME = "lock"


class FileStore:
    """A ``ControllerStore`` in a directory.

    Args:
        directory: created if necessary.
        self_id: name of this controller.
        address: ``host:port`` of this controller for brokers.
    """

    def __init__(self, directory: Path, *, self_id: str, address: str) -> None:
        self._path = directory / GROUPS_NAME
        self._directory = directory
        self._self = Leader(self_id, address)
        self._lock_file: int | None = None
        self._groups: dict[str, Stored] = {}
        #: Of each group: a change encodes only its own.
        self._lines: dict[str, bytes] = {}
        self._revision = 0
        self._failed: str | None = None
        #: Writes are synced there, one after the other, while the event loop goes on.
        self._writer = ThreadPoolExecutor(1, "controller-file")
        self._writing = asyncio.Lock()

    @property
    def leader(self) -> Leader | None:
        """Itself, between start and close."""
        return self._self if self.is_leader else None

    @property
    def is_leader(self) -> bool:
        """Is it open?"""
        return self._lock_file is not None

    @property
    def peers(self) -> Mapping[str, str]:
        """Itself."""
        return {self._self.id: self._self.address}

    @property
    def durability(self) -> str:
        """What it takes to lose it."""
        return (
            f"one controller, with its state in {self._directory} alone: while this machine is "
            "down no master is replaced, and if its disk is lost, so are the groups. For more, run "
            "three machines with etcd and --store etcd:"
        )

    async def start(self) -> None:
        """Lock the directory and read the groups.

        Raises:
            ConfigurationError: another process has it, or it cannot be read.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._lock()
            self._groups = self._load()
            self._lines = {
                name: _line(name, one.state) for name, one in self._groups.items() if one.state
            }
        except OSError as error:
            raise ConfigurationError(
                f"--store file:{self._directory}: {error.strerror or error}; give a directory that "
                "this user can write"
            ) from error
        _log.warning("%s", self.durability)

    def _lock(self) -> None:
        path = self._directory / LOCK_NAME
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(file)
            raise ConfigurationError(
                f"{path} is locked: another controller uses this directory; stop it first, or give "
                "this one a directory of its own"
            ) from error
        self._lock_file = file

    def _load(self) -> dict[str, Stored]:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            groups = _groups_of(fastjson.parse(text))
        except RemoteProtocolError as error:
            raise ConfigurationError(
                f"{self._path} cannot be read: {error}. It says who is master, so it is not begun "
                "from scratch: bring back a copy of it, or move it away and designate the masters "
                "with mqadmin electMaster"
            ) from error
        return {name: Stored(state, 0) for name, state in groups.items()}

    async def read(self, name: str) -> Stored:
        """Return one group."""
        self._check()
        return self._groups.get(name, Stored(None, 0))

    async def read_all(self) -> Mapping[str, Stored]:
        """Return every group by its name."""
        self._check()
        return dict(self._groups)

    async def replace(self, name: str, revision: int, state: GroupState | None) -> bool:
        """Replace a group, if it still is what was read; return whether it was."""
        async with self._writing:
            self._check()
            if self._groups.get(name, Stored(None, 0)).revision != revision:
                return False
            groups, lines = dict(self._groups), dict(self._lines)
            groups.pop(name, None)
            lines.pop(name, None)
            if state is not None:
                groups[name] = Stored(state, self._revision + 1)
                lines[name] = _line(name, state)
            rows = b",\n".join(line for _, line in sorted(lines.items()))
            await self._write(b"{\n" + rows + b"\n}\n")
            self._revision += 1
            self._groups, self._lines = groups, lines
            return True

    async def _write(self, text: bytes) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._writer, _replace_file, self._path, text
            )
        except _NotReplaced as error:
            raise unavailable(f"cannot write {self._path}: {error}") from error
        except OSError as error:
            self._failed = (
                f"{self._path}: {error.strerror or error}: it is not certain what the disk has "
                "now, so nothing is answered any more; look after the disk, and restart"
            )
            _log.error("%s", self._failed)
            raise unavailable(self._failed) from error
        except asyncio.CancelledError:  # the thread goes on, and nobody waits for it
            self._failed = f"{self._path}: a write was abandoned; restart"
            raise

    def _check(self) -> None:
        if not self.is_leader:
            raise not_leader(None)
        if self._failed is not None:
            raise unavailable(self._failed)

    async def close(self) -> None:
        """Unlock the directory; idempotent."""
        await asyncio.get_running_loop().run_in_executor(None, self._writer.shutdown)
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None


def _groups_of(value: Any) -> dict[str, GroupState]:
    if not isinstance(value, dict):
        raise RemoteProtocolError(f"{value!r:.80}, expected an object")
    return {name: GroupState.from_json(group) for name, group in value.items()}


def _line(name: str, state: GroupState) -> bytes:
    return fastjson.dump(name) + b":" + fastjson.dump(state.to_json())


class _NotReplaced(Exception):
    """The old content is still there, surely."""


def _replace_file(path: Path, text: bytes) -> None:
    """Replace a file atomically, and wait until it is on the disk.

    Raises:
        _NotReplaced: it was not, and the old one is untouched.
        OSError: it was, and may not be on the disk.
    """
    fresh = path.with_name(path.name + ".tmp")
    try:
        with fresh.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise _NotReplaced(error.strerror or str(error)) from error
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is durable, too
    finally:
        os.close(folder)
