"""What several masters say of a group, merged."""

from pymq.client.group.group_progress import merged_connections, queue_lags
from pymq.protocol.bodies import (
    ClientConnection,
    ConsumerConnections,
    ConsumeStats,
    MessageQueue,
    QueueProgress,
    Subscription,
)


def member(client_id: str) -> ClientConnection:
    return ClientConnection(client_id=client_id, client_address="10.0.0.1:1")


def test_the_queues_of_all_masters_are_sorted() -> None:
    def stats(broker: str, at_ms: int) -> ConsumeStats:
        progress = QueueProgress(broker_offset=10, consumer_offset=7, last_timestamp_ms=at_ms)
        return ConsumeStats(offsets={MessageQueue("T", broker, 0): progress})

    first, second = queue_lags([stats("b", 5), stats("a", 0)])
    assert (first.queue.broker_name, first.lag, first.last_timestamp_ms) == ("a", 3, None)
    assert (second.queue.broker_name, second.lag, second.last_timestamp_ms) == ("b", 3, 5)
    assert queue_lags([]) == []


def test_a_committed_offset_beyond_the_end_is_no_negative_lag() -> None:
    progress = QueueProgress(broker_offset=3, consumer_offset=7)
    (lag,) = queue_lags([ConsumeStats(offsets={MessageQueue("T", "a", 0): progress})])
    assert lag.lag == 0


def test_a_member_of_several_masters_is_one() -> None:
    wanted = {"T": Subscription.of_tags("T", "*", 1)}
    merged = merged_connections(
        [
            ConsumerConnections(connections=[member("A"), member("B")], subscriptions=wanted),
            ConsumerConnections(connections=[member("B"), member("C")], message_model="CLUSTERING"),
        ]
    )
    assert [one.client_id for one in merged.connections] == ["A", "B", "C"]
    assert merged.subscriptions == wanted and merged.message_model == "CLUSTERING"
    assert merged_connections([]).connections == []
