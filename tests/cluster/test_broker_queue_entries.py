"""Entries of consume queues, asked over a socket as tools do."""

import json
from pathlib import Path

import pytest
from tests.cluster.broker_peer import Peer, serve
from tests.cluster.test_broker_groups import consumer

from pymq.broker.handlers.queue_entries import bits_text
from pymq.protocol.admin_bodies import QueueEntries
from pymq.protocol.bodies import ConsumerData, Subscription
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.hashes import java_hash


async def _entries(peer: Peer, first: int, count: int, group: str | None = None) -> QueueEntries:
    more = {} if group is None else {"consumerGroup": group}
    answer = await peer.ask(
        RequestCode.QUERY_CONSUME_QUEUE, topic="T", queueId=0, index=first, count=count, **more
    )
    assert answer.code == ResponseCode.SUCCESS
    return QueueEntries.decode(answer.body)


def test_entries_are_shown(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.heartbeat("c1", consumer("g", "T"))
        for tag in ("a", "b", "a"):
            await peer.send("T", b"x", properties=f"TAGS\x01{tag}\x02")
        body = await _entries(peer, 1, 10)
        assert (body.min_offset, body.max_offset, body.subscription) == (0, 3, None)
        assert [entry.tag_code for entry in body.entries] == [java_hash("b"), java_hash("a")]
        first, second = body.entries
        assert second.physical_offset == first.physical_offset + first.size
        assert (first.unit, first.bit_map, first.remark, first.is_wanted) == (None,) * 3 + (False,)
        assert len((await _entries(peer, 0, 2)).entries) == 2
        body = await _entries(peer, 0, 1, "g")
        assert body.subscription is not None and body.subscription.expression == "*"
        assert body.filter == "null"
        body = await _entries(peer, 0, 1, "away")
        assert (body.subscription, body.filter) == (None, "away@T is not online!")

    serve(tmp_path, check)


def test_what_is_not_there(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x")
        query = RequestCode.QUERY_CONSUME_QUEUE
        for queue_id, topic in ((9, "T"), (0, "none")):
            answer = await peer.ask(query, topic=topic, queueId=queue_id, index=0, count=1)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert answer.remark == f"{queue_id}@{topic} is not exist!"
        for index in (-1, 1, 100):
            answer = await peer.ask(query, topic="T", queueId=0, index=index, count=1)
            assert (answer.code, bytes(answer.body)) == (ResponseCode.SUCCESS, b"")
            assert answer.remark == f"Index {index} of 0@T is not exist!"
        for fields in ({}, {"topic": "T"}, {"topic": "T", "queueId": "x", "index": 0, "count": 1}):
            assert (await peer.ask(query, **fields)).code == ResponseCode.SYSTEM_ERROR

    serve(tmp_path, check)


def test_units_of_the_extension_are_shown(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        sql = Subscription(topic="T", expression="c > 1", expression_type="SQL92", version=1)
        await peer.heartbeat("c1", ConsumerData(group="sql", subscriptions=[sql]))
        await peer.heartbeat("c1", consumer("tags", "T"))
        for number in (1, 2):
            await peer.send("T", b"x", properties=f"TAGS\x01a\x02c\x01{number}\x02")
        body = await _entries(peer, 0, 10, "sql")
        assert json.loads(body.filter or "")["expression"] == "c > 1"
        assert [entry.is_wanted for entry in body.entries] == [False, True]
        for entry in body.entries:
            unit = json.loads(entry.unit or "")
            assert unit["tagsCode"] == java_hash("a")
            assert list(unit) == sorted(unit)
            assert entry.bit_map is not None and set(entry.bit_map) <= set("01\n")
            assert len(entry.bit_map.replace("\n", "")) == 8 * unit["bitMapSize"]
        assert [entry.is_wanted for entry in (await _entries(peer, 0, 9, "tags")).entries] == [
            True,
            True,
        ]

    serve(
        tmp_path,
        check,
        store={"queue_extension": True},
        property_filter=True,
        bit_maps=True,
    )


@pytest.mark.parametrize(
    ("bit_map", "text"),
    [
        (b"\x01", "00000001\n"),
        (b"\x01\x80", "1000000000000001\n"),
        (bytes(range(9)), "00001000\n" + "".join(f"{n:08b}" for n in range(7, -1, -1)) + "\n"),
    ],
)
def test_bit_maps_are_written_as_rocketmq_does(bit_map: bytes, text: str) -> None:
    assert bits_text(bit_map) == text
