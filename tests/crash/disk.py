"""What lies in a store directory, read without the store's own code: files, numbers, no cleverness.

Only ``decode_record`` is shared with the product; it is checked against vectors of its own.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.crash.checkers import IndexEntry

from pymq.protocol import fastjson
from pymq.protocol.hashes import java_hash
from pymq.protocol.record import BLANK_BYTES, MAGIC_BLANK, Record, decode_record

_HEAD: Final = struct.Struct(">II")
_ENTRY: Final = struct.Struct(">qiq")
_UNIT: Final = struct.Struct(">hqqh")


def log_records(store: Path) -> Iterator[Record]:
    """Yield all records of the commit log, in order, checksums verified.

    Raises:
        CorruptRecord: something before the first zero byte of a file is no record.
        AssertionError: a record says that it stands elsewhere.
    """
    for path in _listed(store / "commitlog"):
        data, base, position = path.read_bytes(), int(path.name), 0
        while position + BLANK_BYTES <= len(data):
            size, magic = _HEAD.unpack_from(data, position)
            if size == 0 or magic == MAGIC_BLANK:
                break
            record = decode_record(data, position, verify=True)
            assert record.physical_offset == base + position, f"{path} at {position}: {record}"
            yield record
            position += size


def log_by_topic(store: Path) -> dict[str, list[IndexEntry]]:
    """Return what the consume queues should hold, by the log."""
    found: dict[str, list[IndexEntry]] = {}
    for record in log_records(store):
        found.setdefault(record.topic, []).append(
            IndexEntry(
                record.queue_id,
                record.queue_offset,
                record.physical_offset,
                record.size,
                _tag_code(record.properties),
            )
        )
    return found


def log_entries(store: Path, topic: str) -> list[IndexEntry]:
    """Return what the consume queues of a topic should hold, by the log."""
    return log_by_topic(store).get(topic, [])


def queues_by_topic(store: Path) -> dict[str, list[IndexEntry]]:
    """Return what the consume queues of all topics hold."""
    topics = _listed(store / "consumequeue")
    return {path.name: queue_entries(store, path.name) for path in topics}


def queue_entries(store: Path, topic: str) -> list[IndexEntry]:
    """Return what the consume queues of a topic hold, up to the first empty entry of each."""
    entries = []
    for directory in _listed(store / "consumequeue" / topic):
        for path in _listed(directory):
            base = int(path.name) // _ENTRY.size
            for index, (physical, size, code) in enumerate(_ENTRY.iter_unpack(path.read_bytes())):
                if size == 0:
                    break
                if code < -(1 << 31):
                    code = _code_of_unit(store, topic, directory.name, code)
                entries.append(IndexEntry(int(directory.name), base + index, physical, size, code))
    return entries


def _code_of_unit(store: Path, topic: str, queue_id: str, address: int) -> int:
    """Return the tag code in the unit at an address, the address if there is no whole unit."""
    offset = address + (1 << 63)
    for path in _listed(store / "consumequeue_ext" / topic / queue_id):
        data, position = path.read_bytes(), offset - int(path.name)
        if 0 <= position <= len(data) - _UNIT.size:
            size, code, _, bit_map_bytes = _UNIT.unpack_from(data, position)
            if size == _UNIT.size + bit_map_bytes:
                return int(code)
    return address


def _listed(directory: Path) -> list[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else []


def saved_table(store: Path, name: str) -> Any:
    """Return what the file of a state table holds, or its backup while it is being replaced.

    An empty table if there is neither. A broker that runs renames them at any moment.
    """
    for path in (store / "config" / name, store / "config" / f"{name}.bak"):
        with contextlib.suppress(FileNotFoundError):
            return fastjson.parse(path.read_text())
    return {}


def index_contents(store: Path) -> list[bytes]:
    """Return the bytes of all files of the key index, in their order."""
    return [path.read_bytes() for path in _listed(store / "index")]


def file_count(store: Path, folder: str) -> int:
    """Return how many files lie below a folder of the store."""
    return sum(path.is_file() for path in (store / folder).rglob("*"))


def _tag_code(properties: bytes) -> int:
    for piece in properties.split(b"\x02"):
        if piece.startswith(b"TAGS\x01"):
            return java_hash(piece[5:].decode())
    return 0
