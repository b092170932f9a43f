"""A topic that is created again is told from the old one, and no other topic is taken for new."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.cluster.broker_peer import Peer, create_topic, serve

from pymq.client.sockets.bulk_client import BulkClient
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.headers.offsets import NO_ID
from pymq.testing import Cluster


async def topic_id(peer: Peer, topic: str = "T") -> str | None:
    answer = await peer.ask(RequestCode.GET_MAX_OFFSET, topic=topic, queueId=0)
    assert answer.code == ResponseCode.SUCCESS
    return (answer.fields or {}).get("pymqTopicId")


async def delete(peer: Peer) -> None:
    answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
    assert answer.code == ResponseCode.SUCCESS


def ask_again(path: Path, before: Callable[[Peer], Awaitable[object]] | None = None) -> str | None:
    """Start a broker on ``path``, and return the topic's id."""
    found: list[str | None] = []

    async def check(peer: Peer) -> None:
        if before is not None:
            await before(peer)
        found.append(await topic_id(peer))

    serve(path, check)
    return found[0]


def forget(path: Path, name: str) -> None:
    """Leave out a file as if the broker had been killed before it was first written."""
    for file in (path / "config").glob(f"{name}*"):
        file.unlink()


def test_a_topic_that_is_created_again_has_another_id(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        assert await topic_id(peer) is None
        await create_topic(peer, "T")
        first = await topic_id(peer)
        assert first not in (None, NO_ID)
        await create_topic(peer, "T", queues=8)  # as mqadmin updateTopic does
        assert await topic_id(peer) == first
        await delete(peer)
        assert await topic_id(peer) is None
        await peer.send("T", b"creates it")
        assert await topic_id(peer) not in (None, NO_ID, first)

    serve(tmp_path, check)


def test_ids_outlive_the_broker(tmp_path: Path) -> None:
    first = ask_again(tmp_path, lambda peer: create_topic(peer, "T"))
    assert ask_again(tmp_path) == first

    async def create_again(peer: Peer) -> None:
        await delete(peer)
        await create_topic(peer, "T")

    second = ask_again(tmp_path, create_again)
    assert second != first and ask_again(tmp_path) == second


@pytest.mark.parametrize("lost", ["topics.json", "topicIds.json"])
def test_a_crash_between_the_two_files_makes_no_other_topic(tmp_path: Path, lost: str) -> None:
    first = ask_again(tmp_path, lambda peer: peer.send("T", b"creates it"))
    forget(tmp_path, lost)
    # Its message brings a topic back that is not in the table.
    wanted = first if lost == "topics.json" else NO_ID
    assert ask_again(tmp_path) == ask_again(tmp_path) == wanted

    async def create_again(peer: Peer) -> None:
        await delete(peer)
        await create_topic(peer, "T")

    assert ask_again(tmp_path, create_again) not in (None, NO_ID, first)


def test_an_id_that_a_crash_left_behind_is_not_used_again(tmp_path: Path) -> None:
    first = ask_again(tmp_path, lambda peer: create_topic(peer, "T"))
    forget(tmp_path, "topics.json")
    assert ask_again(tmp_path) is None  # It had no message.
    assert ask_again(tmp_path, lambda peer: create_topic(peer, "T")) not in (None, NO_ID, first)


def test_clients_learn_ids_together_with_bounds() -> None:
    with Cluster() as cluster, BulkClient(cluster.name_server) as client:
        admin = admin_of(client)
        queues = [
            MessageQueue(topic, "broker-a", number) for topic in ("T", "U") for number in range(2)
        ]
        for topic in ("T", "U"):
            admin.topics.create(topic, queue_count=2)
        first = client.try_bounds(queues)
        assert set(first.topic_ids) == {("T", "broker-a"), ("U", "broker-a")}
        assert NO_ID not in first.topic_ids.values() and set(first.found) == set(queues)
        admin.topics.delete("T")
        admin.topics.create("T", queue_count=2)
        second = client.try_bounds(queues)
        changed = {one for one in first.topic_ids if second.topic_ids[one] != first.topic_ids[one]}
        assert changed == {("T", "broker-a")}
