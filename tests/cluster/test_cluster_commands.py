"""``pymq cluster list``, ``promote`` and ``demote``, with groups that have a controller or none."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.cli_processes import array, pymq, refusal
from tests.cluster.scenarios import create_topic
from tests.crash.servers import broker_process

from pymq.broker.replication_config import Role
from pymq.client.operations import SendStatus
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster

DEADLINE_S = 120.0
TIMEOUT_S = 30.0


def brokers(cluster: Cluster, *more: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what is listed, by broker name and address."""
    found = array(pymq("cluster", "list", "-n", cluster.name_server, "-o", "json", *more))
    return {(row["broker"], row["address"]): row for row in found}


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.05)


@pytest.fixture(scope="module")
def shared_groups() -> Iterator[Cluster]:
    # Both are up when messages are sent: they are waited for, however slow they are.
    with Cluster(brokers=2, replicas=2, replication={"slave_timeout_ms": 20_000}) as cluster:
        yield cluster


@pytest.fixture
def groups(shared_groups: Cluster) -> Cluster:
    shared_groups.start_broker()
    shared_groups.wait_in_sync()
    return shared_groups


def others(cluster: Cluster) -> dict[str, int]:
    """Return the id of the broker of each group that is not its master."""
    return {name: 3 - cluster.master(name) for name in cluster.broker_names}


def order(cluster: Cluster, *arguments: str) -> dict[str, Any]:
    """Return the row of a promotion or a demotion."""
    (row,) = array(pymq("cluster", *arguments, "-n", cluster.name_server, "-o", "json"))
    return row


def test_roles_epochs_and_lags_are_listed(groups: Cluster) -> None:
    create_topic(groups.name_server, "listed")
    with BlockingClient(groups.name_server, timeout_s=TIMEOUT_S) as client:
        for _ in range(10):
            assert client.send(Message("listed", b"x")).status is SendStatus.OK
    found = brokers(groups)
    assert len(found) == 4
    for name, other in others(groups).items():
        master = found[name, groups.address(name, 3 - other)]
        slave = found[name, groups.address(name, other)]
        assert (master["id"], master["role"], master["memberId"]) == (0, "master", 3 - other)
        assert (slave["id"], slave["role"], slave["memberId"]) == (other, "slave", other)
        assert master["behindBytes"] is None and master["putToday"] > 0
        assert slave["behindBytes"] == 0 and slave["behindSeconds"] == 0.0
        assert master["epoch"] == slave["epoch"] >= 1
        for row in (master, slave):
            assert (row["state"], row["controlled"], row["inSync"]) == ("up", True, True)
            assert (row["version"], row["problem"]) == ("V5_3_3", None)
    table = pymq("cluster", "list", "-n", groups.name_server)
    assert table.returncode == 0 and len(table.stdout.splitlines()) == 5
    assert " yes " in table.stdout and "BEHIND B" in table.stdout.splitlines()[0]


def test_a_broker_that_is_down_is_listed_as_such(groups: Cluster) -> None:
    name = "broker-b"
    other = others(groups)[name]
    addresses = {broker_id: groups.address(name, broker_id) for broker_id in (1, 2)}
    groups.kill_broker(name, other)
    eventually(lambda: brokers(groups)[name, addresses[other]]["inSync"] is False)
    found = brokers(groups)
    assert len(found) == 4
    away, master = found[name, addresses[other]], found[name, addresses[3 - other]]
    assert (away["state"], away["memberId"], away["id"]) == ("away", other, None)
    assert addresses[other] in away["problem"]
    assert (away["role"], away["version"], away["behindBytes"]) == (None, None, None)
    assert (master["state"], master["role"], master["inSync"]) == ("up", "master", True)
    assert all(row["state"] == "up" for key, row in found.items() if key[0] == "broker-a")


def test_a_controller_that_is_away_costs_no_more_than_what_it_knows(tmp_path: Path) -> None:
    with Cluster(replicas=2) as cluster:
        cluster.wait_in_sync()
        assert cluster._controller is not None
        cluster._run(cluster._controller.close())
        done = pymq("cluster", "list", "-n", cluster.name_server, "-o", "json")
        assert done.returncode == 0
        assert "in sync is not known" in done.stderr and cluster.controller in done.stderr
        rows = list(brokers(cluster).values())
        assert [row["role"] for row in rows] == ["master", "slave"]
        assert rows[1]["inSync"] is True  # as the master says
        assert rows[1]["behindBytes"] == 0
        found = refusal(pymq("cluster", "demote", "broker-a", "-n", cluster.name_server))
        assert found.status == 3 and cluster.controller in found.line


def test_a_frozen_broker_costs_a_bounded_time(tmp_path: Path) -> None:
    with Cluster() as cluster:
        frozen = broker_process(
            tmp_path, cluster.name_server, tmp_path / "store", brokerName="broker-z"
        )
        with frozen:
            eventually(lambda: state_of(cluster, "broker-z", frozen.address) == "up")
            frozen.freeze()
            began = time.monotonic()
            found = brokers(cluster, "--timeout", "4")  # in which the others have to answer
            took_s = time.monotonic() - began
            frozen.thaw()
    assert took_s < 60
    silent = found["broker-z", frozen.address]
    assert (silent["state"], silent["role"], silent["version"]) == ("silent", "master", None)
    assert "did not answer" in silent["problem"]
    assert found["broker-a", cluster_address(found)]["state"] == "up"


def state_of(cluster: Cluster, name: str, address: str) -> str | None:
    row = brokers(cluster).get((name, address))
    return None if row is None else str(row["state"])


def cluster_address(found: dict[tuple[str, str], dict[str, Any]]) -> str:
    (address,) = [address for name, address in found if name == "broker-a"]
    return address


def test_a_classic_pair_is_listed_and_told_the_manual_way(tmp_path: Path) -> None:
    with (
        Cluster(tmp_path / "master", replication={"role": Role.SYNC_MASTER}) as master,
        Cluster(
            tmp_path / "slave",
            broker={"broker_id": 1, "name_servers": (master.name_server,)},
            replication={"role": Role.SLAVE, "metadata_interval_ms": 200},
        ) as slave,
        BlockingClient(master.name_server, timeout_s=TIMEOUT_S) as client,
    ):
        client.send(Message("T", b"x"))
        key = "broker-a", slave.broker_address
        eventually(lambda: brokers(master).get(key, {}).get("behindBytes") == 0)
        found = brokers(master)
        row = found[key]
        assert (row["role"], row["controlled"], row["epoch"]) == ("slave", False, None)
        assert (row["inSync"], row["memberId"], row["behindSeconds"]) == (True, None, 0.0)
        assert found["broker-a", master.broker_address]["role"] == "master"
        for arguments in (("promote", "broker-a", "--to", "1"), ("demote", "broker-a")):
            told = refusal(pymq("cluster", *arguments, "-n", master.name_server))
            assert told.status == 2 and "docs/replication.md" in told.line
            assert slave.broker_address in told.line and master.broker_address in told.line
        address = slave.broker_address
        slave.stop_broker()
        alone = refusal(pymq("cluster", "demote", "broker-a", "-n", master.name_server))
        assert alone.status == 2 and "no slave is registered" in alone.line
        assert ("broker-a", address) not in brokers(master)


# ------------------------------------------------------------------------------------- promotion


@pytest.mark.parametrize("by", ["id", "address"])
def test_a_slave_is_promoted_and_has_everything(groups: Cluster, by: str) -> None:
    topic = f"promoted-{by}"
    with BlockingClient(groups.name_server, timeout_s=TIMEOUT_S) as client:
        for _ in range(20):
            assert client.send(Message(topic, b"x")).status is SendStatus.OK
    before = brokers(groups)
    for name, other in others(groups).items():
        to = str(other) if by == "id" else groups.address(name, other)
        arguments = ("promote", name, "--to", to)
        dry = order(groups, *arguments, "--dry-run")
        assert (dry["fromMember"], dry["toMember"]) == (3 - other, other)
        assert (dry["dryRun"], dry["whyNot"], dry["warnings"]) == (True, None, [])
        assert groups.master(name) == 3 - other, "nothing has happened"
        epoch = before[name, groups.address(name, 3 - other)]["epoch"]
        assert dry["epoch"] == epoch
        done = order(groups, *arguments)
        assert done["epoch"] == epoch + 1 and done["seconds"] > 0
        assert groups.master(name) == other
        again = order(groups, *arguments)
        assert (again["epoch"], again["seconds"]) == (epoch + 1, None)
    with BlockingClient(groups.name_server, timeout_s=TIMEOUT_S) as client:
        client.send(Message(topic, b"x"))
        bounds = client.bounds(client.read_queues(topic))
        assert sum(end for _, end in bounds.values()) == 21


def test_a_master_is_demoted_and_the_best_one_takes_over() -> None:
    with Cluster(replicas=3) as cluster:
        cluster.wait_in_sync()
        row = order(cluster, "demote", "broker-a")
        assert (row["fromMember"], row["inSync"]) == (1, True)
        assert cluster.master() == row["toMember"] != 1
        cluster.wait_in_sync()
        cluster.kill_broker(broker_id=5 - row["toMember"])
        eventually(lambda: order(cluster, "demote", "broker-a", "--dry-run")["toMember"] == 1)
        table = pymq("cluster", "demote", "broker-a", "-n", cluster.name_server)
        assert table.returncode == 0 and "NEW MASTER" in table.stdout.splitlines()[0]
        assert cluster.master() == 1


def test_who_would_lose_messages_is_refused(groups: Cluster) -> None:
    name = "broker-a"
    other = others(groups)[name]
    where = ("-n", groups.name_server)
    groups.stop_broker(name, other)
    arguments = ("promote", name, "--to", str(other))
    gone = refusal(pymq("cluster", *arguments, *where))
    assert gone.status == 1 and "is not alive" in gone.line
    dry = pymq("cluster", *arguments, "--dry-run", "-o", "json", *where)
    assert dry.returncode == 1 and "is not alive" in dry.stdout and "is not alive" in dry.stderr
    assert refusal(pymq("cluster", *arguments, "--force", *where)).status == 1
    eventually(
        lambda: brokers(groups)[name, groups.address(name, 3 - other)]["inSync"] is True
        and pymq("cluster", "demote", name, "--dry-run", *where).returncode == 1
    )
    alone = refusal(pymq("cluster", "demote", name, *where))
    assert "no other broker" in alone.line
    assert groups.master(name) == 3 - other


def test_who_lags_behind_a_master_that_waits_for_nobody_is_refused() -> None:
    """The slave is frozen out: it is in no sync state set after a while, and lacks messages."""
    rules = {"role": Role.ASYNC_MASTER, "sync_state_lag_ms": 600_000, "networks": ("10.9.8.7",)}
    with (
        Cluster(replicas=2, replication=rules) as cluster,
        BlockingClient(cluster.name_server, timeout_s=TIMEOUT_S) as client,
    ):
        client.send(Message("T", b"x"))
        where = ("-n", cluster.name_server)
        arguments = ("promote", "broker-a", "--to", "2")
        late = refusal(pymq("cluster", *arguments, *where))
        assert late.status == 1 and "not in the sync state set" in late.line
        assert "lacks" in late.line and " B of its master's log" in late.line
        forced = refusal(pymq("cluster", *arguments, "--force", *where))
        assert forced.status == 1 and "in sync are [1]" in forced.line, "the controller does"
        assert cluster.master() == 1
        assert client.send(Message("T", b"x")).status is SendStatus.OK


def test_what_a_master_that_waits_for_nobody_acknowledges_is_warned_of() -> None:
    with Cluster(replicas=2, replication={"role": Role.ASYNC_MASTER}) as cluster:
        cluster.wait_in_sync()
        row = order(cluster, "promote", "broker-a", "--to", "2", "--dry-run")
        assert row["whyNot"] is None
        (warning,) = row["warnings"]
        assert "waits for no slave" in warning


def test_a_group_whose_brokers_are_all_away_needs_its_controller(groups: Cluster) -> None:
    groups.stop_broker("broker-a")
    where = ("-n", groups.name_server)
    arguments = ("promote", "broker-a", "--to", "1")
    unknown = refusal(pymq("cluster", *arguments, *where))
    assert unknown.status == 2 and "--controller" in unknown.line
    away = refusal(pymq("cluster", *arguments, "--controller", groups.controller, *where))
    assert away.status == 1 and "is not alive" in away.line


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("promote", "broker-a", "--to", "9"), 2, "1 at 127.0.0.1:"),
        (("promote", "broker-a", "--to", "0"), 2, "expected id or address"),
        (("promote", "nobody", "--to", "1"), 2, "'nobody'"),
        (("demote", "broker-a", "--controller", "127.0.0.1:1"), 3, "127.0.0.1:1"),
        (("demote", "broker-a", "--controller", "nowhere"), 2, "host:port"),
    ],
)
def test_orders_that_cannot_be_carried_out(
    groups: Cluster, arguments: tuple[str, ...], status: int, said: str
) -> None:
    found = refusal(pymq("cluster", *arguments, "-n", groups.name_server))
    assert found.status == status and said in found.line
