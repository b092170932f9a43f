"""Brokers that lack what another one with their id has acknowledged."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.cluster.controlled_broker import ControlledBroker
from tests.cluster.controllers import (
    DEADLINE_S,
    FAILED,
    INVALID_ID,
    awaited,
    group_of,
    register_as,
    running,
    wait_last_epoch,
)

from pymq.controller import Controller, claims
from pymq.controller.liveness import BEAT_COUNT

#: Silence after which a broker is gone here.
SILENCE_MS = 1_000
SETTINGS = {"heartbeat_timeout_ms": SILENCE_MS}


@asynccontextmanager
async def put_out(
    controller: Controller, folder: Path
) -> AsyncIterator[tuple[ControlledBroker, ControlledBroker]]:
    """The only broker of a group, which stood still, and the one that has its id since.

    That has the whole store, and is the master of epoch 3.
    """
    async with (
        group_of(controller, {"silence_ms": SILENCE_MS}) as (one,),
        ControlledBroker(controller.address) as moved,
    ):
        one.epoch, one.end = 1, 100
        await one.wait_beats(BEAT_COUNT + 1)
        await wait_last_epoch(folder, one.id, 1)
        one.is_silent = True
        moved.id, moved.epoch, moved.end = one.id, 1, 100
        await wait_admitted(moved, log_epoch=1)
        moved.begin_to_beat()
        await moved.wait_master(moved.id, 3)
        yield one, moved


async def wait_admitted(broker: ControlledBroker, *, log_epoch: int | None = None) -> None:
    """Ask for an id until it is free."""
    async with asyncio.timeout(DEADLINE_S):
        while (await register_as(broker, log_epoch=log_epoch)).code == INVALID_ID:
            await asyncio.sleep(0.02)


async def write(broker: ControlledBroker, folder: Path, epoch: int) -> None:
    """Have a master acknowledge messages in its epoch."""
    broker.epoch, broker.end = epoch, broker.end + 4_000
    await wait_last_epoch(folder, broker.id, epoch)


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelname == "WARNING"
        and record.getMessage().startswith("group ")
        and "electMaster" in record.getMessage()
    ]


@awaited
async def test_a_stale_broker_is_no_master_while_the_other_one_is_restarted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(tmp_path, **SETTINGS) as controller,
        put_out(controller, tmp_path) as (one, moved),
    ):
        await write(moved, tmp_path, 3)
        await moved.close()
        await wait_admitted(one, log_epoch=1)
        one.is_silent = False
        await one.wait_beats(2 * BEAT_COUNT)
        answer = await one.elect()
        assert answer.code == FAILED and "epoch 3" in (answer.remark or "")
        await one.wait_master(None, 4)
        # The other one is back, at an address of its own, and has everything.
        async with ControlledBroker(controller.address) as again:
            again.id, again.epoch, again.end = moved.id, 3, moved.end
            assert (await register_as(again, log_epoch=3)).code == 0
            again.begin_to_beat()
            await again.wait_master(again.id, 5)
            assert (await one.ask_who_is_master()).code == INVALID_ID
            assert (await register_as(one, log_epoch=1, has_had_id=True)).code == INVALID_ID
    assert len(said(caplog)) == 1


@awaited
async def test_a_broker_of_rocketmq_gets_its_id_back_where_it_was(tmp_path: Path) -> None:
    """It does not say what it has when it registers."""
    async with (
        running(tmp_path, **SETTINGS) as controller,
        put_out(controller, tmp_path) as (one, moved),
    ):
        await write(moved, tmp_path, 3)
        port = int(moved.address.rpartition(":")[2])
        await moved.close()
        await wait_admitted(one)
        one.is_silent = False
        await one.wait_beats(BEAT_COUNT)
        async with ControlledBroker(controller.address, port=port) as again:
            again.id, again.epoch, again.end = moved.id, 3, moved.end
            assert (await again.register()).code == 0
            again.begin_to_beat()  # while the other one goes on beating
            await again.wait_master(again.id, 5)


@awaited
async def test_a_stale_broker_is_designated_by_somebody_who_knows(tmp_path: Path) -> None:
    async with (
        running(tmp_path, **SETTINGS) as controller,
        put_out(controller, tmp_path) as (one, moved),
    ):
        await write(moved, tmp_path, 3)
        await moved.close()
        await wait_admitted(one, log_epoch=1)
        one.is_silent = False
        await one.wait_master(None, 4)
        assert (await one.elect(designated=one.id)).code == 0
        await one.wait_master(one.id, 5)
        async with ControlledBroker(controller.address) as again:
            again.id = one.id
            assert (await register_as(again, log_epoch=3)).code == INVALID_ID


@awaited
async def test_it_is_the_master_again_if_the_other_one_never_was(tmp_path: Path) -> None:
    """That was elected, and ended before it had begun."""
    async with (
        running(tmp_path, **SETTINGS) as controller,
        put_out(controller, tmp_path) as (one, moved),
    ):
        await moved.close()
        await wait_admitted(one, log_epoch=1)
        one.is_silent = False
        await one.wait_master(one.id, 5)


@awaited
async def test_who_has_moved_with_its_store_is_elected_also_by_another_controller(
    tmp_path: Path,
) -> None:
    """As under Kubernetes, where each start gives another address."""
    async with running(tmp_path) as controller, group_of(controller, {}) as (one,):
        one.epoch, one.end = 1, 100
        await wait_last_epoch(tmp_path, one.id, 1)
    for epoch, last in ((3, 1), (5, 3)):
        async with (
            running(tmp_path, patience_ms=0) as controller,
            ControlledBroker(controller.address) as moved,
        ):
            moved.id, moved.epoch, moved.end = one.id, last, 100
            assert (await register_as(moved, log_epoch=last)).code == 0
            moved.begin_to_beat()
            await moved.wait_master(moved.id, epoch)
            moved.epoch = epoch
            await wait_last_epoch(tmp_path, moved.id, epoch)
    async with (
        running(tmp_path, patience_ms=0) as controller,
        ControlledBroker(controller.address) as stale,
    ):
        stale.id, stale.epoch, stale.end = one.id, 1, 100
        assert (await register_as(stale, log_epoch=1)).code == 0
        stale.begin_to_beat()
        await stale.wait_master(None, 6)
        assert (await stale.elect()).code == FAILED


@awaited
async def test_a_copy_of_a_slave_has_to_catch_up_before_it_is_in_sync(tmp_path: Path) -> None:
    async with (
        running(tmp_path, **SETTINGS) as controller,
        group_of(controller, {}, {"silence_ms": SILENCE_MS}) as (one, two),
        ControlledBroker(controller.address) as copy,
    ):
        one.epoch, one.end, two.epoch, two.end = 1, 500, 1, 500
        await two.wait_beats(BEAT_COUNT + 1)
        two.is_silent = True
        copy.id, copy.epoch, copy.end = two.id, 1, 100
        await wait_admitted(copy)
        copy.begin_to_beat()
        _, in_sync = await one.state()
        assert in_sync.broker_ids == {1}
        # The master may mean the one before, which stands still.
        await copy.wait_beats(2)
        await one.wait_beats(2 * BEAT_COUNT)
        answer = await one.alter(1, 2)
        assert answer.code != 0 and copy.address in (answer.remark or "")
        copy.end = 500
        copy.beat()
        await copy.wait_heard()
        assert (await one.alter(1, 2)).code == 0
        await one.close()
        await copy.wait_master(2, 2)


@awaited
async def test_a_group_goes_on_that_has_lost_its_power_and_its_addresses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As under Kubernetes. What was not flushed is nowhere; it is said how much that is."""
    async with running(tmp_path) as controller, group_of(controller) as (one, two):
        for broker in (one, two):
            broker.epoch, broker.end = 1, 500
            broker.beat()
            await broker.wait_heard()
        await wait_last_epoch(tmp_path, one.id, 1)
        await two.close()
        await one.close()
        async with (
            ControlledBroker(controller.address) as first,
            ControlledBroker(controller.address) as second,
        ):
            for back, before, end in ((first, one, 490), (second, two, 480)):
                back.id, back.epoch, back.end = before.id, 1, end
                await wait_admitted(back, log_epoch=1)
                back.begin_to_beat()
                await back.wait_beats(2)
                if back is first:
                    answer = await first.elect()
                    assert answer.code == FAILED and "had more" in (answer.remark or "")
            async with asyncio.timeout(DEADLINE_S):
                while (found := (await first.state())[0]).master_broker_id is None:
                    await asyncio.sleep(0.01)
            assert found.master_address == first.address
        assert sum("10 bytes are missing" in line for line in caplog.messages) == 1


@awaited
async def test_who_had_its_id_is_no_copy_for_another_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor over another connection: those have heard of nothing."""
    monkeypatch.setattr(claims, "OVERLAP_S", 0.05)
    async with (
        running(tmp_path) as controller,
        group_of(controller) as (one, _),
        ControlledBroker(controller.address) as before,
        ControlledBroker(controller.address) as copy,
    ):
        before.id = copy.id = one.id
        async with asyncio.timeout(DEADLINE_S):
            while not ((await copy.register()).fields or {}).get("copyOf"):
                answer = await register_as(before, log_epoch=1, has_had_id=True)
                assert answer.code == INVALID_ID
                await asyncio.sleep(0.02)
        answer = await register_as(before, log_epoch=1, has_had_id=True)
        assert answer.code == INVALID_ID and "copyOf" not in (answer.fields or {})
        await one.close()
        assert (await register_as(before, log_epoch=1, has_had_id=True)).code == 0
