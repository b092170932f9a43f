"""What the log says of a start."""

from tests.unit.connector.reading import B0, Q0, Q1

from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.source.start_log import NO_LONGER_CHOSEN, QUEUES_TOLD_MAX, start_told


def test_few_queues_are_told_one_by_one() -> None:
    reasons = {Q0: "checkpoint", Q1: "latest", B0: "checkpoint"}
    assert start_told({Q1: 9, Q0: 5, B0: 1}, reasons, {Q0: (0, 7), Q1: (0, 9)}) == (
        "orders/broker-a/0 at 5 (checkpoint, 2 messages follow); "
        "orders/broker-a/1 at 9 (latest, 0 messages follow); "
        "orders/broker-b/0 at 1 (checkpoint, its broker does not answer)"
    )
    unread = {Q0: NO_LONGER_CHOSEN}
    assert start_told({Q0: 5}, unread, {}) == "orders/broker-a/0 at 5 (no longer chosen)"
    assert start_told({}, {}, {}) == "no queue yet"


def test_many_queues_are_summed_up() -> None:
    queues = [MessageQueue("t", "a", number) for number in range(QUEUES_TOLD_MAX + 5)]
    offsets = {queue: 10 * number for number, queue in enumerate(queues)}
    reasons = dict.fromkeys(queues, "earliest") | {queues[3]: "timestamp T"}
    reasons |= dict.fromkeys(queues[-2:], NO_LONGER_CHOSEN)
    bounds = {queue: (0, offset + 2) for queue, offset in offsets.items()}
    assert start_told(offsets, reasons, bounds) == (
        "22 queues of t on a at 0..220 (earliest, 44 messages follow); "
        "1 queues of t on a at 30..30 (timestamp T, 2 messages follow); "
        "2 queues of t on a at 230..240 (no longer chosen)"
    )
