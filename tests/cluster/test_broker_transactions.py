"""Transactions over a real socket: prepare, commit, roll back, once, whatever happens."""

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import (
    Peer,
    connect,
    create_topic,
    fields,
    properties_sent,
    records,
    serve,
)
from tests.cluster.transactional import (
    COMMIT,
    PREPARED,
    ROLLBACK,
    UNKNOWN,
    Half,
    end,
    half_of,
    half_properties,
    prepare,
)

from pymq.broker import assembly
from pymq.broker.parts import Core, Feature, Site, Tables
from pymq.broker.transaction_feature import make_transactions
from pymq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame
from pymq.protocol.message import decode_properties
from pymq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GROUP
from pymq.protocol.record import NewRecord, Record
from pymq.store import FlushMode

OK, ERROR = ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR


async def stored(peer: Peer, topic: str, queue_id: int = 0) -> list[Record]:
    """Return all visible messages of a queue."""
    found: list[Record] = []
    while True:
        answer = await peer.pull(topic, len(found), queueId=queue_id)
        if answer.code != OK:
            return found
        found += records(answer)


async def bodies(peer: Peer, topic: str) -> list[bytes]:
    return [record.body for record in await stored(peer, topic)]


def test_a_half_message_waits_with_all_it_came_with(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        text = half_properties(1, "TAGS\x01a\x02KEYS\x01k")
        sent = await peer.send("T", b"body", sys_flag=PREPARED | 1, queue_id=3, properties=text)
        assert sent.code == OK
        assert (fields(sent)["queueId"], fields(sent)["queueOffset"]) == ("3", "0")
        assert fields(sent)["transactionId"] == "KEY1"
        (half,) = await stored(peer, HALF_TOPIC)
        assert (half.queue_id, half.sys_flag, half.body) == (0, 1, b"body")
        assert properties_sent(half) == {
            "TRAN_MSG": "true",
            "UNIQ_KEY": "KEY1",
            "WAIT": "true",
            "PGROUP": "pg",
            "TAGS": "a",
            "KEYS": "k",
            "__transactionId__": "KEY1",
            "REAL_TOPIC": "T",
            "REAL_QID": "3",
        }
        assert await stored(peer, "T", 3) == []

    serve(tmp_path, check)


@pytest.mark.parametrize("flush", list(FlushMode))
def test_a_committed_message_is_the_one_that_was_prepared(tmp_path: Path, flush: FlushMode) -> None:
    async def check(peer: Peer) -> None:
        properties = half_properties(1, "TAGS\x01a\x02")
        where = {"queue_id": 2, "flag": 7, "properties": properties}
        half = await prepare(peer, "T", b"body", 1, **where)
        answer = await end(peer, half, COMMIT)
        assert (answer.code, answer.remark) == (OK, None)
        (parked,) = await stored(peer, HALF_TOPIC)
        (committed,) = await stored(peer, "T", 2)
        assert committed == dataclasses.replace(
            parked,
            topic="T",
            queue_id=2,
            queue_offset=0,
            physical_offset=committed.physical_offset,
            store_timestamp=committed.store_timestamp,
            sys_flag=0x8,
            prepared_transaction_offset=half.physical_offset,
            size=committed.size,
        )
        tagged = await peer.pull("T", 0, queueId=2, subscription="a")
        assert [record.body for record in records(tagged)] == [b"body"]
        (op,) = await stored(peer, HALF_OP_TOPIC)
        assert (op.body, op.sys_flag) == (b"0", 0)
        assert decode_properties(op.properties) == {"TAGS": "d", "WAIT": "true"}
        assert op.physical_offset == committed.physical_offset + committed.size

    serve(tmp_path, check, flush=flush)


def test_a_rolled_back_message_is_never_seen(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        for number in range(3):
            half = await prepare(peer, "T", b"%d" % number, number)
            assert (await end(peer, half, ROLLBACK)).code == OK
        assert await stored(peer, "T") == []
        assert [op.body for op in await stored(peer, HALF_OP_TOPIC)] == [b"0", b"1", b"2"]

    serve(tmp_path, check)


def test_an_unknown_outcome_leaves_the_transaction_open(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        half = await prepare(peer, "T", b"x", 1)
        assert (await end(peer, half, UNKNOWN)).code == OK
        for decision in (4, 17, -1):
            refused = await end(peer, half, decision)
            assert refused.code == ResponseCode.SYSTEM_ERROR
            assert (refused.remark or "").startswith("commitOrRollback field wrong")
        assert await stored(peer, HALF_OP_TOPIC) == []
        await end(peer, half, COMMIT)
        assert await bodies(peer, "T") == [b"x"]

    serve(tmp_path, check)


@pytest.mark.parametrize("flush", list(FlushMode))
@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
def test_the_first_decision_wins(tmp_path: Path, first: int, flush: FlushMode) -> None:
    expected = [b"x"] if first == COMMIT else []

    async def check(peer: Peer) -> None:
        half = await prepare(peer, "T", b"x", 1)
        # All at once: some arrive while the first one is being written.
        decisions = [first, ROLLBACK, COMMIT, COMMIT, ROLLBACK]
        answers = await asyncio.gather(*(end(peer, half, one) for one in decisions))
        assert [answer.code for answer in answers] == [OK] * 5
        assert answers[0].remark is None
        assert all("ended before" in (answer.remark or "") for answer in answers[1:])
        assert "ended before" in ((await end(peer, half, COMMIT)).remark or "")
        assert await bodies(peer, "T") == expected
        assert len(await stored(peer, HALF_OP_TOPIC)) == 1

    serve(tmp_path, check, flush=flush)


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
def test_the_first_decision_wins_across_restarts(tmp_path: Path, first: int) -> None:
    halves: list[Half] = []

    async def begin(peer: Peer) -> None:
        halves.extend([await prepare(peer, "T", b"%d" % number, number) for number in range(5)])
        for number in (1, 3):
            await end(peer, halves[number], first)

    async def go_on(peer: Peer) -> None:
        for half in halves[:4]:
            assert (await end(peer, half, COMMIT)).code == OK
        await end(peer, halves[4], ROLLBACK)

    async def check(peer: Peer) -> None:
        for half in halves:
            await end(peer, half, COMMIT)
        expected = [b"1", b"3", b"0", b"2"] if first == COMMIT else [b"0", b"2"]
        assert await bodies(peer, "T") == expected
        assert len(await stored(peer, HALF_OP_TOPIC)) == 5

    for part in (begin, go_on, check):
        serve(tmp_path, part)


def test_cursors_follow_what_has_ended(tmp_path: Path) -> None:
    async def cursors(peer: Peer) -> list[int]:
        return [
            int(
                fields(
                    await peer.ask(
                        RequestCode.QUERY_CONSUMER_OFFSET,
                        consumerGroup=TRANSACTION_GROUP,
                        topic=topic,
                        queueId=0,
                    )
                )["offset"]
            )
            for topic in (HALF_TOPIC, HALF_OP_TOPIC)
        ]

    async def check(peer: Peer) -> None:
        halves = [await prepare(peer, "T", b"x", number) for number in range(4)]
        for number in (0, 3, 1):
            await end(peer, halves[number], ROLLBACK)
        deadline = time.monotonic() + 60
        # Of the ops the second one closes an offset above the first that is open.
        while await cursors(peer) != [2, 1]:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)

    serve(tmp_path, check)


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"producerGroup": "other"}, ERROR, "The producer group wrong"),
        ({"tranStateTableOffset": 7}, ERROR, "The transaction state table offset wrong"),
        ({"commitLogOffset": 1}, ERROR, "Find prepared transaction message failed"),
        ({"commitLogOffset": -1}, ERROR, "Find prepared transaction message failed"),
        ({"commitLogOffset": 1 << 50}, ERROR, "Find prepared transaction message failed"),
        ({"commitLogOffset": "x"}, ERROR, "commitLogOffset"),
        ({"producerGroup": None}, ERROR, "producerGroup"),
    ],
)
def test_ends_of_other_transactions(
    tmp_path: Path, changes: dict[str, Any], code: int, remark: str
) -> None:
    async def check(peer: Peer) -> None:
        half = await prepare(peer, "T", b"x", 1)
        asked: dict[str, Any] = {
            "producerGroup": "pg",
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.physical_offset,
            "commitOrRollback": COMMIT,
        }
        asked |= changes
        given = {name: value for name, value in asked.items() if value is not None}
        answer = await peer.ask(RequestCode.END_TRANSACTION, **given)
        assert answer.code == code
        assert remark in (answer.remark or "")
        assert await stored(peer, HALF_OP_TOPIC) == []

    serve(tmp_path, check)


def test_a_message_that_is_not_a_half_message_cannot_be_committed(tmp_path: Path) -> None:
    """The committed message has all that RocketMQ looks at, and would be committed again."""

    async def check(peer: Peer) -> None:
        await end(peer, await prepare(peer, "T", b"x", 1), COMMIT)
        (committed,) = await stored(peer, "T")
        again = Half(committed.queue_offset, committed.physical_offset)
        answer = await end(peer, again, COMMIT)
        assert answer.code == ERROR
        assert answer.remark == "Find prepared transaction message failed"
        assert await bodies(peer, "T") == [b"x"]

    serve(tmp_path, check)


def test_an_end_after_the_time_that_the_message_gave_is_refused(tmp_path: Path) -> None:
    immune = half_properties(1, "CHECK_IMMUNITY_TIME_IN_SECONDS\x011\x02")

    async def check(peer: Peer) -> None:
        now = int(time.time() * 1000)
        for born, decision, checked, code in (
            (now - 3_000, COMMIT, False, ResponseCode.ILLEGAL_OPERATION),
            (now - 3_000, ROLLBACK, False, ResponseCode.ILLEGAL_OPERATION),
            (now - 3_000, COMMIT, True, OK),
            (now + 60_000, COMMIT, False, OK),
        ):
            half = await prepare(peer, "T", b"x", 1, properties=immune, born_timestamp=born)
            answer = await end(peer, half, decision, fromTransactionCheck=checked)
            assert answer.code == code
        # Without the property it is never too late.
        half = await prepare(peer, "T", b"x", 2, born_timestamp=1)
        assert (await end(peer, half, COMMIT)).code == OK

    serve(tmp_path, check, transaction_timeout_ms=2_000)


def test_a_one_way_end_is_not_answered(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        half = await prepare(peer, "T", b"x", 1)
        asked = {
            "producerGroup": "pg",
            "tranStateTableOffset": str(half.queue_offset),
            "commitLogOffset": str(half.physical_offset),
            "commitOrRollback": str(COMMIT),
        }
        one_way = Command(RequestCode.END_TRANSACTION, asked, flag=CommandFlag.ONE_WAY)
        peer.channel.send(encode_frame(one_way))
        assert (await end(peer, half, ROLLBACK)).remark  # it came second
        assert await bodies(peer, "T") == [b"x"]

    serve(tmp_path, check)


def test_what_cannot_be_prepared(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        nobody = await peer.send("T", b"x", sys_flag=PREPARED, properties="TRAN_MSG\x01true\x02")
        assert nobody.code == ResponseCode.MESSAGE_ILLEGAL
        assert "PGROUP" in (nobody.remark or "")
        inner = await peer.send("T", b"x", sys_flag=0x84, properties=half_properties(1))
        assert inner.code == ResponseCode.MESSAGE_ILLEGAL
        assert await stored(peer, HALF_TOPIC) == []

    serve(tmp_path, check)


def test_a_broker_that_rejects_transactions(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        answer = await peer.send("T", b"x", sys_flag=PREPARED, properties=half_properties(1))
        assert answer.code == ResponseCode.NO_PERMISSION
        expected = "the broker[127.0.0.1] sending transaction message is forbidden"
        assert answer.remark == expected
        assert (await peer.send("T", b"y", properties="TRAN_MSG\x01false\x02")).code == OK

    serve(tmp_path, check, reject_transactions=True)


def test_a_committed_message_may_be_a_delayed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Mapping[str, str]] = []

    def delay(record: NewRecord, properties: Mapping[str, str]) -> NewRecord:
        seen.append(properties)
        return dataclasses.replace(record, topic="LATER", queue_id=1)

    def add(site: Site, tables: Tables, core: Core) -> Feature:
        core.hooks.add("TIMER_DELAY_MS", delay)
        return Feature()

    monkeypatch.setattr(assembly, "MASTER_FEATURES", [make_transactions, add])

    async def check(peer: Peer) -> None:
        await create_topic(peer, "LATER", queues=2)
        properties = half_properties(1, "TIMER_DELAY_MS\x019\x02TAGS\x01a\x02")
        half = await prepare(peer, "T", b"x", 1, properties=properties)
        assert await stored(peer, "LATER", 1) == []
        assert seen == []
        await end(peer, half, COMMIT)
        (later,) = await stored(peer, "LATER", 1)
        assert (later.sys_flag, later.prepared_transaction_offset) == (8, half.physical_offset)
        kept = decode_properties(later.properties)
        assert kept["TIMER_DELAY_MS"] == "9"
        assert not kept.keys() & {"TRAN_MSG", "REAL_TOPIC", "REAL_QID"}
        assert await stored(peer, "T") == []

    serve(tmp_path, check)


def test_an_end_whose_half_message_is_read_from_the_disk(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        half = await prepare(peer, "T", b"x" * 5000, 1)
        for number in range(3):
            await peer.send("T", bytes(100_000), queue_id=1, properties=f"KEYS\x01{number}")
        answers = await asyncio.gather(*(end(peer, half, COMMIT) for _ in range(3)))
        assert [answer.code for answer in answers] == [OK] * 3
        assert (await end(peer, Half(0, half.physical_offset + 1), COMMIT)).code == ERROR
        assert await bodies(peer, "T") == [b"x" * 5000]

    serve(tmp_path, check, memory_bytes=10_000)


def test_producers_end_each_others_transactions(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        other = await connect(peer.broker)
        try:
            half = await prepare(peer, "T", b"x", 1)
            assert (await end(other, half, COMMIT)).code == OK
        finally:
            other.channel.close()
        assert await bodies(peer, "T") == [b"x"]

    serve(tmp_path, check)


def test_the_property_counts_also_without_the_flag_and_among_others(tmp_path: Path) -> None:
    """As in RocketMQ, which looks at the property alone; many sends arrive together."""

    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        answers = await asyncio.gather(
            *(
                peer.send(
                    "T",
                    b"%d" % number,
                    queue_id=0,
                    properties=half_properties(number) if number % 3 == 0 else "KEYS\x01k",
                )
                for number in range(60)
            )
        )
        assert [answer.code for answer in answers] == [OK] * 60
        halves = [int(body) for body in await bodies(peer, HALF_TOPIC)]
        assert halves == list(range(0, 60, 3))
        plain = [int(body) for body in await bodies(peer, "T")]
        assert plain == [number for number in range(60) if number % 3]
        await end(peer, half_of(answers[3]), COMMIT)
        assert (await bodies(peer, "T"))[-1] == b"3"

    serve(tmp_path, check)
