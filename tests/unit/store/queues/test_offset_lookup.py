"""Offsets by store time, against the answers of RocketMQ 5.3.3 that are kept in a file."""

from pathlib import Path

import pytest
from tests.interop.offset_by_time import (
    QUEUE_FILE_BYTES,
    SEGMENT_BYTES,
    build,
    cases,
    official_answers,
)
from tests.unit.store.stores import TOPIC, open_store


@pytest.mark.parametrize("name", cases())
def test_our_answers(tmp_path: Path, name: str) -> None:
    case = official_answers()[name]
    build(tmp_path, case)
    store = open_store(
        tmp_path, segment_bytes=SEGMENT_BYTES, queue_file_bytes=QUEUE_FILE_BYTES
    )
    for queue_id, expected in case["queues"].items():
        bounds = store.queue_bounds(TOPIC, int(queue_id))
        assert list(bounds) == expected["bounds"]
        for time, lower, upper in expected["answers"]:
            found = [
                store.offset_by_time(TOPIC, int(queue_id), time, upper=is_upper)
                for is_upper in (False, True)
            ]
            assert found == [lower, upper], (queue_id, time)
    store.close()
