"""Locks on queues: kept alive, in doubt, confirmed, lost."""

import asyncio
from collections.abc import Callable
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
        self.peer = f"broker {address}"
        self.is_open = True


class Known:
    """Plays the route of a topic, as it was read at some time."""

    def __init__(self, topic: str, masters: dict[str, str]) -> None:
        self.topic, self._masters = topic, masters

    def masters(self) -> dict[str, str]:
        return self._masters

    def address(self, broker_name: str) -> str:
        return self._masters[broker_name]


class Brokers:
    """Plays the pool and, behind it, brokers that grant what they are told to."""

    client_id = "me"
    is_open = True

    def __init__(self) -> None:
        self.routes = self
        self._known: dict[str, Known] = {}
        self.granted = {ONE, OTHER, FAR}
        self.away: set[str] = set()
        self.unlocked: list[MessageQueue] = []
        self.channels: dict[str, Connection] = {}
        #: Broker name -> where its master is, and where name servers say so.
        self.at = {"a": "a:1", "b": "b:1"}
        self.are_name_servers_away = False
        self.slaves: set[str] = set()
        #: Addresses at which locks were asked for, and topics whose routes were read since.
        self.asked: list[str] = []
        self.read: list[str] = []
        #: Addresses that are looked at in the background: are they masters?
        self.doubted: list[str] = []
        #: Called when a broker has granted, before it answers.
        self.before_answer: Callable[[], None] = lambda: None
        #: Called when a route is read because somebody waits for it.
        self.on_read: Callable[[], None] = lambda: None

    async def route(self, topic: str, *, refresh: bool = False) -> Known:
        if refresh:
            self.read.append(topic)
            self.on_read()
        if topic not in self._known or (refresh and not self.are_name_servers_away):
            self._known[topic] = Known(topic, self.at.copy())
        return self._known[topic]

    def find(self, topic: str) -> Known | None:
        return self._known.get(topic)

    def doubt_master(self, address: str) -> None:
        self.doubted.append(address)

    def tell(self, topic: str) -> None:
        """The route of a topic is read, in the background."""
        self._known[topic] = Known(topic, self.at.copy())

    async def broker_channel(self, topic: str, broker_name: str, address: str) -> Connection:
        if self.away & {broker_name, address}:
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
        self.asked.append(channel.address)
        if channel.address in self.slaves:
            return []
        granted = [queue for queue in body.queues if queue in self.granted]
        self.before_answer()
        return granted


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
        member.brokers.tell("T")
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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time, which stands still until it is moved."""
    clock = SimpleNamespace(now_s=1_000.0)
    clock.monotonic = lambda: clock.now_s
    monkeypatch.setattr("pymq.client.group.queue_locks.time", clock)
    return clock


def test_a_former_master_that_grants_nothing_is_no_loss(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor before name servers know of the new one; meanwhile nothing is delivered."""

    async def test() -> None:
        member = Member()
        brokers = member.brokers
        assert await member.locks.lock([ONE, OTHER]) == {ONE, OTHER}
        brokers.slaves = {"a:1"}
        meanwhile: list[set[MessageQueue]] = []
        brokers.on_read = lambda: meanwhile.append(member.valid)
        await member.locks.renew()
        assert meanwhile == [set()]
        clock.now_s += 1.0
        await member.locks.renew()
        assert (member.valid, member.lost) == (set(), [])
        assert brokers.read == ["T", "T"]
        clock.now_s += 1.0
        brokers.at["a"] = "a:2"
        await member.locks.renew()
        assert (member.valid, member.lost) == ({ONE, OTHER}, [])
        assert brokers.asked[-2:] == ["a:1", "a:2"] and brokers.read == ["T"] * 3
        assert member.confirmed == [ONE, OTHER]

    asyncio.run(test())
    assert not caplog.records


def test_a_master_that_refuses_all_again_and_again_has_given_the_queues_to_others(
    clock: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    """But not one that name servers could not be asked about meanwhile."""

    async def test() -> None:
        member = Member()
        brokers = member.brokers
        assert await member.locks.lock([ONE, OTHER]) == {ONE, OTHER}
        for _ in range(2):  # It is counted anew after it has granted something.
            brokers.granted = set()
            for _ in range(2):
                await member.locks.renew()
                clock.now_s += 1.0
            brokers.granted = {ONE, OTHER}
            await member.locks.renew()
            assert (member.valid, member.lost) == ({ONE, OTHER}, [])
        brokers.granted, brokers.are_name_servers_away = set(), True
        for _ in range(10):
            await member.locks.renew()
            clock.now_s += 1.0
        assert (member.valid, member.lost) == (set(), [])
        brokers.are_name_servers_away = False
        await member.locks.renew()
        assert member.lost == [ONE, OTHER]

    asyncio.run(test())
    assert caplog.text.count("because the broker has given the queue to another") == 2


def test_queues_that_are_not_ours_are_refused_without_waiting_for_a_route() -> None:
    """Another member has them, for as long as its handlers take, or it is no master any more."""

    async def test() -> None:
        member = Member()
        member.brokers.granted = {OTHER}
        for _ in range(3):
            await member.locks.lock([ONE])
        assert member.brokers.doubted == ["a:1"] * 3
        assert await member.locks.lock([ONE, OTHER]) == {OTHER}
        assert len(member.brokers.doubted) == 3, "it grants some"
        member.brokers.granted = {ONE, OTHER}
        assert await member.locks.lock([ONE]) == {ONE}
        member.brokers.granted = {OTHER}
        await member.locks.renew()
        assert member.lost == [ONE] and member.brokers.read == []
        assert len(member.brokers.doubted) == 3

    asyncio.run(test())


@pytest.mark.parametrize("step", ["lock", "renew"])
def test_what_a_former_master_grants_late_is_asked_of_the_new_one(step: str) -> None:
    async def test() -> None:
        member = Member()
        brokers = member.brokers
        if step == "renew":
            await member.locks.lock([ONE])
            brokers.asked.clear()

        def change() -> None:
            brokers.at["a"] = "a:2"
            brokers.tell("T")
            member.locks.route_changed("T")

        brokers.before_answer = change
        if step == "lock":
            assert await member.locks.lock([ONE]) == {ONE}
        else:
            await member.locks.renew()
        assert brokers.asked == ["a:1", "a:2"] and member.valid == {ONE}
        member.locks.route_changed("T")
        assert member.valid == {ONE}
        # One that changes again and again is not run after.
        brokers.at["b"] = "b:1"
        brokers.before_answer = lambda: (
            brokers.at.update(a=f"a:{len(brokers.asked)}") or (brokers.tell("T"))
        )
        brokers.asked.clear()
        await member.locks.renew()
        assert len(brokers.asked) == 2 and member.valid == set() and member.lost == []

    asyncio.run(test())


def test_a_route_that_changes_while_it_is_asked_who_has_read_is_heeded() -> None:
    async def test() -> None:
        member = Member()
        brokers = member.brokers
        await member.locks.lock([ONE])
        brokers.channels["a"].is_open = False

        async def confirm(queue: MessageQueue) -> bool:
            brokers.at["a"] = "a:2"
            brokers.tell("T")
            member.locks.route_changed("T")
            return True

        member.locks._confirm = confirm
        await member.locks.renew()
        assert brokers.asked[-2:] == ["a:1", "a:2"] and member.valid == {ONE}

    asyncio.run(test())


def test_topics_whose_routes_differ_are_asked_of_different_masters() -> None:
    """Routes are read one after the other."""

    async def test() -> None:
        member = Member()
        brokers, far = member.brokers, MessageQueue("U", "a", 0)
        brokers.granted |= {far}
        await member.locks.lock([ONE, far])
        brokers.at["a"] = "a:2"
        brokers.tell("U")
        member.locks.route_changed("U")
        brokers.slaves = {"a:1"}
        brokers.are_name_servers_away = True
        brokers.asked.clear()
        await member.locks.renew()
        assert sorted(brokers.asked) == ["a:1", "a:2"]
        assert member.locks.is_valid(far) and not member.locks.is_valid(ONE)
        brokers.away = {"a:1"}
        await member.locks.renew()
        assert brokers.asked[-1] == "a:2" and len(brokers.asked) == 3
        brokers.tell("T")
        member.locks.route_changed("T")
        await member.locks.renew()
        assert member.locks.is_valid(ONE) and member.lost == []

    asyncio.run(test())
