"""Reading from a disk that fails in places."""

from pathlib import Path

from pymq.errors import StoreError
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
