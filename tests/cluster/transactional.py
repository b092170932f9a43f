"""A transactional producer for tests: sends half messages, ends them, answers checks."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tests.cluster.broker_peer import Peer, fields

from pymq.protocol.bodies import ProducerData
from pymq.protocol.codes import MessageFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.record import Record, decode_record, parse_offset_message_id

GROUP = "pg"
COMMIT = int(MessageFlag.TRANSACTION_COMMIT)
ROLLBACK = int(MessageFlag.TRANSACTION_ROLLBACK)
UNKNOWN = 0
PREPARED = int(MessageFlag.TRANSACTION_PREPARED)


@dataclass(frozen=True, slots=True)
class Half:
    """Where a half message is."""

    queue_offset: int
    physical_offset: int


def half_properties(number: object, more: str = "") -> str:
    """Return the properties of a transactional message, as the Java client sends them."""
    return (
        f"TRAN_MSG\x01true\x02UNIQ_KEY\x01KEY{number}\x02WAIT\x01true\x02PGROUP\x01{GROUP}\x02{more}"
    )


def half_of(sent: Command) -> Half:
    """Return where the half message is that an answer acknowledges."""
    assert sent.code == ResponseCode.SUCCESS, sent
    _, physical = parse_offset_message_id(fields(sent)["msgId"])
    return Half(int(fields(sent)["queueOffset"]), physical)


async def prepare(peer: Peer, topic: str, body: bytes, number: object, **changes: Any) -> Half:
    changes.setdefault("properties", half_properties(number))
    return half_of(await peer.send(topic, body, sys_flag=PREPARED, **changes))


async def end(peer: Peer, half: Half, decision: int, **changes: Any) -> Command:
    """End a transaction and return the answer."""
    asked: dict[str, Any] = {
        "producerGroup": GROUP,
        "tranStateTableOffset": half.queue_offset,
        "commitLogOffset": half.physical_offset,
        "commitOrRollback": decision,
        "fromTransactionCheck": False,
        "msgId": "KEY",
    }
    return await peer.ask(RequestCode.END_TRANSACTION, **asked | changes)


@dataclass(frozen=True, slots=True)
class Check:
    """What a producer is asked: the header, the message, and where its half message is now."""

    fields: dict[str, str]
    record: Record
    half: Half


def checks(peer: Peer) -> list[Check]:
    """Return the checks that a producer has got."""
    found = []
    for notice in peer.notices:
        if notice.code != RequestCode.CHECK_TRANSACTION_STATE:
            continue
        assert notice.is_one_way
        header = fields(notice)
        half = Half(int(header["tranStateTableOffset"]), int(header["commitLogOffset"]))
        found.append(Check(header, decode_record(notice.body, verify=True), half))
    return found


async def wait_for_checks(peer: Peer, count: int) -> list[Check]:
    """Return at least this many checks."""
    async with asyncio.timeout(60):
        while len(checks(peer)) < count:
            await asyncio.sleep(0.02)
    return checks(peer)


async def join(peer: Peer, client_id: str = "producer", group: str = GROUP) -> None:
    """Tell the broker of a producer."""
    await peer.heartbeat(client_id, producers=[ProducerData(group=group)])
