"""Rebalancing by the broker: who is told to read what, and how."""

import json
from pathlib import Path
from typing import Any

from tests.cluster.broker_peer import Peer, connect, create_topic, serve

from pymq.protocol.bodies import ConsumerData, Subscription
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command


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
