"""What a master makes of connections that come and go."""

import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from pymq.broker.ha import master
from pymq.broker.ha.byte_rate import ByteRate
from pymq.broker.ha.caught_up import CaughtUp
from pymq.broker.ha.master import LOOK_INTERVAL_S, TWO_OF_ONE_S, Master
from pymq.broker.ha.security import Security
from pymq.protocol.epoch_replication import Handshake


class FakeSlave:
    """A slave's connection, that stands until it is aborted."""

    def __init__(self, broker_id: int, peer: str, now_s: float) -> None:
        self.handshake = Handshake(broker_id)
        self.peer, self.host = peer, "127.0.0.1"
        self.confirmed_end = self.claimed_end = 0
        self.heard_s = self.spoken_s = now_s
        self.rate, self.caught_up = ByteRate(), CaughtUp()
        self.is_open = True

    def abort(self) -> None:
        self.is_open = False

    def send(self) -> None:
        self.spoken_s = self.heard_s


class Bed:
    """A master, and its clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        loop = SimpleNamespace(time=lambda: self.now_s)
        monkeypatch.setattr(master.asyncio, "get_running_loop", lambda: loop)
        replication: Any = SimpleNamespace(readable_end=0)
        executor: Any = None
        self._socket = socket.socket()
        self.master = Master(
            self._socket,
            replication,
            executor,
            batch_bytes=1 << 10,
            heartbeat_s=3600.0,
            silence_s=20.0,
            gap_max=1 << 20,
            security=Security(),
            connection_count_max=16,
            sends_whole_log=False,
        )

    def connect(self, broker_id: int, peer: str) -> FakeSlave:
        slave = FakeSlave(broker_id, peer, self.now_s)
        connection: Any = slave
        assert self.master.joined(connection) and self.master.identified(connection)
        return slave

    def leave(self, slave: FakeSlave) -> None:
        connection: Any = slave
        self.master.left(connection)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, looking as often as the master does."""
        for _ in range(round(seconds / LOOK_INTERVAL_S)):
            self.now_s += LOOK_INTERVAL_S
            self.master.look()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    bed = Bed(monkeypatch)
    yield bed
    bed.close()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    def said() -> list[str]:
        found = [one for one in caplog.messages if "brokerIdentity" in one]
        caplog.clear()
        return found

    return said


def test_two_brokers_of_one_id_are_named_once(bed: Bed, said: Callable[[], list[str]]) -> None:
    """Each puts the other one out, and connects again a second later."""
    slaves = []
    for peer in ("h:1", "g:2", "h:3", "g:4", "h:5"):
        bed.now_s += 1.0
        slaves.append(bed.connect(2, peer))
    assert [one.is_open for one in slaves] == [False] * 4 + [True]
    (text,) = said()
    assert "broker 2" in text and "h:3" in text and "g:2" in text


def test_a_slave_that_connects_again_is_one(bed: Bed, said: Callable[[], list[str]]) -> None:
    for number in range(4):  # its connections end
        bed.leave(bed.connect(2, f"h:{number}"))
    for number in range(4):  # they do not, when the network is cut
        bed.connect(3, f"g:{number}")
        bed.now_s += TWO_OF_ONE_S + 1.0
    assert said() == []


def test_our_own_standstill_is_no_silence_of_slaves(bed: Bed) -> None:
    slave = bed.connect(2, "h:1")
    bed.pass_time(10.0)
    bed.now_s += 60.0
    bed.master.look()
    assert slave.is_open
    bed.pass_time(9.0)
    assert slave.is_open
    bed.pass_time(2.0)
    assert not slave.is_open
