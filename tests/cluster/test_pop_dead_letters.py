"""Messages that a SimpleConsumer gets again and again become dead letters."""

import logging

import pytest
from tests.cluster.played import Played, PlayedNameServer, route_to
from tests.cluster.running import TIMEOUT_S

from pymq import GroupConfig, Message, ReceivedMessage, blocking
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.pop import PopResponse
from pymq.protocol.record import NewRecord, encode_record, record_size, topic_field
from pymq.testing.cluster import Cluster

TOPIC = "T"
GROUP = "g"
INVISIBLE_S = 5.0


def consumer_of(name_server: str) -> blocking.SimpleConsumer:
    consumer = blocking.SimpleConsumer(
        name_server, GROUP, from_where="earliest", timeout_s=TIMEOUT_S
    )
    return consumer.subscribe(TOPIC)


def fail(cluster: Cluster, consumer: blocking.SimpleConsumer, times: int) -> list[ReceivedMessage]:
    """Receive the only message some times, and let its time pass."""
    seen = []
    for _ in range(times):
        seen += consumer.receive(1, INVISIBLE_S, timeout_s=TIMEOUT_S)
        cluster.clock.advance(INVISIBLE_S + 1)
    return seen


def receive_until_dead(
    cluster: Cluster, consumer: blocking.SimpleConsumer
) -> list[ReceivedMessage]:
    for _ in range(60):
        assert consumer.receive(1, INVISIBLE_S, timeout_s=1) == []
        if dead := cluster.dead_letters(GROUP):
            return dead
    pytest.fail("no dead letter")


def test_what_is_handed_out_too_often_is_a_dead_letter(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster() as cluster:
        with blocking.Admin(cluster.name_server) as admin:
            admin.groups.create(GroupConfig(group=GROUP, retry_max_times=2))
        with blocking.Producer(cluster.name_server) as producer:
            sent = producer.send(Message(TOPIC, b"x", keys=["k"]))
        with consumer_of(cluster.name_server) as consumer:
            seen = fail(cluster, consumer, 3)
            assert [one.reconsume_times for one in seen] == [0, 1, 2]
            with caplog.at_level(logging.WARNING):
                (dead,) = receive_until_dead(cluster, consumer)
            assert (dead.topic, dead.body, dead.keys) == (TOPIC, b"x", ["k"])
            assert dead.message_id == sent.message_id
            # It is acknowledged: it does not come again.
            for _ in range(3):
                cluster.clock.advance(INVISIBLE_S + 1)
                assert consumer.receive(1, INVISIBLE_S, timeout_s=0.5) == []
            assert len(cluster.dead_letters(GROUP)) == 1
    assert caplog.text.count(f"message {sent.message_id} (topic 'T'") == 1
    assert "becomes a dead letter" in caplog.text


def test_a_group_without_retry_queues_has_no_dead_letters() -> None:
    # Its broker takes what is sent back and drops it.
    with Cluster() as cluster:
        with blocking.Admin(cluster.name_server) as admin:
            config = GroupConfig(group=GROUP, retry_max_times=1, retry_queue_count=0)
            admin.groups.create(config)
        with blocking.Producer(cluster.name_server) as producer:
            producer.send(Message(TOPIC, b"x"))
        with consumer_of(cluster.name_server) as consumer:
            seen = fail(cluster, consumer, 4)
            assert [one.reconsume_times for one in seen] == [0, 1, 2, 3]


def stored(new: NewRecord) -> bytes:
    field = topic_field(new.topic.encode())
    parts = encode_record(
        new,
        field,
        size=record_size(len(new.body), len(field), len(new.properties), 16),
        queue_offset=0,
        physical_offset=0,
        store_timestamp=1,
        store_host=bytes(8),
    )
    return b"".join(parts)


class Failing(Played):
    """Hands out one message that has failed some times; ``refused`` are codes that it refuses."""

    def __init__(self, reconsume_times: int, refused: dict[int, int]) -> None:
        super().__init__(self._answer)
        self.reconsume_times = reconsume_times
        self.refused = refused

    def _answer(self, request: Command) -> Command:
        if request.code in self.refused:
            return request.reply(self.refused[request.code], "no")
        if request.code == RequestCode.POP_MESSAGE:
            if self.count(RequestCode.POP_MESSAGE) > 1:
                return request.reply(ResponseCode.POLLING_TIMEOUT)
            new = NewRecord(TOPIC, 0, b"x", b"", bytes(8), 1)
            new.reconsume_times = self.reconsume_times
            header = PopResponse(
                pop_time=1,
                invisible_ms=60_000,
                revive_queue_id=0,
                rest_count=0,
                start_offset_info="0 0 0",
                message_offset_info="0 0 0",
            )
            return request.reply(0, body=stored(new), fields=header.to_fields())
        if request.code == RequestCode.NOTIFICATION:
            return request.reply(0, fields={"hasMsg": "false"})
        return request.reply(0)


def receive_once(broker: Failing) -> list[ReceivedMessage]:
    with (
        broker,
        PlayedNameServer({TOPIC: route_to(broker.address)}) as name_server,
        consumer_of(name_server.address) as consumer,
    ):
        return consumer.receive(1, 60, timeout_s=0)


@pytest.mark.parametrize("times", [16, 17])
def test_brokers_that_do_not_tell_the_settings_of_a_group_have_the_default(times: int) -> None:
    code = RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG
    broker = Failing(times, {code: ResponseCode.REQUEST_CODE_NOT_SUPPORTED})
    assert len(receive_once(broker)) == (times == 16)
    assert broker.count(RequestCode.CONSUMER_SEND_MSG_BACK) == (times == 17)
    assert broker.count(RequestCode.ACK_MESSAGE) == (times == 17)


def test_what_cannot_be_made_a_dead_letter_is_left_to_come_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused: dict[int, int] = {
        int(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG): ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        int(RequestCode.CONSUMER_SEND_MSG_BACK): ResponseCode.SYSTEM_ERROR,
    }
    broker = Failing(17, refused)
    with caplog.at_level(logging.WARNING):
        assert receive_once(broker) == []
    assert broker.count(RequestCode.CONSUMER_SEND_MSG_BACK) == 1
    assert broker.count(RequestCode.ACK_MESSAGE) == 0
    assert "comes again" in caplog.text


def test_what_never_failed_asks_for_no_settings() -> None:
    broker = Failing(0, {})
    assert len(receive_once(broker)) == 1
    assert broker.count(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG) == 0
