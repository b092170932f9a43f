"""The automatic batcher: what is stored is what its receipts say, in order, whatever fails."""

import asyncio
import random
import threading
import time
from collections import defaultdict
from queue import SimpleQueue
from typing import Any

import pytest
from tests.cluster.fake_broker import FakeBroker
from tests.cluster.running import LIMITS, run

from pymq import Batcher, Message, MessageQueue, Producer, SendReceipt, blocking
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import (
    ClientClosed,
    ConfigurationError,
    ConnectionFailed,
    LocalProtocolError,
    MessageIllegal,
    PymqError,
    TooManyPending,
)
from pymq.protocol.batch_body import decode_batch
from pymq.protocol.codes import RequestCode
from pymq.protocol.message import decode_properties
from pymq.protocol.record import Record, decode_records
from pymq.testing import Cluster


def stored(cluster: Cluster, topic: str = "T") -> dict[tuple[str, int, int], Record]:
    """Return everything in a topic, by broker, queue and offset."""
    found = {}
    with BlockingClient(cluster.name_server) as client:
        for queue, (first, end) in client.bounds(client.read_queues(topic)).items():
            for chunk in client.pull_range(queue, first, end):
                for record in decode_records(chunk.buffer):
                    found[queue.broker_name, queue.queue_id, record.queue_offset] = record
    return found


def check(cluster: Cluster, receipts: dict[bytes, SendReceipt]) -> None:
    """Compare receipts with what is stored."""
    found = stored(cluster)
    for body, receipt in receipts.items():
        queue = receipt.queue
        record = found[queue.broker_name, queue.queue_id, receipt.queue_offset]
        assert bytes(record.body) == body
        properties = decode_properties(record.properties)
        assert properties["UNIQ_KEY"] == receipt.message_id
        assert str(receipt.offset_message_id).endswith(f"{record.physical_offset:016X}")


def test_every_message_has_the_receipt_of_its_own_place(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with (
            Producer(pymq_cluster.name_server, **LIMITS) as producer,
            Batcher(producer, count_max=50) as batcher,
        ):
            bodies = [b"%d" % n for n in range(2000)]
            futures = [batcher.send_nowait(Message("T", body, keys="k")) for body in bodies]
            assert batcher.unanswered_count == 2000
            receipts = dict(zip(bodies, await asyncio.gather(*futures), strict=True))
            await asyncio.to_thread(check, pymq_cluster, receipts)
            assert len({receipt.queue for receipt in receipts.values()}) == 4
            assert batcher.unanswered_count == 0

    run(test())
    assert len(stored(pymq_cluster)) == 2000


def test_messages_wait_for_others_no_longer_than_they_may() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, **LIMITS) as producer:
            await producer.send(Message("T", b"first"))
            async with Batcher(producer, linger_s=0.05, count_max=10) as batcher:
                futures = [batcher.send_nowait(Message("T", b"x")) for _ in range(25)]
                await asyncio.gather(*futures)
                batches = broker.sent[1:]
                assert {one.code for one in batches} == {RequestCode.SEND_BATCH_MESSAGE}
                assert len(batches) == 3
                await batcher.send(Message("T", b"alone"))
                assert len(broker.sent) == 5
            async with Batcher(producer, linger_s=3600, bytes_max=1000) as batcher:
                futures = [batcher.send_nowait(Message("T", bytes(300))) for _ in range(10)]
                await asyncio.gather(*futures[:8])
                assert not futures[-1].done()
                assert all(len(one.body) <= 1000 for one in broker.sent[5:])
            assert futures[-1].done()  # leaving sends what is left

    run(test())


def test_placed_messages_stay_in_order(pymq_cluster: Cluster, seed: int) -> None:
    chance = random.Random(seed)

    async def test() -> None:
        async with (
            Producer(pymq_cluster.name_server, **LIMITS) as producer,
            Batcher(producer, linger_s=0.001, count_max=20) as batcher,
        ):
            queue = (await producer.queues("T"))[2]
            futures = []
            for number in range(1500):
                key = f"k{chance.randrange(10)}"
                if key == "k0":
                    message = Message("T", b"queue:%d" % number)
                    futures.append(batcher.send_nowait(message, queue=queue))
                else:
                    message = Message("T", b"%s:%d" % (key.encode(), number))
                    futures.append(batcher.send_nowait(message, sharding_key=key))
                if number % 50 == 0:
                    await asyncio.sleep(0.001)
            await asyncio.gather(*futures)

    run(test())
    by_key = defaultdict(list)
    places: dict[bytes, set[int]] = defaultdict(set)
    for (_, queue_id, offset), record in sorted(stored(pymq_cluster).items()):
        key, _, number = bytes(record.body).partition(b":")
        by_key[key].append((queue_id, offset, int(number)))
        places[key].add(queue_id)
        sharding_key = decode_properties(record.properties).get("__SHARDINGKEY")
        assert sharding_key == (None if key == b"queue" else key.decode())
    assert sum(map(len, by_key.values())) == 1500
    assert all(len(ids) == 1 for ids in places.values()) and places[b"queue"] == {2}
    for found in by_key.values():
        numbers = [number for _, _, number in found]
        assert numbers == sorted(numbers)


def test_messages_of_a_refused_batch_fail_each_with_an_error_of_its_own() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, **LIMITS) as producer:
            await producer.send(Message("T", b"first"))
            broker.answers = [13, 13]
            async with Batcher(producer) as batcher:
                futures = [batcher.send_nowait(Message("T", b"x")) for _ in range(3)]
                futures.append(batcher.send_nowait(Message("T", b"x"), sharding_key="k"))
                errors = await asyncio.gather(*futures, return_exceptions=True)
            assert {type(error) for error in errors} == {MessageIllegal}
            assert len({id(error) for error in errors}) == 4
            assert all(error.outcome_known for error in errors)  # type: ignore[union-attr]

    run(test())


def test_one_that_cannot_be_sent_is_refused_at_once_and_harms_no_other() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, **LIMITS) as producer:
            foreign = MessageQueue("T", broker.names[0], 99)
            async with Batcher(producer) as batcher:
                good = batcher.send_nowait(Message("T", b"x"))
                placed = batcher.send_nowait(Message("T", b"x"), sharding_key="k")
                with pytest.raises(LocalProtocolError, match="0 B"):
                    batcher.send_nowait(Message("T", b""))
                misplaced = batcher.send_nowait(Message("T", b"x"), queue=foreign)
                with pytest.raises(LocalProtocolError, match="cannot be sent to"):
                    await misplaced
                await asyncio.gather(good, placed)
                good = batcher.send_nowait(Message("T", b"x"), sharding_key="k")
                failed = batcher.send_nowait(Message("T", b"x"), selector=lambda queues: queues[99])
                with pytest.raises(IndexError):
                    await failed
                assert (await good).queue
                assert batcher.unanswered_count == 0
            with pytest.raises(ClientClosed, match="batcher is closed"):
                batcher.send_nowait(Message("T", b"x"))
            with pytest.raises(ConfigurationError, match="linger_s=0"):
                Batcher(producer, linger_s=0)

    run(test())


def test_what_is_unanswered_is_limited() -> None:
    async def test() -> None:
        async with FakeBroker() as broker:
            producer = Producer(broker.address, in_flight_bytes_max=10_000, retries=0, **LIMITS)
            async with producer:
                await producer.send(Message("T", b"first"))
                broker.answers = [None]
                async with Batcher(producer, linger_s=0.01) as batcher:
                    futures = [batcher.send_nowait(Message("T", bytes(1000))) for _ in range(10)]
                    with pytest.raises(TooManyPending, match="in_flight_bytes_max"):
                        batcher.send_nowait(Message("T", b"x"))
                    text = b"waits until there is no answer to the others"
                    waiting = asyncio.ensure_future(batcher.send(Message("T", text)))
                    await broker.wait_sent(2)
                    assert not waiting.done()
                    broker.server.abort_connections()
                    await waiting
                    failed = await asyncio.gather(*futures, return_exceptions=True)
                    assert not any(error.outcome_known for error in failed)  # type: ignore[union-attr]

    run(test())


def test_delayed_messages_go_alone() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, **LIMITS) as producer:
            async with Batcher(producer) as batcher:
                await asyncio.gather(
                    batcher.send_nowait(Message("T", b"x", delay_level=2)),
                    batcher.send_nowait(Message("T", b"y")),
                )
            assert {one.code for one in broker.sent} == {
                RequestCode.SEND_MESSAGE_V2,
                RequestCode.SEND_BATCH_MESSAGE,
            }

    run(test())


def test_closing_the_producer_sends_what_was_gathered(pymq_cluster: Cluster) -> None:
    async def test() -> None:
        async with Producer(pymq_cluster.name_server, **LIMITS) as producer:
            batcher = Batcher(producer, linger_s=3600)
            futures = [batcher.send_nowait(Message("T", b"%d" % n)) for n in range(10)]
            await producer.close(LIMITS["timeout_s"])
        assert all(future.done() for future in futures)
        with pytest.raises(ClientClosed):
            batcher.send_nowait(Message("T", b"x"))

    run(test())
    assert len(stored(pymq_cluster)) == 10


def test_threads_share_a_batcher(pymq_cluster: Cluster) -> None:
    receipts: dict[bytes, SendReceipt] = {}
    with (
        blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer,
        blocking.Batcher(producer, unanswered_max=300) as batcher,
    ):

        def work(name: bytes) -> None:
            bodies = [b"%s-%d" % (name, n) for n in range(1000)]
            futures = [batcher.send_nowait(Message("T", body)) for body in bodies]
            for body, future in zip(bodies, futures, strict=True):
                receipts[body] = future.result(60)
            receipts[name] = batcher.send(Message("T", name))

        threads = [threading.Thread(target=work, args=(b"t%d" % n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with pytest.raises(LocalProtocolError, match="expected a Message"):
            batcher.send_nowait("text").result(60)  # type: ignore[arg-type]
        batcher.flush()
        assert batcher.unanswered_count == 0
    assert len(receipts) == 4004
    check(pymq_cluster, receipts)


def test_the_loop_has_turns_while_a_thread_hands_over(
    pymq_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2000
    with (
        blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer,
        blocking.Batcher(producer) as batcher,
    ):
        producer.send(Message("T", b"first"))
        producer.queues("T")  # so that nobody else has to be asked later
        take, all_are_there = batcher._made._take, threading.Event()

        def take_slowly(*handed: Any) -> None:
            all_are_there.wait(60)
            time.sleep(0.001)
            take(*handed)

        monkeypatch.setattr(batcher._made, "_take", take_slowly)
        futures = [batcher.send_nowait(Message("T", b"%d" % number)) for number in range(count)]
        asked = producer._begin(producer._client.queues("T"))
        # In the loop: how soon this thread hears of the answer depends on the machine.
        were_taken = SimpleQueue[bool]()
        asked.add_done_callback(lambda _: were_taken.put(futures[-1].done()))
        all_are_there.set()
        assert asked.result(60)
        assert not were_taken.get(timeout=60), "only when it had taken everything"
        batcher.flush()
        assert all(future.done() for future in futures)
        check(pymq_cluster, {b"%d" % n: future.result() for n, future in enumerate(futures)})


def test_closing_a_blocking_producer_sends_what_was_handed_over(pymq_cluster: Cluster) -> None:
    with blocking.Producer(pymq_cluster.name_server, **LIMITS) as producer:
        producer.send(Message("T", b"first"))
        batcher = blocking.Batcher(producer)
        futures = [batcher.send_nowait(Message("T", b"%d" % number)) for number in range(20_000)]
        producer.close(LIMITS["timeout_s"])
    check(pymq_cluster, {b"%d" % n: future.result(1) for n, future in enumerate(futures)})


def test_nothing_acknowledged_is_lost_when_brokers_go_and_come_back() -> None:
    receipts: dict[bytes, SendReceipt] = {}
    failed: dict[bytes, PymqError] = {}

    async def one(batcher: Batcher, body: bytes, key: str | None) -> None:
        try:
            receipts[body] = await batcher.send(Message("T", body), sharding_key=key)
        except PymqError as error:
            failed[body] = error

    with Cluster(brokers=2) as cluster:

        async def test() -> None:
            async with (
                Producer(cluster.name_server, deadline_s=4.0) as producer,
                Batcher(producer, count_max=100) as batcher,
            ):
                await producer.queues("T")
                sending = []
                for round_ in range(4):
                    name = cluster.broker_names[round_ % 2]
                    await asyncio.to_thread(cluster.kill_broker, name)
                    for number in range(500):
                        key = f"k{number % 7}" if number % 2 else None
                        body = b"%d-%d" % (round_, number)
                        sending.append(asyncio.ensure_future(one(batcher, body, key)))
                        if number % 20 == 0:
                            await asyncio.sleep(0.005)
                    while round_ == 3 and not failed:
                        await asyncio.sleep(0.05)  # some sends end at their deadline
                    await asyncio.to_thread(cluster.start_broker, name)
                await asyncio.gather(*sending)

        run(test())
        found = {bytes(record.body) for record in stored(cluster).values()}
    assert len(receipts) + len(failed) == 2000
    assert set(receipts) <= found
    wrong = {body for body, error in failed.items() if error.outcome_known and body in found}
    assert not wrong, [failed[body] for body in wrong]
    assert failed and len(receipts) > 500


def test_what_waited_for_the_batch_before_until_its_deadline_was_surely_not_sent() -> None:
    async def test() -> None:
        async with FakeBroker() as broker:
            # Longer than this process may have to wait between two steps.
            producer = Producer(broker.address, deadline_s=3.0, timeout_s=60)
            async with producer, Batcher(producer, linger_s=0.001) as batcher:
                await producer.send(Message("T", b"first"), deadline_s=60)
                broker.answers = [None]
                ended: list[str] = []
                first = batcher.send_nowait(Message("T", b"x"), sharding_key="k")
                first.add_done_callback(lambda _: ended.append("first"))
                await broker.wait_sent(2)
                waiting = batcher.send_nowait(Message("T", b"y"), sharding_key="k")
                waiting.add_done_callback(lambda _: ended.append("waiting"))
                results = await asyncio.gather(first, waiting, return_exceptions=True)
                assert ended == ["first", "waiting"]
                known = [one.outcome_known for one in results if isinstance(one, PymqError)]
                assert known in ([False], [False, True])  # late, or in the last moment
                assert len(broker.sent) == 2 + (len(known) == 1)

    run(test())


def test_batches_that_wait_for_the_one_before_fail_when_the_producer_closes() -> None:
    async def test() -> None:
        async with FakeBroker() as broker:
            producer = Producer(broker.address, **LIMITS)
            async with producer:
                await producer.send(Message("T", b"first"))
                broker.answers = [None]
                batcher = Batcher(producer, count_max=2)
                futures = [
                    batcher.send_nowait(Message("T", b"%d" % n), sharding_key="k")
                    for n in range(6)
                ]
                await broker.wait_sent(2)
                await producer.close(timeout_s=0.1)
            async with asyncio.timeout(30):
                results = await asyncio.gather(*futures, return_exceptions=True)
                await batcher.close()
            assert len(broker.sent) == 2
            assert [type(one) for one in results] == 2 * [ConnectionFailed] + 4 * [ClientClosed]
            known = [one.outcome_known for one in results if isinstance(one, PymqError)]
            assert known == 2 * [False] + 4 * [True]

    run(test())


def test_what_was_gathered_meanwhile_goes_out_in_batches_of_the_right_size() -> None:
    async def test() -> None:
        async with FakeBroker() as broker, Producer(broker.address, **LIMITS) as producer:
            await producer.send(Message("T", b"first"))
            async with Batcher(producer, bytes_max=1000, count_max=5) as batcher:
                futures = [
                    batcher.send_nowait(Message("T", bytes(n % 300 + 1)), sharding_key="k")
                    for n in range(0, 4000, 40)
                ]
                await asyncio.gather(*futures)
            bodies = [bytes(one.body) for one in broker.sent[1:]]
            assert all(len(body) <= 1000 for body in bodies)
            assert all(1 <= len(decode_batch(body)) <= 5 for body in bodies)
            assert sum(len(decode_batch(body)) for body in bodies) == 100

    run(test())
