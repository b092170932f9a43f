"""Official brokers, which know no secret, beside ours, which have one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from tests.administration import admin_of
from tests.interop.conftest import require_peers
from tests.interop.peers import RealBroker, RealNameServer, free_port
from tests.interop.test_replication_java import (
    QUEUE_COUNT,
    SEGMENT_BYTES,
    TOPIC,
    end_of,
    eventually,
    log,
    send,
)

from pymq.broker.replication_config import Role
from pymq.client.operations import SendStatus
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

VERSION = "5.3.3"
SECRET = "a secret of the tests"
LISTED, UNLISTED = ("127.0.0.0/8",), None


def restart(cluster: Cluster, **replication: Any) -> None:
    (member,) = cluster._members
    member.replication = dataclasses.replace(member.replication, **replication)
    cluster.restart_broker()


def test_an_official_slave_follows_our_master_with_a_secret_only_if_it_is_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What it is told otherwise does it no harm, be its log empty or not."""
    require_peers(VERSION)
    mine, theirs = tmp_path / "master", tmp_path / "slave"
    refused = "it is a slave of RocketMQ, or one of pymq without a secret"
    replication = {"whole_log": True, "listen_port": free_port(0), "secret": SECRET}
    settings = {"segment_bytes": SEGMENT_BYTES}
    with (
        Cluster(mine, store_settings=settings, replication=replication) as master,
        BlockingClient(master.name_server) as client,
        RealBroker(
            VERSION,
            [master.name_server],
            store_dir=theirs,
            brokerRole="SLAVE",
            brokerId=1,
            mappedFileSizeCommitLog=SEGMENT_BYTES,
            haListenPort=free_port(0),
        ),
    ):
        admin = admin_of(client)
        admin.topics.create(TOPIC, queue_count=QUEUE_COUNT)
        send(client, 700, 0)

        def wait_equal() -> None:
            end = end_of(admin, master.broker_address)
            expected = log(mine, 0, end)
            eventually(lambda: log(theirs, 0, end) == expected, f"the slave lacks a part of {end}")

        eventually(lambda: refused in caplog.text, "it is not refused")
        assert not any(log(theirs, 0, SEGMENT_BYTES))
        restart(master, networks=LISTED)
        wait_equal()
        end = end_of(admin, master.broker_address)
        caplog.clear()
        restart(master, networks=UNLISTED)
        send(client, 100, 1)
        eventually(lambda: refused in caplog.text, "it is not refused")
        assert not any(log(theirs, end, end + 1000))
        restart(master, networks=LISTED)
        send(client, 100, 2)
        wait_equal()


def test_our_slave_with_a_secret_follows_an_official_master_only_if_it_is_listed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its hello does the master no harm: a SYNC_MASTER takes it for no confirmation."""
    require_peers(VERSION)
    mine, theirs = tmp_path / "slave", tmp_path / "master"
    with (
        RealNameServer(VERSION) as name_server,
        RealBroker(
            VERSION,
            [name_server.address],
            store_dir=theirs,
            mappedFileSizeCommitLog=SEGMENT_BYTES,
            brokerRole="SYNC_MASTER",
            inSyncReplicas=2,
            slaveTimeout=500,
        ) as master,
        BlockingClient(name_server.address) as client,
    ):
        admin = admin_of(client)
        admin.topics.create(TOPIC, queue_count=QUEUE_COUNT)
        with Cluster(
            mine,
            broker={"name": master.name, "broker_id": 1, "name_servers": (name_server.address,)},
            replication={"role": Role.SLAVE, "secret": SECRET, "handshake_ms": 1_000},
            store_settings={"segment_bytes": SEGMENT_BYTES},
        ) as slave:
            said = "it does not prove that it knows the secret"
            eventually(lambda: said in caplog.text, "it is followed")
            for n in range(20):
                assert client.send(Message(topic=TOPIC, body=b"%d" % n)).status is not SendStatus.OK
            assert end_of(admin, slave.broker_address) == 0
            restart(slave, networks=LISTED)

            def is_equal() -> bool:
                end = end_of(admin, master.address)
                return end_of(admin, slave.broker_address) == end > 0

            eventually(is_equal, "it is not followed")
            end = end_of(admin, master.address)
            assert log(mine, 0, end) == log(theirs, 0, end)
            message = Message(topic=TOPIC, body=b"it is there")
            # Of a slave on a busy machine the master may hear too late.
            eventually(lambda: client.send(message).status is SendStatus.OK, "it confirms")
