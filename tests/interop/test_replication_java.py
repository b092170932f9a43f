"""The log between our brokers and official ones: byte for byte, in both directions."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.administration import admin_of
from tests.interop.conftest import require_peers, some
from tests.interop.peers import RealBroker, RealNameServer, free_port

from pymq import blocking
from pymq.broker.replication_config import Role
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.protocol.record import decode_records
from pymq.store import StoreConfig
from pymq.store.inspection import check_store
from pymq.testing import Cluster

pytestmark = pytest.mark.interop

SEGMENT_BYTES = 1 << 20
#: A slave of 5.3.3 may say nothing for five seconds, and tries again after as many.
DEADLINE_S = 120.0
TOPIC, QUEUE_COUNT = "replicated", 4


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def log(root: Path, first: int, end: int) -> bytes:
    """Return the log of a store between two offsets, as far as it is there."""
    data = b""
    while first + len(data) < end:
        at = first + len(data)
        path = root / "commitlog" / f"{at - at % SEGMENT_BYTES:020d}"
        if not path.exists():
            break
        data += path.read_bytes()[at % SEGMENT_BYTES :][: end - at]
    return data


def first_of(root: Path) -> int:
    return min(int(path.name) for path in (root / "commitlog").iterdir())


def end_of(admin: blocking.Admin, address: str) -> int:
    return int(admin.brokers.state(address)["commitLogMaxOffset"])


def send(client: BlockingClient, count: int, number: int) -> None:
    for n in range(count):
        client.send(Message(topic=TOPIC, body=b"%d-%d " % (number, n) + bytes(2_000), tags="t"))


@pytest.fixture(params=some([("5.3.3",), ("4.9.7",)], ("5.3.3",)))
def version(request: pytest.FixtureRequest) -> Iterator[str]:
    require_peers(request.param)
    yield request.param


def test_an_official_slave_has_the_log_of_our_master(version: str, tmp_path: Path) -> None:
    """It is started late, away for a while, and the master is restarted."""
    mine, theirs = tmp_path / "master", tmp_path / "slave"
    with (
        Cluster(
            mine,
            store_settings={"segment_bytes": SEGMENT_BYTES},
            replication={"whole_log": True, "listen_port": free_port(0)},
        ) as master,
        BlockingClient(master.name_server) as client,
    ):

        def start_slave() -> RealBroker:
            return RealBroker(
                version,
                [master.name_server],
                store_dir=theirs,
                brokerRole="SLAVE",
                brokerId=1,
                mappedFileSizeCommitLog=SEGMENT_BYTES,
                haListenPort=free_port(0),
            )

        admin = admin_of(client)
        admin.topics.create(TOPIC, queue_count=QUEUE_COUNT)

        def wait_equal() -> None:
            end = end_of(admin, master.broker_address)
            expected = log(mine, 0, end)
            eventually(lambda: log(theirs, 0, end) == expected, f"the slave lacks a part of {end}")

        send(client, 700, 0)
        with start_slave():
            send(client, 100, 1)
            wait_equal()
            assert first_of(theirs) == 0
        send(client, 600, 2)
        master.restart_broker()
        with start_slave():
            send(client, 100, 3)
            wait_equal()
            master.restart_broker()
            send(client, 100, 4)
            wait_equal()


def test_our_slave_has_the_log_of_an_official_master(version: str, tmp_path: Path) -> None:
    """It is started late and away for a while; it gets the master's last file, as all slaves do."""
    mine, theirs = tmp_path / "slave", tmp_path / "master"
    with (
        RealNameServer(version) as name_server,
        RealBroker(
            version,
            [name_server.address],
            store_dir=theirs,
            mappedFileSizeCommitLog=SEGMENT_BYTES,
        ) as master,
        BlockingClient(name_server.address) as client,
    ):
        admin = admin_of(client)
        admin.topics.create(TOPIC, queue_count=QUEUE_COUNT)
        send(client, 700, 0)
        slave = Cluster(
            mine,
            broker={"name": master.name, "broker_id": 1, "name_servers": (name_server.address,)},
            replication={"role": Role.SLAVE, "metadata_interval_ms": 500},
            store_settings={"segment_bytes": SEGMENT_BYTES},
        )

        def wait_equal() -> None:
            end = end_of(admin, master.address)
            eventually(
                lambda: end_of(admin, slave.broker_address) >= end,
                f"the slave is at {end_of(admin, slave.broker_address)} of {end}",
            )
            first = first_of(mine)
            assert log(mine, first, end) == log(theirs, first, end)

        with slave:
            send(client, 100, 1)
            wait_equal()
            assert first_of(mine) == SEGMENT_BYTES
            slave.stop_broker()
            send(client, 600, 2)
            slave.start_broker()
            send(client, 100, 3)
            wait_equal()
            status = admin.topics.status(TOPIC)
            assert sum(queue.max_offset for queue in status.values()) == 1_500
    promoted = Cluster(mine, store_settings={"segment_bytes": SEGMENT_BYTES})
    with promoted, BlockingClient(promoted.name_server) as client:
        bounds = client.bounds(client.read_queues(TOPIC))
        bodies = [
            record.body
            for queue, (first, end) in bounds.items()
            for chunk in client.pull_range(queue, first, end)
            for record in decode_records(chunk.buffer, verify=True)
        ]
        assert sum(end for _, end in bounds.values()) == 1_500
        assert {body.split()[0] for body in bodies} >= {
            b"%d-%d" % (number, n) for number, count in ((2, 600), (3, 100)) for n in range(count)
        }
        client.send(Message(topic=TOPIC, body=b"after the master"))
    report = check_store(StoreConfig(root_path=mine, segment_bytes=SEGMENT_BYTES))
    assert [group for group in report.findings.groups() if group[0].name != "NOTE"] == []
