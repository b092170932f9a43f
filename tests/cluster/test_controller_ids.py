"""Brokers that claim an id, and those that have lost theirs."""

import asyncio
from pathlib import Path

import pytest
from tests.cluster.controlled_broker import ControlledBroker
from tests.cluster.controllers import DEADLINE_S, INVALID_ID, awaited, group_of, running

from pymq.controller import claims
from pymq.controller.liveness import BEAT_COUNT, TURN_COUNT


@awaited
async def test_two_brokers_of_one_id(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with (
        running(tmp_path) as controller,
        group_of(controller) as (one, two),
        ControlledBroker(controller.address) as copy,
    ):
        copy.id = one.id
        answer = await copy.register()
        assert answer.code == INVALID_ID
        assert "brokerIdentity" in (answer.remark or "")
        copy.begin_to_beat()
        await copy.wait_beats(4)
        copy.is_silent = True
        said = [line for line in caplog.messages if "do not count" in line]
        assert len(said) == 1 and copy.address in said[0] and one.address in said[0]
        # The next term of the id is not for the copy.
        for answer in (await copy.ask_who_is_master(), await copy.elect()):
            assert answer.code == INVALID_ID
            assert one.address in (answer.remark or "") and copy.address in (answer.remark or "")
        await one.state()
        await one.close()
        await two.wait_master(2, 2)
        assert (await copy.register()).code == 0  # the broker has moved there
        copy.beat()
        await copy.state()


@awaited
async def test_two_brokers_of_one_id_and_one_address_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(tmp_path) as controller,
        group_of(controller) as (one, _),
        ControlledBroker(controller.address) as copy,
    ):
        one.is_silent = True
        copy.id = one.id
        copy.beat_address = one.address
        for _ in range(2 * TURN_COUNT):
            for broker in (one, copy):
                broker.beat()
                await broker.wait_heard()
        said = [text for text in caplog.messages if "brokerIP1" in text]
        assert len(said) == 1 and one.address in said[0]


@awaited
async def test_a_broker_that_has_lost_its_id_is_told(tmp_path: Path) -> None:
    """It stood still, and another one has its id when it goes on."""
    async with (
        running(tmp_path, heartbeat_timeout_ms=300) as controller,
        group_of(controller, {"silence_ms": 300}, {}) as (one, two),
        ControlledBroker(controller.address) as moved,
    ):
        moved.id = one.id
        await one.wait_beats(BEAT_COUNT + 1)
        one.is_silent = True
        async with asyncio.timeout(DEADLINE_S):
            while (await moved.register()).code == INVALID_ID:
                await asyncio.sleep(0.05)
        moved.begin_to_beat()
        await moved.wait_heard()
        for _ in range(2):
            answer = await one.ask_who_is_master()
            assert answer.code == INVALID_ID and moved.address in (answer.remark or "")
            assert (await one.register()).code == INVALID_ID
            one.beat()


@awaited
async def test_a_broker_that_has_lost_its_id_gets_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no copy, however long the other one is alive; perhaps the other one is."""
    monkeypatch.setattr(claims, "OVERLAP_S", 0.1)
    async with (
        running(tmp_path, heartbeat_timeout_ms=300) as controller,
        group_of(controller, {"silence_ms": 300}, {}) as (one, two),
        ControlledBroker(controller.address) as copy,
    ):
        copy.id = one.id
        await one.wait_beats(BEAT_COUNT + 1)
        one.is_silent = True
        async with asyncio.timeout(DEADLINE_S):
            while (await copy.register()).code == INVALID_ID:
                await asyncio.sleep(0.05)
        copy.begin_to_beat()
        loop = asyncio.get_running_loop()
        until_s = loop.time() + 0.3
        while loop.time() < until_s:
            answer = await one.register()
            assert answer.code == INVALID_ID and "copyOf" not in (answer.fields or {})
            await asyncio.sleep(0.02)
        await copy.close()
        await two.wait_master(2, 2)
        assert (await one.register()).code == 0


@awaited
async def test_each_refusal_of_an_id_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as controller, group_of(controller) as (one, _):
        for turn in range(2):
            async with ControlledBroker(controller.address) as copy:
                copy.id = one.id
                for _ in range(3):
                    assert (await copy.register()).code == INVALID_ID
                said = [
                    record
                    for record in caplog.records
                    if record.levelname == "WARNING" and "is in use at" in record.getMessage()
                ]
                assert len(said) == turn + 1


@awaited
async def test_a_copy_does_not_take_the_place_of_its_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lacks what was written since; and the original may only stand still."""
    monkeypatch.setattr(claims, "OVERLAP_S", 0.1)
    async with (
        running(tmp_path) as controller,
        group_of(controller) as (one, two),
        ControlledBroker(controller.address) as copy,
    ):
        copy.id = one.id
        loop = asyncio.get_running_loop()
        until_s = loop.time() + 0.3
        while loop.time() < until_s:
            assert (await copy.register()).code == INVALID_ID
            await asyncio.sleep(0.02)
        await one.close()
        await two.wait_master(2, 2)
        answer = await copy.register()
        assert answer.code == INVALID_ID and "by itself" in (answer.remark or "")
        assert (answer.fields or {})["copyOf"] == one.address
        # Started again, by somebody who knows, it does.
        async with ControlledBroker(controller.address) as again:
            again.id = one.id
            assert (await again.register()).code == 0


@awaited
async def test_a_controller_that_starts_gives_no_copy_the_id(tmp_path: Path) -> None:
    """It has not heard of the original yet, which does not register again."""
    async with running(tmp_path) as controller, group_of(controller) as (_, two):
        await controller.close()
        async with (
            running(tmp_path, patience_ms=600_000) as controller,
            ControlledBroker(controller.address) as copy,
        ):
            copy.id = two.id
            answer = await copy.register()
            assert answer.code == INVALID_ID and "pymqStartPatience" in (answer.remark or "")
