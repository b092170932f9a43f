"""A broker's ports, files, start and end."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.broker_peer import DEADLINE_S, Peer, connect, fields, records, serve

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.clock import Clock
from pymq.errors import ConfigurationError, StoreLocked
from pymq.namesrv import NameServer, NamesrvConfig
from pymq.protocol.addresses import split_address
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.store import MessageStore, StoreConfig


def test_the_vip_port_serves_sends(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        vip = await connect(peer.broker, port=peer.broker.port - 2)
        assert (await vip.send("T", b"x")).code == ResponseCode.SUCCESS
        vip.channel.close()

    serve(tmp_path, check)


def test_a_slave_is_told_where_its_master_serves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The master has registered when it has started, however long that takes.
    monkeypatch.setattr("pymq.broker.run.ANNOUNCE_WAIT_S", DEADLINE_S)

    async def run() -> None:
        name_server = NameServer(NamesrvConfig(port=0))
        await name_server.start()
        config = BrokerConfig(listen_port=0, name_servers=(name_server.address,))
        broker = Broker(config, StoreConfig(root_path=tmp_path, segment_bytes=1 << 20))
        await broker.start()
        peer = await connect(broker, port=name_server.port)
        try:
            answer = await peer.ask(
                RequestCode.REGISTER_BROKER,
                brokerName=config.name,
                brokerAddr="127.0.0.1:9",
                clusterName=config.cluster,
                brokerId=1,
                haServerAddr="127.0.0.1:10",
            )
            told = fields(answer)
            assert told.pop("masterAddr") == broker.address
            host, port = split_address(told.pop("haServerAddr"))
            assert not told
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
        finally:
            peer.channel.close()
            await broker.close()
            await name_server.close()

    asyncio.run(run())


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        second = Broker(
            BrokerConfig(listen_port=0),
            StoreConfig(root_path=tmp_path, segment_bytes=1 << 20),
        )
        with pytest.raises(StoreLocked, match=str(tmp_path)):
            await second.start()

    serve(tmp_path, check)


def test_a_broker_stopped_while_its_store_opens_lets_the_directory_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StoreConfig(root_path=tmp_path, segment_bytes=1 << 20)
    opened = threading.Event()
    original = MessageStore.open

    def slow(*arguments: Any, is_cancelled: Callable[[], bool], **named: Any) -> MessageStore:
        opened.set()
        while not is_cancelled():
            time.sleep(0.001)
        return original(*arguments, **named)

    async def run() -> None:
        monkeypatch.setattr(MessageStore, "open", slow)
        broker = Broker(BrokerConfig(listen_port=0), config)
        starting = asyncio.ensure_future(broker.start())
        await asyncio.to_thread(opened.wait, DEADLINE_S)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(starting, DEADLINE_S)

    asyncio.run(run())
    monkeypatch.undo()
    MessageStore.open(config, Clock()).close()


def test_a_port_in_use_is_refused_before_the_store_is_touched(tmp_path: Path) -> None:
    async def check(peer: Peer) -> None:
        second = Broker(
            BrokerConfig(listen_port=peer.broker.port),
            StoreConfig(root_path=tmp_path / "second"),
        )
        with pytest.raises(ConfigurationError, match="in use"):
            await second.start()
        assert not (tmp_path / "second").exists()

    serve(tmp_path / "first", check)


def test_a_name_server_that_is_down_is_named_once_and_the_broker_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(peer: Peer) -> None:
        assert (await peer.send("T", b"x")).code == ResponseCode.SUCCESS

    with caplog.at_level(logging.WARNING, logger="pymq"):
        serve(tmp_path, check, name_servers=("127.0.0.1:9",))
    assert caplog.text.count("name server 127.0.0.1:9 does not know this broker") == 1


def test_a_name_server_that_was_restarted_is_told_of_the_broker_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        name_server = NameServer(NamesrvConfig(port=0))
        await name_server.start()
        again = NameServer(NamesrvConfig(port=name_server.port))
        config = BrokerConfig(
            listen_port=0,
            name_servers=(name_server.address,),
            register_interval_ms=60_000,  # longer than this test waits
        )
        broker = Broker(config, StoreConfig(root_path=tmp_path, segment_bytes=1 << 20))
        await broker.start()
        await name_server.close()
        await again.start()
        peer = await connect(broker, port=again.port)
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    answer = await peer.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
                    if config.name in json.loads(bytes(answer.body))["brokerAddrTable"]:
                        break
                    await asyncio.sleep(0.05)
        finally:
            peer.channel.close()
            await broker.close()
            await again.close()

    asyncio.run(run())


def test_an_advertised_address_that_is_not_listened_on_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        broker = Broker(
            BrokerConfig(listen_port=0, advertised_address="192.0.2.7"),
            StoreConfig(root_path=tmp_path, segment_bytes=1 << 20),
        )
        await broker.start()
        assert broker.address.startswith("192.0.2.7:")
        await broker.close()

    with caplog.at_level(logging.WARNING, logger="pymq"):
        asyncio.run(run())
    assert "192.0.2.7 (brokerIP1)" in caplog.text and "bindAddress" in caplog.text


@pytest.mark.parametrize("address", ["0.0.0.0", "my-host", "::"])
def test_an_address_that_cannot_be_advertised_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="brokerIP1"):
        BrokerConfig(advertised_address=address)


def test_topics_lost_from_the_table_are_found_in_the_store(tmp_path: Path) -> None:
    async def fill(peer: Peer) -> None:
        await peer.send("T", b"kept", queue_id=3)

    async def look(peer: Peer) -> None:
        (record,) = records(await peer.pull("T", 0, queueId=3))
        assert record.body == b"kept"

    serve(tmp_path, fill)
    for name in ("topics.json", "topics.json.bak"):
        (tmp_path / "config" / name).unlink(missing_ok=True)
    serve(tmp_path, look)


def test_a_damaged_table_falls_back_to_its_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def commit(peer: Peer, offset: int) -> None:
        await peer.send("T", b"x")
        await peer.pull("T", 0)  # creates the group
        await peer.ask(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            consumerGroup="g",
            topic="T",
            queueId=0,
            commitOffset=offset,
        )

    async def look(peer: Peer) -> None:
        answer = await peer.ask(
            RequestCode.QUERY_CONSUMER_OFFSET, consumerGroup="g", topic="T", queueId=0
        )
        assert fields(answer)["offset"] == "1"

    serve(tmp_path, lambda peer: commit(peer, 1))
    serve(tmp_path, lambda peer: commit(peer, 2))
    (tmp_path / "config" / "consumerOffset.json").write_text('{"offsetTable": {"T@g"')
    with caplog.at_level(logging.WARNING, logger="pymq"):
        serve(tmp_path, look)
    assert "consumerOffset.json.bak" in caplog.text
