"""Sends that fail: what is tried again, where, and what the failure says of the message."""

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import LIMITS, run

from pymq.client.sending.producer import Producer
from pymq.errors import (
    BrokerSystemError,
    ConnectionFailed,
    LocalProtocolError,
    MessageIllegal,
    PymqError,
    RequestTimeout,
    RouteNotFound,
    SystemBusy,
)
from pymq.net.server import ServerConnection
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message


class NotReady(FakeBroker):
    """Is not ready at first: as a name server it refuses, as a broker it leaves at heartbeats.

    ``refusals``, ``farewells``: how often.
    """

    refusals = 0
    farewells = 0

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and self.refusals:
            self.refusals -= 1
            connection.respond(command, command.reply(1, "name server not ready"))
        elif command.code == RequestCode.HEART_BEAT and self.farewells:
            self.farewells -= 1
            connection.abort()
        else:
            super().on_command(connection, command)


@contextmanager
def silence_ends(producer: Producer, after_s: float = 0.3) -> Iterator[None]:
    """Have attempts that begin in this block wait no longer; answers to others may be late."""
    sender = producer._sender
    usual = sender._config
    sender._config = dataclasses.replace(usual, timeout_s=after_s)
    yield
    sender._config = usual


@pytest.mark.parametrize("code", [17, 14, 1, 16, 204, 205, 2])
def test_a_refusal_that_another_broker_may_not_share_is_tried_elsewhere(code: int) -> None:
    async def test() -> None:
        async with FakeBroker("a", "b") as broker, Producer(broker.address) as producer:
            await producer.send(Message("T", b"first"))
            broker.answers = [code, code]
            result = await producer.send(Message("T", b"x"))
            assert result.queue_offset == 0
            first, second, third = broker.brokers_tried()[1:]
            assert first == third != second
            ids = {(c.fields or {})["i"] for c in broker.sent[1:]}
            assert len(ids) == 1  # the message keeps its id

    run(test())


def test_retries_end_and_other_refusals_are_final() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, retries=2) as producer:
            broker.answers = [2, 2, 2]
            with pytest.raises(SystemBusy, match="code 2, as wanted"):
                await producer.send(Message("T", b"x"))
            assert len(broker.sent) == 3
            broker.answers = [13]
            with pytest.raises(MessageIllegal):
                await producer.send(Message("T", b"x"))
            assert len(broker.sent) == 4

    run(test())


def test_silence_is_tried_again_and_the_silent_broker_avoided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pymq.client.sending.broker_health.AVOID_BROKER_S", 600.0)

    async def test() -> None:
        async with (
            FakeBroker("a", "b") as broker,
            Producer(broker.address, timeout_s=60, deadline_s=90, retries=2) as producer,
        ):
            await producer.send(Message("T", b"first"))
            broker.answers = [None]
            with silence_ends(producer):
                sending = producer.send_nowait(Message("T", b"x"))
            await sending
            silent, *others = broker.brokers_tried()[1:]
            for _ in range(8):
                await producer.send(Message("T", b"y"))
            assert silent not in broker.brokers_tried()[2:]
            broker.answers = [None, None, None]
            with (
                silence_ends(producer),
                pytest.raises(RequestTimeout, match="may have taken effect") as late,
            ):
                await producer.send(Message("T", b"z"))
            assert not late.value.outcome_known

    run(test())


@pytest.mark.parametrize("first", [None, "close", 1])
@pytest.mark.parametrize("batch", [False, True])
def test_one_attempt_that_may_have_stored_it_makes_the_failure_unknown(
    first: int | str | None, batch: bool
) -> None:
    async def test() -> None:
        async with (
            FakeBroker() as broker,
            Producer(broker.address, timeout_s=60, deadline_s=90, retries=2) as producer,
        ):
            message = Message("T", b"x")
            await producer.send(message)
            broker.answers = [first, 2, 13]
            with silence_ends(producer, 0.3 if first is None else 60):
                work = producer.send_batch([message]) if batch else producer.send(message)
                sending = asyncio.ensure_future(work)
                await asyncio.sleep(0)  # the first attempt is made
            with pytest.raises(MessageIllegal, match="may have stored it") as refused:
                await sending
            assert not refused.value.outcome_known
            assert refused.value.code == 13
            assert len(broker.sent) == 4
            broker.answers = [2, 13]
            with pytest.raises(MessageIllegal) as refused:
                await producer.send(message)
            assert refused.value.outcome_known

    run(test())


def test_a_failure_shared_by_several_sends_is_unknown_only_to_those_with_such_an_attempt() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, retries=1) as producer:
            await producer.send(Message("T", b"first"))
            broker.answers = ["close"]
            sent = producer.send_nowait(Message("T", b"x"))
            await broker.server.close()  # neither the broker nor the name server comes back
            results = await asyncio.gather(
                sent, *(producer.send(Message("T", b"y")) for _ in range(3)), return_exceptions=True
            )
            known = [isinstance(r, ConnectionFailed) and r.outcome_known for r in results]
            assert known == [False, True, True, True], results

    run(test())


def test_a_lost_connection_is_opened_again() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address) as producer:
            broker.answers = ["close"]
            await producer.send(Message("T", b"x"))
            assert len(broker.sent) == 2
            futures = [producer.send_nowait(Message("T", b"y")) for _ in range(10)]
            broker.answers = [0, 0, 0, "close"]
            await asyncio.gather(*futures)

    run(test())


def test_a_message_bound_to_a_queue_is_repeated_only_if_it_was_surely_not_stored() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address) as producer:
            broker.answers = [2, 0]
            await producer.send(Message("T", b"x"), sharding_key="k")
            assert len({(c.fields or {})["e"] for c in broker.sent}) == 1
            broker.answers = [None, 0]
            with silence_ends(producer), pytest.raises(RequestTimeout):
                await producer.send(Message("T", b"x"), sharding_key="k")
            with pytest.raises(LocalProtocolError, match="queues of its topic are"):
                await producer.send(
                    Message("T", b"x"), queue=MessageQueue("T", broker.names[0], 99)
                )
            with pytest.raises(RouteNotFound, match="'other' has no queue") as caught:
                await producer.send(
                    Message("T", b"x"), queue=MessageQueue("T", "other", 0), deadline_s=0.3
                )
            assert caught.value.outcome_known

    run(test())


@pytest.mark.parametrize("placed", [False, True], ids=["free", "placed"])
def test_a_broker_that_does_not_say_its_version_got_no_message(placed: bool) -> None:
    async def test() -> None:
        async with NotReady() as broker, Producer(broker.address, **LIMITS) as producer:
            queue = (await producer.queues("T"))[0] if placed else None
            message = Message("T", b"x", delay_s=5)
            broker.farewells = 10_000
            with pytest.raises(PymqError) as failed:
                await producer.send(message, queue=queue, deadline_s=0.5)
            assert failed.value.outcome_known and not broker.sent
            broker.farewells = 3
            assert (await producer.send(message, queue=queue)).message_id
            assert len(broker.sent) == 1

    run(test())


@pytest.mark.parametrize("key", [None, "k"])
def test_a_name_server_that_refuses_got_no_message(key: str | None) -> None:
    async def test() -> None:
        async with NotReady() as broker, Producer(broker.address, **LIMITS) as producer:
            broker.refusals = 10_000
            with pytest.raises(BrokerSystemError, match="not ready") as refused:
                await producer.queues("T")
            assert refused.value.outcome_known
            with pytest.raises(PymqError) as failed:
                await producer.send(Message("T", b"x"), sharding_key=key, deadline_s=0.5)
            assert failed.value.outcome_known
            broker.refusals = 5
            assert (await producer.send(Message("T", b"x"), sharding_key=key)).message_id
            assert len(broker.sent) == 1

    run(test())


def test_a_failed_part_of_a_split_batch_tells_what_was_stored() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, body_bytes_max=300) as producer:
            broker.answers = [0, 13]
            with pytest.raises(MessageIllegal) as refused:
                await producer.send_batch([Message("T", b"x" * 100) for _ in range(3)])
            assert refused.value.__notes__ == ["the first 1 of 3 messages were stored"]

    run(test())


def test_a_slow_broker_is_avoided_if_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    health = "pymq.client.sending.broker_health"
    monkeypatch.setattr(f"{health}.LATENCIES_S", (0.0, 1.8, 3.0, 5.0, 15.0))
    monkeypatch.setattr(f"{health}.DURATIONS_S", (600.0,) * 5)

    async def test() -> None:
        for _ in range(10):
            async with (
                FakeBroker("a", "b") as broker,
                Producer(broker.address, avoid_slow_brokers=True) as producer,
            ):
                await producer.send(Message("T", b"x"))
                await producer.send(Message("T", b"x"))
                assert set(broker.brokers_tried()) == {"a", "b"}
                await producer.send(Message("T", b"x"))  # both are slow, so both will do

    run(test())
