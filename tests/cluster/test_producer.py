"""The producer over loopback: scenarios, retries, limits, and errors that say what to do."""

import asyncio
import concurrent.futures
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.cluster import scenarios

from pymq.client import threaded
from pymq.client.blocking import BlockingClient
from pymq.client.consumer import Consumer
from pymq.client.loop_thread import LoopThread
from pymq.client.producer import Producer
from pymq.errors import (
    ClientClosed,
    ConfigurationError,
    ConnectionFailed,
    LocalProtocolError,
    MessageIllegal,
    RequestTimeout,
    RouteNotFound,
    SystemBusy,
    TooManyPending,
)
from pymq.net.server import Server, ServerConfig, ServerConnection
from pymq.protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRoute
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message
from pymq.testing.cluster import Cluster

DEADLINE_S = 30.0


def run(work: Awaitable[None]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(work, DEADLINE_S)

    asyncio.run(limited())


@pytest.fixture
def closed_address() -> str:
    """An address at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class FakeBroker:
    """A name server and a broker that answer sends as a test wants them to.

    ``answers`` holds, per broker name, codes for its next sends; without one it is 0. ``None``
    gives no answer; ``"close"`` closes the connection instead.
    """

    def __init__(self, *names: str, advertise: str | None = None) -> None:
        self.names = names or ("broker-a",)
        self.advertise = advertise
        self.answers: list[int | str | None] = []
        self.sent: list[Command] = []
        self.server = Server(ServerConfig(), self.on_commands, lambda connection: None)

    async def __aenter__(self) -> "FakeBroker":
        await self.server.start()
        self.address = f"127.0.0.1:{self.server.port}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.server.close()

    def on_commands(self, connection: ServerConnection, commands: list[Command]) -> None:
        for command in commands:
            self.on_command(connection, command)

    def on_command(self, connection: ServerConnection, command: Command) -> None:
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            connection.respond(command, command.reply(0, body=self.route().encode()))
        elif command.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            self.sent.append(command)
            answer = self.answers.pop(0) if self.answers else 0
            if answer == "close":
                connection.abort()
            elif isinstance(answer, int):
                fields = {"msgId": "ID", "queueId": command.fields["e"], "queueOffset": "0"}  # type: ignore[index]
                connection.respond(command, command.reply(answer, "as wanted", fields))
        else:
            connection.respond(command, command.reply(0, fields={}))

    def route(self) -> TopicRoute:
        address = self.advertise or self.address
        return TopicRoute(
            queues=[
                QueueData(broker_name=name, read_queue_count=2, write_queue_count=2, perm=6)
                for name in self.names
            ],
            brokers=[BrokerData(broker_name=name, addresses={0: address}) for name in self.names],
        )

    def brokers_tried(self) -> list[str]:
        return [(command.fields or {})["n"] for command in self.sent]


# ------------------------------------------------------------------------------- against ours


def test_every_way_of_sending(pymq_cluster: Cluster) -> None:
    run(scenarios.every_way_of_sending(pymq_cluster.name_server, "sent"))


def test_a_batch_above_the_limit_is_split_and_stays_in_order(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with Producer(pymq_cluster.name_server, body_bytes_max=10_000) as producer:
            messages = [Message("split", b"%04d" % n * 200) for n in range(50)]
            await producer.send(Message("split", b"first"))
            (queue, *_) = await producer.queues("split")
            results = await producer.send_batch(messages, queue=queue)
            assert len(results) > 4
            assert sum(len(result.offset_message_ids) for result in results) == 50
            offsets = [result.queue_offset for result in results]
            assert offsets == sorted(offsets)

    run(test())


def test_sends_survive_a_restart_of_the_broker(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        # Long enough for a restart; each attempt fails at once while the broker is away.
        async with Producer(pymq_cluster.name_server, retries=100) as producer:
            await producer.send(Message("T", b"before"))
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, pymq_cluster.stop_broker)
            sends = [asyncio.ensure_future(producer.send(Message("T", b"x"))) for _ in range(20)]
            await loop.run_in_executor(None, pymq_cluster.start_broker)
            results = await asyncio.gather(*sends)
            assert len({(r.queue, r.queue_offset) for r in results}) == 20

    run(test())


def test_the_brokers_refusal_is_raised_with_its_reason(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with Producer(
            pymq_cluster.name_server, body_bytes_max=8 << 20, compress_bytes_min=None
        ) as producer:
            with pytest.raises(MessageIllegal, match="refused a message to topic 'T'"):
                await producer.send(Message("T", b"x" * (5 << 20)))

    run(test())


def test_a_topic_that_is_not_created_by_itself_says_what_to_do() -> None:
    with Cluster(broker={"auto_create_topic": False}) as cluster:

        async def test() -> None:
            async with Producer(cluster.name_server, retries=0) as producer:
                with pytest.raises(RouteNotFound, match="'nowhere'.*create it with `pymq topic"):
                    await producer.send(Message("nowhere", b"x"))

        run(test())


def test_blocking_producer(pymq_cluster: Cluster) -> None:
    producer = threaded.Producer(pymq_cluster.name_server)
    with pytest.raises(ClientClosed, match="not open"):
        producer.send(Message("T", b"x"))
    with producer:
        assert producer.send(Message("T", b"1")).queue_offset == 0
        futures = [producer.send_nowait(Message("T", b"%d" % n)) for n in range(100)]
        producer.flush()
        assert len({(f.result().queue, f.result().queue_offset) for f in futures}) == 100
        producer.send_one_way(Message("T", b"2"))
        (batch,) = producer.send_batch([Message("T", b"3"), Message("T", b"4")])
        assert len(batch.offset_message_ids) == 2
        # Made in this thread: in that of the loop nothing could be sent while they are.
        (batch,) = producer.send_batch(
            Message("T", b"after %d" % producer.send(Message("T", b"5")).queue_offset)
            for _ in range(2)
        )
        assert len(batch.offset_message_ids) == 2
        assert len(producer.queues("T")) == 4
        with pytest.raises(LocalProtocolError):
            producer.send(Message("bad topic", b"x"))
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(Message("T", b"x"))


# ---------------------------------------------------------------------------------- retries


@pytest.mark.parametrize("code", [17, 14, 1, 16, 204, 205, 2])
def test_a_refusal_that_another_broker_may_not_share_is_tried_elsewhere(code: int) -> None:
    async def test() -> None:
        async with FakeBroker("a", "b") as broker, Producer(broker.address) as producer:
            await producer.send(Message("T", b"first"))
            broker.answers = [code, code]
            result = await producer.send(Message("T", b"x"))
            assert result.queue_offset == 0
            tried = [(c.fields or {})["n"] + (c.fields or {})["e"] for c in broker.sent[1:]]
            assert len(set(tried)) == 3
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


def test_silence_is_tried_again_and_the_silent_broker_avoided() -> None:
    async def test() -> None:
        async with (
            FakeBroker("a", "b") as broker,
            Producer(broker.address, timeout_s=0.3) as producer,
        ):
            await producer.send(Message("T", b"first"))
            broker.answers = [None]
            await producer.send(Message("T", b"x"))
            silent, *others = broker.brokers_tried()[1:]
            for _ in range(8):
                await producer.send(Message("T", b"y"))
            assert silent not in broker.brokers_tried()[2:]
            broker.answers = [None, None, None]
            with pytest.raises(RequestTimeout, match="may have taken effect") as late:
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
            Producer(broker.address, timeout_s=0.3, retries=2) as producer,
        ):
            message = Message("T", b"x")
            await producer.send(message)
            broker.answers = [first, 2, 13]
            with pytest.raises(MessageIllegal, match="may have stored it") as refused:
                await (producer.send_batch([message]) if batch else producer.send(message))
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
        async with FakeBroker() as broker, Producer(broker.address, timeout_s=0.3) as producer:
            broker.answers = [2, 0]
            await producer.send(Message("T", b"x"), sharding_key="k")
            assert len({(c.fields or {})["e"] for c in broker.sent}) == 1
            broker.answers = [None, 0]
            with pytest.raises(RequestTimeout):
                await producer.send(Message("T", b"x"), sharding_key="k")
            with pytest.raises(LocalProtocolError, match="queues of its topic are"):
                await producer.send(Message("T", b"x"), queue=MessageQueue("T", "other", 0))

    run(test())


def test_a_failed_part_of_a_split_batch_tells_what_was_stored() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, body_bytes_max=300) as producer:
            broker.answers = [0, 13]
            with pytest.raises(MessageIllegal) as refused:
                await producer.send_batch([Message("T", b"x" * 100) for _ in range(3)])
            assert refused.value.__notes__ == ["the first 1 of 3 messages were stored"]

    run(test())


# ----------------------------------------------------------------------------------- limits


def test_sends_in_flight_are_bounded_and_wait_for_room() -> None:
    async def test() -> None:
        async with FakeBroker() as broker:
            producer = Producer(broker.address, in_flight_max=3, timeout_s=0.5, retries=0)
            async with producer:
                await producer.send(Message("T", b"first"))
                broker.answers = [None, None, None]
                futures = [producer.send_nowait(Message("T", b"x")) for _ in range(3)]
                with pytest.raises(TooManyPending, match="in_flight_max"):
                    producer.send_nowait(Message("T", b"x"))
                waiting = [
                    asyncio.ensure_future(producer.send(Message("T", b"y"))) for _ in range(9)
                ]
                cancelled = waiting.pop()
                await asyncio.sleep(0)
                cancelled.cancel()
                for future in futures:
                    with pytest.raises(RequestTimeout):
                        await future
                await asyncio.gather(*waiting)
                assert producer.in_flight_count == 0
                await producer.flush()

    run(test())


def test_closing_fails_what_stays_unanswered(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with FakeBroker() as broker:
            producer = Producer(broker.address)
            await producer.start()
            broker.answers = [0, None, None]
            await producer.send(Message("T", b"first"))
            quick = producer.send_nowait(Message("T", b"x"))
            pursued = producer.send_nowait(Message("other", b"y"))  # its route is not known yet
            await producer.close(timeout_s=0.1)
            for future in (quick, pursued):
                with pytest.raises(ConnectionFailed) as failed:
                    await future
                assert not failed.value.outcome_known
            assert "2 sends were unanswered" in caplog.text
            assert producer.in_flight_count == 0
            with pytest.raises(ClientClosed, match="make a new one"):
                await producer.start()

    run(test())


def test_closing_fails_what_a_peer_that_does_not_read_was_sent() -> None:
    class Stuck(FakeBroker):
        def on_command(self, connection: ServerConnection, command: Command) -> None:
            super().on_command(connection, command)
            if command.code == RequestCode.SEND_MESSAGE_V2:
                connection._transport.pause_reading()  # type: ignore[union-attr]

    async def test() -> None:
        async with Stuck() as broker:
            producer = Producer(broker.address, timeout_s=60, compress_bytes_min=None)
            producer._pool.timeout_s = 0.2  # to unregister, and for heartbeats
            await producer.start()
            await producer.send(Message("T", b"first"))
            futures = [producer.send_nowait(Message("T", bytes(2_000_000))) for _ in range(10)]
            await producer.close(timeout_s=0.1)
            async with asyncio.timeout(5):
                outcomes = await asyncio.gather(*futures, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {ConnectionFailed}

    run(test())


def test_closing_is_not_taken_for_a_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.get_running_loop().create_future()

    async def test() -> None:
        async with FakeBroker(advertise="127.0.0.1:1") as broker:
            producer = Producer(broker.address)
            await producer.start()
            await producer.queues("T")
            monkeypatch.setattr("pymq.client.pool.AsyncChannel.connect", never)
            waiting = asyncio.ensure_future(producer.send_one_way(Message("T", b"x")))
            await asyncio.sleep(0)
            await producer.close()
            with pytest.raises(ClientClosed):
                await waiting

    run(test())


def test_a_cancelled_send_frees_its_place() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, timeout_s=0.2) as producer:
            await producer.send(Message("T", b"first"))
            broker.answers = [None]
            sending = asyncio.ensure_future(producer.send(Message("T", b"x")))
            await asyncio.sleep(0)
            sending.cancel()
            await producer.flush()
            assert producer.in_flight_count == 0

    run(test())


# ----------------------------------------------------------------------------------- errors


def test_a_blocking_producer_may_be_started_before_its_block(pymq_cluster: Cluster) -> None:
    threads = threading.active_count()
    with threaded.Producer(pymq_cluster.name_server).start() as producer:
        assert threading.active_count() == threads + 1
        producer.send(Message("T", b"x"))


def test_what_began_before_a_thread_ended_does_not_wait_for_ever() -> None:
    thread = LoopThread("test")
    begun = thread.begin(asyncio.sleep(3600))
    thread.close()
    with pytest.raises(concurrent.futures.CancelledError):
        begun.result(timeout=5)


def test_all_name_servers_down_are_named(closed_address: str) -> None:
    async def test() -> None:
        producer = Producer(f"{closed_address};localhost:1")
        for _ in range(2):
            with pytest.raises(ConnectionFailed) as failed:
                await producer.start()
        await producer.close()
        assert f"no name server of {closed_address}, localhost:1 answers" in str(failed.value)

    run(test())


def test_a_broker_given_as_a_name_server_is_refused_at_the_start(pymq_cluster: Cluster) -> None:
    wrong = pymq_cluster.broker_address
    text = f"{wrong} was given as a name server and is a broker; .* usually 9876"

    async def test() -> None:
        for name_servers in (wrong, f"{wrong};{pymq_cluster.name_server}"):
            for client in (Producer(name_servers), Consumer(name_servers, "g").subscribe("T")):
                with pytest.raises(ConfigurationError, match=text):
                    await client.start()
                with pytest.raises(ClientClosed):
                    await producer_or_loop(client)

    async def producer_or_loop(client: Producer | Consumer) -> object:
        if isinstance(client, Producer):
            return await client.send(Message("T", b"x"))
        return await anext(aiter(client))

    run(test())
    with BlockingClient(wrong) as client:
        for ask in (lambda: client.route("T"), client.cluster_info):
            with pytest.raises(ConfigurationError, match=text):
                ask()


def test_what_answers_no_request_for_routes_is_not_taken_for_a_name_server() -> None:
    class Other(FakeBroker):
        def on_command(self, connection: ServerConnection, command: Command) -> None:
            connection.respond(command, command.reply(3, "not supported"))

    async def test() -> None:
        async with Other() as other:
            with pytest.raises(ConfigurationError, match="does not answer requests for routes"):
                await Producer(other.address).start()

    run(test())


def test_a_silent_name_server_is_passed_over_at_the_start(pymq_cluster: Cluster) -> None:
    class Silent(FakeBroker):
        def on_command(self, connection: ServerConnection, command: Command) -> None:
            pass

    async def test() -> None:
        async with Silent() as silent:
            with pytest.raises(ConnectionFailed, match="no name server of .* did not answer"):
                await Producer(silent.address, timeout_s=0.2).start()
            both = f"{silent.address};{pymq_cluster.name_server}"
            async with Producer(both, timeout_s=2) as producer:
                await producer.send(Message("T", b"x"))

    run(test())


def test_one_name_server_of_several_is_enough(closed_address: str, pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with Producer([closed_address, pymq_cluster.name_server]) as producer:
            await producer.send(Message("T", b"x"))

    run(test())


def test_a_name_server_that_goes_is_replaced_by_the_next(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with FakeBroker() as other:
            names = f"{other.address},{pymq_cluster.name_server}"
            async with Producer(names) as producer:
                await other.server.close()
                result = await producer.send(Message("T", b"x"))
                assert result.queue.broker_name == pymq_cluster.broker_name

    run(test())


def test_a_route_that_one_name_server_lacks_is_asked_of_the_next(pymq_cluster: Cluster) -> None:
    class Newborn(FakeBroker):
        def on_command(self, connection: ServerConnection, command: Command) -> None:
            connection.respond(command, command.reply(17, "no topic route"))

    async def test() -> None:
        async with Newborn() as newborn:
            names = f"{newborn.address},{pymq_cluster.name_server}"
            async with Producer(names) as producer:
                await producer.send(Message("T", b"x"))
                assert len(await producer.queues("T")) == 4

    run(test())


def test_topics_asked_for_at_the_same_time_reach_the_name_server_that_is_left(
    pymq_cluster: Cluster,
) -> None:
    async def test() -> None:
        async with FakeBroker() as other:
            names = f"{other.address},{pymq_cluster.name_server}"
            async with Producer(names) as producer:
                await other.server.close()
                several = await asyncio.gather(*(producer.queues(f"T{n}") for n in range(4)))
                names = {queue.broker_name for queues in several for queue in queues}
                assert names == {pymq_cluster.broker_name}

    run(test())


def test_a_topic_that_nobody_knows_names_who_was_asked_and_who_could_not_be(
    closed_address: str,
) -> None:
    class Newborn(FakeBroker):
        def on_command(self, connection: ServerConnection, command: Command) -> None:
            connection.respond(command, command.reply(17, "no topic route"))

    async def test() -> None:
        async with (
            Newborn() as newborn,
            Producer([closed_address, newborn.address], retries=0) as producer,
        ):
            with pytest.raises(RouteNotFound) as unknown:
                await producer.send(Message("T", b"x"))
        text = str(unknown.value)
        assert f"[{closed_address}, {newborn.address}]" in text
        assert f"could be asked: cannot connect to {closed_address}" in text

    run(test())


def test_an_order_topic_is_sent_to_while_one_of_its_brokers_is_away() -> None:
    class Ordered(FakeBroker):
        def route(self) -> TopicRoute:
            route = super().route()
            route.order_topic_conf = "away:1;broker-a:1"
            return route

    async def test() -> None:
        async with Ordered() as broker, Producer(broker.address, retries=1) as producer:
            for _ in range(4):
                result = await producer.send(Message("T", b"x"))
                assert result.queue.broker_name == "broker-a"
            away, _ = await producer.queues("T")
            with pytest.raises(RouteNotFound, match="no master of broker 'away'"):
                await producer.send(Message("T", b"x"), queue=away)

    run(test())


def test_many_short_lived_producers_use_all_queues() -> None:
    async def test() -> None:
        async with FakeBroker() as broker:
            for _ in range(30):
                async with Producer(broker.address) as producer:
                    await producer.send(Message("T", b"x"))
            assert {(command.fields or {})["e"] for command in broker.sent} == {"0", "1"}

    run(test())


def test_an_advertised_address_that_cannot_be_reached_is_explained(closed_address: str) -> None:
    async def test() -> None:
        async with (
            FakeBroker("far", advertise=closed_address) as broker,
            Producer(broker.address, retries=1) as producer,
        ):
            with pytest.raises(ConnectionFailed) as failed:
                await producer.send(Message("T", b"x"))
        for part in ("topic 'T'", "broker 'far'", closed_address, "brokerIP1"):
            assert part in str(failed.value)

    run(test())


def test_a_broker_without_a_master_cannot_be_sent_to() -> None:
    class OnlySlave(FakeBroker):
        def route(self) -> TopicRoute:
            route = super().route()
            route.brokers[0].addresses = {1: self.address}
            return route

    async def test() -> None:
        async with OnlySlave() as broker, Producer(broker.address, retries=0) as producer:
            with pytest.raises(RouteNotFound, match="no queue can be written to"):
                await producer.send(Message("T", b"x"))

    run(test())


def test_a_client_that_is_not_open_says_so(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        producer = Producer(pymq_cluster.name_server)
        with pytest.raises(ClientClosed, match="async with"):
            await producer.send(Message("T", b"x"))
        async with producer:
            await producer.send(Message("T", b"x"))
        await producer.close()
        with pytest.raises(ClientClosed):
            producer.send_nowait(Message("T", b"x"))
        with pytest.raises(ClientClosed):
            await producer.send_batch([Message("T", b"x")])
        with pytest.raises(ClientClosed):
            await producer.send_one_way(Message("T", b"x"))

    run(test())


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"name_servers": ""}, "host:port"),
        ({"name_servers": "somewhere"}, "host:port"),
        ({"name_servers": 9876}, "expected a str"),
        ({"name_servers": "http://127.0.0.1:9876"}, "without 'http://', such as 127.0.0.1:9876"),
        ({"name_servers": "http://jmenv.tbsite.net:8080/rocketmq/nsaddr"}, "is a URL"),
        ({"name_servers": "127.0.0.1:9876;user@host:9876"}, "host:port"),
        ({"in_flight_max": 0}, "in_flight_max=0"),
        ({"in_flight_max": "9"}, "in_flight_max='9': expected a whole number, at least 1"),
        ({"retries": -1}, r"send_retries \(retries of a producer\)=-1: expected 0..100"),
        ({"retries": 2.5}, "=2.5: expected 0..100"),  # no attempt would have been the last
        ({"retries": None}, "=None: expected 0..100"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"timeout_s": "3"}, "timeout_s='3': expected seconds"),
        ({"body_bytes_max": 10.5}, "body_bytes_max=10.5"),
        ({"body_bytes_max": 1 << 24}, "below frame_bytes_max"),
        ({"compress_bytes_min": -1}, "compress_bytes_min=-1"),
        ({"compression": "zlib"}, "compression='zlib': expected one of Compression.LZ4, "),
        ({"default_queue_count": "4"}, "default_queue_count='4'"),
    ],
)
def test_wrong_settings_are_named(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Producer(**{"name_servers": "127.0.0.1:9876", **arguments})


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: Message("T", "text"), "expected bytes"),  # type: ignore[arg-type]
    (lambda: Message("T", b""), "0 B, expected"),
    (lambda: Message("T", b"x" * ((4 << 20) + 1)), "body_bytes_max"),
    (lambda: Message("", b"x"), "topic name is empty"),
    (lambda: Message("a/b", b"x"), "'/' at 1"),
    (lambda: Message("t" * 128, b"x"), "128 characters"),
    (lambda: Message("SCHEDULE_TOPIC_XXXX", b"x"), "belongs to the broker"),
    (lambda: Message("T", b"x", properties={"a": "v" * 33_000}), "at most 32767"),
    (lambda: Message("T", b"x", tags="\ud800"), "not Unicode"),
    (lambda: Message("T", b"x", tags="a||b"), "one tag, '||' joins"),
    (lambda: Message("T", b"x", delay_level=-3), "delay_level=-3"),
    (lambda: Message(5, b"x"), "topic name 5 is a int"),  # type: ignore[arg-type]
    (lambda: Message("T", b"x", flag=None), "flag None"),  # type: ignore[arg-type]
    (lambda: Message("T", b"x", keys=[7]), "key 7"),  # type: ignore[list-item]
    (
        lambda: Message("T", b"x", properties={"a": b"v"}),  # type: ignore[dict-item]
        "property 'a' is b'v', expected two strings",
    ),
    (lambda: Message("T", b"x", properties={"a": 1}), "is 1, exp"),  # type: ignore[dict-item]
    (lambda: b"x", "expected a Message"),
    (lambda: None, "expected a Message"),
]


@pytest.mark.parametrize(("make", "reason"), WRONG, ids=[reason for _, reason in WRONG])
def test_messages_that_cannot_be_sent_are_refused_before(
    make: Callable[[], Any], reason: str
) -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address) as producer:
            with pytest.raises(LocalProtocolError, match=reason):
                await producer.send(make())
            with pytest.raises(LocalProtocolError, match=reason):
                await producer.send_batch([make()])
            await producer.send(Message("T", b"the connection is open now"))
            with pytest.raises(LocalProtocolError, match=reason):
                await producer.send(make())
            assert len(broker.sent) == 1
            assert producer.in_flight_count == 0

    run(test())


def test_a_sharding_key_that_is_no_text_is_refused_at_once() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address) as producer:
            with pytest.raises(LocalProtocolError, match=r"write sharding_key=str\(5\)"):
                await producer.send(Message("T", b"x"), sharding_key=5)  # type: ignore[arg-type]
            with pytest.raises(LocalProtocolError, match="sharding_key=''"):
                producer.send_nowait(Message("T", b"x"), sharding_key="")
            assert not broker.sent
            assert producer.in_flight_count == 0

    run(test())


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no message"),
        ([Message("T", b"x"), Message("U", b"x")], "expected one topic"),
        ([Message("T", b"x", delay_level=2)], "send it alone"),
        ([Message("%RETRY%g", b"x")], "retry topics"),
        (Message("T", b"x"), r"a Message: expected several.* sent with send\(\)"),
        (None, "a NoneType: expected several"),
    ],
)
def test_batches_that_cannot_be_sent_are_refused(messages: Any, reason: str) -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address) as producer:
            with pytest.raises(LocalProtocolError, match=reason):
                await producer.send_batch(messages)

    run(test())
