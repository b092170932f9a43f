"""The controller behind real sockets: brokers come, go, fall silent and ask."""

import asyncio
import functools
import json
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlled_broker import CLUSTER, NAME, ControlledBroker
from tests.cluster.etcd_members import EtcdCluster
from tests.interop.controllers import PymqController, eventually, leader_of

from pymq.controller import Controller, ControllerConfig, claims
from pymq.controller.liveness import BEAT_COUNT, TURN_COUNT
from pymq.errors import ConfigurationError, refusal
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.controller import (
    CleanBrokerDataRequest,
    ControllerMetadataResponse,
    ElectMasterResponse,
    NextBrokerIdRequest,
    RegisterReplicaResponse,
    ReplicaTable,
    SyncStateSet,
)
from pymq.settings import parse_properties

DEADLINE_S = 60.0
FAILED = ResponseCode.CONTROLLER_ELECT_MASTER_FAILED
INVALID_ID = ResponseCode.CONTROLLER_BROKER_ID_INVALID


def awaited(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: object, **fixtures: object) -> None:
        asyncio.run(test(*arguments, **fixtures))

    return run


@asynccontextmanager
async def running(folder: Path, **settings: Any) -> AsyncIterator[Controller]:
    config = {"store": f"file:{folder}", "listen_port": 0, "scan_interval_ms": 50, **settings}
    controller = Controller(ControllerConfig(**config))
    try:
        await controller.start()
        yield controller
    finally:
        await controller.close()


@asynccontextmanager
async def group_of(
    controller: Controller, *settings: dict[str, Any]
) -> AsyncIterator[list[ControlledBroker]]:
    """A group whose brokers are in sync; the first one is master of epoch 1."""
    brokers = [ControlledBroker(controller.address, **one) for one in settings or ({}, {})]
    try:
        for broker in brokers:
            await broker.__aenter__()
            await broker.join()
            broker.begin_to_beat()
        assert (await brokers[0].elect()).code == 0
        answer = await brokers[0].alter(*(broker.id for broker in brokers))
        assert answer.code == 0, answer.remark
        yield brokers
    finally:
        for broker in brokers:
            await broker.close()


# -------------------------------------------------------------------------------- a group begins


@awaited
async def test_the_first_brokers_of_a_group(tmp_path: Path) -> None:
    async with (
        running(tmp_path) as controller,
        ControlledBroker(controller.address) as one,
        ControlledBroker(controller.address) as two,
    ):
        answer = await one.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
        metadata = ControllerMetadataResponse.from_fields(answer.fields)
        assert metadata.leader_address == controller.address and metadata.is_leader
        assert (await one.register()).code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED
        assert await one.join() == 1
        one.begin_to_beat()
        answer = await one.elect()
        assert answer.code == 0, answer.remark
        elected = ElectMasterResponse.from_fields(answer.fields)
        assert (elected.master_broker_id, elected.master_epoch) == (1, 1)
        assert elected.master_address == one.address
        assert json.loads(answer.body) == {
            "brokerMemberGroup": {
                "cluster": CLUSTER, "brokerName": NAME, "brokerAddrs": {"1": one.address},
            },
            "syncStateSet": [1],
        }  # fmt: skip
        assert await two.join() == 2
        answer = await two.register()
        registered = RegisterReplicaResponse.from_fields(answer.fields)
        assert (registered.master_broker_id, registered.master_epoch) == (1, 1)
        assert SyncStateSet.decode(answer.body) == SyncStateSet(frozenset({1}), 1)
        answer = await two.elect()
        assert answer.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        assert ElectMasterResponse.from_fields(answer.fields).master_broker_id == 1
        code = (await one.alter(1, 2)).code
        assert code == ResponseCode.CONTROLLER_BROKER_NOT_ALIVE
        two.begin_to_beat()
        assert (await two.wait_told(1)).master_address == one.address
        answer = await one.alter(1, 2)
        assert SyncStateSet.decode(answer.body) == SyncStateSet(frozenset({1, 2}), 2)
        assert (await two.alter(2)).code == ResponseCode.CONTROLLER_INVALID_MASTER


@awaited
async def test_a_set_that_is_refused_again_and_again_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as controller, group_of(controller) as (one, _):
        for _ in range(2):
            for _ in range(3):
                answer = await one.alter(1, 2, 9)
                assert answer.code == ResponseCode.CONTROLLER_INVALID_REPLICAS
            said = [line for line in caplog.messages if "replicas {9} don't exist" in line]
            assert len(said) == 1
            caplog.clear()
            in_sync = (await one.state())[1].broker_ids
            assert (await one.alter(*({1} if 2 in in_sync else {1, 2}))).code == 0


# ------------------------------------------------------------------------------- a master is gone


@awaited
async def test_a_master_that_ends_is_replaced(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, group_of(controller) as (one, two):
        await one.close()
        await two.wait_master(2, 2)
        notice = await two.wait_told(2)
        assert (notice.master_broker_id, notice.master_address) == (2, two.address)
        _, in_sync = two.notices[-1]
        assert in_sync.broker_ids == {2} and notice.sync_state_set_epoch == in_sync.epoch == 3


@awaited
async def test_a_master_that_falls_silent_is_replaced_and_told_when_it_is_back(
    tmp_path: Path,
) -> None:
    """Its connection stands: so does a host that froze, or lost its cable."""
    async with (
        # More than a stall of this process that the controller does not take for one.
        running(tmp_path, heartbeat_timeout_ms=1_000) as controller,
        group_of(controller) as (one, two),
    ):
        await one.wait_beats(2 * BEAT_COUNT)
        one.is_silent = True
        await two.wait_master(2, 2)
        await two.wait_told(2)
        one.is_silent = False
        assert (await one.wait_told(2)).master_broker_id == 2


@awaited
async def test_why_a_group_cannot_be_reviewed_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as controller, group_of(controller) as (one, two):
        attempts = 0

        async def fail(*arguments: Any) -> bool:
            nonlocal attempts
            attempts += 1
            raise refusal(ResponseCode.SYSTEM_ERROR, "no space left on device")

        with monkeypatch.context() as full:
            full.setattr(controller.store, "replace", fail)
            await one.close()
            async with asyncio.timeout(DEADLINE_S):
                while attempts < 5:
                    await asyncio.sleep(0.01)
        said = [line for line in caplog.records if "could not be reviewed" in line.message]
        assert len([line for line in said if line.levelno == logging.WARNING]) == 1
        await two.wait_master(2, 2)


@awaited
async def test_a_notice_is_repeated_until_it_is_heard(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, group_of(controller) as (one, two):
        two.is_deaf = True
        await one.close()
        await two.wait_master(2, 2)
        await asyncio.sleep(0)
        two.is_deaf = False
        await two.wait_told(2)


@awaited
async def test_a_group_without_a_master_waits_for_who_is_in_sync(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        running(tmp_path) as controller,
        group_of(controller, {}, {}, {}) as (one, two, three),
    ):
        assert (await one.alter(1, 2)).code == 0
        await two.close()
        await one.close()
        await three.wait_master(None, 2)
        for _ in range(3):
            assert (await three.elect()).code == FAILED
        said = [one for one in caplog.records if one.msg.startswith("no master for")]
        assert [one.levelname for one in said if one.levelno > logging.DEBUG] == ["WARNING"]
        async with ControlledBroker(controller.address) as back:
            back.id = 2
            await back.register()
            back.begin_to_beat()
            await three.wait_master(2, 3)
            await back.wait_told(3)
            await three.wait_told(3)


@awaited
async def test_designated_by_an_administrator(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, group_of(controller) as (one, two):
        assert (await one.elect(designated=7)).code == FAILED
        answer = await one.elect(designated=2)
        assert answer.code == 0, answer.remark
        for broker in (one, two):
            assert (await broker.wait_told(2)).master_broker_id == 2


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
            assert answer.code == INVALID_ID and claims.COPY_OF not in (answer.fields or {})
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
        assert (answer.fields or {})[claims.COPY_OF] == one.address
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


@awaited
async def test_a_master_that_registers_again_has_a_new_term(tmp_path: Path) -> None:
    """It is a new process, which may have lost the end of its log: another one may go further."""
    async with running(tmp_path) as controller, group_of(controller) as (one, two):
        two.end = 7
        two.beat()
        answer = await one.register()
        assert RegisterReplicaResponse.from_fields(answer.fields).master_broker_id is None
        await one.wait_master(2, 3)
        await one.wait_told(3)


# ---------------------------------------------------------------------- the controller starts again


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


# --------------------------------------------------------------------------------- several of them


@awaited
async def test_an_old_copy_is_said_also_while_its_master_is_alive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The master of the copy is a slave by now, and lives: nothing is lacking, by the copy."""
    async with running(tmp_path) as controller, group_of(controller) as (one, two):

        def said() -> list[str]:
            return [line for line in caplog.messages if "restored from an old copy" in line]

        await two.wait_told(1)
        assert not said()
        two.epoch, two.end = 7, 1000
        two.beat()
        async with asyncio.timeout(DEADLINE_S):
            while not said():
                await asyncio.sleep(0.01)
        assert "broker 2 has epoch 7" in said()[0] and "electMaster" in said()[0]
        await asyncio.sleep(0.2)  # several reviews
        assert len(said()) == 1
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
    while (
        await broker.ask(RequestCode.CONTROLLER_GET_NEXT_BROKER_ID, question)
    ).code != code:
        assert asyncio.get_running_loop().time() < deadline, f"nobody answers {code}"
        await asyncio.sleep(0.05)


async def wait_leads(controller: Controller) -> None:
    deadline = asyncio.get_running_loop().time() + DEADLINE_S
    while not controller.store.is_leader:
        assert asyncio.get_running_loop().time() < deadline, "it leads"
        await asyncio.sleep(0.01)


# ---------------------------------------------------------------------------------- administrators


@awaited
async def test_what_administrators_see_and_clean(tmp_path: Path) -> None:
    async with running(tmp_path) as controller, group_of(controller, {}, {}, {}) as brokers:
        one, two, three = brokers
        assert (await one.alter(1, 2)).code == 0
        await three.close()

        async def table() -> ReplicaTable:
            body = json.dumps([NAME, "nobody"]).encode()
            answer = await one.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=body)
            return ReplicaTable.decode(answer.body)

        async def cleaned(broker_ids: str | None, *, living: bool = False) -> int:
            answer = await one.ask(
                RequestCode.CLEAN_BROKER_DATA,
                CleanBrokerDataRequest(
                    broker_name=NAME, broker_ids=broker_ids, clean_living=living
                ),
            )
            return answer.code

        while any(one.is_alive for one in (await table()).groups[NAME].not_in_sync):
            await asyncio.sleep(0.01)
        (name, group), = (await table()).groups.items()
        assert name == NAME and group.master_address == one.address
        assert [(found.broker_id, found.is_alive) for found in group.in_sync] == [
            (1, True), (2, True),
        ]  # fmt: skip
        assert [(found.broker_id, found.address) for found in group.not_in_sync] == [
            (3, three.address)
        ]
        wrong = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
        for refused in (None, "2", "2;3", "x"):
            assert await cleaned(refused) == wrong
        assert await cleaned("3") == 0
        assert not (await table()).groups[NAME].not_in_sync
        assert await cleaned(None, living=True) == 0
        assert (await table()).groups == {}
        assert two.id == 2


@awaited
async def test_settings(tmp_path: Path) -> None:
    async def change(broker: ControlledBroker, text: str) -> int:
        answer = await broker.ask(RequestCode.UPDATE_CONTROLLER_CONFIG, body=text.encode())
        return answer.code

    async with running(tmp_path) as controller, ControlledBroker(controller.address) as admin:
        assert await change(admin, "enableElectUncleanMaster=true") == ResponseCode.NO_PERMISSION
    async with (
        running(tmp_path, allow_config_update=True) as controller,
        ControlledBroker(controller.address) as admin,
    ):
        answer = await admin.ask(RequestCode.GET_CONTROLLER_CONFIG)
        properties = parse_properties(str(answer.body, "utf-8"))
        assert properties["enableElectUncleanMaster"] == "false"
        assert await change(admin, "listenPort=1") == ResponseCode.NO_PERMISSION
        assert await change(admin, "notifyBrokerRoleChanged=x") == ResponseCode.INVALID_PARAMETER
        assert await change(admin, "enableElectUncleanMaster=true") == 0
        answer = await admin.ask(RequestCode.GET_CONTROLLER_CONFIG)
        properties = parse_properties(str(answer.body, "utf-8"))
        assert properties["enableElectUncleanMaster"] == "true"


# ------------------------------------------------------------------------------------- bad input


@awaited
async def test_bad_requests_are_answered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with running(tmp_path) as controller, group_of(controller) as (one, _):
        for code in (*range(1001, 1014), RequestCode.BROKER_HEARTBEAT):
            if code in (RequestCode.UPDATE_CONTROLLER_CONFIG, RequestCode.GET_CONTROLLER_CONFIG):
                continue
            if code in (RequestCode.CONTROLLER_GET_METADATA_INFO,):
                continue
            for body in (b"", b"{", b"[1,", b'{"syncStateSet":"x"}', b"\xff"):
                answer = await one.ask(code, body=body)
                empty = code == RequestCode.CONTROLLER_GET_SYNC_STATE_DATA and not body
                assert (answer.code == 0) == empty, (code, body, answer)
        await one.wait_master(1, 1)
    assert not caplog.records


def test_impossible_settings_are_refused() -> None:
    for settings in (
        {"listen_port": 70_000},
        {"scan_interval_ms": 0},
        {"etcd_lease_s": 1},
        {"patience_ms": -1},
        {"peers": ("n0:127.0.0.1:1",)},
        {"peers": ("n0-127.0.0.1:1",)},
        {"peers": ("n0-127.0.0.1:1",), "self_id": "n1"},
        {"peers": ("n0-127.0.0.1",), "self_id": "n0"},
    ):
        with pytest.raises(ConfigurationError):
            ControllerConfig(**settings)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="pymqAdvertisedHost"):
        ControllerConfig(host="0.0.0.0").address(9878)


def test_rocketmqs_peers_say_where_it_listens() -> None:
    peers = ("n0-10.0.0.1:9878", "n1-10.0.0.2:9879")
    config = ControllerConfig(host="0.0.0.0", peers=peers, self_id="n1")
    assert (config.port, config.address(config.port)) == (9879, "10.0.0.2:9879")
