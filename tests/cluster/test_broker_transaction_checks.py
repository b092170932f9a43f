"""Checks of transactions: who is asked, when, how often, and what becomes of the answers."""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import (
    DEADLINE_S,
    HOST,
    Peer,
    connect,
    fields,
    put_record,
    records,
    serve,
)
from tests.cluster.test_delayed_messages import Later
from tests.cluster.transactional import (
    COMMIT,
    GROUP,
    PREPARED,
    ROLLBACK,
    UNKNOWN,
    Check,
    checks,
    end,
    half_properties,
    join,
    prepare,
    wait_for_checks,
)

from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.message import decode_properties
from pymq.protocol.names import CHECK_MAX_TIME_TOPIC, HALF_OP_TOPIC, HALF_TOPIC, TRANSACTION_GROUP
from pymq.protocol.record import PROPERTIES_BYTES_MAX, NewRecord, Record, offset_message_id
from pymq.protocol.transaction_records import half_record
from pymq.store import FlushMode

OK = ResponseCode.SUCCESS
#: For what comes, however busy the machine.
LIMIT_S = DEADLINE_S / 2


def serve_quickly(path: Path, check: Callable[[Peer], Awaitable[None]], **settings: Any) -> None:
    """Run a broker that checks every 0.1 s what is 0.3 s old."""
    quick = {"transaction_check_interval_ms": 100, "transaction_timeout_ms": 300}
    serve(path, check, **quick | settings)


async def settled(peer: Peer) -> int:
    """Return how many checks a producer has got, once a round has brought no more."""
    before, known = -1, len(checks(peer))
    while known != before:
        await asyncio.sleep(0.3)
        before, known = known, len(checks(peer))
    return known


def now_ms() -> int:
    return int(time.time() * 1000)


async def stored(peer: Peer, topic: str, queue_id: int = 0) -> list[Record]:
    found: list[Record] = []
    while True:
        answer = await peer.pull(topic, len(found), queueId=queue_id)
        if answer.code != OK:
            return found
        found += records(answer)


async def cursor(peer: Peer, topic: str = HALF_TOPIC) -> int:
    group = TRANSACTION_GROUP
    code = RequestCode.QUERY_CONSUMER_OFFSET
    return int(fields(await peer.ask(code, consumerGroup=group, topic=topic, queueId=0))["offset"])


@pytest.mark.parametrize("flush", list(FlushMode))
def test_a_producer_is_asked_about_the_message_as_it_was_sent(
    tmp_path: Path, flush: FlushMode
) -> None:
    async def check(peer: Peer) -> None:
        await join(peer)
        born = now_ms()
        properties = half_properties(1, "TAGS\x01a\x02")
        half = await prepare(
            peer, "T", b"body", 1, queue_id=2, flag=7, born_timestamp=born, properties=properties
        )
        (asked, *_) = await wait_for_checks(peer, 1)
        assert now_ms() - born >= 300
        assert asked.half.queue_offset == half.queue_offset + 1
        record = asked.record
        assert (record.topic, record.queue_id, record.body, record.flag) == ("T", 2, b"body", 7)
        assert (record.queue_offset, record.physical_offset, record.born_timestamp) == (
            asked.half.queue_offset,
            asked.half.physical_offset,
            born,
        )
        sent = decode_properties(properties.encode()) | {"WAIT": "false"}
        kept = decode_properties(record.properties)
        assert kept.items() >= sent.items()
        assert kept["TRANSACTION_CHECK_TIMES"] == "1"
        assert asked.fields == {
            "topic": HALF_TOPIC,
            "tranStateTableOffset": str(asked.half.queue_offset),
            "commitLogOffset": str(asked.half.physical_offset),
            "msgId": "KEY1",
            "transactionId": "KEY1",
            "offsetMsgId": offset_message_id(record.store_host, record.physical_offset),
            "bname": "broker-a",
        }
        await end(peer, asked.half, COMMIT, fromTransactionCheck=True)
        (committed,) = await stored(peer, "T", 2)
        assert committed.prepared_transaction_offset == asked.half.physical_offset
        assert (committed.body, committed.flag, committed.sys_flag) == (b"body", 7, 8)

    serve_quickly(tmp_path, check, flush=flush)


def test_every_check_counts_and_names_a_new_place(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await join(peer)
        await prepare(peer, "T", b"x", 1, born_timestamp=now_ms())
        asked = await wait_for_checks(peer, 4)
        numbers = [decode_properties(one.record.properties) for one in asked[:4]]
        assert [one["TRANSACTION_CHECK_TIMES"] for one in numbers] == ["1", "2", "3", "4"]
        assert [one.half.queue_offset for one in asked[:4]] == [1, 2, 3, 4]
        assert (await end(peer, asked[3].half, UNKNOWN)).code == OK
        await wait_for_checks(peer, 5)
        # Any of its places may be named, and then it is checked no more.
        assert (await end(peer, asked[1].half, ROLLBACK)).remark is None
        known = await settled(peer)
        for one in checks(peer):
            assert "ended before" in ((await end(peer, one.half, COMMIT)).remark or "")
        await asyncio.sleep(0.5)
        assert len(checks(peer)) == known
        assert await stored(peer, "T") == []

    serve_quickly(tmp_path, check, transaction_check_max=1_000)


def test_what_has_ended_or_is_young_is_not_checked(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await join(peer)
        for number in range(5):
            half = await prepare(peer, "T", b"x", number, born_timestamp=now_ms())
            await end(peer, half, ROLLBACK if number % 2 else COMMIT)
        # Not before: all of them were to end before they were old enough.
        quick = await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"transactionTimeOut=300")
        assert quick.code == OK
        old = await prepare(peer, "T", b"x", 5, born_timestamp=now_ms())
        await asyncio.sleep(0.6)
        await prepare(peer, "T", b"x", 6, born_timestamp=now_ms() + 4_000)
        await wait_for_checks(peer, 3)
        await end(peer, old, ROLLBACK)
        assert {one.fields["msgId"] for one in checks(peer)} <= {"KEY5", "KEY6"}

    serve_quickly(tmp_path, check, transaction_timeout_ms=60_000, allow_config_update=True)


def test_a_message_born_in_the_future_is_checked_at_once(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await join(peer)
        await prepare(peer, "T", b"x", 1, born_timestamp=now_ms() + 60_000)
        await wait_for_checks(peer, 1)

    serve_quickly(tmp_path, check, transaction_timeout_ms=30_000)


async def checks_of(peer: Peer, message_id: str, *, count: int = 1) -> list[Check]:
    """Return at least this many checks of one transaction."""
    asked: list[Check] = []
    async with asyncio.timeout(LIMIT_S):
        while len(asked) < count:
            await asyncio.sleep(0.05)
            asked = [one for one in checks(peer) if one.fields["msgId"] == message_id]
    return asked


def test_an_immunity_time_of_its_own_counts_instead(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await join(peer)
        early = half_properties(2, "CHECK_IMMUNITY_TIME_IN_SECONDS\x010\x02")
        await prepare(peer, "T", b"x", 2, properties=early, born_timestamp=now_ms())
        (soon, *_) = await checks_of(peer, "KEY2")
        await end(peer, soon.half, ROLLBACK, fromTransactionCheck=True)
        # Immune for longer than a busy machine takes for the first look at it.
        born = now_ms()
        immune = half_properties(1, "CHECK_IMMUNITY_TIME_IN_SECONDS\x014\x02")
        half = await prepare(peer, "T", b"x", 1, properties=immune, born_timestamp=born)
        asked = await checks_of(peer, "KEY1")
        assert now_ms() - born >= 4_000
        kept = decode_properties(asked[0].record.properties)
        assert kept["TRANSACTION_CHECK_TIMES"] == "1"
        assert kept["TRAN_PREPARED_QUEUE_OFFSET"] == str(half.queue_offset)
        await end(peer, half, COMMIT, fromTransactionCheck=True)
        assert [one.body for one in await stored(peer, "T")] == [b"x"]

    serve_quickly(tmp_path, check, transaction_timeout_ms=60_000)


def test_the_end_of_an_immune_message_names_its_first_place(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await join(peer)
        immune = half_properties(1, "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02")
        half = await prepare(peer, "T", b"x", 1, properties=immune, born_timestamp=now_ms())
        async with asyncio.timeout(LIMIT_S):
            while len(await stored(peer, HALF_TOPIC)) < 4:
                await asyncio.sleep(0.05)
        for copy in (await stored(peer, HALF_TOPIC))[1:]:
            kept = decode_properties(copy.properties)
            assert kept["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
            assert "TRANSACTION_CHECK_TIMES" not in kept
        assert (await end(peer, half, COMMIT)).code == OK
        assert [one.body for one in await stored(peer, "T")] == [b"x"]
        await asyncio.sleep(0.2)  # a copy that was being written is there
        count = len(await stored(peer, HALF_TOPIC))
        await asyncio.sleep(0.4)
        assert len(await stored(peer, HALF_TOPIC)) == count
        assert checks(peer) == []

    serve_quickly(tmp_path, check)


def test_after_too_many_checks_a_message_is_moved_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(peer: Peer) -> None:
        await join(peer)
        await prepare(peer, "T", b"x", 1, born_timestamp=now_ms(), flag=9)
        async with asyncio.timeout(LIMIT_S):
            while not (moved := await stored(peer, CHECK_MAX_TIME_TOPIC)):
                await asyncio.sleep(0.05)
        (record,) = moved
        assert (record.body, record.flag, record.sys_flag) == (b"x", 9, 0)
        kept = decode_properties(record.properties)
        assert (kept["TRANSACTION_CHECK_TIMES"], kept["REAL_TOPIC"]) == ("3", "T")
        await asyncio.sleep(0.5)
        assert len(checks(peer)) == 3
        assert len(await stored(peer, CHECK_MAX_TIME_TOPIC)) == 1
        async with asyncio.timeout(LIMIT_S):
            while await cursor(peer) != 4:
                await asyncio.sleep(0.05)
        assert "is moved to topic TRANS_CHECK_MAX_TIME_TOPIC" in caplog.text

    with caplog.at_level(logging.ERROR):
        serve_quickly(tmp_path, check, transaction_check_max=3, transaction_timeout_ms=0)


def test_a_message_older_than_files_are_kept_is_moved_away_unasked(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await join(peer)
        await prepare(peer, "T", b"x", 1, born_timestamp=now_ms() - 3_700_000)
        async with asyncio.timeout(LIMIT_S):
            while not await stored(peer, CHECK_MAX_TIME_TOPIC):
                await asyncio.sleep(0.05)
        assert checks(peer) == []

    serve_quickly(tmp_path, check, store={"reserved_hours": 1})


def test_producers_come_and_go(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def check(peer: Peer) -> None:
        await join(peer, group="another")
        await prepare(peer, "T", b"x", 1, born_timestamp=now_ms())
        async with asyncio.timeout(LIMIT_S):
            while len(await stored(peer, HALF_TOPIC)) < 3:
                await asyncio.sleep(0.05)
        assert checks(peer) == []
        assert "no producer of the group is connected" in caplog.text
        first = await connect(peer.broker)
        await join(first, "first")
        await wait_for_checks(first, 1)
        second = await connect(peer.broker)
        await join(second, "second")
        known = len(checks(first))
        await wait_for_checks(second, 2)
        await wait_for_checks(first, known + 2)  # each in its turn
        first.channel.close()
        known = len(checks(second))
        asked = await wait_for_checks(second, known + 3)
        await end(second, asked[-1].half, COMMIT, fromTransactionCheck=True)
        second.channel.close()
        assert [one.body for one in await stored(peer, "T")] == [b"x"]

    with caplog.at_level(logging.WARNING):
        serve_quickly(tmp_path, check, transaction_check_max=1000)


def test_thousands_of_open_transactions(tmp_path: Path) -> None:
    count = 3_000

    async def check(peer: Peer) -> None:
        await join(peer)
        born = now_ms()
        for start in range(0, count, 500):
            await asyncio.gather(
                *(
                    prepare(peer, "T", b"%d" % number, number, born_timestamp=born)
                    for number in range(start, start + 500)
                )
            )
        async with asyncio.timeout(LIMIT_S):  # on a slow machine some are checked twice meanwhile
            while len({one.fields["msgId"] for one in checks(peer)}) < count:
                await asyncio.sleep(0.1)
        newest = {one.fields["msgId"]: one.half for one in checks(peer)}
        assert len(newest) == count
        for start in range(0, count, 500):
            some = list(newest.values())[start : start + 500]
            await asyncio.gather(*(end(peer, half, COMMIT) for half in some))
        found = await stored(peer, "T")
        assert sorted(int(one.body) for one in found) == list(range(count))
        async with asyncio.timeout(LIMIT_S):
            while await cursor(peer) < len(await stored(peer, HALF_TOPIC)):
                await asyncio.sleep(0.1)
        assert await cursor(peer, HALF_OP_TOPIC) == len(await stored(peer, HALF_OP_TOPIC))

    serve_quickly(
        tmp_path,
        check,
        transaction_timeout_ms=1_000,
        transaction_check_interval_ms=1_500,
        transaction_check_max=1_000,
        fast_failure=False,  # a machine that is slower than these sends is no reason
    )


def padded(number: int, pad: int, more: str = "") -> str:
    return half_properties(number, f"{more}pad\x01{'x' * pad}\x02")


@pytest.mark.parametrize("more", ["", "CHECK_IMMUNITY_TIME_IN_SECONDS\x011\x02"])
@pytest.mark.parametrize("record_crc", [False, True])
def test_a_message_whose_properties_leave_no_room_for_checks_is_refused(
    tmp_path: Path, more: str, record_crc: bool
) -> None:
    async def check(peer: Peer) -> None:
        await join(peer)

        async def refused_by(pad: int) -> int:
            answer = await peer.send(
                "T", b"x", sys_flag=PREPARED, properties=padded(1, pad, more),
                born_timestamp=now_ms(),
            )  # fmt: skip
            if answer.code == OK:
                return 0
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            found = re.search(r"(\d+) B more than .* shorten them", answer.remark or "")
            assert found is not None, answer
            return int(found[1])

        pad = 32_600 - len(more)
        excess = await refused_by(pad)
        assert excess > 0
        assert await refused_by(pad - excess + 1) == 1
        assert await refused_by(pad - excess) == 0
        # All its copies find room, also the last ones.
        async with asyncio.timeout(LIMIT_S):
            while not await stored(peer, CHECK_MAX_TIME_TOPIC):
                await asyncio.sleep(0.05)
        assert len(checks(peer)) == 11

    serve_quickly(
        tmp_path, check, transaction_check_max=11, store={"append_record_crc": record_crc}
    )


def put_half(root: Path, body: bytes, properties: str) -> None:
    """Store a half message that another broker has taken."""
    sent = NewRecord("T", 0, body, properties.encode(), HOST, now_ms())
    put_record(root, half_record(sent, decode_properties(sent.properties)))


async def check_hundred(peer: Peer) -> None:
    """Have a producer asked about a hundred transactions."""
    await join(peer)
    born = now_ms()
    for number in range(100):
        await prepare(peer, "T", b"x", number, born_timestamp=born)
    async with asyncio.timeout(LIMIT_S):
        while len({one.fields["msgId"] for one in checks(peer)}) < 100:
            await asyncio.sleep(0.1)


def test_a_half_message_that_no_copy_has_room_for_is_moved_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = half_record(NewRecord("T", 0, b"", padded(7777, 0).encode(), b"", 0), {"UNIQ_KEY": "K"})
    pad = PROPERTIES_BYTES_MAX - len(full.properties) - 6  # its id is as long as KEY7777
    put_half(tmp_path, b"large", padded(7777, pad))

    async def check(peer: Peer) -> None:
        await check_hundred(peer)
        (moved,) = await stored(peer, CHECK_MAX_TIME_TOPIC)
        assert (moved.body, len(moved.properties)) == (b"large", PROPERTIES_BYTES_MAX)
        (line,) = [one.getMessage() for one in caplog.records if "is moved to" in one.message]
        assert "KEY7777" in line and f"producer group {GROUP}" in line and "'T'" in line

    with caplog.at_level(logging.ERROR):
        serve_quickly(tmp_path, check, transaction_check_max=1000)


def test_a_half_message_that_cannot_even_be_moved_holds_nothing_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put_half(tmp_path, bytes(5000), half_properties(7777))

    async def check(peer: Peer) -> None:
        await check_hundred(peer)
        assert await stored(peer, CHECK_MAX_TIME_TOPIC) == []
        assert "KEY7777" in caplog.text and "body of 5000 B" in caplog.text

    with caplog.at_level(logging.ERROR):
        serve_quickly(
            tmp_path, check, transaction_check_max=1000, store={"message_bytes_max": 4096}
        )


def test_checks_go_on_when_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(monkeypatch)

    async def check(peer: Peer) -> None:
        await join(peer)
        await prepare(peer, "T", b"x", 1, born_timestamp=later.now_ms)
        await wait_for_checks(peer, 1)
        await later.advance(peer, -3_600_000)
        await prepare(peer, "T", b"x", 2, born_timestamp=later.now_ms)
        await checks_of(peer, "KEY2")
        peer.notices.clear()
        for key in ("KEY1", "KEY2"):
            await checks_of(peer, key, count=3)

    serve_quickly(tmp_path, check, transaction_check_max=1000)
