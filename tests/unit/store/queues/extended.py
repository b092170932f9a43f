"""Stores whose queues have extensions."""

import struct
from pathlib import Path
from typing import Any

from tests.unit.store.stores import (
    TOPIC,
    bodies,
    open_store,
    put_ok,
    queue_bytes,
    record,
)

from pymq.protocol.hashes import java_hash
from pymq.protocol.record import decode_record
from pymq.store import MessageStore

NOW = 1_700_000_000_000
COUNT = 40
TEXTS = [b"%d" % number for number in range(COUNT)]
TAGS = ["TagA", "TagB", None]
OF_TAG_A = TEXTS[::3]
EXTENDED: dict[str, Any] = {
    "segment_bytes": 1024,
    "queue_extension": True,
    "queue_extension_file_bytes": 150,
}
PLAIN: dict[str, Any] = {"segment_bytes": 1024}


def extension_files(root: Path, queue_id: int = 0) -> list[Path]:
    return sorted((root / "consumequeue_ext" / TOPIC / str(queue_id)).iterdir())


def unit(tag: str | None, time: int = NOW, bit_map: bytes = b"") -> bytes:
    code = 0 if tag is None else java_hash(tag)
    return struct.pack(">hqqh", 20 + len(bit_map), code, time, len(bit_map)) + bit_map


def fill(root: Path, **changes: Any) -> MessageStore:
    """Return an open store with 40 messages in one queue, of two tags and of none."""
    store = open_store(root, **(EXTENDED | changes))
    for number, text in enumerate(TEXTS):
        put_ok(store, record(text, tag=TAGS[number % 3]))
    return store


def assert_whole(store: MessageStore) -> None:
    assert bodies(store) == TEXTS
    assert bodies(store, tags=["TagA"]) == OF_TAG_A
    assert bodies(store, tags=["TagA", "TagB"]) == [t for n, t in enumerate(TEXTS) if n % 3 < 2]
    assert bodies(store, tags=["TagC"]) == []


def addresses(root: Path, count: int = COUNT) -> list[int]:
    """Return where the units of a queue's entries stand; -1 of an entry without one."""
    codes = [code for _, _, code in struct.iter_unpack(">qiq", queue_bytes(root, count))]
    return [code + (1 << 63) if code < -(1 << 31) else -1 for code in codes]


def assert_as_if_never_harmed(root: Path, tmp_path: Path) -> None:
    """Queue and units are those of a store that wrote the same in peace."""
    fill(tmp_path / "peace").close()
    assert queue_bytes(root, COUNT) == queue_bytes(tmp_path / "peace", COUNT)
    harmed, peaceful = extension_files(root), extension_files(tmp_path / "peace")
    assert [path.name for path in harmed] == [path.name for path in peaceful]
    assert [path.read_bytes() for path in harmed] == [path.read_bytes() for path in peaceful]


def bit_map_of(topic: str, stored: memoryview) -> bytes | None:
    assert topic == TOPIC
    body = decode_record(stored).body
    return None if body == b"none" else body * 2
