"""What is known of staged records spares reading them, and changes nothing."""

import dataclasses

import numpy as np
import pytest
from tests.preencoded import NOWHERE, lay_out

from pymq.broker.sinks.staged_layouts import RUN_RECORDS, StagedLayouts
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.new_records import SharedFields
from pymq.protocol.preencoded_records import unpack_sizes
from pymq.protocol.sink_bodies import StagedRun
from pymq.protocol.staged_records import StagedCopies, StagedLayout, StagedRecords

AT = 1_000_000
#: Flag, body and properties of each.
MESSAGES = [
    (0, b"", b"TAGS\x01a\x02"),
    (0, b"one", b"TAGS\x01a\x02KEYS\x01k\x02"),
    (0, b"two", b"p\x01q\x02"),
    (0, b"three" * 50, b"TAGS\x01another\x02"),
]


def staged(*, record_crc: bool = False, part: int = 7) -> StagedRecords:
    body = lay_out("T", encode_batch(MESSAGES))
    shared = SharedFields(
        topic="T",
        queue_id=3,
        born_timestamp=1,
        born_host=NOWHERE,
        store_host=NOWHERE,
        record_crc=record_crc,
    )
    records = StagedRecords(body.body, unpack_sizes(body.sizes), shared, part)
    records.stage()
    return records


def run_of(records: StagedRecords, physical_offset: int) -> StagedRun:
    return StagedRun(
        topic="T",
        queue_id=3,
        physical_offset=physical_offset,
        size_bytes=records.record_bytes,
        count=records.count,
        part=records.part,
    )


@pytest.mark.parametrize("record_crc", [False, True])
def test_the_layout_is_the_one_that_is_read_and_so_are_the_copies(record_crc: bool) -> None:
    records = staged(record_crc=record_crc)
    data = memoryview(
        bytes(
            records.encode(
                physical_offset=AT, queue_offset=0, store_timestamp=2, store_host=NOWHERE
            )
        )
    )
    run = run_of(records, AT)
    known, found = records.layout(), StagedLayout.read(run, data)
    for one, other in zip(known, found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(set(known.tag_codes.tolist())) == 3
    assert known.has_crc.all() == record_crc
    copies = []
    for layout in (known, None):
        copy = StagedCopies(run, data, layout)
        copies.append(
            copy.encode(
                physical_offset=2 * AT,
                queue_offsets=np.arange(5, 9),
                store_timestamp=3,
                store_host=NOWHERE,
            )
        )
        np.testing.assert_array_equal(copy.tag_codes, known.tag_codes)
    assert b"".join(copies[0]) == b"".join(copies[1]) != bytes(data)


def test_only_the_very_run_is_known_and_not_for_ever() -> None:
    records, later = staged(), staged(part=8)
    layouts = StagedLayouts(records_max=2 * (RUN_RECORDS + records.count))
    layouts.add(records, AT)
    run = run_of(records, AT)
    assert layouts.find(run) is not None
    assert layouts.find(run_of(later, AT)) is None  # Another part, at the same place.
    assert layouts.find(dataclasses.replace(run, count=run.count - 1)) is None
    assert layouts.find(run_of(records, AT + 1)) is None
    layouts.add(later, 2 * AT)
    layouts.add(later, 3 * AT)
    assert layouts.find(run) is None  # The oldest goes first.
    layouts.drop(run)
    layouts.drop(run_of(later, 2 * AT))
    layouts.add(records, 4 * AT)
    for one in (run_of(later, 3 * AT), run_of(records, 4 * AT)):
        assert layouts.find(one) is not None
