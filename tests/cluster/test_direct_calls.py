"""Operators have a member handle a message now: what they are told, and what stays as it was."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.cluster.test_member_answers import ask, member

from pymq import AlreadySettled, Message, Network, ReceivedMessage, SendReceipt, blocking
from pymq.protocol.client_bodies import DirectResult
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.testing import Cluster

LIMIT_S = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as running:
        yield running


def send(cluster: Cluster, topic: str, body: bytes, **more: object) -> SendReceipt:
    network: Any = more.pop("network", Network())
    with blocking.Producer(cluster.name_server, timeout_s=LIMIT_S, network=network) as producer:
        return producer.send(Message(topic, body, **more))  # type: ignore[arg-type]


def handle_now(
    cluster: Cluster, group: str, receipt: SendReceipt, client_id: str | None = None
) -> Command:
    """Ask the broker that has the message; the only member, by default."""
    if client_id is None:
        _, client_id = member(cluster, group)
    assert receipt.offset_message_id is not None
    return ask(
        cluster.address(receipt.queue.broker_name),
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        consumerGroup=group,
        clientId=client_id,
        msgId=receipt.offset_message_id,
        topic=receipt.queue.topic,
    )


def result_of(answer: Command) -> DirectResult:
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return DirectResult.decode(answer.body)


@contextmanager
def running(
    cluster: Cluster, topic: str, group: str, handler: Callable[..., object], **options: object
) -> Iterator[blocking.Consumer]:
    """A consumer whose handler runs in the background."""
    run_options = {name: options.pop(name) for name in ("batch_size",) if name in options}
    consumer = blocking.Consumer(
        cluster.name_server,
        group,
        from_where="earliest",
        **options,  # type: ignore[arg-type]
    ).subscribe(topic)
    with consumer:
        thread = threading.Thread(target=consumer.run, args=(handler,), kwargs=run_options)
        thread.start()
        try:
            yield consumer
        finally:
            consumer.close()
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def wait_until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def committed(cluster: Cluster, group: str, topic: str) -> int:
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
        return sum(max(one.consumer_offset, 0) for one in admin.offsets.lag(group, topic))


@pytest.mark.parametrize("orderly", [False, True])
def test_a_message_is_handled_once_more_and_nothing_moves(cluster: Cluster, orderly: bool) -> None:
    topic, group = f"again-{orderly}", f"again-{orderly}"
    seen: list[ReceivedMessage] = []
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
        admin.topics.create(topic, queue_count=2)
    with blocking.Producer(cluster.name_server, timeout_s=LIMIT_S) as producer:
        receipts = [producer.send(Message(topic, b"%d" % n, keys="k")) for n in range(8)]
    assert len({receipt.queue.broker_name for receipt in receipts}) == 2
    with running(cluster, topic, group, seen.append, orderly=orderly):
        wait_until(lambda: len(seen) == 8)
        for number, receipt in enumerate(receipts):
            result = result_of(handle_now(cluster, group, receipt))
            assert (result.result, result.remark, result.is_ordered) == (
                "CR_SUCCESS", None, orderly,
            )  # fmt: skip
            message = seen[-1]
            assert (message.body, message.topic, message.keys) == (b"%d" % number, topic, ["k"])
            assert message.message_id == receipt.message_id
            assert message.broker_name == receipt.queue.broker_name
            assert message.queue_offset == receipt.queue_offset
        assert len(seen) == 16
    assert committed(cluster, group, topic) == 8


def test_what_a_handler_makes_of_it(cluster: Cluster) -> None:
    topic, group = "outcomes", "outcomes"
    direct = threading.Event()
    refused: list[AlreadySettled] = []

    async def handle(message: ReceivedMessage) -> None:
        if not direct.is_set():
            return
        await asyncio.sleep(0.02)
        match message.body:
            case b"raise":
                raise ValueError("no such account")
            case b"retry":
                message.retry(after_s=5)
            case b"reject":
                message.reject("never")
                raise ValueError("too late to matter")
            case b"ack":
                message.ack()
                try:
                    message.retry()
                except AlreadySettled as error:
                    refused.append(error)
            case b"stop":
                raise StopAsyncIteration

    bodies = (b"raise", b"retry", b"reject", b"ack", b"stop", b"plain")
    receipts = {body: send(cluster, topic, body) for body in bodies}
    with running(cluster, topic, group, handle):
        wait_until(lambda: committed(cluster, group, topic) == len(bodies))
        direct.set()
        results = {
            body: result_of(handle_now(cluster, group, receipt))
            for body, receipt in receipts.items()
        }
        time.sleep(0.3)
    told = {body: (result.result, result.remark) for body, result in results.items()}
    assert told == {
        b"raise": ("CR_THROW_EXCEPTION", "ValueError: no such account"),
        b"retry": ("CR_LATER", "the message goes back with retry(after_s=5)"),
        b"reject": ("CR_LATER", "the message becomes a dead letter with reject()"),
        b"ack": ("CR_SUCCESS", "the message was acknowledged with ack()"),
        b"stop": ("CR_THROW_EXCEPTION", "StopAsyncIteration: "),
        b"plain": ("CR_SUCCESS", None),
    }
    assert len(refused) == 1
    assert all(result.took_ms >= 20 for result in results.values())
    # It came back to nobody, and is nobody's dead letter.
    assert committed(cluster, group, topic) == len(bodies)
    with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
        retried = admin.topics.status(f"%RETRY%{group}")
        assert sum(one.max_offset for one in retried.values()) == 0
        assert f"%DLQ%{group}" not in admin.topics.names(with_system=True)


def test_a_handler_of_lists_in_a_namespace(cluster: Cluster) -> None:
    network = Network(namespace="shop")
    seen: list[list[ReceivedMessage]] = []

    def handle(messages: list[ReceivedMessage]) -> None:
        seen.append(messages)
        if len(seen) > 1:
            raise StopIteration

    receipt = send(cluster, "sold", b"x", network=network)
    with running(cluster, "sold", "sellers", handle, batch_size=10, network=network):
        wait_until(lambda: len(seen) == 1)
        result = result_of(handle_now(cluster, "shop%sellers", receipt))
    assert result.result == "CR_THROW_EXCEPTION" and "StopIteration" in (result.remark or "")
    assert [[one.topic for one in some] for some in seen] == [["sold"], ["sold"]]


def test_who_takes_messages_itself_cannot_be_asked(cluster: Cluster) -> None:
    receipt = send(cluster, "taken", b"x")
    with blocking.Consumer(cluster.name_server, "takers", from_where="earliest").subscribe(
        "taken"
    ) as consumer:
        assert next(iter(consumer)).body == b"x"
        answer = handle_now(cluster, "takers", receipt)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "takes its messages itself and has no handler" in (answer.remark or "")


def test_a_broker_that_was_restarted_and_a_message_that_is_not_there(cluster: Cluster) -> None:
    seen: list[bytes] = []
    receipt = send(cluster, "back", b"x")
    with running(cluster, "back", "returners", lambda message: seen.append(message.body)):
        # Or the group would go on before it, should the broker be away for long.
        wait_until(lambda: committed(cluster, "returners", "back") == 1)
        assert seen == [b"x"]
        _, client_id = member(cluster, "returners")
        cluster.restart_broker(receipt.queue.broker_name)
        # It knows its members by their heartbeats.
        wait_until(
            lambda: (
                handle_now(cluster, "returners", receipt, client_id).code == ResponseCode.SUCCESS
            )
        )
        assert seen == [b"x", b"x"]
        receipt.offset_message_id = "0" * 16 + "0FFFFFFFFFFFFFFF"
        answer = handle_now(cluster, "returners", receipt, client_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR and "no message" in (answer.remark or "")
    assert seen == [b"x", b"x"]
