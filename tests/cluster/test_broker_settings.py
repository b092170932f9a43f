"""Settings of a broker that runs, shown and changed over a socket."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import DEADLINE_S, Peer, connect, fields, serve

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.server import NameServer
from pymq.protocol.bodies import DataVersion, TopicRoute
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.settings import parse_properties
from pymq.store import StoreConfig
from pymq.store.state.sealed_file import SealedFile


async def _shown(peer: Peer) -> dict[str, str]:
    answer = await peer.ask(RequestCode.GET_BROKER_CONFIG)
    assert answer.code == ResponseCode.SUCCESS
    DataVersion.decode(fields(answer)["version"])
    return parse_properties(bytes(answer.body).decode())


async def _update(peer: Peer, text: str) -> Command:
    return await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, text.encode())


def _serve(path: Path, check: Any, **settings: Any) -> None:
    serve(path, check, **{"allow_config_update": True, **settings})


def test_settings_are_shown(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        shown = await _shown(peer)
        assert list(shown) == sorted(shown)
        host, _, port = peer.broker.address.rpartition(":")
        expected = {
            "brokerName": "broker-a",
            "brokerRole": "ASYNC_MASTER",
            "brokerIP1": host,
            "listenPort": port,
            "flushDiskType": "ASYNC_FLUSH",
            "maxMessageSize": "4194304",
            "messageDelayLevel": "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
            "storePathRootDir": str(tmp_path),
            "autoCreateTopicEnable": "true",
            "deleteWhen": "04",
        }
        assert {key: shown.get(key) for key in expected} == expected

    serve(tmp_path, check)


def test_changes_are_refused_by_default(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        answer = await _update(peer, "brokerPermission=4\n")
        assert answer.code == ResponseCode.NO_PERMISSION
        assert "pymqAllowConfigUpdate" in str(answer.remark)
        assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS

    serve(tmp_path, check)


def test_more_changes_than_there_are_settings_are_refused(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        answer = await _update(peer, "#" + "x" * (64 << 10))
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "65537 B, expected at most 65536" in str(answer.remark)
        assert (await _update(peer, "#" + "x" * 60_000)).code == ResponseCode.SUCCESS

    _serve(tmp_path, check)


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("brokerConfigPath=/x", ResponseCode.NO_PERMISSION, "Can not update config in black list."),
        ("listenPort=1", ResponseCode.NO_PERMISSION, "listenPort is fixed while the broker runs"),
        ("noSuchKey=1", ResponseCode.NO_PERMISSION, "noSuchKey has no effect here"),
        ("brokerPermission=x", ResponseCode.INVALID_PARAMETER, "expected a whole number"),
        ("brokerPermission=9", ResponseCode.INVALID_PARAMETER, "expected a sum"),
        ("longPollingEnable=perhaps", ResponseCode.INVALID_PARAMETER, "expected true or false"),
        ("x=\\u12", ResponseCode.SYSTEM_ERROR, "string2Properties error"),
        ("longPollingEnable=false\nlistenPort=1", ResponseCode.NO_PERMISSION, "listenPort"),
    ],
)
def test_changes_that_cannot_be(
    tmp_path: Path, text: str, code: ResponseCode, remark: str
) -> None:
    async def check(peer: Peer) -> None:
        before = await _shown(peer)
        answer = await _update(peer, text)
        assert answer.code == code
        assert remark in str(answer.remark)
        assert await _shown(peer) == before
        assert (await peer.ask(RequestCode.UPDATE_BROKER_CONFIG, b"\xff")).code == 1

    _serve(tmp_path, check)


def test_a_change_takes_effect_at_once(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        async def update(text: str) -> None:
            answer = await _update(peer, text)
            assert answer.code == ResponseCode.SUCCESS, answer.remark

        for number in range(5):
            await peer.send("T", b"%d" % number)
        await update("brokerPermission=4")
        assert (await peer.send("T", b"x")).code == ResponseCode.NO_PERMISSION
        await update("brokerPermission=2")
        assert (await peer.pull("T", 0)).code == ResponseCode.NO_PERMISSION
        await update("brokerPermission=6\nautoCreateTopicEnable=false")
        assert (await peer.send("New", b"x")).code == ResponseCode.TOPIC_NOT_EXIST
        await update("autoCreateTopicEnable=true")
        assert (await peer.send("New", b"x")).code == ResponseCode.SUCCESS
        await update("autoCreateSubscriptionGroup=false")
        answer = await peer.pull("T", 0, consumerGroup="new")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        await update("autoCreateSubscriptionGroup=true\nmaxTransferCountOnMessageInMemory=2")
        assert fields(await peer.pull("T", 0))["nextBeginOffset"] == "2"
        await update("maxTransferCountOnMessageInMemory=32\nmaxTransferBytesOnMessageInMemory=1")
        assert fields(await peer.pull("T", 0))["nextBeginOffset"] == "1"
        await update("rejectTransactionMessage=true")
        half = await peer.send("T", b"x", properties="TRAN_MSG\x01true\x02PGROUP\x01p\x02")
        assert half.code == ResponseCode.NO_PERMISSION
        await update("longPollingEnable=false\nshortPollingTimeMills=1")
        held = peer.pull_later(
            "T", 5, sysFlag=int(PullFlag.SUSPEND | PullFlag.SUBSCRIPTION),
            suspendTimeoutMillis=60_000,
        )  # fmt: skip
        assert (await held).code == ResponseCode.PULL_NOT_FOUND
        answer = await peer.pull("T", 0, subscription="a > 1", expressionType="SQL92")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        await update("enablePropertyFilter=true")
        answer = await peer.pull("T", 0, subscription="a > 1", expressionType="SQL92")
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        await update("fileReservedTime=1\ndeleteWhen=02;03\ndiskMaxUsedSpaceRatio=60")
        shown = await _shown(peer)
        assert (shown["fileReservedTime"], shown["deleteWhen"]) == ("1", "02;03")

    _serve(tmp_path, check)


def test_a_change_outlives_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def change(peer: Peer) -> None:
        answer = await _update(peer, "brokerPermission=4\nfileReservedTime=5\ndeleteWhen=04\n")
        assert answer.code == ResponseCode.SUCCESS
        assert (tmp_path / "config" / "liveSettings.json").exists()

    async def check(peer: Peer) -> None:
        shown = await _shown(peer)
        assert (shown["brokerPermission"], shown["fileReservedTime"]) == ("4", "5")
        assert (await peer.send("T", b"x")).code == ResponseCode.NO_PERMISSION
        assert (await _update(peer, "brokerPermission=6")).code == ResponseCode.NO_PERMISSION

    _serve(tmp_path, change)
    with caplog.at_level(logging.WARNING):
        serve(tmp_path, check)  # also where changes are no longer allowed
    assert "brokerPermission=4 was set while the broker ran and counts instead of 6" in caplog.text
    assert "deleteWhen" not in caplog.text


def test_a_setting_that_another_version_accepted_costs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = SealedFile(tmp_path / "config" / "liveSettings.json")
    for kept in (
        {"fileReservedTime": "5"},
        {"fileReservedTime": "720", "transactionCheckInterval": "0"},
    ):
        file.save(json.dumps({"properties": kept}))

    async def check(peer: Peer) -> None:
        assert (await _shown(peer))["fileReservedTime"] == "720"

    with caplog.at_level(logging.WARNING):
        serve(tmp_path, check)
    (line,) = [record.message for record in caplog.records if "is dropped" in record.message]
    assert "transactionCheckInterval" in line and "liveSettings.json" in line


def test_what_the_broker_forbids_no_route_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The change is answered when the name server knows it, however long that takes.
    monkeypatch.setattr("pymq.broker.table_saving.ANNOUNCE_WAIT_S", DEADLINE_S)

    async def check(name_server: NameServer, peer: Peer) -> None:
        assert (await _update(peer, "brokerPermission=4")).code == ResponseCode.SUCCESS
        asking = await connect(peer.broker, port=name_server.port)
        answer = await asking.ask(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="BenchmarkTest", acceptStandardJsonOnly=True
        )
        assert [queue.perm for queue in TopicRoute.decode(answer.body).queues] == [4]
        asking.channel.close()

    async def run() -> None:
        name_server = NameServer(NamesrvConfig(port=0))
        await name_server.start()
        broker = Broker(
            BrokerConfig(
                listen_port=0,
                allow_config_update=True,
                name_servers=(f"127.0.0.1:{name_server.port}",),
            ),
            StoreConfig(root_path=tmp_path, segment_bytes=1 << 20, disk_free_enough_bytes=1),
        )
        await broker.start()
        peer = await connect(broker)
        try:
            await asyncio.wait_for(check(name_server, peer), DEADLINE_S)
        finally:
            peer.channel.close()
            await broker.close()
            await name_server.close()

    asyncio.run(run())
