"""Transactions that were checked too often: discarded, and yet to be ended, or checked again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, fields, serve
from tests.cluster.test_broker_transaction_checks import (
    LIMIT_S,
    OK,
    now_ms,
    serve_quickly,
    stored,
)
from tests.cluster.transactional import (
    COMMIT,
    ROLLBACK,
    Half,
    checks,
    end,
    join,
    prepare,
    wait_for_checks,
)

from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.message import decode_properties
from pymq.protocol.names import CHECK_MAX_TIME_TOPIC
from pymq.protocol.record import Record, offset_message_id


@pytest.fixture(autouse=True)
def patient_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have discarded transactions wait for the key index as long as it takes."""
    monkeypatch.setattr("pymq.broker.transactions.discarded.INDEX_WAIT_S", LIMIT_S)


async def wait_for_discard(peer: Peer, count: int = 1) -> list[Record]:
    async with asyncio.timeout(LIMIT_S):
        while len(moved := await stored(peer, CHECK_MAX_TIME_TOPIC)) < count:
            await asyncio.sleep(0.05)
    return moved


@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
def test_a_discarded_transaction_may_still_be_ended_once(tmp_path: Path, first: int) -> None:
    """Its producer may have needed longer than all checks take; also after a restart."""
    expected = [b"late"] if first == COMMIT else []
    places: list[Half] = []

    async def begin(peer: Peer) -> None:
        await join(peer)
        half = await prepare(peer, "T", b"late", 1, born_timestamp=now_ms())
        places.append(half)
        await wait_for_discard(peer)
        places.extend(one.half for one in checks(peer))
        assert len(places) == 3
        if first == COMMIT:
            return  # the next start decides
        assert (await end(peer, places[1], first)).remark is None
        for place in places:
            assert "ended before" in ((await end(peer, place, COMMIT)).remark or "")

    async def go_on(peer: Peer) -> None:
        decisions = [end(peer, place, COMMIT) for place in places * 3]
        answers = await asyncio.gather(*decisions)
        assert [answer.code for answer in answers] == [OK] * 9
        assert [one.body for one in await stored(peer, "T")] == expected

    for part in (begin, go_on, go_on):
        serve_quickly(tmp_path, part, transaction_check_max=2, transaction_timeout_ms=0)


async def discard(peer: Peer) -> tuple[Half, str]:
    """Have a transaction discarded; return its half message, and the id of what was moved."""
    await join(peer)
    half = await prepare(peer, "T", b"x", 1, born_timestamp=now_ms())
    (moved,) = await wait_for_discard(peer)
    return half, offset_message_id(moved.store_host, moved.physical_offset)


async def resume(peer: Peer, message_id: str) -> Any:
    return await peer.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=message_id)


def test_a_discarded_transaction_is_checked_again_when_an_administrator_says_so(
    tmp_path: Path,
) -> None:
    async def check(peer: Peer) -> None:
        half, message_id = await discard(peer)
        known = len(checks(peer))
        assert (await resume(peer, message_id)).code == OK
        asked = await wait_for_checks(peer, known + 1)
        assert decode_properties(asked[-1].record.properties)["TRANSACTION_CHECK_TIMES"] == "1"
        # It is open again: its first place may be named, too, and only once.
        assert (await end(peer, half, COMMIT)).remark is None
        assert "ended before" in ((await end(peer, asked[-1].half, ROLLBACK)).remark or "")
        assert [one.body for one in await stored(peer, "T")] == [b"x"]
        answer = await resume(peer, message_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "ended before" in (answer.remark or "")

    serve_quickly(tmp_path, check, transaction_check_max=2, transaction_timeout_ms=0)


def test_a_discarded_transaction_that_several_resume_is_open_once(tmp_path: Path) -> None:
    """An administrator whose command timed out says it again."""

    async def check(peer: Peer) -> None:
        half, message_id = await discard(peer)
        known = len(checks(peer))
        answers = await asyncio.gather(*(resume(peer, message_id) for _ in range(3)))
        assert [answer.code for answer in answers] == [OK] * 3
        asked = await wait_for_checks(peer, known + 1)
        decisions = [end(peer, place, COMMIT) for place in (half, *(one.half for one in asked))]
        assert [answer.code for answer in await asyncio.gather(*decisions)] == [OK] * (
            len(asked) + 1
        )
        known = len(checks(peer))
        await asyncio.sleep(1.0)  # many rounds of checks
        for late in checks(peer)[known:]:
            assert "ended before" in ((await end(peer, late.half, COMMIT)).remark or "")
        assert [one.body for one in await stored(peer, "T")] == [b"x"]

    serve_quickly(tmp_path, check, transaction_check_max=2, transaction_timeout_ms=0)


def test_the_checks_of_an_open_transaction_are_counted_again(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await join(peer)
        await prepare(peer, "T", b"x", 1, born_timestamp=now_ms())
        asked = await wait_for_checks(peer, 3)
        message_id = offset_message_id(asked[0].record.store_host, asked[0].half.physical_offset)
        assert (await resume(peer, message_id)).code == OK
        async with asyncio.timeout(LIMIT_S):
            while True:
                properties = [decode_properties(one.record.properties) for one in checks(peer)]
                times = [int(one["TRANSACTION_CHECK_TIMES"]) for one in properties]
                if times[-1] >= 3 and times.count(2) == 2:
                    break
                await asyncio.sleep(0.05)
        assert times.count(1) == 2
        assert await stored(peer, CHECK_MAX_TIME_TOPIC) == []

    serve_quickly(tmp_path, check, transaction_timeout_ms=0, transaction_check_max=1_000)


def test_what_cannot_be_checked_again(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        sent = await peer.send("T", b"plain")
        ended = await prepare(peer, "T", b"x", 1)
        await end(peer, ended, ROLLBACK)
        host = bytes.fromhex(fields(sent)["msgId"])[:8]
        for message_id, reason in (
            (fields(sent)["msgId"], "a message of topic T"),
            (offset_message_id(host, ended.physical_offset), "ended before"),
            (offset_message_id(host, 1 << 40), "physical offset"),
            (offset_message_id(host, 3), ""),
            ("nonsense", "message id"),
        ):
            answer = await resume(peer, message_id)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            remark = answer.remark or ""
            assert remark.startswith("Put message back to RMQ_SYS_TRANS_HALF_TOPIC failed: ")
            assert reason in remark

    serve(tmp_path, check)


def test_without_a_key_index_nobody_is_told_that_a_discarded_transaction_was_decided(
    tmp_path: Path,
) -> None:
    async def check(peer: Peer) -> None:
        half, message_id = await discard(peer)
        for _ in range(2):
            answer = await end(peer, half, COMMIT)
            assert answer.code == ResponseCode.ILLEGAL_OPERATION
            assert "messageIndexEnable" in (answer.remark or "")
        answer = await resume(peer, message_id)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "messageIndexEnable" in (answer.remark or "")
        assert await stored(peer, "T") == []
        # What is known to have been decided still is.
        other = await prepare(peer, "T", b"y", 2, born_timestamp=now_ms())
        assert (await end(peer, other, COMMIT)).code == OK
        assert "ended before" in ((await end(peer, other, COMMIT)).remark or "")

    quick = {"transaction_check_max": 2, "transaction_timeout_ms": 0}
    serve_quickly(tmp_path, check, store={"key_index": False}, **quick)


def test_without_a_key_index_a_decision_stands_where_nothing_was_discarded(tmp_path: Path) -> None:
    places: list[Half] = []

    async def decide(peer: Peer) -> None:
        await join(peer)
        places.append(await prepare(peer, "T", b"x", 1))
        assert (await end(peer, places[0], COMMIT)).code == OK

    async def again(peer: Peer) -> None:  # after a restart, it is not remembered
        answer = await end(peer, places[0], ROLLBACK)
        assert answer.code == OK and "ended before" in (answer.remark or "")

    for part in (decide, again):
        serve(tmp_path, part, store={"key_index": False})
