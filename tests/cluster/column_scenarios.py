"""What columns must do against any broker: run against ours and against real ones.

Every scenario takes a name server's address and the name of a topic of four queues that nobody
used before.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.cluster.scenarios import AWKWARD_TEXT, DEADLINE_S, TIMEOUT_S, TWIN_TAGS

from pymq import (
    BlockingClient,
    ColumnBatch,
    Message,
    MessageQueue,
    OffsetOutOfRange,
    Producer,
    PullConsumer,
    Reader,
    selectors,
)

COUNT = 500


def body(number: int) -> bytes:
    return b"%d-" % number + b"x" * (number % 97)


def table() -> dict[str, Any]:
    return {
        "body": [body(n) for n in range(COUNT)],
        "tags": [TWIN_TAGS[n % 2] if n % 3 else None for n in range(COUNT)],
        "keys": [[f"k{n}", "common"] for n in range(COUNT)],
        "properties": [{"n": str(n), "text": AWKWARD_TEXT} for n in range(COUNT)],
        "flag": [n - 7 for n in range(COUNT)],
    }


async def read_all(name_server: str, topic: str, **arguments: Any) -> list[ColumnBatch]:
    async with Reader(name_server, deadline_s=DEADLINE_S) as reader:
        return [batch async for batch in reader.read(topic, **arguments)]


async def wait_shown(name_server: str, topic: str, count: int) -> None:
    """Wait until so many messages can be read: RocketMQ's brokers acknowledge a moment before."""
    async with Reader(name_server) as reader, asyncio.timeout(DEADLINE_S):
        while sum([len(batch) async for batch in reader.read(topic)]) < count:
            await asyncio.sleep(0.05)


async def a_table_is_stored_and_read_back(name_server: str, topic: str) -> None:
    """What was sent is what single messages would be; receipts say where each row is."""
    async with Producer(name_server, timeout_s=TIMEOUT_S) as producer:
        sent = table()
        receipts = await producer.send_columns(sent, topic=topic)
        single = await producer.send(Message(topic, b"z" * 10_000, keys="single"))  # compressed
    assert len(receipts) == COUNT and receipts.is_stored.all()
    assert set(receipts.status) == {"SEND_OK"} and len(set(receipts.message_id)) == COUNT
    await wait_shown(name_server, topic, COUNT + 1)
    got: dict[str, tuple[Any, ...]] = {}
    for batch in await read_all(name_server, topic):
        assert np.array_equal(
            batch["queue_offset"], np.arange(batch.first, batch.first + len(batch))
        )
        columns = [
            batch["message_id"].strings(),
            list(batch["body"]),
            batch["tags"].strings(),
            batch["keys"].strings(),
            batch["flag"].tolist(),
            batch["queue_offset"].tolist(),
            batch["queue_id"].tolist(),
            batch["broker_name"].tolist(),
        ]
        now = np.datetime64(datetime.now(UTC).replace(tzinfo=None), "ms")
        ago = now - np.timedelta64(3600, "s")
        assert ((batch["store_timestamp"] > ago) & (batch["store_timestamp"] <= now)).all()
        arrow = batch.to_arrow("message_id", "body", "tags", "topic", "properties")
        assert arrow.column("message_id").to_pylist() == columns[0]
        assert arrow.column("body").to_pylist() == columns[1]
        assert arrow.column("tags").to_pylist() == columns[2]
        assert set(arrow.column("topic").to_pylist()) == {topic}
        maps = [dict(one) for one in arrow.column("properties").to_pylist()]
        for row in zip(*columns, maps, strict=True):
            got[row[0]] = row
    assert len(got) == COUNT + 1
    for n in range(COUNT):
        row = got[receipts.message_id[n].decode()]
        assert row[1:5] == (body(n), sent["tags"][n], f"k{n} common", n - 7)
        assert row[5:8] == (
            receipts.queue_offset[n],
            receipts.queue_id[n],
            receipts.broker_name[n],
        )
        assert {name: row[8][name] for name in ("n", "text")} == sent["properties"][n]
    assert got[single.message_id][1] == b"z" * 10_000


async def batches_follow_the_polls(name_server: str, topic: str) -> None:
    """Batches and polls alternate without loss; tags are told apart; commits are those of polls."""
    async with Producer(name_server, timeout_s=TIMEOUT_S) as producer:
        await producer.send_columns(table(), topic=topic)
        queues = await producer.queues(topic)
    await wait_shown(name_server, topic, COUNT)  # also those at the ends that are not wanted
    consumer = PullConsumer(name_server, f"g-{topic}", from_where="earliest", timeout_s=TIMEOUT_S)
    got: list[bytes] = []
    async with consumer.assign(queues, f"{TWIN_TAGS[0]} || other"):
        wanted = [body(n) for n in range(COUNT) if n % 3 and n % 2 == 0]
        async with asyncio.timeout(DEADLINE_S):
            got += [one.body for one in await consumer.poll(5, 10)]
            async for batch in consumer.batches():
                assert set(batch["tags"].strings()) == {TWIN_TAGS[0]}
                got += list(batch["body"])
                got += [one.body for one in await consumer.poll(3, 0)]
                if len(got) >= len(wanted):
                    break
        assert sorted(got) == sorted(wanted)
        await consumer.commit()
        assert sum(offset or 0 for offset in (await consumer.committed()).values()) == COUNT


async def ranges_are_exact(name_server: str, topic: str) -> None:
    """Offsets, times, single queues; what is not there is an error."""
    queues: list[MessageQueue] = []
    async with Producer(name_server, timeout_s=TIMEOUT_S) as producer:
        queues = await producer.queues(topic)
        for queue in queues:
            await producer.send_batch([Message(topic, body(n)) for n in range(100)], queue=queue)
        await asyncio.sleep(0.05)  # so that the times of the two halves differ
        receipt = await producer.send(Message(topic, b"middle"), queue=queues[0])
        await asyncio.sleep(0.05)
        for queue in queues:
            await producer.send_batch([Message(topic, body(n)) for n in range(50)], queue=queue)
    await wait_shown(name_server, topic, 150 * len(queues) + 1)
    part = await read_all(name_server, topic, start=10, end=60)
    found: dict[int, list[int]] = defaultdict(list)
    for batch in part:
        found[batch.queue.queue_id] += batch["queue_offset"].tolist()
    assert found == {queue.queue_id: list(range(10, 60)) for queue in queues}

    one = queues[0]
    (middle,) = await read_all(
        name_server, topic, start={one: receipt.queue_offset}, end={one: receipt.queue_offset + 1}
    )
    assert list(middle["body"]) == [b"middle"]
    at = middle["store_timestamp"][0].astype(datetime).replace(tzinfo=UTC)
    late = await read_all(name_server, topic, start=at)
    assert sum(map(len, late)) == 1 + 50 * len(queues)
    early = await read_all(name_server, topic, end=at)
    assert sum(map(len, early)) == 100 * len(queues)
    beyond = await read_all(name_server, topic, end=at + timedelta(hours=1))
    assert sum(map(len, beyond)) == 150 * len(queues) + 1
    assert await read_all(name_server, topic, start="last") == []
    with pytest.raises(OffsetOutOfRange, match="holds 0 up to"):
        await read_all(name_server, topic, start=0, end=1000)


async def rows_of_a_key_keep_their_queue_and_order(name_server: str, topic: str) -> None:
    """As single sends with the same key."""
    keys = [f"key-{n % 11}" if n % 5 else None for n in range(COUNT)]
    async with Producer(name_server, timeout_s=TIMEOUT_S) as producer:
        by_key = {
            key: (await producer.send(Message(topic, b"first"), sharding_key=key)).queue
            for key in {key for key in keys if key}
        }
        queues = await producer.queues(topic)
        for key, queue in by_key.items():
            assert selectors.by_hash(key)(queues) == queue
        receipts = await producer.send_columns(
            pa.table({"body": [body(n) for n in range(COUNT)], "sharding_key": keys}), topic=topic
        )
    for key, queue in by_key.items():
        rows = [n for n in range(COUNT) if keys[n] == key]
        assert set(receipts.queue_id[rows]) == {queue.queue_id}
        offsets = receipts.queue_offset[rows]
        assert (np.diff(offsets) > 0).all()
    await wait_shown(name_server, topic, COUNT + len(by_key))
    with BlockingClient(name_server) as client:
        bounds = client.bounds(queues)
    assert sum(end - first for first, end in bounds.values()) == COUNT + len(by_key)


ALL: tuple[Callable[[str, str], object], ...] = (
    a_table_is_stored_and_read_back,
    batches_follow_the_polls,
    ranges_are_exact,
    rows_of_a_key_keep_their_queue_and_order,
)
