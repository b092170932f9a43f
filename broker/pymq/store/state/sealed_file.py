"""Small JSON state files (topics, groups, offsets): replaced as a whole, never half.

A save writes ``NAME.tmp`` and syncs it, keeps the previous file as ``NAME.bak``, renames, and
syncs the directory. A crash at any point leaves a whole file under ``NAME`` or ``NAME.bak``. A
damaged file falls back to the backup with a warning, so that offsets never silently begin at 0;
it never becomes the backup itself, but ``NAME.damaged``.

The first member is the checksum of the rest: a changed digit of an offset is no other offset.
RocketMQ passes it over, and leaves it out when it writes the file: without one a file is taken as
it is.

The text belongs to the caller: RocketMQ reads these files with fastjson, whose dialect is in
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

#: The checksum as the first member of a JSON object.
CHECKSUM_NAME = "pymqCrc32"
_CHECKSUM = re.compile(rb'\{"%s":"([0-9a-f]{8})",?' % CHECKSUM_NAME.encode())


def seal(data: bytes) -> bytes:
    """Return the text of a JSON object with its checksum as the first member."""
    head, brace, rest = data.partition(b"{")
    if head or not brace:
        raise ValueError(f"a state table is a JSON object, not {data[:20]!r}")
    comma = b"" if rest.lstrip().startswith(b"}") else b","
    return b'{"%s":"%08x"%s%s' % (CHECKSUM_NAME.encode(), crc32(data), comma, rest)


def unseal(data: bytes) -> bytes:
    """Return what was sealed; a text without a checksum as it is.

    Raises:
        ValueError: it does not fit its checksum.
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
    """Replace a file as a whole, durably: a crash leaves the previous or the new one.

    Args:
        files: the operating system.
        path: of the file; its directory exists.
        data: what it will hold.
        keep_as: name that the previous file gets; after a crash it may stand there alone. None:
            it is overwritten.

    Raises:
        DiskFull, FlushFailed, StoreError: the previous file is still there, under either name.
    """
    temporary = path.with_name(path.name + ".tmp")
    files.write_file(temporary, data)
    if keep_as is not None and files.exists(path):
        files.rename(path, keep_as)
    files.rename(temporary, path)
    files.sync_directory(path.parent)


class SealedFile:
    """One state file and its backup."""

    def __init__(self, path: Path, *, files: Files | None = None) -> None:
        self._path = path
        self._backup = path.with_name(path.name + ".bak")
        self._damaged = path.with_name(path.name + ".damaged")
        self._files = files or Files()
        self._is_damaged = False  # what stands under NAME

    def load(self, parse: Callable[[str], _Value]) -> _Value | None:
        """Return what the file holds, or its backup if the file is missing or damaged.

        Args:
            parse: text -> value; raises ValueError or a PymqError for text that is none.

        Returns:
            The value; None if there is neither a file nor a backup.

        Raises:
            CorruptRecord: there is something, but nothing readable.
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
                _log.warning(
                    "%s: using the backup %s instead",
                    problems[0] if problems else f"{self._path} is missing",
                    path.name,
                )
            return value
        if problems:
            raise CorruptRecord(
                f"{'; '.join(problems)}. Restore one of them from a copy, or remove both to begin "
                "anew"
            )
        return None

    def save(self, text: str) -> None:
        """Replace the file, durably; the previous one becomes the backup.

        Args:
            text: a JSON object.

        What UTF-8 cannot hold, half of a surrogate pair in a name, is written as ``?``: one
        odd text must not keep everything else from being saved.

        Raises:
            DiskFull, FlushFailed, StoreError: the previous file is still there.
        """
        files = self._files
        if files.make_directory(self._path.parent) or not files.exists(self._path):
            # Who made it may have died before this.
            files.sync_directory(self._path.parent.parent)
        replace_file(
            files,
            self._path,
            seal(text.encode("utf-8", "replace")),
            keep_as=self._damaged if self._is_damaged else self._backup,
        )
        self._is_damaged = False
