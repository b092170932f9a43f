"""What a master takes over before it is online, and what it does not wait for."""

import asyncio
import logging
from typing import Any

import pytest

from pymq.broker.ha import pre_online
from pymq.broker.ha.pre_online import MasterPreOnline, SlavePreOnline
from pymq.errors import PymqError
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.headers.replication import HaInfo

KINDS: dict[int, bytes] = {
    RequestCode.GET_ALL_CONSUMER_OFFSET: b"offsets",
    RequestCode.GET_ALL_DELAY_OFFSET: b"delays",
    RequestCode.GET_TIMER_CHECK_POINT: b"timers",
}


class Bed:
    """A name server's view, and slaves by address: what they have; None: they do not answer."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.views: list[dict[int, str] | None] = []
        self.slaves: dict[str, bytes | None] = {}
        self.following = 0
        self.follows = True
        self.taken: list[tuple[str, bytes]] = []
        patch.setattr(pre_online, "ask_once", self._ask)
        patch.setattr(pre_online, "ask_ha_info", self._tell)
        # Who answers, or is forgotten, has all the time it needs.
        for name, value in (("SERVERS_S", 0.1), ("PEER_S", 60.0), ("FOLLOW_S", 60.0)):
            patch.setattr(pre_online, name, value)
        patch.setattr(pre_online, "PAUSE_S", 0.01)
        self._patch = patch
        self.watch: Any = self

    def hurry(self) -> None:
        """Have whoever does not answer, or does not follow, given up soon."""
        for name, value in (("PEER_S", 0.2), ("FOLLOW_S", 0.05)):
            self._patch.setattr(pre_online, name, value)

    async def members(self) -> dict[int, str] | None:
        """The next view; the last one stays."""
        return self.views.pop(0) if len(self.views) > 1 else self.views[0]

    async def _tell(self, address: str, info: HaInfo) -> HaInfo:
        assert info.ha_address == "m:2"
        if self.slaves.get(address) is None:
            raise PymqError("no answer")
        self.following += self.follows
        return HaInfo()

    async def _ask(self, address: str, code: int, *, name: str) -> Command:
        return Command(0, None, KINDS[code] + b" " + (self.slaves[address] or b""))

    async def _take_offsets(self, body: bytes) -> None:
        self.taken.append(("offsets", body))

    def run(self) -> list[tuple[str, bytes]]:
        """Return what is taken over."""
        online = MasterPreOnline(
            self.watch,
            HaInfo(ha_address="m:2"),
            lambda: self.following,
            take_offsets=self._take_offsets,
            take_delays=lambda body: self.taken.append(("delays", body)),
            take_timers=lambda body: self.taken.append(("timers", body)),
        )
        asyncio.run(online.run())
        return self.taken


@pytest.fixture
def bed(monkeypatch: pytest.MonkeyPatch) -> Bed:
    return Bed(monkeypatch)


def test_it_takes_over_from_each_slave_in_order_and_not_from_itself(bed: Bed) -> None:
    bed.views = [{2: "b", 1: "a", 0: "itself"}]
    bed.slaves = {"a": b"of a", "b": b"of b"}
    assert bed.run() == [
        ("offsets", b"offsets of a"),
        ("delays", b"delays of a"),
        ("timers", b"timers of a"),
        ("offsets", b"offsets of b"),
        ("delays", b"delays of b"),
        ("timers", b"timers of b"),
    ]


def test_alone_or_without_a_name_server_it_is_online_at_once(bed: Bed) -> None:
    for view in ({}, {0: "itself"}, None):
        bed.views = [view]
        assert bed.run() == []


def test_it_does_not_wait_for_a_slave_that_the_name_servers_forget(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    bed.views = [{1: "a", 2: "b"}, {1: "a", 2: "b"}, {2: "b"}]
    bed.slaves = {"a": None, "b": b"of b"}
    assert [body for _, body in bed.run()] == [b"offsets of b", b"delays of b", b"timers of b"]
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]


@pytest.mark.parametrize("answers", [True, False])
def test_it_says_so_when_a_slave_is_given_up(
    bed: Bed, answers: bool, caplog: pytest.LogCaptureFixture
) -> None:
    bed.views = [{1: "a"}]
    bed.slaves = {"a": b"of a" if answers else None}
    bed.follows = False
    bed.hurry()
    assert bed.run() == []
    (error,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert "slave 1 at a may have acted" in error.getMessage()


def test_a_slave_waits_until_it_follows_if_there_is_a_master(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[dict[int, str]] = []

    def run(*, follows: bool) -> None:
        online = SlavePreOnline(bed.watch, told.append, lambda: follows and bool(told))
        asyncio.run(online.run())

    bed.views = [{2: "b"}]
    run(follows=False)
    assert told == [] and not caplog.records
    bed.views = [{0: "m", 2: "b"}]
    run(follows=True)
    assert told == [{0: "m", 2: "b"}] and not caplog.records
    bed.hurry()
    run(follows=False)
    assert "does not follow its master yet" in caplog.text
