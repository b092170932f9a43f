"""ROOT/epochFileCheckpoint: the epochs of a log that is replicated automatically.

::

    2
    1234567890
    1-0
    3-4096

The number of entries, the checksum of the lines that follow (decimal, CRC-32 without its highest
bit; 0: none), and one line ``epoch-physicalOffset`` each. The previous file is kept as ``.bak``.
The files are RocketMQ's, and either broker goes on with those of the other.

Source: RocketMQ EpochFileCache, CheckpointFile.
"""

import logging
from pathlib import Path

from pymq.errors import CorruptRecord
from pymq.protocol.epochs import Epoch, Epochs
from pymq.protocol.hashes import crc31
from pymq.store.files import Files
from pymq.store.state.sealed_file import replace_file

_log = logging.getLogger(__name__)

NAME = "epochFileCheckpoint"


class EpochFile:
    """The file; may be used while the store is closed.

    Attributes:
        epochs: what it holds.
    """

    def __init__(self, root: Path, *, path: Path | None = None, files: Files | None = None) -> None:
        self._files = files or Files()
        self._path = path or root / NAME
        self._backup = self._path.with_name(self._path.name + ".bak")
        self.epochs = Epochs()

    def load(self) -> Epochs:
        """Read the file, or its backup; empty if there is neither.

        Raises:
            CorruptRecord: neither can be read.
        """
        problems = []
        for path in (self._path, self._backup):
            data = self._files.read_file(path)
            if data is None:
                continue
            try:
                self.epochs = _parse(data)
            except ValueError as error:
                problems.append(f"{path}: {error}")
                continue
            if path is self._backup:
                reason = problems[0] if problems else f"{self._path} is missing"
                _log.warning("%s: using the backup %s instead", reason, path.name)
            return self.epochs
        if problems:
            raise CorruptRecord(
                f"{'; '.join(problems)}. Without it nobody can tell whether this log is its "
                "master's: start this broker with an empty store, if others have what it has"
            )
        return self.epochs

    def save(self, epochs: Epochs) -> None:
        """Replace what the file holds, durably; an empty list is never written, as in RocketMQ.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        if epochs == self.epochs:
            return
        if epochs.entries:
            replace_file(self._files, self._path, _format(epochs), keep_as=self._backup)
        else:
            for path in (self._path, self._backup):
                if self._files.exists(path):
                    self._files.remove(path)
            self._files.fsync_directory(self._path.parent)
        self.epochs = epochs


def _format(epochs: Epochs) -> bytes:
    lines = "".join(f"{one.number}-{one.first}\n" for one in epochs.entries)
    return f"{len(epochs.entries)}\n{crc31(lines.encode())}\n{lines}".encode()


def _parse(data: bytes) -> Epochs:
    count, checksum, *lines = data.decode("ascii").splitlines()
    if int(count) != len(lines) or not lines:
        raise ValueError(f"{len(lines)} epochs, expected {count}, at least one")
    entries = "".join(f"{line}\n" for line in lines).encode()
    if int(checksum) not in (0, crc31(entries)):
        raise ValueError("the epochs do not fit their checksum")
    pairs = (line.split("-") for line in lines)
    return Epochs.of(Epoch(int(number), int(first)) for number, first in pairs)
