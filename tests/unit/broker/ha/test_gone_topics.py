"""Topics that a master has deleted, and perhaps created again."""

import json
from pathlib import Path

import pytest
from tests.unit.store.stores import FakeClock, open_store, put_ok, record

from pymq.broker.config import BrokerConfig
from pymq.broker.deletions import Deletions
from pymq.broker.ha.gone_topics import GoneTopics
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topic_ids import TopicIds
from pymq.broker.state.topics import TopicTable
from pymq.errors import DiskFull
from pymq.protocol.bodies import DataVersion, TopicConfig
from pymq.protocol.bodies import TopicTable as TopicTableBody
from pymq.store import MessageStore, QueueRemoval


class Bed:
    """A slave with a store and tables, and what its master says."""

    def __init__(self, path: Path) -> None:
        clock = FakeClock()
        self.store: MessageStore = open_store(path, clock)
        self.topics = TopicTable(BrokerConfig(), clock)
        self.offsets = OffsetTable()
        self.forgotten: list[str] = []
        self.removals: list[QueueRemoval] = []
        deletions = Deletions([self.forgotten.append], [])
        self.gone = GoneTopics(
            self.topics, self.offsets, deletions, self.store, self.removals.append
        )
        self._counter = 0

    def told(self, *topics: str) -> None:
        self._counter += 1
        body = TopicTableBody(
            version=DataVersion(counter=self._counter),
            topics={
                name: TopicConfig(topic=name) for name in (*topics, *self.topics.system_topics)
            },
        )
        self.gone.take_topics(body)

    def put(self, topic: str) -> None:
        put_ok(self.store, record(b"x", topic=topic))
        self.offsets.commit("g", topic, 0, 1)

    def left(self, topic: str) -> tuple[int, int | None]:
        return self.store.queue_bounds(topic, 0)[1], self.offsets.find("g", topic, 0)


def test_a_topic_that_is_gone_twice_is_deleted(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    bed.told("A", "B")
    bed.put("A")
    bed.put("B")
    assert not bed.gone
    bed.told("B")
    assert bed.gone
    assert bed.left("A") == (1, 1)
    end = bed.store.log_end
    bed.told("B")
    bed.gone.delete(end)
    assert not bed.gone
    assert bed.forgotten == ["A"]
    assert (bed.left("A"), bed.left("B")) == ((0, None), (1, 1))


def test_files_are_left_to_others(tmp_path: Path) -> None:
    """Those of many queues would hold up everything else."""
    bed = Bed(tmp_path)
    bed.told("A")
    bed.put("A")
    bed.told()
    end = bed.store.log_end
    bed.gone.delete(end)
    path = tmp_path / "consumequeue" / "A"
    assert path.exists() and bed.left("A") == (0, None)
    bed.put("A")
    (removal,) = bed.removals
    removal.run()
    bed.store.retention.finish_delete(removal)
    assert path.exists() and bed.left("A") == (1, 1)


def test_a_topic_that_was_created_again_stays(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    bed.told("A")
    bed.put("A")
    bed.told()
    end = bed.store.log_end
    bed.told("A")
    assert not bed.gone
    bed.gone.delete(end)
    assert bed.left("A") == (1, 1)


def test_a_topic_with_messages_behind_the_end_stays(tmp_path: Path) -> None:
    """It was created again after the master had been asked a second time."""
    bed = Bed(tmp_path)
    bed.told("A")
    bed.put("A")
    bed.told()
    end = bed.store.log_end
    bed.put("A")
    bed.gone.delete(end)
    assert bed.left("A") == (2, 1)
    assert bed.forgotten == []


def test_only_queues_of_the_earlier_topic_go(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    bed.put("A")
    put_ok(bed.store, record(b"x", topic="A", queue_id=1))
    first = bed.store.log_end
    put_ok(bed.store, record(b"new", topic="A", queue_id=1))
    master = TopicIds()
    master.log_end = lambda: first
    master.created("A")
    bed.told("A")
    bed.gone.take_ids(master.body())
    assert bed.gone
    bed.gone.delete(first - 1)  # this slave does not have all of the earlier one yet
    assert bed.left("A")[0] == 1
    assert bed.left("A")[1] == 1
    bed.gone.delete(first)
    assert bed.left("A") == (0, None), "a group that comes back begins in the new topic"
    assert bed.store.queue_bounds("A", 1)[1] == 2
    bed.gone.look()
    assert not bed.gone and bed.forgotten == ["A"]


@pytest.mark.parametrize("is_gone", [False, True])
def test_offsets_stay_while_queues_cannot_be_deleted(
    tmp_path: Path, is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be of the topic that there is now, and nobody would ask for them again."""
    bed = Bed(tmp_path)
    bed.told("A")
    bed.put("A")
    first = bed.store.log_end
    if is_gone:
        bed.told()
    else:
        master = TopicIds()
        master.log_end = lambda: first
        master.created("A")
        bed.told("A")
        bed.gone.take_ids(master.body())

    def full(topic: str, *, before: int | None = None) -> QueueRemoval | None:
        raise DiskFull("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(bed.store.retention, "begin_delete", full)
        with pytest.raises(DiskFull):
            bed.gone.delete(first)
    assert bed.gone and bed.left("A") == (1, 1) and not bed.forgotten
    bed.gone.delete(first)
    assert not bed.gone and bed.left("A") == (0, None) and bed.forgotten == ["A"]


def test_offsets_that_a_crash_left_go_with_the_next_start(tmp_path: Path) -> None:
    bed = Bed(tmp_path)
    bed.offsets.follow_deletions(bed.store.retention.recorded_deletions, lambda *_: 0)
    bed.told("A", "B")
    bed.put("A")
    bed.put("B")
    text = bed.offsets.to_text()
    bed.told("B")
    bed.gone.delete(bed.store.log_end)
    bed.store.close()
    again, offsets = open_store(tmp_path), OffsetTable()
    offsets.restore(json.loads(text))
    offsets.follow_deletions(again.retention.recorded_deletions, lambda *_: 0)
    assert (offsets.find("g", "A", 0), offsets.find("g", "B", 0)) == (None, 1)
    again.close()


def test_a_log_that_lost_its_end_has_no_topic_that_begins_behind_it() -> None:
    ids = TopicIds()
    for topic, end in ("early", 5), ("late", 50):
        ids.log_end = lambda end=end: end  # type: ignore[misc]
        ids.created(topic)
    ids.log_end = lambda: 20
    known = ids.find("late").partition("-")[0]
    ids.log_lost()
    assert ids.first_offsets() == {"early": 5, "late": 20}
    assert ids.find("late").startswith(known)
    ids.restore({"table": {"of RocketMQ's time": "0123456789abcdef"}})
    assert ids.first_offsets() == {"early": 5, "late": 20}


@pytest.mark.parametrize("is_gone", [False, True])
def test_messages_that_are_not_confirmed_yet_keep_their_queue(
    tmp_path: Path, is_gone: bool
) -> None:
    """They are in the log, and in no queue until the whole group has them."""
    bed, master = Bed(tmp_path / "slave"), open_store(tmp_path / "master", FakeClock())
    at = 0

    def follow() -> None:
        nonlocal at
        while at < master.log_end:
            part = master.replication.part(at, 1 << 20)
            bed.store.replication.append(at, part)
            at += len(part)

    bed.told("A")
    put_ok(master, record(b"old", topic="A"))
    if not is_gone:
        put_ok(master, record(b"old", topic="A", queue_id=1))
    follow()
    first = master.log_end
    bed.store.replication.show_up_to(first)
    master.retention.delete_queues("A")
    put_ok(master, record(b"new", topic="A", queue_id=1))
    follow()
    if is_gone:
        bed.told()
    else:
        ids = TopicIds()
        ids.log_end = lambda: first
        ids.created("A")
        bed.gone.take_ids(ids.body())
    assert bed.gone
    bed.gone.delete(first)
    bed.store.replication.show_up_to(master.log_end)
    assert bed.store.queue_bounds("A", 1) == (0, 1)
    bed.store.close()
    again = open_store(tmp_path / "slave", FakeClock())
    assert again.queue_bounds("A", 1) == (0, 1)
    assert again.queue_bounds("A", 0)[1] == (1 if is_gone else 0)
