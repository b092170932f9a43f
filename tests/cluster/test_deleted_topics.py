"""Messages that wait while their topic is deleted: they come when they are due, and are kept."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, fields, records, serve
from tests.cluster.test_delayed_messages import Later

from pymq.protocol.codes import RequestCode, ResponseCode

#: Nothing is due before the topic is deleted, however long that takes.
WAIT_MS = 600_000
STORE: dict[str, Any] = {"delay_levels_ms": (WAIT_MS,), "timer_precision_ms": 100}
WAITS = pytest.mark.parametrize("wait", ["DELAY\x011", f"TIMER_DELAY_MS\x01{WAIT_MS}"])


async def send_and_delete(peer: Peer, wait: str) -> None:
    await create_topic(peer, "T")
    await peer.send("T", b"old")
    await peer.send("T", b"waits", properties=wait)
    answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    assert answer.code == ResponseCode.SUCCESS


async def message_count(peer: Peer) -> int:
    answer = await peer.ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0)
    return int(fields(answer)["offset"])


async def found_again(peer: Peer, later: Later) -> None:
    """Have the message come while the topic is away; create that again, and read what is in it."""
    assert await message_count(peer) == 0
    await later.advance(peer, WAIT_MS)
    while await message_count(peer) == 0:
        await asyncio.sleep(0.02)
    assert (await peer.pull("T", 0)).code == ResponseCode.TOPIC_NOT_EXIST
    await create_topic(peer, "T")
    (record,) = records(await peer.pull("T", 0))
    assert record.body == b"waits"


@WAITS
def test_they_are_there_when_the_topic_is_created_again(
    tmp_path: Path, wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(monkeypatch)

    async def check(peer: Peer) -> None:
        await send_and_delete(peer, wait)
        await found_again(peer, later)

    serve(tmp_path, check, store=STORE)


@WAITS
def test_they_come_while_the_topic_is_away_after_a_restart(
    tmp_path: Path, wait: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = Later(monkeypatch)

    async def begin(peer: Peer) -> None:
        await send_and_delete(peer, wait)

    async def check(peer: Peer) -> None:
        await found_again(peer, later)

    serve(tmp_path, begin, store=STORE)
    serve(tmp_path, check, store=STORE)
