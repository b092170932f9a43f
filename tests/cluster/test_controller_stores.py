"""The stores of a controller: one promise, kept by a file and by a real etcd."""

import asyncio
import functools
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controllers import awaited
from tests.cluster.etcd_members import EtcdCluster

from pymq.controller.config import ControllerConfig
from pymq.controller.groups import GroupState, Member
from pymq.controller.stores import etcd_gateway, file_store
from pymq.controller.stores.choice import open_store
from pymq.controller.stores.interface import ControllerStore, Leader
from pymq.errors import BrokerError, ConfigurationError
from pymq.protocol.codes import ResponseCode

DEADLINE_S = 60.0
#: Whoever leads is not to lose that by being held up.
LEASE_S = 30
#: For tests that wait for its end.
SHORT_LEASE_S = 5
NOT_LEADER = ResponseCode.CONTROLLER_NOT_LEADER


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """An etcd that is held up is waited for; one that is dead refuses connections."""
    monkeypatch.setattr(etcd_gateway, "TIMEOUT_S", DEADLINE_S)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as cluster:
        yield cluster


@pytest.fixture(params=["file", "etcd"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> ControllerConfig:
    """Of a store of its own."""
    if request.param == "file":
        return ControllerConfig(store=f"file:{tmp_path / 'controller'}")
    return etcd_settings(request.getfixturevalue("etcd"), tmp_path.name)


def etcd_settings(etcd: EtcdCluster, group: str, lease_s: int = LEASE_S) -> ControllerConfig:
    return ControllerConfig(store=etcd.store, group=group, etcd_lease_s=lease_s)


@asynccontextmanager
async def opened(settings: ControllerConfig, self_id: str = "n0") -> AsyncIterator[ControllerStore]:
    store = open_store(settings, self_id, f"127.0.0.1:{ord(self_id[-1])}")
    try:
        await store.start()
        yield store
    finally:
        await store.close()


async def eventually(condition: Callable[[], bool | Awaitable[bool]], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + DEADLINE_S
    while True:
        holds = condition()
        if not isinstance(holds, bool):
            holds = await holds
        if holds:
            return
        assert loop.time() < deadline, what
        await asyncio.sleep(0.02)


async def refused(work: Awaitable[object], code: int) -> str:
    with pytest.raises(BrokerError) as caught:
        await work
    assert caught.value.code == code, caught.value
    return str(caught.value)


def group(name: str = "broker-a", epoch: int = 0) -> GroupState:
    members = {1: Member(address="h:1", check_code="h:1;1")}
    return GroupState(cluster="c", name=name, members=members, next_id=2, master_epoch=epoch)


async def put(store: ControllerStore, state: GroupState) -> None:
    stored = await store.read(state.name)
    assert await store.replace(state.name, stored.revision, state)


# ------------------------------------------------------------------------------------ for both


@awaited
async def test_groups_are_kept(settings: ControllerConfig) -> None:
    async with opened(settings) as store:
        assert (await store.read("broker-a")).state is None
        assert await store.read_all() == {}
        await put(store, group())
        await put(store, group("\u00e4"))
        await put(store, group(epoch=1))
    async with opened(settings) as store:
        await eventually(lambda: store.is_leader, "the next one leads")
        groups = await store.read_all()
        assert {name: one.state for name, one in groups.items()} == {
            "broker-a": group(epoch=1),
            "\u00e4": group("\u00e4"),
        }
        assert groups["broker-a"] == await store.read("broker-a")
        assert await store.replace("broker-a", groups["broker-a"].revision, None)
        assert set(await store.read_all()) == {"\u00e4"}
        assert (await store.read("broker-a")).state is None


@awaited
async def test_only_what_was_read_is_replaced(settings: ControllerConfig) -> None:
    async with opened(settings) as store:
        absent = await store.read("broker-a")
        assert await store.replace("broker-a", absent.revision, group(epoch=1))
        assert not await store.replace("broker-a", absent.revision, group(epoch=2))
        first = await store.read("broker-a")
        assert await store.replace("broker-a", first.revision, group(epoch=3))
        for state in (group(epoch=4), None):
            assert not await store.replace("broker-a", first.revision, state)
        assert (await store.read("broker-a")).state == group(epoch=3)


@awaited
async def test_one_of_many_changes_wins(settings: ControllerConfig) -> None:
    async with opened(settings) as store:
        await put(store, group())
        stored = await store.read("broker-a")
        won = await asyncio.gather(
            *(store.replace("broker-a", stored.revision, group(epoch=n)) for n in range(1, 21))
        )
        assert won.count(True) == 1
        assert (await store.read("broker-a")).state == group(epoch=won.index(True) + 1)


@awaited
async def test_nothing_is_answered_after_the_end(settings: ControllerConfig) -> None:
    async with opened(settings) as store:
        stored = await store.read("broker-a")
    assert not store.is_leader and store.leader is None
    await refused(store.read("broker-a"), NOT_LEADER)
    await refused(store.read_all(), NOT_LEADER)
    await refused(store.replace("broker-a", stored.revision, group()), NOT_LEADER)
    await store.close()


# ------------------------------------------------------------------------------------ the file


@awaited
async def test_a_change_encodes_no_other_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rack with the masters of many groups goes at once: the event loop stays free."""
    settings = ControllerConfig(store=f"file:{tmp_path}")
    names = [f"broker-{number:02}" for number in range(20)]
    real, encoded = GroupState.to_json, []

    def to_json(state: GroupState) -> dict[str, Any]:
        encoded.append(state.name)
        return real(state)

    async with opened(settings) as store:
        for name in reversed(names):
            await put(store, group(name))
        monkeypatch.setattr(GroupState, "to_json", to_json)
        await put(store, group(names[3], epoch=7))
        assert encoded == [names[3]]
        lines = (tmp_path / "groups.json").read_text().splitlines()
        assert len(lines) == len(names) + 2  # one for each group, for people who look at it
        assert [line.split('"')[1] for line in lines[1:-1]] == names
    async with opened(settings) as store:
        encoded.clear()
        stored = await store.read(names[0])
        assert await store.replace(names[0], stored.revision, None)
        assert encoded == []
    async with opened(settings) as store:
        found = {name: one.state for name, one in (await store.read_all()).items()}
        assert found == {name: group(name, 7 if name == names[3] else 0) for name in names[1:]}


@awaited
async def test_a_directory_has_one_controller(tmp_path: Path) -> None:
    settings = ControllerConfig(store=f"file:{tmp_path}")
    async with opened(settings):
        with pytest.raises(ConfigurationError, match="another controller uses this directory"):
            async with opened(settings):
                pass
    async with opened(settings) as store:
        assert store.is_leader


@awaited
async def test_a_damaged_file_is_not_begun_anew(tmp_path: Path) -> None:
    settings = ControllerConfig(store=f"file:{tmp_path}")
    for text in ("", "{", "[]", '{"b":{"name":"b"}}'):
        (tmp_path / "groups.json").write_text(text)
        with pytest.raises(ConfigurationError, match="bring back a copy"):
            async with opened(settings):
                pass


@awaited
async def test_a_file_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the file is replaced, nothing happened; after it, nobody knows."""
    real_sync, failing = os.fsync, -1
    calls = 0

    def sync(file: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(5, "Input/output error")
        real_sync(file)

    monkeypatch.setattr(file_store.os, "fsync", sync)
    async with opened(ControllerConfig(store=f"file:{tmp_path}")) as store:
        await put(store, group())
        stored = await store.read("broker-a")
        failing = calls + 1  # of the new file
        text = await refused(store.replace("broker-a", stored.revision, group(epoch=1)), 1)
        assert "Input/output error" in text
        assert await store.read("broker-a") == stored
        assert await store.replace("broker-a", stored.revision, group(epoch=2))
        failing = calls + 2  # of the directory
        stored = await store.read("broker-a")
        await refused(store.replace("broker-a", stored.revision, group(epoch=3)), 1)
        assert "restart" in await refused(store.read("broker-a"), 1)
    async with opened(ControllerConfig(store=f"file:{tmp_path}")) as store:
        assert (await store.read("broker-a")).state == group(epoch=3)


def test_other_stores_are_refused(tmp_path: Path) -> None:
    for wrong in ("", "file", "file:", "zookeeper:h", "etcd:ftp://h", "etcd:http://h:x"):
        with pytest.raises(ConfigurationError, match="expected"):
            open_store(ControllerConfig(store=wrong), "n0", "h:1")


@pytest.mark.parametrize(
    "files",
    [{"etcd_ca_file": "/a.pem"}, {"etcd_certificate_file": "/c.pem", "etcd_key_file": "/k.pem"}],
)
def test_files_for_tls_are_not_given_to_an_etcd_without(files: dict[str, Any]) -> None:
    encrypted = replace(ControllerConfig(store="etcd:https://h:2379"), **files)
    for urls in ("http://h:2379", "h:2379", "https://h:2379,h2:2379"):
        with pytest.raises(ConfigurationError, match="expected https://"):
            open_store(replace(encrypted, store=f"etcd:{urls}"), "n0", "h:1")
    open_store(encrypted, "n0", "h:1")


# ------------------------------------------------------------------------------------ etcd


@awaited
async def test_one_controller_leads_and_all_know_it(etcd: EtcdCluster, tmp_path: Path) -> None:
    settings = etcd_settings(etcd, tmp_path.name)
    async with opened(settings, "n0") as first, opened(settings, "n1") as second:
        assert first.is_leader and not second.is_leader
        leader = Leader("n0", "127.0.0.1:48")
        assert first.leader == second.leader == leader
        peers = {"n0": "127.0.0.1:48", "n1": "127.0.0.1:49"}
        await eventually(lambda: first.peers == second.peers == peers, "both are known")
        await put(first, group())
        assert "127.0.0.1:48 is" in await refused(second.read("broker-a"), NOT_LEADER)
        await refused(second.replace("broker-a", 0, group(epoch=9)), NOT_LEADER)
        await first.close()
        await eventually(lambda: second.is_leader, "the other one leads")
        assert (await second.read("broker-a")).state == group()


@awaited
async def test_who_was_away_longer_than_its_lease_changes_nothing(
    etcd: EtcdCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It believes that it leads, and is as fast as it can be: etcd refuses it."""
    settings = etcd_settings(etcd, tmp_path.name, SHORT_LEASE_S)
    async with opened(settings, "n0") as first, opened(settings, "n1") as second:
        await put(first, group())
        stored = await first.read("broker-a")
        stop_renewing(first)
        await eventually(lambda: second.is_leader, "the other one leads")
        first._lease_until_s = float("inf")  # type: ignore[attr-defined]
        assert first.is_leader
        await refused(first.replace("broker-a", stored.revision, group(epoch=7)), NOT_LEADER)
        assert not first.is_leader
        assert (await second.read("broker-a")).state == group()


def stop_renewing(store: ControllerStore) -> None:
    async def nothing() -> None:
        pass

    store._renew = store._campaign = nothing  # type: ignore[attr-defined]


@awaited
async def test_an_answer_that_gets_lost_does_not_lose_the_leadership(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    settings = etcd_settings(etcd, tmp_path.name)
    store = open_store(settings, "n0", "h:1")
    real, lost = store._renewals.call, 0  # type: ignore[attr-defined]

    async def call(path: str, body: dict[str, object]) -> dict[str, object]:
        nonlocal lost
        answer: dict[str, object] = await real(path, body)
        if path == "kv/txn" and lost < 2:
            lost += 1
            raise BrokerError("lost", code=1, remark="lost")
        return answer

    store._renewals.call = call  # type: ignore[attr-defined]
    try:
        await store.start()
        await eventually(lambda: store.is_leader, "it leads")
        assert lost == 2
    finally:
        await store.close()


@awaited
async def test_members_of_etcd_die(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    unawaited: list[str],
) -> None:
    """One of three: it goes on. Two: nothing is granted, and it says why. Then it goes on."""
    caplog.set_level(logging.INFO, "pymq.controller")
    monkeypatch.setattr(etcd_gateway, "TIMEOUT_S", 1.0)  # a frozen one is passed over
    with EtcdCluster(tmp_path / "etcd", 3) as etcd:
        settings = etcd_settings(etcd, "g", 2)
        async with opened(settings, "n0") as store:
            await eventually(lambda: succeeds(store, group()), "it takes changes")
            etcd.kill(0)
            await eventually(lambda: succeeds(store, group(epoch=1)), "two members are enough")
            etcd.kill(1)
            await eventually(lambda: not store.is_leader, "one member is not")
            await refused(store.read("broker-a"), NOT_LEADER)
            assert store.leader is None
            says_why = "nobody becomes master while this lasts"
            await eventually(lambda: says_why in caplog.text, "it says why")
            etcd.start(0)
            await eventually(lambda: store.is_leader, "two members are enough again")
            await eventually(lambda: succeeds(store, group(epoch=2)), "and take changes")
            etcd.start(1)
            etcd.wait_healthy(1)
            etcd.signal(2, signal.SIGSTOP)
            try:
                await eventually(lambda: succeeds(store, group(epoch=3)), "one is frozen")
            finally:
                etcd.signal(2, signal.SIGCONT)
            await eventually(lambda: has(store, group(epoch=3)), "it is kept")


async def succeeds(store: ControllerStore, state: GroupState) -> bool:
    try:
        stored = await store.read(state.name)
        if stored.state != state:
            await store.replace(state.name, stored.revision, state)
        return True
    except BrokerError:
        return False


async def has(store: ControllerStore, state: GroupState) -> bool:
    try:
        return (await store.read(state.name)).state == state
    except BrokerError:
        return False


@awaited
async def test_an_old_copy_of_etcd_is_noticed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EtcdCluster(tmp_path / "etcd") as etcd:
        async with opened(etcd_settings(etcd, "g", SHORT_LEASE_S)) as store:
            await put(store, group(epoch=1))
            etcd.kill(0)
            etcd.copy_data(0, tmp_path / "copy")
            etcd.start(0)
            etcd.wait_healthy(0)
            for epoch in range(2, 9):
                state = group(epoch=epoch)
                await eventually(functools.partial(succeeds, store, state), "it goes on")
            etcd.kill(0)
            etcd.restore_data(0, tmp_path / "copy")
            etcd.start(0)
            await eventually(lambda: "restored from an old copy" in caplog.text, "it says so")
            await eventually(lambda: has(store, group(epoch=1)), "it leads again")


@awaited
async def test_an_etcd_that_takes_no_writes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EtcdCluster(tmp_path / "etcd") as etcd:
        async with opened(etcd_settings(etcd, "g")) as store:
            await put(store, group(epoch=1))
            etcd.take_no_writes()
            stored = await store.read("broker-a")
            text = await refused(store.replace("broker-a", stored.revision, group(epoch=2)), 1)
            assert "space exceeded" in text and "alarm disarm" in text
            assert await store.read("broker-a") == stored
            await eventually(lambda: "nobody becomes master" in caplog.text, "it says so")
            etcd.take_writes()
            await eventually(functools.partial(succeeds, store, group(epoch=3)), "it goes on")


@awaited
async def test_an_etcd_that_is_not_there_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    etcd = EtcdCluster(tmp_path / "etcd")
    async with opened(etcd_settings(etcd, "g")) as store:
        assert not store.is_leader and store.leader is None
        assert caplog.text.count("etcd cannot be used") == 1
        await refused(store.read("broker-a"), NOT_LEADER)
        with etcd:
            await eventually(lambda: store.is_leader, "it is there")
