"""Offsets by store time: what RocketMQ 5.3.3 answers, kept in a file and asked again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.interop.conftest import require_peers
from tests.interop.jvm import JavaClient
from tests.interop.official_store import official_store
from tests.interop.offset_by_time import (
    QUEUE_FILE_BYTES,
    SEGMENT_BYTES,
    build,
    cases,
    official_answers,
    questions,
)
from tests.unit.store.stores import TOPIC

VERSION = "5.3.3"


def asked(java: JavaClient, root: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Return a case with the answers of the official store."""
    build(root, case)
    boundary = java.jvm.org.apache.rocketmq.common.BoundaryType
    queues = {}
    with official_store(
        java, root, MappedFileSizeCommitLog=SEGMENT_BYTES,
        MappedFileSizeConsumeQueue=QUEUE_FILE_BYTES,
    ) as store:  # fmt: skip
        for queue_id in (0, 1):
            queues[str(queue_id)] = {
                "bounds": [
                    store.getMinOffsetInQueue(TOPIC, queue_id),
                    store.getMaxOffsetInQueue(TOPIC, queue_id),
                ],
                "answers": [
                    [
                        time,
                        store.getOffsetInQueueByTime(TOPIC, queue_id, time, boundary.LOWER),
                        store.getOffsetInQueueByTime(TOPIC, queue_id, time, boundary.UPPER),
                    ]
                    for time in questions(case)
                ],
            }
    return case | {"queues": queues}


@pytest.mark.interop
def test_the_answers_kept_are_the_official_ones(
    tmp_path: Path, java_client: Callable[[str], JavaClient]
) -> None:
    require_peers(VERSION)
    kept = official_answers()
    assert kept.keys() == cases().keys()
    for number, (name, case) in enumerate(cases().items()):
        assert asked(java_client(VERSION), tmp_path / str(number), case) == kept[name], name
