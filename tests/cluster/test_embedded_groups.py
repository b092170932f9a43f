"""``pymq.testing.Cluster`` with several brokers, and with several of each name."""

import asyncio
import threading
import time
from pathlib import Path

import pytest
from tests.administration import admin_of

from pymq.broker.run import Run
from pymq.client.operations import SendStatus
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ClientClosed, ConfigurationError, RequestTimeout, StoreMismatch
from pymq.protocol.message import Message
from pymq.protocol.record import decode_records
from pymq.store import StoreConfig
from pymq.store.inspection import check_store
from pymq.testing import Cluster, members

#: For what comes soon, were machine and disk not busy.
LIMIT_S = 60.0
#: A slave that is stopped is told by its connection; one that is slow stays in sync.
PATIENT = {"slave_timeout_ms": 30_000, "sync_state_lag_ms": 30_000}


def bodies(client: BlockingClient, topic: str) -> list[bytes]:
    """Return everything in a topic, sorted."""
    return sorted(
        record.body
        for queue, (first, end) in client.bounds(client.read_queues(topic)).items()
        for chunk in client.pull_range(queue, first, end)
        for record in decode_records(chunk.buffer, verify=True)
    )


def test_brokers_of_several_names_share_a_topic() -> None:
    with (
        Cluster(brokers=3) as cluster,
        BlockingClient(cluster.name_server, timeout_s=LIMIT_S) as client,
    ):
        assert cluster.broker_names == ["broker-a", "broker-b", "broker-c"]
        admin_of(client).topics.create("T", queue_count=2)
        assert {queue.broker_name for queue in client.write_queues("T")} == set(
            cluster.broker_names
        )
        for queue in client.write_queues("T"):
            client.send(Message("T", queue.broker_name.encode()), queue)
        cluster.restart_broker("broker-b")
        assert bodies(client, "T") == sorted(2 * [one.encode() for one in cluster.broker_names])
        addresses = {cluster.address(name) for name in cluster.broker_names}
        assert len(addresses) == 3 and cluster.broker_address == cluster.address("broker-a")
        assert cluster.master("broker-c") == 0
        cluster.wait_in_sync()
        assert (cluster.store / "broker-c" / "commitlog").is_dir()
        with pytest.raises(ClientClosed, match="no controller"):
            assert cluster.controller


def test_every_broker_of_every_group_takes_over_without_a_loss() -> None:
    with (
        Cluster(brokers=2, replicas=2, replication=PATIENT) as cluster,
        BlockingClient(cluster.name_server, timeout_s=LIMIT_S) as client,
    ):
        assert [cluster.master(name) for name in cluster.broker_names] == [1, 1]
        cluster.wait_in_sync()
        admin_of(client).topics.create("T", queue_count=1)
        sent = []
        for number, first in enumerate((1, 2)):
            for name in cluster.broker_names:
                assert cluster.master(name) == first
                client.forget_route("T")  # sends to one queue only are not tried again
                (queue,) = [one for one in client.write_queues("T") if one.broker_name == name]
                for index in range(20):
                    sent.append(b"%s %d %d" % (name.encode(), number, index))
                    assert client.send(Message("T", sent[-1]), queue).status is SendStatus.OK
                cluster.kill_broker(name, first)
                assert cluster.master(name) == 3 - first
                cluster.start_broker(name, first)
                cluster.start_broker(name, first)  # changes nothing
            cluster.wait_in_sync()
        assert bodies(client, "T") == sorted(sent)


def test_a_kept_store_keeps_members_and_messages(tmp_path: Path) -> None:
    settings = {"segment_bytes": 1 << 20}
    cluster = Cluster(tmp_path, replicas=2, replication=PATIENT, store_settings=settings)
    for run in range(3):
        with cluster, BlockingClient(cluster.name_server, timeout_s=LIMIT_S) as client:
            cluster.wait_in_sync()
            assert cluster.master() == 1 or run > 0  # later, whoever the controller takes
            assert client.send(Message("T", b"%d" % run)).status is SendStatus.OK
            assert len(bodies(client, "T")) == run + 1
            if run == 0:
                cluster.stop_broker(broker_id=1)
                assert cluster.master() == 2
                cluster.start_broker(broker_id=1)
                cluster.wait_in_sync()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker-a", "controller"]


def test_the_next_cluster_with_a_kept_store_waits_for_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its brokers have other ports, and nobody else can be at the old ones: stores are locked."""
    for run in range(2):
        cluster = Cluster(tmp_path, replicas=2, replication=PATIENT)
        with cluster, BlockingClient(cluster.name_server, timeout_s=LIMIT_S) as client:
            cluster.wait_in_sync()
            assert client.send(Message("T", b"%d" % run)).status is SendStatus.OK
            assert len(bodies(client, "T")) == run + 1
    assert "pymqStartPatience" not in caplog.text


def test_two_clusters_in_two_threads() -> None:
    failures: list[BaseException] = []

    def use() -> None:
        try:
            with (
                Cluster(replicas=2, replication=PATIENT) as cluster,
                BlockingClient(cluster.name_server, timeout_s=LIMIT_S) as client,
            ):
                cluster.wait_in_sync()
                client.send(Message("T", b"x"))
                cluster.kill_broker(broker_id=1)
                cluster.master()
                client.forget_route("T")
                assert bodies(client, "T") == [b"x"]
        except BaseException as error:
            failures.append(error)

    before = set(threading.enumerate())  # some of them may end meanwhile
    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(4 * LIMIT_S)
    assert not failures
    deadline = time.monotonic() + LIMIT_S  # some that are told to end do so a moment later
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not left, left


def test_a_temporary_store_goes_with_the_cluster() -> None:
    cluster = Cluster(brokers=2, replicas=2)
    for _ in range(2):
        with cluster:
            root = cluster.store
            assert (root / "broker-b" / "2").is_dir() and (root / "controller").is_dir()
            cluster.stop_broker("broker-a", 2)
            with pytest.raises(ClientClosed, match="broker 2 of broker-a is stopped"):
                cluster.address("broker-a", 2)
        assert not root.exists()
        with pytest.raises(ClientClosed, match="not started"):
            cluster.start_broker("broker-a", 2)


def test_a_whole_group_is_stopped_and_started() -> None:
    with Cluster(brokers=2, replicas=2, replication=PATIENT) as cluster:
        cluster.wait_in_sync()
        cluster.stop_broker("broker-b", 1)
        cluster.master("broker-b")
        cluster.kill_broker("broker-b")
        assert cluster.master("broker-a") == 1
        for broker_id in (1, 2):
            with pytest.raises(ClientClosed, match="is stopped"):
                cluster.address("broker-b", broker_id)
        cluster.start_broker("broker-b")  # 1 alone would wait for 2, which has everything
        cluster.wait_in_sync()
        assert cluster.master("broker-b") == 2
        cluster.restart_broker()
        cluster.wait_in_sync()


def test_a_broker_that_may_not_be_the_master_does_not_start_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Cluster(replicas=2, replication=PATIENT) as cluster:
        cluster.wait_in_sync()
        cluster.stop_broker(broker_id=1)
        cluster.master()
        cluster.stop_broker(broker_id=2)
        with monkeypatch.context() as patch:
            patch.setattr(members, "START_S", 1.0)
            with pytest.raises(RequestTimeout, match="start all of the group together"):
                cluster.start_broker(broker_id=1)
        cluster.start_broker(broker_id=2)
        cluster.start_broker(broker_id=1)
        cluster.wait_in_sync()


def test_a_broker_that_stops_while_its_role_changes_closes_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What all brokers of a group do that are stopped together, but for its master."""
    is_ending = threading.Event()
    close = Run.close

    async def slow_close(run: Run) -> None:
        if run._store_config.root_path.name == "2":
            is_ending.set()
            await asyncio.sleep(2.0)
        await close(run)

    with Cluster(tmp_path, replicas=2, replication=PATIENT) as cluster:
        with BlockingClient(cluster.name_server, timeout_s=LIMIT_S) as client:
            client.send(Message("T", b"x"))
            cluster.wait_in_sync()
        monkeypatch.setattr(Run, "close", slow_close)
        cluster.stop_broker(broker_id=1)
        assert is_ending.wait(LIMIT_S), "the slave is to be the master"
        cluster.stop_broker(broker_id=2)
    for number in (1, 2):
        report = check_store(StoreConfig(root_path=tmp_path / "broker-a" / str(number)))
        assert report.is_whole and report.clean_stop, list(report.findings.groups())


def test_a_broker_that_is_not_named_is_not_guessed() -> None:
    cluster = Cluster(brokers=2, replicas=2)
    with pytest.raises(ConfigurationError, match="which broker.* broker-a/1, broker-b/1"):
        cluster.address(broker_id=1)
    with pytest.raises(ConfigurationError, match="which group.* broker-a, broker-b"):
        cluster.master()
    for name, broker_id in (("broker-c", 1), ("broker-a", 3), (None, 0)):
        with pytest.raises(ConfigurationError, match="expected one of broker-a/1, broker-a/2"):
            cluster.stop_broker(name, broker_id)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"brokers": 0}, "brokers=0: expected 1..26"),
        ({"replicas": 99}, "replicas=99: expected 1..33"),
        ({"brokers": 2, "broker": {"name": "x"}}, "each of several brokers has its own"),
        ({"replicas": 2, "broker": {"listen_port": 1}}, "listen_port.*has its own"),
        ({"replicas": 2, "replication": {"controller_mode": True}}, "a controller of its own"),
    ],
)
def test_what_several_brokers_cannot_share(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Cluster(**arguments)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_broker_that_cannot_start_ends_the_start(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, replicas=2)
    with cluster, BlockingClient(cluster.name_server, timeout_s=LIMIT_S) as client:
        cluster.wait_in_sync()
        client.send(Message("T", b"x"))
    foreign = tmp_path / "broker-a" / "2" / "commitlog" / "foreign"
    foreign.touch()
    with pytest.raises(StoreMismatch):
        cluster.start()
    with pytest.raises(ClientClosed):
        cluster.restart_broker(broker_id=1)
    foreign.unlink()
    with cluster:
        cluster.wait_in_sync()
