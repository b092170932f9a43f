"""A broker of a group that is elected, and cannot run as the master."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlled_broker import ControlledBroker
from tests.cluster.controllers import DEADLINE_S, SILENCE_MS, awaited, running
from tests.cluster.test_controller_copies import (
    answers,
    broker_on,
    is_turned_away,
    wait_answers,
)

from pymq.broker import role_changes
from pymq.broker.broker import Broker
from pymq.broker.run import Run
from pymq.errors import StoreError
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.server import NameServer
from pymq.protocol.controller import SyncStateSet

RETRY_S = 0.02


class FailingRuns:
    """Has a broker fail to begin a run as the master, as often as ``errors`` say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[Exception] = []
        start = Run.start

        async def fail_or_start(run: Run) -> None:
            if run._config.broker_id == 0 and self.errors:
                raise self.errors.pop()
            await start(run)

        monkeypatch.setattr(Run, "start", fail_or_start)
        monkeypatch.setattr(role_changes, "RETRY_S", RETRY_S)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> FailingRuns:
    return FailingRuns(monkeypatch)


@asynccontextmanager
async def slave_in_sync(
    folder: Path, **settings: Any
) -> AsyncIterator[tuple[Broker, ControlledBroker, ControlledBroker]]:
    """A broker, the master that it follows, and another member, which is not in sync."""
    name_server = NameServer(NamesrvConfig(host="127.0.0.1", port=0))
    await name_server.start()
    async with (
        running(folder / "controller", heartbeat_timeout_ms=SILENCE_MS, **settings) as controller,
        ControlledBroker(controller.address) as master,
        ControlledBroker(controller.address) as other,
    ):
        await master.join()
        master.begin_to_beat()
        assert (await master.elect()).code == 0
        await other.join()
        other.begin_to_beat()
        broker = broker_on(
            folder / "store", controller.address, name_server.address, silence_ms=SILENCE_MS
        )
        try:
            await broker.start()
            assert await answers(broker)
            assert (await master.alter(1, 3)).code == 0
            yield broker, master, other
        finally:
            await broker.close()
            await name_server.close()


@awaited
async def test_a_master_that_cannot_run_lets_another_one_be_elected(
    tmp_path: Path, failing: FailingRuns, caplog: pytest.LogCaptureFixture
) -> None:
    """And is back as its slave, which may be elected again."""
    async with slave_in_sync(tmp_path, unclean_elections=True) as (broker, master, other):
        failing.errors = [StoreError("no space is left") for _ in range(100_000)]
        await master.close()
        await other.wait_master(3, 2)
        await other.wait_master(2, 3)
        assert failing.errors
        await wait_answers(broker, wanted=True)
        assert "could not run as the master of epoch 2, 3 times: until it can" in caplog.text
        assert caplog.text.count("no space is left") == 1
        # It is heard again, and may join, as soon as there is another term.
        failing.errors.clear()
        async with asyncio.timeout(DEADLINE_S):
            while (await other.alter(2, 3)).code != 0:
                await asyncio.sleep(0.01)
        other.is_silent = True
        await other.wait_master(3, 4)
        await wait_answers(broker, wanted=True)


@pytest.mark.parametrize("is_replaced", [False, True])
@awaited
async def test_a_master_that_can_run_after_all_is_heard_again(
    tmp_path: Path, failing: FailingRuns, *, is_replaced: bool
) -> None:
    """Also if another broker had its id meanwhile, and it has no role for a moment."""
    async with slave_in_sync(tmp_path) as (broker, master, other):
        failing.errors = [StoreError("no space is left") for _ in range(100_000)]
        await master.close()
        await other.wait_master(3, 2)
        await other.wait_master(None, 3)
        assert await is_turned_away(broker)
        failing.errors.clear()
        if is_replaced:
            assert broker._roles is not None
            broker._roles._membership._replaced(None)
        await other.wait_master(3, 4)
        await wait_answers(broker, wanted=True)


@pytest.mark.parametrize("error", [StoreError("no space is left"), ValueError("a bug")])
@awaited
async def test_a_change_of_roles_that_fails_once_is_tried_again(
    tmp_path: Path,
    failing: FailingRuns,
    caplog: pytest.LogCaptureFixture,
    unawaited: list[str],
    error: Exception,
) -> None:
    async with slave_in_sync(tmp_path) as (broker, master, other):
        failing.errors = [error]
        await master.close()
        await other.wait_master(3, 2)
        await wait_answers(broker, wanted=True)
        assert broker._roles is not None and broker._roles._term is not None
        assert broker._roles._term.is_master and broker._roles._term.number == 2
    assert len([one for one in unawaited if str(error) in one]) == isinstance(error, ValueError)
    unawaited.clear()
    assert str(error) in caplog.text and "trying again" in caplog.text
    assert "3 times" not in caplog.text


@awaited
async def test_a_notice_that_comes_when_it_stops_does_no_harm(
    tmp_path: Path, failing: FailingRuns
) -> None:
    async with slave_in_sync(tmp_path) as (broker, _, _):
        assert broker._roles is not None
        membership = broker._roles._membership
        await membership.close()
        in_sync = SyncStateSet(frozenset({3}), 9)
        membership._take_term(2, 3, broker.address, in_sync)
        assert membership.term is not None and membership.term.is_master
