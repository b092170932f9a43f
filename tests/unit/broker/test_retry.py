"""Where a message goes that could not be consumed, and what it is there."""

import dataclasses

import pytest
from tests.unit.store.stores import BORN, HOST, FakeClock

from pymq.broker.config import BrokerConfig
from pymq.broker.retry import Retries
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.queue_locks import QueueLocks
from pymq.broker.state.topics import TopicTable
from pymq.errors import GroupNotExist, MessageIllegal, NoPermission
from pymq.protocol.bodies import GroupConfig, MessageQueue, TopicConfig
from pymq.protocol.codes import Permission
from pymq.protocol.message import decode_properties
from pymq.protocol.names import SCHEDULE_TOPIC
from pymq.protocol.record import NewRecord, Record

STORED = Record(
    "T", 3, 7, 1000, b"body", b"TAGS\x01a\x02KEYS\x01k\x02", 5, 0x9, 17, BORN, 20, HOST, 0, 0, 0, 0
)
FIRST_ID = (HOST + (1000).to_bytes(8, "big")).hex().upper()


class Bed:
    """A broker's tables."""

    def __init__(self, *, auto_create: bool = False) -> None:
        clock = FakeClock()
        self.topics = TopicTable(BrokerConfig(), clock)
        self.groups = GroupTable(BrokerConfig(auto_create_group=auto_create), clock)
        self.locks = QueueLocks(clock)
        self.retries = Retries(self.topics, self.groups, self.locks, level_count=18)
        self.group = GroupConfig(group="g", retry_queue_count=2, retry_max_times=3)
        self.groups.put(self.group)

    def sent_back(
        self, *, delay_level: int = 0, times_max: int | None = None, **changes: object
    ) -> NewRecord:
        record = dataclasses.replace(STORED, **changes)  # type: ignore[arg-type]
        return self.retries.next_try(
            record, self.group, 1, delay_level=delay_level, times_max=times_max
        )


@pytest.fixture
def bed() -> Bed:
    return Bed()


# --- sent back


def test_the_next_try_is_the_same_message_delayed(bed: Bed) -> None:
    again = bed.sent_back()
    assert (again.topic, again.queue_id) == (SCHEDULE_TOPIC, 2)
    assert (again.body, again.flag, again.sys_flag) == (b"body", 5, 0x9)
    assert (again.born_timestamp, again.born_host, again.reconsume_times) == (17, BORN, 1)
    assert decode_properties(again.properties) == {
        "TAGS": "a",
        "KEYS": "k",
        "WAIT": "false",
        "DELAY": "3",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": FIRST_ID,
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "1",
    }


def test_a_retried_message_keeps_its_first_topic_and_id(bed: Bed) -> None:
    again = bed.sent_back(
        topic="%RETRY%g",
        properties=b"RETRY_TOPIC\x01First\x02ORIGIN_MESSAGE_ID\x01ID\x02DELAY\x013\x02"
        b"REAL_TOPIC\x01%RETRY%g\x02REAL_QID\x010\x02WAIT\x01false\x02",
        reconsume_times=2,
    )
    assert decode_properties(again.properties) == {
        "RETRY_TOPIC": "First",
        "ORIGIN_MESSAGE_ID": "ID",
        "DELAY": "5",
        "WAIT": "false",
        "REAL_TOPIC": "%RETRY%g",
        "REAL_QID": "1",
    }
    assert (again.queue_id, again.reconsume_times) == (4, 3)


@pytest.mark.parametrize(
    ("delay_level", "reconsume_times", "expected"),
    [(0, 0, 3), (0, 1, 4), (1, 0, 1), (7, 2, 7), (99, 0, 18)],
)
def test_the_delay_grows_unless_the_consumer_chooses(
    bed: Bed, delay_level: int, reconsume_times: int, expected: int
) -> None:
    again = bed.sent_back(delay_level=delay_level, reconsume_times=reconsume_times)
    assert decode_properties(again.properties)["DELAY"] == str(expected)


def test_a_delay_beyond_the_last_level_is_the_last(bed: Bed) -> None:
    again = bed.sent_back(reconsume_times=17, times_max=100)
    assert (again.topic, again.queue_id) == (SCHEDULE_TOPIC, 17)


@pytest.mark.parametrize(
    ("reconsume_times", "times_max", "delay_level", "is_dead"),
    [
        (2, None, 0, False),
        (3, None, 0, True),  # the group's setting
        (3, 4, 0, False),  # the consumer's
        (4, 4, 0, True),
        (0, 0, 0, True),
        (0, -1, 0, True),
        (0, None, -1, True),
        (0, 100, -1, True),
    ],
)
def test_a_message_that_was_tried_often_enough_is_a_dead_letter(
    bed: Bed, reconsume_times: int, times_max: int | None, delay_level: int, is_dead: bool
) -> None:
    again = bed.sent_back(
        reconsume_times=reconsume_times, times_max=times_max, delay_level=delay_level
    )
    assert (again.topic == "%DLQ%g") == is_dead
    assert again.reconsume_times == reconsume_times + 1
    config = bed.topics.find("%DLQ%g")
    if not is_dead:
        assert config is None
        return
    assert config is not None
    assert (config.read_queue_count, config.write_queue_count, config.perm) == (1, 1, 6)
    assert again.queue_id == 0
    properties = decode_properties(again.properties)
    assert (properties["DELAY"], properties["RETRY_TOPIC"]) == ("0", "T")
    assert "REAL_TOPIC" not in properties


def test_the_retry_topic_is_made_for_the_group(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    queues = {bed.retries.retry_queue("g", is_unit=True)[1] for _ in range(50)}
    assert queues == {0, 1}
    config = bed.topics.require("%RETRY%g")
    assert (config.write_queue_count, config.perm, config.topic_sys_flag) == (2, 6, 2)
    bed.topics.put(TopicConfig(topic="%RETRY%g", perm=int(Permission.READ)))
    with pytest.raises(NoPermission, match="the topic.%RETRY%g. sending message is forbidden"):
        bed.retries.retry_queue("g", is_unit=False)
    with pytest.raises(GroupNotExist, match="subscription group not exist, nobody"):
        bed.retries.retry_queue("nobody", is_unit=False)
    bed.groups.put(GroupConfig(group="none", retry_queue_count=0))
    for _ in range(3):
        assert bed.retries.retry_queue("none", is_unit=False)[1] is None
    assert bed.topics.find("%RETRY%none") is None
    assert caplog.text.count("group none has retryQueueNums 0") == 1


def test_a_group_whose_retry_topic_has_too_long_a_name(bed: Bed) -> None:
    for length in (248, 249):
        bed.groups.put(GroupConfig(group="x" * length))
    assert bed.retries.retry_queue("x" * 248, is_unit=False)[1] is not None
    with pytest.raises(MessageIllegal, match="249 characters, expected at most 248"):
        bed.retries.retry_queue("x" * 249, is_unit=False)


def test_a_new_group_may_be_created() -> None:
    bed = Bed(auto_create=True)
    config, queue_id = bed.retries.retry_queue("new", is_unit=False)
    assert (config.group, queue_id) == ("new", 0)


# --- sent to a retry topic


@pytest.mark.parametrize(
    ("reconsume_times", "times_max", "topic"),
    [
        (0, None, "%RETRY%g"),
        (3, None, "%RETRY%g"),
        (4, None, "%DLQ%g"),
        (4, 4, "%RETRY%g"),
        (5, 4, "%DLQ%g"),
    ],
)
def test_a_message_for_a_retry_topic_may_be_a_dead_letter(
    bed: Bed, reconsume_times: int, times_max: int | None, topic: str
) -> None:
    found = bed.retries.destination("%RETRY%g", 1, reconsume_times, times_max)
    assert found == (topic, 1 if topic == "%RETRY%g" else 0)


def test_a_group_in_order_sends_dead_letters_only(bed: Bed) -> None:
    bed.locks.lock("g", "client", [MessageQueue("T", "b", 0)])
    assert bed.retries.destination("%RETRY%g", 1, 0, None) == ("%DLQ%g", 0)
    bed.locks.unlock("g", "client", [MessageQueue("T", "b", 0)])
    assert bed.retries.destination("%RETRY%g", 1, 0, None) == ("%RETRY%g", 1)


def test_a_retry_topic_of_no_group(bed: Bed) -> None:
    with pytest.raises(GroupNotExist, match="subscription group not exist, nobody"):
        bed.retries.destination("%RETRY%nobody", 0, 0, None)
