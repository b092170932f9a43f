"""Brokers of a group that could not be its master: they are not elected if there is another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from tests.cluster.controlled_broker import NAME, ControlledBroker
from tests.cluster.controllers import DEADLINE_S, SILENCE_MS, awaited, running
from tests.cluster.test_controller_copies import broker_on, wait_answers
from tests.cluster.test_log_ends_told import send

from pymq.broker import role_changes
from pymq.broker.broker import Broker
from pymq.broker.ha.heartbeat import LAST_PRIORITY
from pymq.broker.run import Run
from pymq.controller import Controller
from pymq.errors import CorruptRecord, DiskFull, StoreError
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.server import NameServer
from pymq.store import MessageStore


@asynccontextmanager
async def named() -> AsyncIterator[str]:
    name_server = NameServer(NamesrvConfig(host="127.0.0.1", port=0))
    await name_server.start()
    try:
        yield name_server.address
    finally:
        await name_server.close()


@asynccontextmanager
async def two_slaves(
    folder: Path,
) -> AsyncIterator[tuple[Controller, ControlledBroker, list[Broker]]]:
    """A controller, and a master whose two slaves have everything."""
    async with AsyncExitStack() as opened:
        enter = opened.enter_async_context
        name_server = await enter(named())
        controller = await enter(running(folder / "controller", heartbeat_timeout_ms=SILENCE_MS))
        master = await enter(ControlledBroker(controller.address))
        await master.join()
        master.begin_to_beat()
        assert (await master.elect()).code == 0
        brokers = []
        for number in (2, 3):
            broker = broker_on(
                folder / f"{number}", controller.address, name_server, silence_ms=SILENCE_MS
            )
            opened.push_async_callback(broker.close)
            await broker.start()
            brokers.append(broker)
        assert (await master.alter(1, 2, 3)).code == 0
        yield controller, master, brokers


def fill_disk(broker: Broker) -> MessageStore:
    """Have its store refuse writes; return it."""
    assert broker._roles is not None and broker._roles._run is not None
    store = broker._roles._run.store
    assert store is not None
    store._gate.record_error(DiskFull("no space left on the device"))
    return store


def priorities(controller: Controller) -> dict[int, int]:
    alive = controller._liveness.alive(NAME)
    return {key: one.priority for key, one in alive.items()}


async def wait_priority(controller: Controller, broker_id: int, *, is_last: bool) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while (priorities(controller)[broker_id] == LAST_PRIORITY) is not is_last:
            await asyncio.sleep(0.01)


@awaited
async def test_a_slave_that_refuses_writes_is_elected_last(tmp_path: Path) -> None:
    async with two_slaves(tmp_path) as (controller, master, (full, other)):
        await wait_priority(controller, 2, is_last=False)
        await wait_priority(controller, 3, is_last=False)
        fill_disk(full)
        await wait_priority(controller, 2, is_last=True)
        await master.close()
        async with ControlledBroker(controller.address) as asking:
            await asking.wait_master(3, 2)
        await wait_answers(other, wanted=True)
        # It follows that one, in a run that has not been refused anything yet.
        await wait_priority(controller, 2, is_last=False)


@awaited
async def test_a_slave_that_can_be_the_master_again_says_so(tmp_path: Path) -> None:
    async with two_slaves(tmp_path) as (controller, _, (full, _)):
        store = fill_disk(full)
        await wait_priority(controller, 2, is_last=True)
        store._gate.record_success()
        await wait_priority(controller, 2, is_last=False)


@awaited
async def test_the_only_one_in_sync_is_elected_nevertheless(tmp_path: Path) -> None:
    async with two_slaves(tmp_path) as (controller, master, (full, _)):
        assert (await master.alter(1, 2)).code == 0
        fill_disk(full)
        await wait_priority(controller, 2, is_last=True)
        await master.close()
        async with ControlledBroker(controller.address) as asking:
            await asking.wait_master(2, 2)
        await wait_priority(controller, 2, is_last=False)  # the master always is able
        await wait_answers(full, wanted=True)


@awaited
async def test_a_slave_that_cannot_run_is_elected_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_changes, "RETRY_S", 0.02)
    start, is_full = Run.start, True

    async def fail_or_start(run: Run) -> None:
        if is_full and run._store_config.root_path == tmp_path / "2":
            raise StoreError("no space left on the device")
        await start(run)

    async with two_slaves(tmp_path) as (controller, master, (unable, _)):
        monkeypatch.setattr(Run, "start", fail_or_start)
        assert unable._roles is not None
        unable._roles._wanted = wanted = unable._roles._membership.term
        unable._roles._term = None
        unable._roles._changed.set()
        assert wanted is not None and not wanted.is_master
        await wait_priority(controller, 2, is_last=True)
        is_full = False
        await wait_priority(controller, 2, is_last=False)
        await wait_answers(unable, wanted=True)


@awaited
async def test_a_broker_without_its_log_is_not_elected(tmp_path: Path) -> None:
    """It does not even register: a new epoch, with it alone in sync, would be there for good."""
    async with (
        named() as name_server,
        running(tmp_path / "controller", heartbeat_timeout_ms=SILENCE_MS) as controller,
        ControlledBroker(controller.address) as asking,
    ):
        broker = broker_on(
            tmp_path / "store", controller.address, name_server, silence_ms=SILENCE_MS
        )
        await broker.start()
        await send(broker, 1)
        await broker.close()
        await asking.wait_master(None, 2)
        (tmp_path / "store" / "commitlog").rename(tmp_path / "elsewhere")
        broker = broker_on(
            tmp_path / "store", controller.address, name_server, silence_ms=SILENCE_MS
        )
        with pytest.raises(CorruptRecord, match="is its disk mounted") as caught:
            await broker.start()
        await broker.close()
        text = str(caught.value)
        assert "start the other brokers of group broker-a first" in text
        assert str(tmp_path / "store" / "brokerIdentity") in text
        assert "remove" not in text and "checkpoint" not in text
        found, _ = await asking.state()
        assert (found.master_broker_id, found.master_epoch) == (None, 2)
        # With its log it is the master again.
        (tmp_path / "elsewhere").rename(tmp_path / "store" / "commitlog")
        broker = broker_on(
            tmp_path / "store", controller.address, name_server, silence_ms=SILENCE_MS
        )
        await broker.start()
        await asking.wait_master(1, 3)
        await broker.close()
