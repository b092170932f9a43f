"""Locks on queues: kept alive, in doubt, confirmed, lost."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pymq.client.group.queue_locks import QueueLocks
from pymq.errors import ConnectionFailed, RequestTimeout
from pymq.protocol.bodies import LockRequest, MessageQueue
from pymq.protocol.codes import RequestCode

ONE, OTHER = MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)
FAR = MessageQueue("T", "b", 0)


class Connection:
    def __init__(self, broker: str, address: str) -> None:
        self.broker, self.address = broker, address
        self.is_open = True


class Brokers:
    """Plays the pool and, behind it, brokers that grant what they are told to."""

    client_id = "me"
    is_open = True

    def __init__(self) -> None:
        self.routes = self
        self.granted = {ONE, OTHER, FAR}
        self.away: set[str] = set()
        self.unlocked: list[MessageQueue] = []
        self.channels: dict[str, Connection] = {}
        #: Broker name -> where its master is.
        self.at = {"a": "a:1", "b": "b:1"}
        #: Likewise, as name servers know it.
        self.known_later: dict[str, str] = {}
        self.slaves: set[str] = set()
        self.doubted: list[str] = []

    async def route(self, topic: str, *, refresh: bool = False) -> "Brokers":
        if refresh:
            self.at |= self.known_later
        return self

    def doubt_master(self, address: str) -> bool:
        self.doubted.append(address)
        return len(self.doubted) == 1  # Later it is too soon to look again.

    def find(self, topic: str) -> "Brokers":
        return self

    def masters(self) -> dict[str, str]:
        return self.at

    def address(self, broker_name: str) -> str:
        return self.at[broker_name]

    async def broker_channel(self, topic: str, broker_name: str, address: str) -> Connection:
        if broker_name in self.away:
            raise ConnectionFailed(f"{broker_name} is away")
        channel = self.channels.get(broker_name)
        if channel is None or not channel.is_open or channel.address != address:
            channel = self.channels[broker_name] = Connection(broker_name, address)
        return channel

    async def ask(self, channel: Connection, operation: Any, *, timeout_s: float = 3) -> Any:
        if channel.broker in self.away:
            raise RequestTimeout("silent", sent=True)
        body = LockRequest.decode(operation.request.body)
        assert (body.consumer_group, body.client_id) == ("g", "me")
        assert {queue.broker_name for queue in body.queues} == {channel.broker}
        if operation.request.code == RequestCode.UNLOCK_BATCH_MQ:
            self.unlocked += body.queues
            return None
        if channel.address in self.slaves:
            return []
        return [queue for queue in body.queues if queue in self.granted]


class Member:
    """Locks, and what they say."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.may_go_on = True
        self.lost: list[MessageQueue] = []
        self.confirmed: list[MessageQueue] = []
        self.valid_count = 0
        self.locks = QueueLocks(
            "g",
            self.brokers,  # type: ignore[arg-type]
            confirm=self.confirm,
            on_valid=self.on_valid,
            on_lost=self.lost.append,
        )

    async def confirm(self, queue: MessageQueue) -> bool:
        self.confirmed.append(queue)
        return self.may_go_on

    def on_valid(self) -> None:
        self.valid_count += 1

    @property
    def valid(self) -> set[MessageQueue]:
        return {queue for queue in (ONE, OTHER, FAR) if self.locks.is_valid(queue)}


def test_what_is_granted_is_ours_until_it_is_given_free() -> None:
    async def test() -> None:
        member = Member()
        member.brokers.granted = {ONE, FAR}
        assert await member.locks.lock([ONE, OTHER, FAR]) == {ONE, FAR}
        assert member.valid == {ONE, FAR}
        await member.locks.renew()
        assert (member.valid, member.confirmed, member.valid_count) == ({ONE, FAR}, [], 1)
        await member.locks.unlock([FAR])
        assert (member.valid, member.brokers.unlocked) == ({ONE}, [FAR])

    asyncio.run(test())


def test_what_is_refused_at_the_next_time_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        member = Member()
        await member.locks.lock([ONE, OTHER])
        member.brokers.granted = {OTHER}
        await member.locks.renew()
        assert (member.valid, member.lost) == ({OTHER}, [ONE])

    asyncio.run(test())
    assert "has lost its lock, because the broker has given the queue to another" in caplog.text


def test_a_broker_that_is_away_leaves_locks_in_doubt_until_it_confirms_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pymq.client.group.queue_locks.AGAIN_S", 0.01)

    async def test() -> None:
        member = Member()
        await member.locks.lock([ONE, FAR])
        running = asyncio.ensure_future(member.locks.run())
        member.brokers.channels["a"].is_open = False
        member.brokers.away = {"a"}
        assert member.valid == {FAR}
        member.locks.renew_soon()
        while "cannot lock its queues at broker 'a'" not in caplog.text:
            await asyncio.sleep(0.01)
        assert (member.valid, member.lost) == ({FAR}, [])
        member.brokers.away = set()
        while member.valid != {ONE, FAR}:
            await asyncio.sleep(0.01)
        assert member.confirmed == [ONE], "the other one was never in doubt"
        running.cancel()

    asyncio.run(asyncio.wait_for(test(), 60))
    assert caplog.text.count("cannot lock its queues") == 1


def test_a_lock_expires_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymq.client.group.queue_locks.VALID_S", 0.01)

    async def test() -> None:
        member = Member()
        await member.locks.lock([ONE])
        await asyncio.sleep(0.02)
        assert not member.valid
        monkeypatch.setattr("pymq.client.group.queue_locks.VALID_S", 30)
        await member.locks.renew()
        assert (member.valid, member.confirmed) == ({ONE}, [ONE])

    asyncio.run(test())


def test_a_queue_that_another_has_read_meanwhile_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        member = Member()
        await member.locks.lock([ONE])
        member.brokers.channels["a"].is_open = False
        member.may_go_on = False
        await member.locks.renew()
        assert (member.valid, member.lost) == (set(), [ONE])

    asyncio.run(test())
    assert "and another one has read the queue meanwhile" in caplog.text


def test_a_queue_that_is_refused_for_long_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pymq.client.group.queue_locks.REFUSED_S", 0)

    async def test() -> None:
        member = Member()
        member.brokers.granted = set()
        for _ in range(4):
            assert await member.locks.lock([ONE]) == set()
            await asyncio.sleep(0.001)

    asyncio.run(test())
    assert caplog.text.count("this queue should be ours, but another member has had its lock") == 1


def test_a_queue_that_changes_hands_now_and_then_was_not_refused_all_the_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SimpleNamespace(now_s=1_000.0)
    clock.monotonic = lambda: clock.now_s
    monkeypatch.setattr("pymq.client.group.queue_locks.time", clock)

    async def test() -> None:
        member = Member()
        member.brokers.granted = set()
        for _ in range(2):
            caplog.clear()
            for _ in range(3):  # Wanted for a moment, every two weeks, and not given free yet.
                await member.locks.lock([ONE])
                clock.now_s += 14 * 24 * 3600
            assert not caplog.records
            for _ in range(100):
                await member.locks.lock([ONE])
                clock.now_s += 1
            assert caplog.text.count("has had its lock for 91 s") == len(caplog.records) == 1

    asyncio.run(test())


def test_another_master_knows_nothing_of_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the one before are in doubt at once, although its connection stays."""
    monkeypatch.setattr("pymq.client.group.queue_locks.AGAIN_S", 0.01)

    async def test() -> None:
        member = Member()
        await member.locks.lock([ONE, FAR])
        running = asyncio.ensure_future(member.locks.run())
        member.locks.route_changed("T")
        assert member.valid == {ONE, FAR}, "they have the masters that they had"
        before = member.brokers.channels["a"]
        member.brokers.at["a"] = "a:2"
        member.locks.route_changed("other")
        assert member.valid == {ONE, FAR}
        member.locks.route_changed("T")
        assert member.valid == {FAR} and before.is_open
        while member.valid != {ONE, FAR}:
            await asyncio.sleep(0.01)
        assert member.confirmed == [ONE] and member.lost == []
        assert member.brokers.channels["a"].address == "a:2"
        running.cancel()

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_former_master_that_grants_nothing_is_no_loss() -> None:
    """A slave answers so; another member that has all our queues looks the same, now and then."""

    async def test() -> None:
        member = Member()
        assert await member.locks.lock([ONE, OTHER]) == {ONE, OTHER}
        member.brokers.slaves, member.brokers.known_later = {"a:1"}, {"a": "a:2"}
        await member.locks.renew()
        assert (member.valid, member.lost) == ({ONE, OTHER}, [])
        member.brokers.granted = {OTHER}
        await member.locks.renew()
        assert (member.valid, member.lost, member.brokers.doubted) == ({OTHER}, [ONE], ["a:1"])
        member.brokers.granted = set()
        await member.locks.renew()
        assert member.lost == [ONE, OTHER]

    asyncio.run(test())
