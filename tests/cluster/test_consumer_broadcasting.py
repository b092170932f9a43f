"""Broadcasting groups: every member gets everything, and goes on where its own file says."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.addresses import has_ipv6
from tests.cluster.running import run
from tests.cluster.scenarios import (
    DEADLINE_S,
    numbers_of,
    receive,
    send_numbers,
    wait_until,
)

from pymq import Network, Producer, blocking
from pymq.client.consuming.consumer import Consumer
from pymq.protocol.message import Message, ReceivedMessage
from pymq.testing.cluster import Cluster


def member(
    cluster: Cluster,
    root: Path,
    name: str = "one",
    *,
    name_server: str | None = None,
    **options: Any,
) -> Consumer:
    settings: dict[str, Any] = {"from_where": "earliest", "local_offsets_dir": root, **options}
    settings["network"] = Network(instance_name=name)
    return Consumer(
        name_server or cluster.name_server, "g", message_model="BROADCASTING", **settings
    ).subscribe("T")


def test_every_member_gets_everything_and_goes_on_where_it_was(tmp_path: Path) -> None:
    async def test(cluster: Cluster) -> None:
        await send_numbers(cluster.name_server, "T", range(20))
        async with member(cluster, tmp_path, "one") as one, member(cluster, tmp_path, "two") as two:
            for each in (one, two):
                assert numbers_of(await receive(each, 20)) == list(range(20))
                assert {queue.topic for queue in each.assignment} == {"T"}, "no retry topic"
            # Leaving the block finishes the last message.
            ids = {one.client_id, two.client_id}
        assert ids == {"127.0.0.1@one", "127.0.0.1@two"}
        for client_id in ids:
            assert (tmp_path / client_id / "g" / "offsets.json").is_file()
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, cluster.restart_broker)
        await send_numbers(cluster.name_server, "T", range(20, 30))
        async with member(cluster, tmp_path, "one") as one:
            assert numbers_of(await receive(one, 10)) == list(range(20, 30))
        async with member(cluster, tmp_path, "three") as three:
            assert numbers_of(await receive(three, 30)) == list(range(30))

    with Cluster(brokers=2) as cluster:
        run(test(cluster))


def test_the_latest_is_where_it_begins_by_default(pymq_cluster: Cluster, tmp_path: Path) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(8))
        latest = {"from_where": "latest"}
        async with member(pymq_cluster, tmp_path, **latest) as one:
            path = tmp_path / one.client_id / "g" / "offsets.json"
            await wait_until(lambda: path.exists() and path.read_text().count("}:2") == 4, "begun")
        await send_numbers(pymq_cluster.name_server, "T", range(8, 12))
        async with member(pymq_cluster, tmp_path, **latest) as one:
            assert numbers_of(await receive(one, 4)) == list(range(8, 12))

    run(test())


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_it_goes_on_whichever_name_server_answers(
    pymq_cluster: Cluster, tmp_path: Path
) -> None:
    """Another one sees another address of this machine, which is a part of the client id."""

    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(8))
        latest = {"from_where": "latest"}
        async with member(pymq_cluster, tmp_path, **latest) as one:
            path = tmp_path / one.client_id / "g" / "offsets.json"
            await wait_until(lambda: path.exists() and path.read_text().count("}:2") == 4, "begun")
        # As if the name server that is away now had answered then.
        (tmp_path / "127.0.0.1@one").rename(tmp_path / "::1@one")
        await send_numbers(pymq_cluster.name_server, "T", range(8, 12))
        both = f"[::1]:9;{pymq_cluster.name_server}"
        async with member(pymq_cluster, tmp_path, name_server=both, **latest) as one:
            assert one.client_id == "127.0.0.1@one"
            assert numbers_of(await receive(one, 4)) == list(range(8, 12))
        await send_numbers(pymq_cluster.name_server, "T", range(12, 16))
        async with member(pymq_cluster, tmp_path, name_server=both, **latest) as one:
            assert numbers_of(await receive(one, 4)) == list(range(12, 16))

    run(test())
    assert [one.name for one in tmp_path.iterdir()] == ["::1@one"]


def test_what_fails_is_dropped_with_a_word(
    pymq_cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[int] = []

    async def handler(message: ReceivedMessage) -> None:
        got.append(int(message.body))
        if message.body == b"1":
            raise ZeroDivisionError

    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(4))
        async with member(pymq_cluster, tmp_path) as one:
            running = asyncio.ensure_future(one.run(handler))
            await wait_until(lambda: len(got) == 4 and not one.backlog_count, "all")
        await running
        async with member(pymq_cluster, tmp_path) as one:
            await send_numbers(pymq_cluster.name_server, "T", range(4, 5))
            assert numbers_of(await receive(one, 1)) == [4]

    run(test())
    assert sorted(got) == [0, 1, 2, 3]
    assert caplog.text.count("is not delivered again to this member") == 1


def test_a_file_that_cannot_be_read_stops_it_and_says_so(
    pymq_cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "127.0.0.1@one" / "g" / "offsets.json"

    async def test() -> None:
        path.parent.mkdir(parents=True)
        path.write_text("{")
        await send_numbers(pymq_cluster.name_server, "T", range(4))
        async with member(pymq_cluster, tmp_path) as one:
            await wait_until(lambda: "no local offset file can be read" in caplog.text, "it says")
            path.unlink()
            assert numbers_of(await receive(one, 4)) == list(range(4))

    run(test())


def test_broadcasting_in_order(pymq_cluster: Cluster, tmp_path: Path) -> None:
    async def test() -> None:
        await send_numbers(pymq_cluster.name_server, "T", range(20))
        async with (
            member(pymq_cluster, tmp_path, "one", orderly=True) as one,
            member(pymq_cluster, tmp_path, "two", orderly=True) as two,
        ):
            for each in (one, two):
                assert numbers_of(await receive(each, 20)) == list(range(20))

    run(test())


def test_blocking(pymq_cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with blocking.Producer(pymq_cluster.name_server, timeout_s=30) as producer:
        queues = producer.queues("T")
        for queue in queues:
            producer.send(Message("T", b"first"), queue=queue)
    # The second time, what comes to each queue is what was not there before.
    for expected in (b"first", b"second"):
        consumer = blocking.Consumer(
            pymq_cluster.name_server,
            "g",
            message_model="BROADCASTING",
            from_where="earliest",
            local_offsets_dir=str(tmp_path),
        ).subscribe("T")
        with consumer:
            found = [consumer.receive(timeout_s=DEADLINE_S) for _ in queues]
            assert [one.body for one in found if one] == [expected] * len(queues)
            assert consumer.receive(timeout_s=0.3) is None
        with blocking.Producer(pymq_cluster.name_server, timeout_s=30) as producer:
            for queue in queues:
                producer.send(Message("T", b"second"), queue=queue)
    assert [one.name for one in tmp_path.iterdir()] == ["127.0.0.1@DEFAULT"], "as in Java"


def test_what_fails_in_order_is_tried_again_in_its_place(
    pymq_cluster: Cluster, tmp_path: Path
) -> None:
    """As in any group, and as Java's member does: nothing is dropped."""
    got: list[bytes] = []

    async def handler(message: ReceivedMessage) -> None:
        got.append(message.body)
        if message.body == b"rejected":
            message.reject("because")
        elif message.reconsume_times < 2:
            raise ZeroDivisionError

    async def test() -> None:
        async with Producer(pymq_cluster.name_server) as producer:
            for body in (b"fails", b"rejected", b"last"):
                await producer.send(Message("T", body), sharding_key="k")
        async with member(pymq_cluster, tmp_path, orderly=True, suspend_s=0.05) as one:
            running = asyncio.ensure_future(one.run(handler))
            await wait_until(lambda: len(got) == 7 and not one.backlog_count, "all")
        await running

    run(test())
    assert got == 3 * [b"fails"] + [b"rejected"] + 3 * [b"last"]
    assert [one.body for one in pymq_cluster.dead_letters("g")] == [b"rejected"]
