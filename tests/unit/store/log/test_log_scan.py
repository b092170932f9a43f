"""Looking for a record behind the end of the log, among bytes that a client chose."""

import struct
from pathlib import Path

import pytest
from tests.unit.store.stores import BORN, HOST, QuickFiles

from pymq.protocol.record import (
    MAGIC_V1,
    OVERHEAD_BYTES,
    NewRecord,
    encode_record,
    record_size,
    topic_field,
)
from pymq.store.log.log_scan import find_record_after
from pymq.store.log.segment import Segment

SEGMENT_BYTES = 1 << 20
FIRST = 7 * SEGMENT_BYTES
#: Where what a client sent begins: after the head of its record.
BODY = 100
CLAIMED_BYTES = SEGMENT_BYTES // 2


class CountingFiles(QuickFiles):
    """Counts the bytes that are read."""

    read_bytes = 0

    def pread(self, fd: int, size: int, position: int) -> bytes:
        self.read_bytes += size
        return super().pread(fd, size, position)


def segment_with(path: Path, *parts: tuple[int, bytes]) -> tuple[CountingFiles, Segment]:
    files = CountingFiles()
    segment = Segment(files, path / "segment", FIRST, SEGMENT_BYTES)
    files.close(files.create(segment.path, SEGMENT_BYTES, reserve=False))
    for position, data in parts:
        segment.write(data, position)
    return files, segment


def whole_record(position: int, body: bytes = b"acknowledged") -> bytes:
    field = topic_field(b"TopicTest")
    new = NewRecord("TopicTest", 0, body, b"KEYS\x01a\x02", BORN, 1)
    parts = encode_record(
        new,
        field,
        size=record_size(len(body), len(field), len(new.properties), 16),
        queue_offset=5,
        physical_offset=FIRST + position,
        store_timestamp=2,
        store_host=HOST,
    )
    return b"".join(parts)


def head(position: int) -> bytes:
    """Return the begin of what claims to be a record, at its own physical offset."""
    return struct.pack(">II20xq", CLAIMED_BYTES, MAGIC_V1, FIRST + position)


@pytest.mark.parametrize("predicts", [False, True])
def test_sizes_that_a_client_claims_are_not_read(tmp_path: Path, predicts: bool) -> None:
    """What is read is a few times what the file holds, however many of them there are."""
    count = 2000
    step = len(head(0)) if predicts else 8
    places = [BODY + number * step for number in range(count)]
    body = b"".join(head(at) if predicts else head(0)[:8] for at in places)
    behind = BODY + len(body) + (128 << 10)
    files, segment = segment_with(tmp_path, (BODY, body), (behind, whole_record(behind)))
    found = find_record_after(files, segment, 1)
    assert found is not None and found.physical_offset == FIRST + behind
    assert files.read_bytes < 8 * SEGMENT_BYTES + count * OVERHEAD_BYTES
    segment.close()


def test_a_record_of_any_size_is_found(tmp_path: Path) -> None:
    record = whole_record(BODY, b"b" * (SEGMENT_BYTES - 4096))
    files, segment = segment_with(tmp_path, (BODY, record))
    found = find_record_after(files, segment, 1)
    assert found is not None and found.size == len(record)
    segment.close()


@pytest.mark.parametrize("left", [8, OVERHEAD_BYTES - 1])
def test_what_begins_at_the_end_of_the_file_is_none(tmp_path: Path, left: int) -> None:
    position = SEGMENT_BYTES - left
    files, segment = segment_with(tmp_path, (position, whole_record(position)[:left]))
    assert find_record_after(files, segment, 1) is None
    segment.close()
