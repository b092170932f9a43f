"""The producer over loopback: ways of sending, limits, its end, and what is refused at once."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.cluster import scenarios
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import run
from tests.cluster.scenarios import TIMEOUT_S

from pymq import blocking
from pymq.client.sending.hooks import SendHook
from pymq.client.sending.producer import Producer
from pymq.client.threaded.loop_thread import LoopThread
from pymq.errors import (
    ClientClosed,
    ConfigurationError,
    ConnectionFailed,
    LocalProtocolError,
    MessageIllegal,
    RequestTimeout,
    RouteNotFound,
    TooManyPending,
)
from pymq.net.server import ServerConnection
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import Message
from pymq.testing.cluster import Cluster


def test_every_way_of_sending(pymq_cluster: Cluster) -> None:
    run(scenarios.every_way_of_sending(pymq_cluster.name_server, "sent"))


def test_a_batch_above_the_limit_is_split_and_stays_in_order(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with Producer(
            pymq_cluster.name_server, body_bytes_max=10_000, timeout_s=TIMEOUT_S
        ) as producer:
            messages = [Message("split", b"%04d" % n * 200) for n in range(50)]
            await producer.send(Message("split", b"first"))
            (queue, *_) = await producer.queues("split")
            receipts = await producer.send_batch(messages, queue=queue)
            assert {receipt.queue for receipt in receipts} == {queue}
            first = receipts[0].queue_offset
            offsets = [receipt.queue_offset for receipt in receipts]
            assert offsets == list(range(first, first + 50))
            assert len({receipt.offset_message_id for receipt in receipts}) == 50
            assert len({receipt.message_id for receipt in receipts}) == 50

    run(test())


def test_sends_survive_a_restart_of_the_broker(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        # Long enough for a restart; each attempt fails at once while the broker is away.
        async with Producer(pymq_cluster.name_server, retries=100, deadline_s=90) as producer:
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
    producer = blocking.Producer(pymq_cluster.name_server, timeout_s=TIMEOUT_S)
    with pytest.raises(ClientClosed, match="not open"):
        producer.send(Message("T", b"x"))
    with producer:
        assert producer.send(Message("T", b"1")).queue_offset == 0
        futures = [producer.send_nowait(Message("T", b"%d" % n)) for n in range(100)]
        producer.flush()
        assert len({(f.result().queue, f.result().queue_offset) for f in futures}) == 100
        producer.send_one_way(Message("T", b"2"))
        assert len(producer.send_batch([Message("T", b"3"), Message("T", b"4")])) == 2
        # Made in this thread: in that of the loop nothing could be sent while they are.
        batch = producer.send_batch(
            Message("T", b"after %d" % producer.send(Message("T", b"5")).queue_offset)
            for _ in range(2)
        )
        assert len(batch) == 2
        assert len(producer.queues("T")) == 4
        with pytest.raises(LocalProtocolError):
            producer.send(Message("bad topic", b"x"))
    producer.close()
    with pytest.raises(ClientClosed):
        producer.send(Message("T", b"x"))


def test_sends_in_flight_are_bounded_and_wait_for_room() -> None:
    async def test() -> None:
        async with FakeBroker() as broker:
            producer = Producer(broker.address, in_flight_max=3, timeout_s=60, retries=0)
            async with producer:
                await producer.send(Message("T", b"first"))
                broker.answers = [None, None, None]
                futures = [
                    producer.send_nowait(Message("T", b"x"), deadline_s=0.5) for _ in range(3)
                ]
                with pytest.raises(TooManyPending, match="in_flight_max"):
                    producer.send_nowait(Message("T", b"x"))
                waiting = [
                    asyncio.ensure_future(producer.send(Message("T", b"y"), deadline_s=60))
                    for _ in range(9)
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
            producer = Producer(broker.address, timeout_s=60)
            await producer.start()
            broker.answers = [0, None, None]
            await producer.send(Message("T", b"first"))
            quick = producer.send_nowait(Message("T", b"x"))
            pursued = producer.send_nowait(Message("other", b"y"))  # its route is not known yet
            await broker.wait_sent(3)
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
            await producer.start()
            await producer.send(Message("T", b"first"))
            producer._pool.timeout_s = 0.2  # to unregister
            futures = [producer.send_nowait(Message("T", bytes(2_000_000))) for _ in range(10)]
            await producer.close(timeout_s=0.1)
            async with asyncio.timeout(60):
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
            monkeypatch.setattr("pymq.client.cluster.pool.AsyncChannel.connect", never)
            waiting = asyncio.ensure_future(producer.send_one_way(Message("T", b"x")))
            await asyncio.sleep(0)
            await producer.close()
            with pytest.raises(ClientClosed):
                await waiting

    run(test())


def test_a_cancelled_send_frees_its_place() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address) as producer:
            await producer.send(Message("T", b"first"))
            broker.answers = [None]
            sending = asyncio.ensure_future(producer.send(Message("T", b"x"), deadline_s=0.2))
            await asyncio.sleep(0)
            sending.cancel()
            await producer.flush()
            assert producer.in_flight_count == 0

    run(test())


def test_a_blocking_producer_may_be_started_before_its_block(pymq_cluster: Cluster) -> None:
    before = threading.enumerate()
    with blocking.Producer(pymq_cluster.name_server).start() as producer:
        # Others may end meanwhile, and the broker may have begun some.
        new = [one.name for one in threading.enumerate() if one not in before]
        assert new.count("pymq producer") == 1
        producer.send(Message("T", b"x"))


def test_what_began_before_a_thread_ended_does_not_wait_for_ever() -> None:
    thread = LoopThread("test")
    begun = thread.begin(asyncio.sleep(3600))
    thread.close()
    with pytest.raises(concurrent.futures.CancelledError):
        begun.result(timeout=60)


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
        ({"name_servers": "tcp://127.0.0.1:9876"}, "without 'tcp://', such as 127.0.0.1:9876"),
        # One that is looked up stands alone.
        ({"name_servers": "http://jmenv.tbsite.net:8080/rocketmq/nsaddr;a:1"}, "is a URL"),
        ({"name_servers": "127.0.0.1:9876;user@host:9876"}, "host:port"),
        ({"in_flight_max": 0}, "in_flight_max=0"),
        ({"in_flight_max": "9"}, "in_flight_max='9': expected a whole number, at least 1"),
        ({"retries": -1}, r"retries=-1: expected 0\.\."),
        ({"retries": 2.5}, r"retries=2\.5: expected 0\.\."),  # no attempt would be the last
        ({"deadline_s": 0}, "deadline_s=0: expected seconds"),
        ({"in_flight_bytes_max": 0}, "in_flight_bytes_max=0"),
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"timeout_s": "3"}, "timeout_s='3': expected seconds"),
        ({"body_bytes_max": 10.5}, "body_bytes_max=10.5"),
        ({"body_bytes_max": 1 << 24}, "below frame_bytes_max"),
        ({"compress_bytes_min": -1}, "compress_bytes_min=-1"),
        ({"compression": "zlib"}, "compression='zlib': expected one of Compression.LZ4, "),
        ({"default_queue_count": "4"}, "default_queue_count='4'"),
        ({"hooks": SendHook()}, "hooks=<.*: expected a list of SendHook"),
        ({"hooks": [SendHook]}, r"hooks=\[<class .*expected instances of .*pymq\.SendHook"),
        ({"hooks": [5]}, r"hooks=\[5\]: expected instances"),
        ({"trace_topic": "a b"}, "trace_topic='a b': topic name"),
        ({"trace_topic": 5}, "trace_topic=5: topic name"),
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
