"""The key index as RocketMQ's code builds it: one item after the other, whole files in memory."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from pymq.protocol.hashes import java_hash
from pymq.protocol.record import Record

HEADER = struct.Struct(">qqqqii")
ITEM = struct.Struct(">iqii")


def keys_of(record: Record) -> Iterator[str]:
    """Yield what a record is indexed by."""
    if record.sys_flag & 0xC == 0xC:
        return
    found: dict[str, str] = {}
    for piece in record.properties.decode().split("\x02"):
        name, mark, value = piece.partition("\x01")
        if name and mark and value:
            found[name] = value
    if "UNIQ_KEY" in found:
        yield found["UNIQ_KEY"]
    yield from (key for key in found.get("KEYS", "").split(" ") if key)


@dataclass(slots=True)
class FileModel:
    """One file; ``slots`` and ``items`` as numbers."""

    slot_count: int
    item_limit: int
    begin_ms: int = 0
    end_ms: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    slots_used: int = 0
    next_number: int = 1
    slots: dict[int, int] = field(default_factory=dict)
    items: list[tuple[int, int, int, int]] = field(default_factory=list)

    def put(self, key: str, offset: int, time_ms: int) -> bool:
        if self.next_number >= self.item_limit:
            return False
        value = java_hash(key)
        key_hash = 0 if value == -(1 << 31) else abs(value)
        slot = key_hash % self.slot_count
        older = self.slots.get(slot, 0)
        seconds = 0
        if self.begin_ms > 0:
            seconds = min(max(int((time_ms - self.begin_ms) / 1000), 0), (1 << 31) - 1)
        self.items.append((key_hash, offset, seconds, older))
        self.slots[slot] = self.next_number
        if self.next_number <= 1:
            self.begin_offset, self.begin_ms = offset, time_ms
        if not older:
            self.slots_used += 1
        self.next_number += 1
        self.end_offset, self.end_ms = offset, time_ms
        return True

    def content(self) -> bytes:
        """Return the file's bytes."""
        header = HEADER.pack(
            self.begin_ms, self.end_ms, self.begin_offset, self.end_offset,
            self.slots_used, self.next_number,
        )  # fmt: skip
        slots = struct.pack(
            f">{self.slot_count}i", *(self.slots.get(slot, 0) for slot in range(self.slot_count))
        )
        items = b"".join(ITEM.pack(*item) for item in self.items)
        size = 40 + 4 * self.slot_count + 20 * self.item_limit
        return (header + slots + bytes(20) + items).ljust(size, b"\0")


class IndexModel:
    """All files."""

    def __init__(self, slot_count: int, item_limit: int) -> None:
        self.slot_count = slot_count
        self.item_limit = item_limit
        self.files: list[FileModel] = []

    def add(self, record: Record) -> None:
        for key in keys_of(record):
            text = f"{record.topic}#{key}"
            if self.files and self.files[-1].put(
                text, record.physical_offset, record.store_timestamp
            ):
                continue
            file = FileModel(self.slot_count, self.item_limit)
            if self.files:
                last = self.files[-1]
                file.begin_ms = file.end_ms = last.end_ms
                file.begin_offset = file.end_offset = last.end_offset
            self.files.append(file)
            assert file.put(text, record.physical_offset, record.store_timestamp)

    def contents(self) -> list[bytes]:
        return [file.content() for file in self.files]
