"""SQL92 filters that are compiled in a thread, and what happens meanwhile."""

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, connect, fields, serve
from tests.cluster.pops import PopConsumer

from pymq.broker import selections
from pymq.broker.record_response import RecordResponses
from pymq.broker.state import filter_turns, message_filter
from pymq.broker.state.filter_turns import FilterTurns
from pymq.filter import evaluate
from pymq.filter.evaluate import Compiled, try_sql92
from pymq.protocol.bodies import ConsumerData, Heartbeat, Subscription
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.store.reads import Reads

#: Long, costly, and not to be folded; selects messages whose property n is x7.
LONG = " OR ".join(f"'x{number}' = n" for number in range(300))
HELD: dict[str, Any] = {
    "expressionType": "SQL92",
    "sysFlag": int(PullFlag.SUBSCRIPTION | PullFlag.SUSPEND),
    "suspendTimeoutMillis": 60_000,
}


class Gate:
    """Has compilations wait; knows in which threads they were."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reached = asyncio.Event()

    def close(self) -> None:
        self._reached = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._may_go_on.clear()

    def open(self) -> None:
        self._may_go_on.set()

    async def wait_reached(self) -> None:
        await self._reached.wait()

    def compiled(self, expression: str) -> Compiled:
        self.threads.append(threading.current_thread())
        if not self._may_go_on.is_set() and self._loop is not None:
            self._loop.call_soon_threadsafe(self._reached.set)
            assert self._may_go_on.wait(30.0)
        return try_sql92(expression)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    found = Gate()
    monkeypatch.setattr(evaluate, "_known", OrderedDict())
    monkeypatch.setattr(selections, "try_sql92", found.compiled)
    monkeypatch.setattr(evaluate, "try_sql92", found.compiled)
    yield found
    found.open()


def subscription(expression: str, version: int = 1, topic: str = "T") -> Subscription:
    kind = "TAG" if expression == "*" else "SQL92"
    return Subscription(topic=topic, expression=expression, expression_type=kind, version=version)


async def beat(peer: Peer, *subscriptions: Subscription) -> Command:
    consumer = ConsumerData(group="g", subscriptions=list(subscriptions))
    return await peer.ask(
        RequestCode.HEART_BEAT, Heartbeat(client_id="c", consumers=[consumer]).encode()
    )


async def is_member(peer: Peer) -> bool:
    members = await peer.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup="g")
    return members.code == ResponseCode.SUCCESS


async def leave(gone: Peer, peer: Peer) -> None:
    """Disconnect, and return when the broker knows."""
    (server,) = [one for one in peer.broker.listeners if one.port == peer.broker.port]
    before = len(server._connections)
    gone.channel.close()
    while len(server._connections) == before:
        await asyncio.sleep(0)


async def ended(work: "asyncio.Future[Command]") -> None:
    (error,) = await asyncio.gather(work, return_exceptions=True)
    assert isinstance(error, Exception)


# ---------------------------------------------------------------------------------------- order


def test_a_client_that_leaves_while_its_filter_is_compiled_is_no_member(
    tmp_path: Path, gate: Gate
) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x", queue_id=0)
        for number in range(2):
            gate.close()
            begun = asyncio.ensure_future(beat(peer, subscription(f"{LONG} OR n = {number}")))
            if number:  # otherwise both arrive together
                await gate.wait_reached()
            left = asyncio.ensure_future(
                peer.ask(RequestCode.UNREGISTER_CLIENT, clientID="c", consumerGroup="g")
            )
            await asyncio.sleep(0)
            if number:
                assert not await is_member(peer)
                assert not left.done()
            gate.open()
            assert (await begun).code == (await left).code == ResponseCode.SUCCESS
            assert not await is_member(peer)
        await beat(peer, subscription("*"))
        assert await is_member(peer)

    serve(tmp_path, check, property_filter=True)


def test_a_later_heartbeat_is_not_undone_by_the_one_whose_filter_is_compiled(
    tmp_path: Path, gate: Gate
) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x", queue_id=0)
        await peer.send("U", b"x", queue_id=0)
        gate.close()
        earlier = asyncio.ensure_future(beat(peer, subscription(LONG, 100)))
        await gate.wait_reached()
        topics = [subscription("*", 200, topic) for topic in ("T", "U")]
        later = asyncio.ensure_future(beat(peer, *topics))
        await peer.send("T", b"y", queue_id=0)  # everything else goes on
        gate.open()
        assert (await earlier).code == (await later).code == ResponseCode.SUCCESS
        for topic in ("T", "U"):
            answer = await peer.pull(topic, 0, sysFlag=0, subVersion=200)
            assert answer.code == ResponseCode.SUCCESS, answer

    serve(tmp_path, check, property_filter=True)


# ---------------------------------------------------------------------------------------- many


def test_all_filters_of_a_heartbeat_are_compiled_in_a_thread(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they are more than are remembered, and do not parse."""
    monkeypatch.setattr(evaluate, "_KNOWN_COUNT", 1)
    wanted = [subscription(f"{LONG} OR n = {n}", topic=f"T{n}") for n in range(4)]
    wanted.append(subscription(f"{LONG} OR", topic="Bad"))

    async def check(peer: Peer) -> None:
        await peer.send("T2", b"x", queue_id=0, properties="n\x01x7")
        assert (await beat(peer, *wanted)).code == ResponseCode.SUCCESS
        assert len(gate.threads) == 5
        answer = await peer.pull("T2", 0, sysFlag=0, subVersion=1)
        assert answer.code == ResponseCode.SUCCESS
        assert (await beat(peer, *wanted)).code == ResponseCode.SUCCESS

    serve(tmp_path, check, property_filter=True)
    assert threading.main_thread() not in gate.threads


def test_the_filter_of_a_held_pop_is_compiled_again_in_a_thread(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_KNOWN_COUNT", 1)

    async def check(peer: Peer) -> None:
        await peer.send("T", b"x", queue_id=0)
        pop = PopConsumer(peer)
        held = asyncio.ensure_future(
            pop.pop(expType="SQL92", exp=LONG, queueId=0, pollTime=60_000)
        )
        while not await pop.polling_count(0):
            pass
        await peer.pull("T", 0, expressionType="SQL92", subscription=f"{LONG} OR n = 'x'")
        await peer.send("T", b"y", queue_id=0, properties="n\x01x7")
        assert [one.body for one in await held] == [b"y"]

    serve(tmp_path, check, property_filter=True)
    assert len(gate.threads) == 3
    assert threading.main_thread() not in gate.threads


# ---------------------------------------------------------------------------------------- gone


def test_a_pull_whose_client_left_while_its_filter_was_compiled_is_not_held(
    tmp_path: Path, gate: Gate
) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x", queue_id=0)
        other = await connect(peer.broker)
        gate.close()
        gone = other.pull_later("T", 1, subscription=LONG, **HELD)
        await gate.wait_reached()
        await leave(other, peer)
        gate.open()
        other_filter = f"{LONG} OR n = 'x'"  # is compiled after that one
        await peer.pull("T", 0, expressionType="SQL92", subscription=other_filter)
        held = peer.pull_later("T", 1, **{**HELD, "expressionType": "TAG"})
        await peer.send("T", b"y", queue_id=0, properties="n\x01x7")
        assert (await held).code == ResponseCode.SUCCESS
        await ended(gone)

    serve(tmp_path, check, property_filter=True, held_pull_count_max=1)


def test_a_pop_whose_client_left_while_its_filter_was_compiled_takes_nothing(
    tmp_path: Path, gate: Gate
) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x", queue_id=0, properties="n\x01x7")
        other = await connect(peer.broker)
        gate.close()
        gone = asyncio.ensure_future(PopConsumer(other).ask(expType="SQL92", exp=LONG, queueId=0))
        await gate.wait_reached()
        await leave(other, peer)
        gate.open()
        other_filter = f"{LONG} OR n = 'x'"  # is compiled after that one
        answer = await PopConsumer(peer).ask(expType="SQL92", exp=other_filter, queueId=0)
        assert answer.code == ResponseCode.SUCCESS
        await ended(gone)

    serve(tmp_path, check, property_filter=True)


class Halt:
    """Has every read wait once it has begun, for a turn or for a disk."""

    def __init__(self) -> None:
        self.count = 0
        self.reached = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def __call__(self, *_: object) -> None:
        self.count += 1
        self.reached.set()
        await self.may_go_on.wait()


READS: list[Callable[[Peer], Any]] = [
    lambda peer: peer.pull("T", 0, expressionType="SQL92", subscription=LONG),
    lambda peer: PopConsumer(peer).ask(expType="SQL92", exp=LONG, queueId=0),
]


@pytest.mark.parametrize("read", READS, ids=["pull", "pop"])
def test_a_read_whose_client_left_while_it_waited_for_its_turn_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[Peer], Any]
) -> None:
    monkeypatch.setattr(message_filter, "_CALL_S", 0.0)
    monkeypatch.setattr(message_filter, "_PIECE_S", 0.0)  # one message at a time
    monkeypatch.setattr(filter_turns, "READ_S", 60.0)

    async def check(peer: Peer) -> None:
        for _ in range(5):
            await peer.send("T", b"x", queue_id=0)
        await peer.send("T", b"y", queue_id=0, properties="n\x01x7")
        other = await connect(peer.broker)
        halt = Halt()
        with monkeypatch.context() as halted:
            halted.setattr(FilterTurns, "wait", halt)
            gone = asyncio.ensure_future(read(other))
            await halt.reached.wait()
            await leave(other, peer)
            halt.may_go_on.set()
            await ended(gone)
            await peer.send("U", b"z", queue_id=0)  # many turns of the event loop
        assert halt.count == 1
        answer = await PopConsumer(peer).ask(expType="SQL92", exp=LONG, queueId=0)
        assert answer.code == ResponseCode.SUCCESS

    serve(tmp_path, check, property_filter=True)


def test_a_pull_whose_client_left_while_it_waited_for_a_disk_is_not_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(peer: Peer) -> None:
        await peer.send("T", b"x", queue_id=0)
        other = await connect(peer.broker)
        halt = Halt()
        with monkeypatch.context() as halted:
            halted.setattr(Reads, "entry_prefetch", lambda *_: object())
            halted.setattr(RecordResponses, "run", halt)
            gone = other.pull_later("T", 1, **{**HELD, "expressionType": "TAG"})
            await halt.reached.wait()
            await leave(other, peer)
            halt.may_go_on.set()
            await ended(gone)
        held = peer.pull_later("T", 1, **{**HELD, "expressionType": "TAG"})
        await peer.send("T", b"y", queue_id=0)
        answer = await held
        assert answer.code == ResponseCode.SUCCESS, answer
        assert fields(answer)["nextBeginOffset"] == "2"

    serve(tmp_path, check, held_pull_count_max=1)


def test_a_pop_that_is_given_up_leaves_the_message_that_woke_it_to_the_next(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "_KNOWN_COUNT", 1)

    async def check(peer: Peer) -> None:
        await peer.send("T", b"x", queue_id=0)
        other = await connect(peer.broker)
        first, second = PopConsumer(other), PopConsumer(peer)
        wanted: dict[str, Any] = {"queueId": 0, "pollTime": 60_000}
        gone = asyncio.ensure_future(first.ask(expType="SQL92", exp=LONG, **wanted))
        while await second.polling_count(0) < 1:
            pass
        held = asyncio.ensure_future(second.pop(expType="SQL92", exp="n = 'x7'", **wanted))
        while await second.polling_count(0) < 2:
            pass
        gate.close()
        await peer.send("T", b"y", queue_id=0, properties="n\x01x7")  # wakes the first
        await gate.wait_reached()
        await leave(other, peer)
        gate.open()
        assert [one.body for one in await held] == [b"y"]
        await ended(gone)

    serve(tmp_path, check, property_filter=True)
