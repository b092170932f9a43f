"""Messages that wait while their topic is deleted: they come when they are due, and are kept."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, create_topic, records, serve

from pymq.protocol.codes import RequestCode, ResponseCode

STORE: dict[str, Any] = {"delay_levels_ms": (500,), "timer_precision_ms": 100}
WAITS = pytest.mark.parametrize("wait", ["DELAY\x011", "TIMER_DELAY_MS\x01500"])


async def send_and_delete(peer: Peer, wait: str) -> None:
    await create_topic(peer, "T")
    await peer.send("T", b"old")
    await peer.send("T", b"waits", properties=wait)
    answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    assert answer.code == ResponseCode.SUCCESS


async def found_again(peer: Peer) -> None:
    """Create the topic again, and read what is in it."""
    assert (await peer.pull("T", 0)).code == ResponseCode.TOPIC_NOT_EXIST
    await create_topic(peer, "T")
    (record,) = records(await peer.pull("T", 0))
    assert record.body == b"waits"


@WAITS
def test_they_are_there_when_the_topic_is_created_again(tmp_path: Path, wait: str) -> None:
    async def check(peer: Peer) -> None:
        await send_and_delete(peer, wait)
        await asyncio.sleep(1.5)
        await found_again(peer)

    serve(tmp_path, check, store=STORE)


@WAITS
def test_they_come_while_the_topic_is_away_after_a_restart(tmp_path: Path, wait: str) -> None:
    async def begin(peer: Peer) -> None:
        await send_and_delete(peer, wait)

    async def check(peer: Peer) -> None:
        await asyncio.sleep(1.5)
        await found_again(peer)

    serve(tmp_path, begin, store=STORE)
    serve(tmp_path, check, store=STORE)
