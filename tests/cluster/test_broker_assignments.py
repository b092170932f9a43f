"""Rebalancing by the broker: who is told to read what, and how."""

import asyncio
import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import Peer, connect, create_topic, serve
from tests.cluster.played import Played, PlayedNameServer, route_to
from tests.cluster.running import DEADLINE_S, run
from tests.unit.store.stores import FakeClock

from pymq.broker import topic_routes
from pymq.broker.topic_routes import AGAIN_S, ASKING_COUNT_MAX, FRESH_S, TopicRoutes
from pymq.protocol.bodies import ConsumerData, MessageQueue, Subscription
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for name servers however slow this machine is."""
    monkeypatch.setattr(topic_routes, "TIMEOUT_S", DEADLINE_S)


async def query(peer: Peer, client_id: str, **changes: Any) -> Any:
    body = {
        "topic": "T",
        "consumerGroup": "g",
        "clientId": client_id,
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
    } | changes
    answer = await peer.ask(RequestCode.QUERY_ASSIGNMENT, json.dumps(body).encode())
    assert answer.code == ResponseCode.SUCCESS, answer
    found = json.loads(bytes(answer.body))
    if not found:
        return None
    return sorted(
        (one["mode"], one["messageQueue"]["queueId"]) for one in found["messageQueueAssignments"]
    )


async def set_mode(peer: Peer, **changes: Any) -> Command:
    body = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0} | changes
    return await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, json.dumps(body).encode())


async def join(peer: Peer, client_id: str) -> None:
    data = ConsumerData(group="g", subscriptions=[Subscription(topic="T")])
    await peer.heartbeat(client_id, data)


def test_assignments_follow_the_members_and_the_mode(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=4)
        assert await query(peer, "a") is None
        await join(peer, "a")
        other = await connect(peer.broker)
        await join(other, "b")
        assert await query(peer, "a") == [("PULL", 0), ("PULL", 1)]
        assert await query(peer, "b") == [("PULL", 2), ("PULL", 3)]
        assert await query(peer, "b", strategyName="AVG_BY_CIRCLE") == [("PULL", 1), ("PULL", 3)]
        assert await query(peer, "b", strategyName="OTHER") is None
        assert await query(peer, "b", topic="unknown") is None
        everything = await query(peer, "x", messageModel="BROADCASTING")
        assert everything == [("PULL", n) for n in range(4)]
        assert (await set_mode(peer)).code == ResponseCode.SUCCESS
        assert await query(peer, "a") == [("POP", -1)]
        assert await query(peer, "a", topic="%RETRY%g") == [("PULL", 0)]
        modes = await peer.ask(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        assert json.loads(bytes(modes.body)) == {
            "messageRequestModeMap": {
                "T": {
                    "g": {
                        "consumerGroup": "g",
                        "mode": "POP",
                        "popShareQueueNum": 0,
                        "topic": "T",
                    }
                }
            }
        }
        other.channel.close()

    async def after_restart(peer: Peer) -> None:
        await join(peer, "a")
        assert await query(peer, "a") == [("POP", -1)]

    serve(tmp_path, check)
    serve(tmp_path, after_restart)


def test_modes_that_cannot_be_set(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T")
        for changes, code in [
            ({"topic": "%RETRY%g"}, ResponseCode.NO_PERMISSION),
            ({"topic": "unknown"}, ResponseCode.TOPIC_NOT_EXIST),
            ({"consumerGroup": "no group"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
            ({"mode": "PUSH"}, ResponseCode.SYSTEM_ERROR),
        ]:
            assert (await set_mode(peer, **changes)).code == code, changes
        for body in (b"", b"[]", b'{"topic":"T"}'):
            for request in (RequestCode.QUERY_ASSIGNMENT, RequestCode.SET_MESSAGE_REQUEST_MODE):
                assert (await peer.ask(request, body)).code == ResponseCode.SYSTEM_ERROR

    serve(tmp_path, check)


class Table:
    """Plays the table of our topics: there is none."""

    def find(self, topic: str) -> None:
        return None


def routes_of(*name_servers: str) -> tuple[TopicRoutes, FakeClock]:
    table: Any = Table()
    clock = FakeClock()
    return TopicRoutes("broker-a", name_servers, table, clock), clock


async def ask_often(routes: TopicRoutes, topic: str) -> list[Any]:
    return await asyncio.gather(*(routes.queues(topic) for _ in range(1000)))


def test_a_topic_that_is_unknown_is_asked_for_a_few_times_however_many_want_it() -> None:
    with PlayedNameServer() as server:

        async def test() -> None:
            routes, clock = routes_of(server.address)
            assert await ask_often(routes, "nope") == [None] * 1000
            asked = server.accepted
            assert asked <= ASKING_COUNT_MAX
            server.routes["nope"] = route_to("127.0.0.1:1", queue_count=2)
            assert await routes.queues("nope") is None and server.accepted == asked
            clock.now_ms += int(1000 * AGAIN_S)  # it may be created at any time
            assert await routes.queues("nope") == [
                MessageQueue("nope", "broker-a", 0),
                MessageQueue("nope", "broker-a", 1),
            ]

        run(test())


def test_many_topics_are_asked_for_a_few_at_a_time() -> None:
    with PlayedNameServer() as server:
        answer, at_a_time, most = server.answer, 0, 0

        def counted(request: Command) -> Command | None:
            nonlocal at_a_time, most
            at_a_time += 1
            most = max(most, at_a_time)
            time.sleep(0.005)
            at_a_time -= 1
            return answer(request)

        server.answer = counted

        async def test() -> None:
            routes, _ = routes_of(server.address)
            await asyncio.gather(*(routes.queues(f"t{number}") for number in range(100)))

        run(test())
        assert server.accepted == 100 and most <= ASKING_COUNT_MAX


def cut_off(request: Command) -> None:
    """Close the connection instead of an answer."""
    raise ConnectionResetError


def test_name_servers_that_do_not_answer_are_said_once_and_left_alone_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with PlayedNameServer({"T": route_to("127.0.0.1:1")}) as server:
        answer = server.answer

        async def test() -> None:
            routes, clock = routes_of(server.address)
            queues = await routes.queues("T")
            assert queues == [MessageQueue("T", "broker-a", 0)]
            server.answer = cut_off
            clock.now_ms += int(1000 * FRESH_S)
            for _ in range(3):
                asked = server.accepted
                assert await ask_often(routes, "U") == [None] * 1000
                assert await ask_often(routes, "T") == [queues] * 1000
                assert 0 < server.accepted - asked <= ASKING_COUNT_MAX
                clock.now_ms += int(1000 * AGAIN_S)
            server.answer = answer
            assert await routes.queues("U") is None
            await routes.close()

        with caplog.at_level(logging.INFO):
            run(test())
    levels = [one.levelname for one in caplog.records if "name server tells" in one.getMessage()]
    assert levels == ["WARNING"]
    assert any("tell routes again" in one for one in caplog.messages)


def test_a_name_that_no_topic_has_is_not_asked_for() -> None:
    with PlayedNameServer({"T": route_to("127.0.0.1:1")}) as server:

        async def test() -> None:
            routes, _ = routes_of(server.address)
            for name in ("bad\ud800", "", "a/b", "t" * 10_000):
                assert await routes.queues(name) is None
            assert server.accepted == 0
            assert await routes.queues("T") == [MessageQueue("T", "broker-a", 0)]

        run(test())


@pytest.mark.parametrize("code", [ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR])
def test_a_route_that_cannot_be_told_keeps_no_other_from_being_told(
    code: ResponseCode, caplog: pytest.LogCaptureFixture
) -> None:
    with PlayedNameServer({"T": route_to("127.0.0.1:1")}) as server:
        answer, asked, is_bad = server.answer, [], True

        def only_some(request: Command) -> Command | None:
            topic = (request.fields or {})["topic"]
            asked.append(topic)
            return request.reply(code, body=b"{") if topic != "T" and is_bad else answer(request)

        server.answer = only_some

        async def test() -> None:
            nonlocal is_bad
            routes, clock = routes_of(server.address)
            for _ in range(2):
                for _ in range(2):
                    assert await routes.queues("bad") is None
                    assert await routes.queues("T") == [MessageQueue("T", "broker-a", 0)]
                clock.now_ms += int(1000 * AGAIN_S)
            assert asked == ["bad", "T", "bad"]
            is_bad = False
            server.routes["bad"] = route_to("127.0.0.1:1")
            assert await routes.queues("bad") == [MessageQueue("bad", "broker-a", 0)]

        with caplog.at_level(logging.INFO):
            run(test())
    told = [one.levelname for one in caplog.records if "route of bad" in one.getMessage()]
    assert told == ["WARNING", "INFO"]


def test_a_stale_route_is_used_while_it_is_asked_for_again() -> None:
    with PlayedNameServer({"T": route_to("127.0.0.1:1")}) as server:
        answer, may_answer = server.answer, threading.Event()

        def later(request: Command) -> Command | None:
            may_answer.wait(DEADLINE_S)
            return answer(request)

        async def test() -> None:
            routes, clock = routes_of(server.address)
            old = await routes.queues("T")
            assert old == [MessageQueue("T", "broker-a", 0)]
            server.answer = later
            server.routes["T"] = route_to("127.0.0.1:1", queue_count=2)
            clock.now_ms += int(1000 * FRESH_S)
            async with asyncio.timeout(20):  # nobody answers before it is over
                assert await ask_often(routes, "T") == [old] * 1000
            may_answer.set()
            while await routes.queues("T") == old:
                await asyncio.sleep(0.01)
            assert await routes.queues("T") == [*old, MessageQueue("T", "broker-a", 1)]
            assert server.accepted == 2
            await routes.close()
            clock.now_ms += int(1000 * FRESH_S)
            assert len(await routes.queues("T") or ()) == 2 and server.accepted == 2

        run(test())


def test_a_name_server_that_does_not_answer_is_asked_last() -> None:
    topics = [f"t{number}" for number in range(40)]
    with (
        Played(cut_off) as silent,
        PlayedNameServer({topic: route_to("127.0.0.1:1") for topic in topics}) as server,
    ):

        async def test() -> None:
            routes, _ = routes_of(silent.address, server.address)
            found = await asyncio.gather(*map(routes.queues, topics))
            assert found == [[MessageQueue(topic, "broker-a", 0)] for topic in topics]
            assert 1 <= silent.accepted <= ASKING_COUNT_MAX

        run(test())


@pytest.mark.parametrize("deleted", ["topic", "group"])
def test_a_mode_is_not_for_another_topic_or_group_of_that_name(
    tmp_path: Path, deleted: str
) -> None:
    async def check(peer: Peer) -> None:
        await create_topic(peer, "T", queues=1)
        await set_mode(peer)
        await join(peer, "a")
        assert await query(peer, "a") == [("POP", -1)]
        if deleted == "topic":
            answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
        else:
            answer = await peer.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="g")
        assert answer.code == ResponseCode.SUCCESS
        await create_topic(peer, "T", queues=1)
        await join(peer, "a")
        assert await query(peer, "a") == [("PULL", 0)]

    serve(tmp_path, check)
