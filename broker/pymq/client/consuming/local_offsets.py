"""How far a member of a broadcasting group is: a file of its own, RocketMQ's in place and format.

::

    ~/.rocketmq_offsets/10.0.0.7@DEFAULT/billing/offsets.json
    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:4711, ...}}

The directory is the client id, so a Java client of the same address and instance name goes on
where we were, and the other way round. The address is the one at which a name server sees this
machine, where Java takes one of the machine's, whoever is asked; so the file may also be below
another id: see ``find_file``. The file is replaced as a whole; what it held before is in
``offsets.json.bak``, which is read when the file itself cannot be.

Source: RocketMQ LocalFileOffsetStore, OffsetSerializeWrapper, MixAll.string2File.
"""

import asyncio
import glob
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pymq.errors import ConfigurationError, ProtocolError, PymqError
from pymq.net.own_addresses import own_addresses
from pymq.net.said_once import SaidOnce
from pymq.net.threads import in_thread
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject

_log = logging.getLogger(__name__)

#: rocketmq.client.localOffsetStoreDir, below the home directory.
DIRECTORY = ".rocketmq_offsets"
FILE_NAME = "offsets.json"
#: How often changes are written.
FLUSH_S = 1.0
#: The name of threads that use the disk.
THREAD = "pymq offsets"
#: How many directories a warning names.
_NAMED_COUNT = 3


@dataclass(slots=True, kw_only=True)
class OffsetTable(JsonObject):
    """The file (OffsetSerializeWrapper)."""

    offsets: dict[MessageQueue, int] = wire("offsetTable", default_factory=dict)


class LocalOffsets:
    """The offset file of one consumer. For one event loop; the disk is used in threads.

    Args:
        find: returns where it is; called in a thread, once the client has its id.
    """

    def __init__(self, find: Callable[[], Path]) -> None:
        self._find = find
        self._path: Path | None = None
        self._troubles = SaidOnce(_log)
        #: ``None``: not read yet.
        self._table: dict[MessageQueue, int] | None = None
        self._is_changed = False
        #: Queues that this consumer has read.
        self._own: set[MessageQueue] = set()
        self._working = asyncio.Lock()
        #: Of the file, as this consumer left it.
        self._stamp: tuple[int, int] | None = None

    async def _located(self) -> Path:
        """Return where the file is."""
        if self._path is None:
            self._path = await in_thread(THREAD, self._find)
        return self._path

    def of(self, queue: MessageQueue) -> "LocalQueueOffsets":
        """Return the keeper of one queue's offset."""
        return LocalQueueOffsets(self, queue)

    async def read(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue.

        Raises:
            ConfigurationError: neither the file nor the copy of the one before can be read, or
                their directory cannot.
        """
        async with self._working:
            if self._table is not None:
                return self._table.get(queue)
            found, self._stamp = await in_thread(THREAD, _load, await self._located())
            self._table = found
            return found.get(queue)

    def set(self, queue: MessageQueue, offset: int) -> None:
        """Note an offset; ``flush`` writes it."""
        self._own.add(queue)
        if self._table is None:
            self._table = {}
        if self._table.get(queue) != offset:
            self._table[queue] = offset
            self._is_changed = True

    async def flush(self) -> None:
        """Write what has changed.

        Raises:
            ConfigurationError: the file cannot be found or written; it is as it was before.
        """
        async with self._working:
            if not self._is_changed or self._table is None:
                return
            path = await self._located()
            self._is_changed = False
            try:
                await self._take_over_changes(path, self._table)
                text = OffsetTable(offsets=dict(self._table)).encode()
                await self._write(path, text)
            except BaseException as error:
                self._is_changed = True
                if not isinstance(error, OSError):
                    raise
                raise ConfigurationError(
                    f"local offset file {path} cannot be written ({error}); offsets that are not "
                    "kept are read again after a restart. Let the process write there, or give "
                    "another local_offsets_dir"
                ) from error

    async def _write(self, path: Path, text: bytes) -> None:
        """Replace the file, and remember how this consumer left it."""

        def replace() -> None:
            self._stamp = _replace(path, text)

        writing = in_thread(THREAD, replace)
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            # The thread goes on, and nobody else may write the file until it is done.
            await asyncio.wait([writing])
            writing.exception()  # Who is cancelled does not hear of it; the next flush tries again.
            raise

    async def flush_now_and_then(self) -> None:
        """Write what has changed; say once if that cannot be done."""
        try:
            await self.flush()
        except PymqError as error:
            self._troubles.warn("write", "%s", error)
        else:
            self._troubles.over("write", "local offset file %s is written again", self._path)

    async def _take_over_changes(self, path: Path, table: dict[MessageQueue, int]) -> None:
        """Keep what others wrote of queues that are not ours; say once that there are others."""
        if self._stamp == await in_thread(THREAD, _stamp, path):
            return
        if self._stamp is not None:
            self._troubles.warn(
                "shared",
                "local offset file %s was changed by somebody else: two consumers of one group and "
                "client id overwrite each other's offsets, and after a restart one of them skips "
                "messages or repeats them; give each its own Network(instance_name=...)",
                path,
            )
        found, _ = await in_thread(THREAD, _load, path)
        table |= {queue: offset for queue, offset in found.items() if queue not in self._own}


class LocalQueueOffsets:
    """Where this member is in one queue, kept in its file."""

    def __init__(self, offsets: LocalOffsets, queue: MessageQueue) -> None:
        self._offsets = offsets
        self._queue = queue

    async def read(self) -> int | None:
        """Look it up."""
        return await self._offsets.read(self._queue)

    def commit_nowait(self, offset: int) -> bool:
        """Have it written soon."""
        self._offsets.set(self._queue, offset)
        return True

    async def commit(self, offset: int) -> None:
        """Write it."""
        self._offsets.set(self._queue, offset)
        await self._offsets.flush()

    def doubt(self) -> None:
        """A file does not forget."""


def root_directory(given: str | Path | None) -> Path:
    """Return below which directory the offset files are; ``None``: RocketMQ's.

    Raises:
        ConfigurationError: it would be below a home directory that there is not.
    """
    try:
        return Path.home() / DIRECTORY if given is None else Path(given).expanduser()
    except RuntimeError as error:
        where = f"~/{DIRECTORY}" if given is None else given
        raise ConfigurationError(
            f"the offsets of a broadcasting member cannot be kept in {where}, for the system knows "
            "no such home directory: set HOME, or give a local_offsets_dir that begins elsewhere"
        ) from error


def find_file(root: Path, client_id: str, group: str, name_servers: Sequence[str]) -> Path:
    """Return where a member's offset file is, or shall be. Waits for the disk, and for look-ups.

    Its client id begins with the address at which the name server that answered sees this machine.
    Next time that may be another one, which sees another address: the member would find no file,
    and begin elsewhere. So a file under any of the ids that it can have is its file: of those for
    all of its name servers. If there are several, it is the one that was written last.

    A file under yet another address may be this member's, too, or that of another machine which
    shares the directory, or of another cluster's member. It is named and not touched.

    Args:
        root: below which the files are.
        client_id: of the member.
        group: of the member, as it is called on the brokers.
        name_servers: ``host:port`` of each.

    Raises:
        ConfigurationError: the root cannot be looked into.
    """
    name = client_id.partition("@")[2]
    ids = (client_id, *(f"{address}@{name}" for address in own_addresses(name_servers)))
    paths = [root / one / group / FILE_NAME for one in ids]
    times = {path: time_ns for path in paths if (time_ns := _written_ns(path)) is not None}
    if times:
        path = max(times, key=times.__getitem__)
        if path.parts[-3] != client_id:
            _log.info("client %s goes on where local offset file %s says", client_id, path)
        return path
    pattern = f"*@{glob.escape(f'{name}/{group}/{FILE_NAME}')}"
    try:
        others = [path.parts[-3] for path in root.glob(pattern)]
    except OSError as error:
        raise ConfigurationError(
            f"local offset files cannot be looked for in {root} ({error}): let the process read "
            "and write there, or give another local_offsets_dir"
        ) from error
    if others:
        named = ", ".join(sorted(others)[:_NAMED_COUNT]) + ", ..." * (len(others) > _NAMED_COUNT)
        _log.warning(
            "client %s has no local offset file of group %s in %s, and begins where from_where "
            "says; there are files of %s. If one of them is this client's, from before the address "
            "of its machine changed: stop it, and rename that directory to %s",
            client_id,
            group,
            root,
            named,
            client_id,
        )
    return paths[0]


def _load(path: Path) -> tuple[dict[MessageQueue, int], tuple[int, int] | None]:
    """Return the offsets in a file, or else in the copy of the one before, and its stamp.

    Raises:
        ConfigurationError: what is there cannot be read.
    """
    try:
        stamp = _stamp(path)
    except OSError:  # The file cannot be read, either.
        stamp = None
    failures = []
    for candidate in (path, _backup(path)):
        try:
            text = candidate.read_bytes()
            if text.strip():
                return OffsetTable.decode(text).offsets, stamp
        except FileNotFoundError:
            continue
        except (OSError, ProtocolError) as error:
            failures.append(f"{candidate}: {error}")
            _log.warning("local offset file %s cannot be read: %s", candidate, error)
    if failures:
        raise ConfigurationError(
            f"no local offset file can be read ({'; '.join(failures)}); mend it, delete it to "
            "begin where from_where says, or give another local_offsets_dir"
        )
    return {}, stamp


def _replace(path: Path, text: bytes) -> tuple[int, int] | None:
    """Replace a file as a whole, and keep what it held; return its stamp."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        before = path.read_bytes()
    except FileNotFoundError:
        before = b""
    if before:
        _write(_backup(path), before)
    _write(path, text)
    return _stamp(path)


def _write(path: Path, text: bytes) -> None:
    new = path.with_name(path.name + ".tmp")
    with new.open("wb") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _written_ns(path: Path) -> int | None:
    """Return when a file, or else its copy of the one before, was written; ``None``: never."""
    for one in (path, _backup(path)):
        try:
            return one.stat().st_mtime_ns
        except OSError:  # what is wrong is said by whoever reads it
            continue
    return None


def _backup(path: Path) -> Path:
    return path.with_name(path.name + ".bak")


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size
