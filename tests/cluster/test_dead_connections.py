"""Connections of a broker that are dead, and do not say so: a firewall forgot them, or a machine
lost its power. TCP tries for a quarter of an hour."""

from typing import Any

import pytest
from tests.cluster.played import Played
from tests.cluster.running import run
from tests.cluster.scenarios import wait_until

from pymq.broker.config import BrokerConfig
from pymq.broker.escape.brokers import OtherBrokers, Place
from pymq.broker.escape.writer import RemoteWriter
from pymq.broker.ha import group_watch, master_finder
from pymq.broker.ha.group_watch import GroupWatch
from pymq.broker.ha.master_finder import MasterFinder
from pymq.broker.log_writer import Outcome
from pymq.clock import Clock
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.record import NewRecord

SOON_S = 0.2


class Peer(Played):
    """Does not answer over its first connection."""

    def __init__(self, **fields: str) -> None:
        super().__init__(self._answer)
        self._fields = fields

    def _answer(self, request: Command) -> Command | None:
        return None if self.accepted == 1 else request.reply(0, fields=self._fields)


def test_heartbeats_of_a_group_go_over_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the name server would forget a broker that registers over a good one."""
    monkeypatch.setattr(group_watch, "REQUEST_TIMEOUT_S", SOON_S)

    async def test() -> None:
        watch = GroupWatch(
            BrokerConfig(name="b", name_servers=(peer.address,)),
            "127.0.0.1:10911",
            None,
            heartbeat_s=0.05,
            interval_s=3600,
            expiry_s=10,
        )
        watch.start()
        await wait_until(
            lambda: peer.accepted > 1 and peer.count(RequestCode.BROKER_HEARTBEAT) > 2,
            "heartbeats go over another one",
        )
        await watch.close()

    with Peer() as peer:
        run(test())


def test_a_slave_asks_its_master_over_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_finder, "REQUEST_TIMEOUT_S", SOON_S)
    monkeypatch.setattr(master_finder, "ASK_INTERVAL_S", 0.05)
    found: list[str] = []

    class Slave:
        is_following = False

        def follow(self, master: str) -> None:
            found.append(master)

    async def test() -> None:
        slave: Any = Slave()
        finder = MasterFinder(peer.address, slave)
        finder.start()
        await wait_until(lambda: found, "it knows its master")
        await finder.close()

    with Peer(masterHaAddress="127.0.0.1:10912") as peer:
        run(test())
    assert found[0] == "127.0.0.1:10912"


def test_messages_escape_over_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.broker.escape.writer.SEND_TIMEOUT_S", SOON_S)

    class Others(OtherBrokers):
        async def place(self, topic: str, queue_id: int) -> Place:
            return Place("other", peer.address, 0)

    async def test() -> None:
        writer = RemoteWriter(Others("b", "c", [], Clock()), "b")
        record = NewRecord("T", 0, b"x", b"", b"\x7f\0\0\1\0\0\x2a\x9f", 1)
        _, outcome = await writer._send(record)
        assert outcome is Outcome.FAILED
        while outcome is Outcome.FAILED:  # on a slow machine a good one may be too slow, too
            _, outcome = await writer._send(record)
        assert outcome is Outcome.STORED
        await writer.close()

    with Peer() as peer:
        run(test())
    assert peer.accepted >= 2
