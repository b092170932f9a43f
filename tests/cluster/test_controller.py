"""The controller behind real sockets: brokers come, go, fall silent and ask."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.controlled_broker import CLUSTER, NAME, ControlledBroker
from tests.cluster.controllers import DEADLINE_S, FAILED, awaited, group_of, running

from pymq.controller import ControllerConfig
from pymq.controller.liveness import BEAT_COUNT
from pymq.errors import ConfigurationError, refusal
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.controller import (
    CleanBrokerDataRequest,
    ControllerMetadataResponse,
    ElectMasterResponse,
    RegisterReplicaResponse,
    ReplicaTable,
    SyncStateSet,
)
from pymq.settings import parse_properties


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
async def test_a_master_that_registers_again_has_a_new_term(tmp_path: Path) -> None:
    """It is a new process, which may have lost the end of its log: another one may go further."""
    async with running(tmp_path) as controller, group_of(controller) as (one, two):
        two.end = 7
        two.beat()
        answer = await one.register()
        assert RegisterReplicaResponse.from_fields(answer.fields).master_broker_id is None
        await one.wait_master(2, 3)
        await one.wait_told(3)


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
        ((name, group),) = (await table()).groups.items()
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


@awaited
async def test_bad_requests_are_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
