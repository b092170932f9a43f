"""Small JSON state files (topics, groups, offsets): sealed with a checksum, replaced as a whole.

A save writes ``NAME.tmp`` and flushes it, renames the previous file to ``NAME.bak``, renames the
new one, and flushes the directory. A crash at any point leaves a complete file under ``NAME`` or
``NAME.bak``. In place of a damaged file the backup is used, with a warning, so that offsets never
silently begin at 0; a damaged file becomes ``NAME.damaged``, never the backup.

The first member is the checksum of the rest, so that a changed digit does not pass for another
offset. RocketMQ ignores it, and leaves it out when it writes the file: a file without a checksum
is accepted.

The content is the caller's: RocketMQ reads these files with fastjson, whose dialect is in
``pymq.protocol.fastjson``.

Source: RocketMQ ConfigManager, MixAll.string2File.
"""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pymq.errors import CorruptRecord, PymqError
from pymq.protocol.hashes import crc32
from pymq.store.files import Files

_log = logging.getLogger(__name__)
_Value = TypeVar("_Value")

#: Name of the checksum, the first member of the JSON object.
CHECKSUM_NAME = "pymqCrc32"
_CHECKSUM = re.compile(rb'\{"%s":"([0-9a-f]{8})",?' % CHECKSUM_NAME.encode())


def seal(data: bytes) -> bytes:
    """Return a JSON object with its checksum added as the first member."""
    head, brace, rest = data.partition(b"{")
    if head or not brace:
        raise ValueError(f"a state file holds a JSON object, not {data[:20]!r}")
    comma = b"" if rest.lstrip().startswith(b"}") else b","
    return b'{"%s":"%08x"%s%s' % (CHECKSUM_NAME.encode(), crc32(data), comma, rest)


def unseal(data: bytes) -> bytes:
    """Return what was sealed; data without a checksum are returned unchanged.

    Raises:
        ValueError: the checksum does not fit.
    """
    match = _CHECKSUM.match(data)
    if match is None:
        return data
    text = b"{" + data[match.end() :]
    if crc32(text) != int(match[1], 16):
        raise ValueError(
            f"does not fit its checksum: it is damaged, or was edited (then take "
            f"{CHECKSUM_NAME} out of it, too)"
        )
    return text


def replace_file(files: Files, path: Path, data: bytes, *, keep_as: Path | None = None) -> None:
    """Replace a file as a whole, durably: after a crash, the previous or the new one is there.

    Args:
        files: the operating system.
        path: of the file; its directory exists.
        data: what it will hold.
        keep_as: new name of the previous file; after a crash it may be the only one. None: the
            previous file is overwritten.

    Raises:
        DiskFull, FlushFailed, StoreError: the previous file is still there, under either name.
    """
    temporary = path.with_name(path.name + ".tmp")
    files.write_file(temporary, data)
    if keep_as is not None and files.exists(path):
        files.rename(path, keep_as)
    files.rename(temporary, path)
    files.fsync_directory(path.parent)


class SealedFile:
    """One state file and its backup."""

    def __init__(self, path: Path, *, files: Files | None = None) -> None:
        self._path = path
        self._backup = path.with_name(path.name + ".bak")
        self._damaged = path.with_name(path.name + ".damaged")
        self._files = files or Files()
        self._is_damaged = False  # the file under NAME
        #: Whether the backup was read in place of the file.
        self.used_backup = False

    def load(self, parse: Callable[[str], _Value]) -> _Value | None:
        """Return the content of the file, or of its backup if it is missing or damaged.

        Args:
            parse: string -> value; raises ValueError or a PymqError if it is malformed.

        Returns:
            The value; None if there is neither a file nor a backup.

        Raises:
            CorruptRecord: neither the file nor the backup is readable.
        """
        problems = []
        for path in (self._path, self._backup):
            data = self._files.read_file(path)
            if data is None:
                continue
            try:
                if not data.strip(b"\0 \t\r\n"):
                    raise ValueError("the file is empty")
                value = parse(unseal(data).decode("utf-8"))
            except (ValueError, PymqError) as error:
                problems.append(f"{path}: {error}")
                self._is_damaged = self._is_damaged or path is self._path
                continue
            if path is self._backup:
                self.used_backup = True
                _log.warning(
                    "%s: using the backup %s instead",
                    problems[0] if problems else f"{self._path} is missing",
                    path.name,
                )
            return value
        if problems:
            raise CorruptRecord(
                f"{'; '.join(problems)}. Restore one of them from a copy, or remove both to start "
                "from scratch"
            )
        return None

    def remove(self) -> None:
        """Remove the file and its backup, durably; idempotent.

        Raises:
            StoreError: one may still be there.
        """
        found = [path for path in (self._backup, self._path) if self._files.exists(path)]
        for path in found:
            self._files.remove(path)
        if found:
            self._files.fsync_directory(self._path.parent)

    def save(self, text: str) -> None:
        """Replace the file, durably; the previous one becomes the backup.

        What UTF-8 cannot encode, half of a surrogate pair in a name, is written as ``?``: one
        odd name must not keep everything else from being saved.

        Args:
            text: a JSON object.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        files = self._files
        if files.make_directory(self._path.parent) or not files.exists(self._path):
            # Also if it existed: the process that created it may have died before this.
            files.fsync_directory(self._path.parent.parent)
        replace_file(
            files,
            self._path,
            seal(text.encode("utf-8", "replace")),
            keep_as=self._damaged if self._is_damaged else self._backup,
        )
        self._is_damaged = False
