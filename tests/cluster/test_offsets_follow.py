"""What consumers commit is at the slaves at once, and is acknowledged when it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.administration import admin_of
from tests.cluster.replicated import ask, eventually, pair_of, send
from tests.cluster.running import run
from tests.cluster.test_acting_master import QUEUE, commit_at, offset_at

from pymq.broker.ha.offset_sync import OffsetSync
from pymq.broker.replication_config import Role
from pymq.broker.state.offsets import OffsetTable
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ConnectionFailed, RequestTimeout
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import (
    AWAIT_METADATA,
    AWAIT_OFFSETS,
    MQ_VERSION,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from pymq.protocol.command import Command
from pymq.protocol.headers.replication import OffsetsRequest
from pymq.protocol.offset_changes import OffsetChanges
from pymq.testing import Cluster

#: What is asked for now and then comes too late for these tests.
LATE: dict[str, Any] = {"metadata_interval_ms": 120_000}
#: A slave that is slow for a moment is waited for, and stays in the set.
PATIENT: dict[str, Any] = {"slave_timeout_ms": 60_000}
ROUNDS = 4


def test_what_was_acknowledged_is_at_the_next_master() -> None:
    """Whoever it is: the first master comes back as a slave, and is the master again."""
    rules = {**LATE, **PATIENT, "sync_state_lag_ms": 60_000, "role": Role.SYNC_MASTER}
    with Cluster(replicas=2, replication=rules) as group:
        group.wait_in_sync()
        with BlockingClient(group.name_server, timeout_s=30.0, read_deadline_s=60.0) as client:
            admin = admin_of(client)
            admin.topics.create("T", queue_count=2)
            admin.groups.create("g")
            queues = [MessageQueue("T", group.broker_name, number) for number in range(2)]
            for turn in range(ROUNDS):
                master = group.master()
                for offset in range(turn * 20, turn * 20 + 20):
                    for queue in queues:
                        client.commit_offset("g", queue, offset)
                group.kill_broker(None, master)
                for queue in queues:
                    assert client.committed_offset("g", queue) == turn * 20 + 19
                group.start_broker(None, master)
                group.wait_in_sync()


@pytest.mark.parametrize("role", [Role.ASYNC_MASTER, Role.SYNC_MASTER])
def test_a_classic_slave_follows_commits_and_deletions(
    tmp_path: Path, role: Role, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Or one that has not asked for two seconds, on a machine that stood still, is not waited for.
    monkeypatch.setattr("pymq.broker.ha.offset_followers.AWAY_S", 60.0)
    rules = {"role": role, **PATIENT}
    with pair_of(tmp_path, replication=rules, slave_replication=LATE) as pair:
        pair.admin.topics.create("T", queue_count=1)
        pair.admin.groups.create("g")
        send(pair, [b"%d" % number for number in range(10)])
        master, slave = pair.master.broker_address, pair.slave.broker_address
        commit_at(master, 1)
        eventually(lambda: offset_at(slave) == "1")  # from now on, it is known that it asks
        for offset in (7, 3, 9):
            commit_at(master, offset)
            if role is Role.ASYNC_MASTER:
                eventually(lambda n=offset: offset_at(slave) == str(n))
            assert offset_at(slave) == str(offset)
        pair.admin.groups.delete("g", forget_offsets=True)
        eventually(lambda: offset_at(slave) is None)


def test_offsets_that_are_asked_for_again_are_no_lost_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a deletion the slave itself ends its question; it said that the master was lost."""
    rules = {"metadata_interval_ms": 500}
    with pair_of(tmp_path, replication=PATIENT, slave_replication=rules) as pair:
        pair.admin.topics.create("T", queue_count=1)
        pair.admin.groups.create("g")
        slave = pair.slave.broker_address
        wanted = Command(RequestCode.GET_TOPIC_CONFIG, {"topic": "gone"})

        def delete_and_commit(offset: int) -> None:
            pair.admin.topics.create("gone", queue_count=1)
            eventually(lambda: ask(slave, wanted).code == ResponseCode.SUCCESS)
            pair.admin.topics.delete("gone")
            eventually(lambda: ask(slave, wanted).code != ResponseCode.SUCCESS)
            commit_at(pair.master.broker_address, offset)
            eventually(lambda: offset_at(slave) == str(offset))

        delete_and_commit(1)
        delete_and_commit(2)
        told = [one.message for one in caplog.records if "offsets do not follow" in one.message]
    assert not told


def test_all_offsets_may_be_asked_for_again_before_the_first_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def check() -> None:
        asked: asyncio.Queue[None] = asyncio.Queue()
        ended: asyncio.Queue[None] = asyncio.Queue()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked.put_nowait(None)
            await reader.read()
            writer.close()
            ended.put_nowait(None)

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        offsets = cast(OffsetTable, SimpleNamespace(is_known=True))
        sync = OffsetSync(offsets, lambda _: None, lambda _: None, lambda: 0, broker_id=1)
        sync.start()
        sync.follow(f"127.0.0.1:{port}")
        async with asyncio.timeout(30):
            for _ in range(3):
                await asked.get()
                sync.begin_again()
            await asked.get()
            await sync.close()
            for _ in range(4):
                await ended.get()
        server.close()

    asyncio.run(check())
    assert "offsets do not follow" not in caplog.text


def test_no_commit_waits_for_who_asks_and_does_not_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave that is refused never has the log that the offsets speak of."""
    monkeypatch.setattr("pymq.broker.ha.offset_followers.AWAY_S", 600.0)
    rules = {"role": Role.SYNC_MASTER, "slave_timeout_ms": 600_000}
    with Cluster(tmp_path, replication=rules) as cluster:
        request = OffsetsRequest(broker_id=1, position="", wait_ms=0)
        answer = ask(cluster.broker_address, Command(AWAIT_OFFSETS, request.to_fields()))
        assert answer.code == ResponseCode.SUCCESS
        with BlockingClient(cluster.name_server, timeout_s=30.0) as client:
            admin_of(client).topics.create("T", queue_count=1)
            admin_of(client).groups.create("g")
        commit_at(cluster.broker_address, 1)


def test_a_slave_takes_no_commits_while_it_follows(tmp_path: Path) -> None:
    with pair_of(tmp_path, slave_replication={"metadata_interval_ms": 500}) as pair:
        pair.admin.topics.create("T", queue_count=1)
        pair.admin.groups.create("g")
        commit_at(pair.master.broker_address, 4)
        slave = pair.slave.broker_address
        eventually(lambda: offset_at(slave) == "4")
        for code, asked in (
            (RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}),
            (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"}),
        ):
            eventually(lambda code=code, asked=asked: pair.ask(code, asked).code == 0)

        def commit() -> int:
            fields = {**QUEUE, "commitOffset": "5"}
            return ask(slave, Command(RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code

        assert commit() == ResponseCode.SERVICE_NOT_AVAILABLE
        assert offset_at(slave) == "4"
        pair.master.kill_broker()
        eventually(lambda: commit() == ResponseCode.SUCCESS)  # better here than nowhere
        assert offset_at(slave) == "5"


@pytest.mark.parametrize("is_new", [False, True])
def test_who_missed_commits_does_not_say_what_is_committed(
    monkeypatch: pytest.MonkeyPatch, *, is_new: bool
) -> None:
    """A slave was away meanwhile, and its new connection has not told it of them yet."""

    async def fail(sync: OffsetSync, master: str) -> float:
        raise ConnectionFailed("no connection")

    monkeypatch.setattr("pymq.broker.slave_refusals.KNOWN_WAIT_S", 0.1)
    with Cluster(replicas=2, replication={**LATE, "role": Role.SYNC_MASTER}) as group:
        group.wait_in_sync()
        slave_id = 3 - group.master()
        with BlockingClient(group.name_server, timeout_s=30.0, read_deadline_s=60.0) as client:
            admin_of(client).topics.create("T", queue_count=1)
            admin_of(client).groups.create("g")
            queue = client.read_queues("T")[0]
            if not is_new:
                client.commit_offset("g", queue, 5)
            group.stop_broker(None, slave_id)
            client.commit_offset("g", queue, 9)  # once the other one is not in sync any more
        with monkeypatch.context() as patched:
            patched.setattr(OffsetSync, "_ask", fail)
            group.start_broker(None, slave_id)
            slave = group.address(None, slave_id)
            for language, version in (LanguageCode.PYTHON, MQ_VERSION), (LanguageCode.JAVA, 473):
                answer = ask(slave, query_of("g", language, version))
                assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE, answer
                assert "does not know what is committed" in (answer.remark or "")
            with pytest.raises(RequestTimeout):  # RocketMQ 4.9.7's would begin at the end
                ask(slave, query_of("g", LanguageCode.JAVA, 407), timeout_s=1.0)
        monkeypatch.setattr("pymq.broker.slave_refusals.KNOWN_WAIT_S", 60.0)
        answer = ask(slave, query_of("g", LanguageCode.JAVA, 407))
        assert (answer.fields or {}).get("offset") == "9", answer


def query_of(group: str, language: int, version: int) -> Command:
    fields = {**QUEUE, "consumerGroup": group}
    return Command(RequestCode.QUERY_CONSUMER_OFFSET, fields, language=language, version=version)


def test_a_master_that_lost_its_offsets_leaves_those_of_its_slave(tmp_path: Path) -> None:
    """Such a master has offsets all the same: those of its own groups are there at every start."""
    with pair_of(tmp_path) as pair:
        request = OffsetsRequest(broker_id=2, position="", wait_ms=0)
        answer = ask(pair.master.broker_address, Command(AWAIT_OFFSETS, request.to_fields()))
    told = OffsetChanges.decode(answer.body)
    assert told.is_whole and told.offsets
    slave = OffsetTable()
    slave.commit("g", "T", 0, 12_345)
    slave.take_changes(told)
    assert slave.find("g", "T", 0) == 12_345


def test_nothing_is_taken_over_from_a_master_whose_log_is_not_followed(tmp_path: Path) -> None:
    """Nor from one that has less of it: it has lost its disk, as the slave will know soon."""

    async def follow(address: str) -> None:
        kept_end: list[int | None] = [0]
        offsets = OffsetTable()
        sync = OffsetSync(offsets, lambda _: None, lambda _: None, lambda: kept_end[0], broker_id=3)
        sync.follow(address)
        for end in (None, 1 << 40):
            kept_end[0] = end
            await sync._ask(address)
            assert offsets.find("g", "T", 0) is None
        kept_end[0] = 0
        await sync._ask(address)
        assert offsets.find("g", "T", 0) == 3
        await sync.close()

    with Cluster(tmp_path) as cluster:
        with BlockingClient(cluster.name_server, timeout_s=30.0) as client:
            admin_of(client).topics.create("T", queue_count=1)
            admin_of(client).groups.create("g")
        commit_at(cluster.broker_address, 3)
        run(follow(cluster.broker_address))


def test_who_is_not_the_master_yet_is_not_taken_for_one_of_rocketmqs(tmp_path: Path) -> None:
    """Its slaves ask again at once, or it would wait for nobody when it is."""

    async def follow(address: str) -> None:
        sync = OffsetSync(OffsetTable(), lambda _: None, lambda _: None, lambda: 0, broker_id=3)
        sync.start()
        sync.follow(address)
        for _ in range(100):
            await asyncio.sleep(0.01)
            assert not sync.is_foreign
        await sync.close()

    with pair_of(tmp_path) as pair:
        for code in (AWAIT_METADATA, AWAIT_OFFSETS):
            answer = ask(pair.slave.broker_address, Command(code, {"brokerId": "3"}))
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        run(follow(pair.slave.broker_address))
