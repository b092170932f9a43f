"""What is counted, by RocketMQ's names and keys."""

import struct

from pymq.broker.statistics.broker_statistics import BrokerStatistics
from pymq.store import Arrival


def _arrival(topic: str, queue_id: int, first: int, *sizes: int) -> Arrival:
    entries = b"".join(struct.pack(">qiq", 0, size, 7) for size in sizes)
    return Arrival(topic, queue_id, first, first + len(sizes), entries)


def _minute(statistics: BrokerStatistics, name: str, key: str) -> tuple[int, float] | None:
    found = statistics.find(name, key)
    return None if found is None else (found[0].total, found[0].average)


def test_puts() -> None:
    statistics = BrokerStatistics("cluster", 0)
    assert statistics.find("TOPIC_PUT_NUMS", "T") is None
    statistics.take([_arrival("T", 0, 0, 100, 50), _arrival("T", 3, 5, 30)])
    statistics.take([_arrival("T", 0, 2, 10), _arrival("SCHEDULE_TOPIC_XXXX", 0, 0, 1000)])
    assert _minute(statistics, "TOPIC_PUT_NUMS", "T") == (0, 0.0)  # as of the last sample
    assert statistics.step(9_999) == 0
    assert statistics.step(10_000) == 1
    assert _minute(statistics, "TOPIC_PUT_NUMS", "T") == (4, 1.0)
    assert _minute(statistics, "TOPIC_PUT_SIZE", "T") == (190, 47.5)
    assert _minute(statistics, "QUEUE_PUT_NUMS", "T@0") == (3, 1.0)
    assert _minute(statistics, "QUEUE_PUT_SIZE", "T@3") == (30, 30.0)
    assert _minute(statistics, "BROKER_PUT_NUMS", "cluster") == (5, 0.0)
    assert _minute(statistics, "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "cluster") == (4, 0.0)
    assert statistics.put_per_s("T") == 0.4
    assert statistics.put_per_s("other") == 0.0
    assert statistics.put_count == 4
    for name, key in (("TOPIC_PUT_NUMS", "other"), ("COMMERCIAL_SEND_TIMES", "T"), ("no", "T")):
        assert statistics.find(name, key) is None


def test_many_runs() -> None:
    statistics = BrokerStatistics("cluster", 0)
    for number in range(3_000):
        statistics.take([_arrival("T", 0, number, 10)])
    statistics.step(10_000)
    assert _minute(statistics, "TOPIC_PUT_SIZE", "T") == (30_000, 10.0)


def test_reads_and_what_is_sent_back() -> None:
    statistics = BrokerStatistics("cluster", 0)
    for queue_id in (0, 0, 1):
        statistics.read("g", "T", queue_id, count=10, size_bytes=1000, latency_ms=3)
    statistics.read("tool", "SELF_TEST_TOPIC", 0, count=1, size_bytes=100, latency_ms=0)
    statistics.sent_back("g", "T")
    statistics.buried("g", "T")
    statistics.popped("g", "T", 2)
    statistics.acknowledged("g", "T")
    statistics.acknowledged("g", "T", 5)
    statistics.step(10_000)
    assert _minute(statistics, "GROUP_GET_NUMS", "T@g") == (30, 10.0)
    assert _minute(statistics, "GROUP_GET_SIZE", "T@g") == (3000, 1000.0)
    assert _minute(statistics, "GROUP_GET_LATENCY", "0@T@g") == (6, 3.0)
    assert _minute(statistics, "SNDBCK_PUT_NUMS", "T@g") == (1, 1.0)
    assert _minute(statistics, "SNDBCK2DLQ_TIMES", "null@T@g@SEND_BACK_TO_DLQ") == (1, 1.0)
    assert _minute(statistics, "GROUP_CK_NUMS", "T@g") == (2, 1.0)
    assert _minute(statistics, "GROUP_ACK_NUMS", "T@g") == (6, 3.0)
    assert _minute(statistics, "BROKER_CK_NUMS", "cluster") == (2, 0.0)
    assert _minute(statistics, "BROKER_ACK_NUMS", "cluster") == (6, 0.0)
    assert _minute(statistics, "BROKER_GET_NUMS", "cluster") == (31, 0.0)
    assert statistics.read_per_s("g", "T") == 3.0
    assert statistics.read_count == 30


def test_what_is_deleted_is_forgotten() -> None:
    statistics = BrokerStatistics("cluster", 0)

    def count() -> None:
        for topic in ("T", "TT"):
            statistics.take([_arrival(topic, 0, 0, 100)])
            for group in ("g", "gg"):
                statistics.read(group, topic, 0, count=1, size_bytes=100, latency_ms=0)
                statistics.sent_back(group, topic)
                statistics.buried(group, topic)
                statistics.acknowledged(group, topic)

    count()
    statistics.forget_topic("T")
    statistics.forget_group("g")
    statistics.step(10_000)
    for name, keys in (
        ("TOPIC_PUT_NUMS", ("T",)),
        ("QUEUE_PUT_SIZE", ("T@0",)),
        ("GROUP_GET_NUMS", ("T@g", "T@gg", "TT@g")),
        ("SNDBCK_PUT_NUMS", ("T@g", "T@gg", "TT@g")),
        ("GROUP_ACK_NUMS", ("T@g", "T@gg", "TT@g")),
        (
            "SNDBCK2DLQ_TIMES",
            tuple(f"null@{one}@SEND_BACK_TO_DLQ" for one in ("T@g", "T@gg", "TT@g")),
        ),
        ("GROUP_GET_LATENCY", ("0@T@g", "0@T@gg", "0@TT@g")),
    ):
        assert all(statistics.find(name, key) is None for key in keys), name
    assert _minute(statistics, "TOPIC_PUT_NUMS", "TT") == (1, 1.0)
    assert _minute(statistics, "GROUP_GET_NUMS", "TT@gg") == (1, 1.0)
    assert _minute(statistics, "GROUP_GET_LATENCY", "0@TT@gg") == (0, 0.0)
    count()
    statistics.step(20_000)
    assert _minute(statistics, "TOPIC_PUT_NUMS", "T") == (1, 1.0)
    assert _minute(statistics, "TOPIC_PUT_NUMS", "TT") == (2, 1.0)
    assert statistics.put_count == 4
