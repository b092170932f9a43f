"""Reading from a disk that fails in places, and from a log that ends in the middle of a record."""

from collections.abc import Callable
from pathlib import Path

from pymq.errors import CorruptRecord, OffsetOutOfRange, StoreError
from pymq.protocol.record import Record, decode_record
from pymq.store.files import ReadOnlyFiles
from pymq.store.inspection.findings import Findings, Kind, Severity

_PAGE_BYTES = 4096


class PatientFiles(ReadOnlyFiles):
    """Pages that cannot be read are findings, and read as zeros, so that the rest is checked."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._paths: dict[int, Path] = {}

    def open(self, path: Path, *, create: bool = False) -> int:
        """Return a descriptor for reading."""
        fd = super().open(path, create=create)
        self._paths[fd] = path
        return fd

    def pread(self, fd: int, size: int, position: int) -> bytes:
        """Return up to ``size`` bytes; fewer only at the end of the file."""
        try:
            return super().pread(fd, size, position)
        except StoreError:
            pass
        pieces = []
        for at in range(position, position + size, _PAGE_BYTES):
            count = min(_PAGE_BYTES, position + size - at)
            try:
                pieces.append(super().pread(fd, count, at))
            except StoreError as error:
                pieces.append(bytes(count))
                self._findings.add(
                    Kind.UNREADABLE, Severity.DAMAGE, self._paths[fd], at, str(error)
                )
        return b"".join(pieces)


def whole_record(
    read: Callable[[int, int], bytes], physical_offset: int, bytes_max: int
) -> Record | None:
    """Return the record at a physical offset; None if a whole and valid one is not there.

    What can be read of a record that was only begun, its time for one, says nothing.

    Args:
        read: returns bytes of the log, fewer at the end of a file.
        physical_offset: where.
        bytes_max: what a record may take.
    """
    try:
        size = int.from_bytes(read(physical_offset, 4))
        record = decode_record(read(physical_offset, min(size, bytes_max)))
    except (OffsetOutOfRange, CorruptRecord):
        return None
    return record if record.physical_offset == physical_offset else None
