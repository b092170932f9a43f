"""Where queues go on of which a master has no record."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.stores import (
    FakeClock,
    QuickFiles,
    bodies,
    config,
    crashed_copy,
    open_store,
    put_ok,
    queue_path,
    record,
)

from pymq.broker.config import BrokerConfig
from pymq.broker.empty_queues import begin_empty_queues
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.protocol.bodies import TopicConfig
from pymq.store import MessageStore
from pymq.store.inspection import check_store


class Tables:
    """Topics T and A of a broker, and where groups are in them."""

    def __init__(self) -> None:
        self.topics = TopicTable(BrokerConfig(), FakeClock())
        self.offsets = OffsetTable()
        for topic in ("T", "A"):
            self.topics.put(TopicConfig(topic=topic, read_queue_count=2, write_queue_count=2))

    def commit(self, offset: int, *, group: str = "g", topic: str = "T", queue_id: int = 0) -> None:
        self.offsets.commit(group, topic, queue_id, offset)

    def begin(self, store: MessageStore) -> None:
        begin_empty_queues(store, self.topics, self.offsets)


def opened(path: Path, **changes: Any) -> MessageStore:
    store = open_store(path, **changes)
    put_ok(store, *(record(b"%d" % n, topic="A") for n in range(50)))
    return store


def test_they_go_on_where_the_foremost_group_is(tmp_path: Path) -> None:
    tables, store = Tables(), opened(tmp_path)
    tables.commit(20)
    tables.commit(18, group="behind")
    tables.commit(0, queue_id=1)
    tables.begin(store)
    assert store.queue_bounds("T", 0) == (20, 20)
    assert store.queue_bounds("T", 1) == (0, 0)
    (put,) = put_ok(store, record(b"next", topic="T"))
    assert put.queue_offset == 20
    assert bodies(store, "T") == [b"next"]


def test_one_with_messages_stays_as_it_is(tmp_path: Path) -> None:
    tables, store = Tables(), opened(tmp_path)
    tables.commit(55, topic="A")
    tables.begin(store)
    assert store.queue_bounds("A", 0) == (0, 50)


@pytest.mark.parametrize("offset", [1 << 62, 10_000])
def test_more_messages_than_the_log_can_have_had_are_a_mistake(
    tmp_path: Path, offset: int
) -> None:
    """As of an operator who has set a group to a far too high offset."""
    tables, store = Tables(), opened(tmp_path)
    tables.commit(offset)
    tables.begin(store)
    assert store.queue_bounds("T", 0) == (0, 0)
    tables.commit(20, group="right")
    tables.begin(store)
    assert store.queue_bounds("T", 0) == (20, 20)


def test_topics_that_do_not_exist_have_no_queues(tmp_path: Path) -> None:
    """A member that has not heard of the deletion may have committed once more."""
    tables, store = Tables(), opened(tmp_path)
    tables.commit(20, topic="gone")
    tables.commit(20, topic="%LMQ%light")
    tables.offsets.commit("g", "T", -1, 20)
    tables.begin(store)
    assert store.queues() == [("%LMQ%light", 0), ("A", 0)]


@pytest.mark.parametrize("has_extension", [False, True])
def test_what_is_stored_then_is_found_after_a_crash(tmp_path: Path, has_extension: bool) -> None:
    settings: dict[str, Any] = {
        "queue_extension": has_extension,
        "queue_extension_file_bytes": 1 << 12,
    }
    tables, store = Tables(), opened(tmp_path / "s", **settings)
    tables.commit(20)
    tables.begin(store)
    put_ok(store, *(record(b"%d" % n, topic="T", tag="a") for n in range(3)))
    crashed, lost = (
        crashed_copy(tmp_path / "s", tmp_path / name) for name in ("killed", "lost")
    )
    shutil.rmtree(queue_path(lost, "T").parent)
    store.close()
    for path in (tmp_path / "s", crashed, lost):
        store = open_store(path, **settings)
        tables.begin(store)
        assert store.queue_bounds("T", 0) == (20, 23)
        assert bodies(store, "T") == [b"0", b"1", b"2"]
        store.close()
        report = check_store(config(path, **settings))
        assert [group for group in report.findings.groups() if group[0].name != "NOTE"] == []


def test_one_that_is_still_empty_costs_the_next_start_nothing(tmp_path: Path) -> None:
    tables, store = Tables(), opened(tmp_path)
    tables.commit(20)
    tables.begin(store)
    store.close()
    read: list[int] = []
    store = MessageStore.open(
        config(tmp_path),
        FakeClock(),
        files=QuickFiles(),
        on_progress=lambda done, every: read.append(done),
    )
    assert not read, "the log was read: a queue seemed to be missing"
    assert store.queue_bounds("T", 0) == (0, 0)
    tables.begin(store)
    assert store.queue_bounds("T", 0) == (20, 20)
    assert store.retention.delete_queues("T") == 1
    assert store.queue_bounds("T", 0) == (0, 0)
    store.close()
