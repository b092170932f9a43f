"""Controllers that start again, from an old copy, too, or follow one another."""

import asyncio
import json
import logging
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cluster.controlled_broker import CLUSTER, NAME, ControlledBroker
from tests.cluster.controllers import DEADLINE_S, FAILED, awaited, group_of, running, wait_leads
from tests.cluster.etcd_members import EtcdCluster
from tests.interop.controllers import PymqController, eventually, leader_of

from pymq.controller.liveness import BEAT_COUNT
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.controller import (
    ControllerMetadataResponse,
    NextBrokerIdRequest,
    RegisterReplicaResponse,
)


@awaited
async def test_a_controller_that_starts_waits_for_the_master(tmp_path: Path) -> None:
    """It has heard of nobody: that the master is gone it cannot say."""
    async with running(tmp_path) as controller, group_of(controller) as brokers:
        await controller.close()
        ports = [int(one.address.rpartition(":")[2]) for one in brokers]
    async with (
        running(tmp_path, patience_ms=600_000) as controller,
        ControlledBroker(controller.address, port=ports[0]) as one,
        ControlledBroker(controller.address, port=ports[1]) as two,
    ):
        one.id, two.id = 1, 2
        answer = await two.register()
        assert RegisterReplicaResponse.from_fields(answer.fields).master_broker_id == 1
        two.begin_to_beat()
        answer = await two.elect()
        assert answer.code == FAILED and "pymqStartPatience" in (answer.remark or "")
        await two.wait_told(1)
        one.begin_to_beat()
        await one.wait_beats(2)
        assert (await two.elect()).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        await one.close()
        await two.wait_master(2, 2)


@awaited
async def test_its_patience_ends(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, group_of(controller):
        await controller.close()
    async with (
        running(tmp_path, patience_ms=0) as controller,
        ControlledBroker(controller.address) as two,
    ):
        two.id = 2
        assert (await two.register()).code == 0
        two.begin_to_beat()
        await two.wait_master(2, 2)


@awaited
async def test_a_controller_that_ends_replaces_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, group_of(controller) as (one, two):
        await controller.close()
    groups = json.loads((tmp_path / "groups.json").read_text())
    assert (groups[NAME]["master"], groups[NAME]["masterEpoch"]) == (one.id, 1)
    assert two.id in groups[NAME]["inSync"]["syncStateSet"]


@awaited
async def test_an_old_copy_of_the_store_elects_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The brokers know better, and so an administrator has to say who is master."""
    async with running(tmp_path, patience_ms=0) as controller, group_of(controller) as (one, two):
        two.epoch, two.end = 7, 1000
        two.beat()
        one.epoch, one.end = 6, 5000
        one.beat()
        answer = await two.elect()
        assert answer.code == FAILED and "old copy" in (answer.remark or "")
        await one.close()
        await two.wait_master(None, 2)
        assert "electMaster" in caplog.text
        assert (await two.elect(designated=2)).code == 0
        await two.wait_master(2, 8)


@awaited
async def test_an_old_copy_is_said_also_while_its_master_is_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The master of the copy is a slave by now, and lives: nothing is lacking, by the copy."""
    caplog.set_level(logging.DEBUG, "pymq.controller.failover")  # as which it is said again
    async with running(tmp_path) as controller, group_of(controller) as (one, two):

        def said() -> list[logging.LogRecord]:
            return [one for one in caplog.records if "restored from an old" in one.getMessage()]

        await two.wait_told(1)
        assert not said()
        two.epoch, two.end = 7, 1000
        two.beat()
        async with asyncio.timeout(DEADLINE_S):
            while len(said()) < 4:
                await asyncio.sleep(0.01)
        first, *others = said()
        assert first.levelno == logging.WARNING
        assert "broker 2 has epoch 7" in first.getMessage() and "electMaster" in first.getMessage()
        assert {one.levelno for one in others} == {logging.DEBUG}
        await one.wait_master(1, 1)
        assert (await one.elect(designated=2)).code == 0
        await one.wait_master(2, 8)


@awaited
async def test_controllers_follow_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two with one etcd. The second one leads when the first is gone, and replaces nobody."""
    monkeypatch.setattr("pymq.controller.stores.etcd_gateway.TIMEOUT_S", DEADLINE_S)
    with EtcdCluster(tmp_path) as etcd:
        # The first one gives its lease up; until then it must not lose it.
        settings = {"store": etcd.store, "etcd_lease_s": 30}
        async with (
            running(tmp_path, **settings) as first,
            running(tmp_path, **settings) as second,
            ControlledBroker(first.address, second.address) as one,
            ControlledBroker(second.address, first.address) as two,
        ):
            two.is_second_asked = True
            for broker in (one, two):
                await broker.join()
                broker.begin_to_beat()
            assert (await one.elect()).code == 0
            assert (await one.alter(1, 2)).code == 0
            two.is_second_asked = False
            answer = await two.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
            metadata = ControllerMetadataResponse.from_fields(answer.fields)
            assert metadata.leader_address == first.address and not metadata.is_leader
            body = json.dumps([NAME]).encode()
            answer = await two.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
            assert answer.code == ResponseCode.CONTROLLER_NOT_LEADER
            await first.close()
            await wait_leads(second)
            found, in_sync = await two.state()
            assert (found.master_broker_id, found.master_epoch) == (1, 1)
            assert in_sync.broker_ids == {1, 2}
            await one.close()
            await two.wait_master(2, 2)
            await two.wait_told(2)


@awaited
async def test_a_controller_freezes(tmp_path: Path) -> None:
    """The other one leads. Awake again, it neither leads nor replaces anybody."""
    # Longer than who leads may be held up by others, and the brokers, which beat from here.
    settings = {"pymqEtcdLeaseSeconds": "5", "pymqHeartbeatTimeout": "60000"}
    with ExitStack() as stack:
        etcd = stack.enter_context(EtcdCluster(tmp_path / "etcd"))
        first = stack.enter_context(PymqController(tmp_path, etcd.store, **settings))
        eventually(lambda: leader_of(first.address) == first.address, "the first one leads")
        second = stack.enter_context(PymqController(tmp_path, etcd.store, **settings))
        async with (
            ControlledBroker(first.address, second.address) as one,
            ControlledBroker(first.address, second.address) as two,
        ):
            for broker in (one, two):
                await broker.join()
                broker.begin_to_beat()
            assert (await one.elect()).code == 0
            assert (await one.alter(1, 2)).code == 0
            await one.wait_beats(2 * BEAT_COUNT)
            os.kill(first.pid, signal.SIGSTOP)
            try:
                one.is_second_asked = two.is_second_asked = True
                await wait_answer(one, 0)
                await one.close()
                await two.wait_master(2, 2)
            finally:
                os.kill(first.pid, signal.SIGCONT)
            two.is_second_asked = False
            await wait_answer(two, ResponseCode.CONTROLLER_NOT_LEADER)
            two.is_second_asked = True
            await two.wait_master(2, 2)


async def wait_answer(broker: ControlledBroker, code: int) -> None:
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    question = NextBrokerIdRequest(cluster_name=CLUSTER, broker_name=NAME)
    while (await broker.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, question)).code != code:
        assert asyncio.get_running_loop().time() < deadline, f"nobody answers {code}"
        await asyncio.sleep(0.05)
