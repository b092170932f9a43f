"""Roles, lags and handovers, from what brokers and controllers say: without a socket."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pymq.cli.handover import HandoverRefused, Plan, _judge
from pymq.cli.replicas import Group, Replica, _controllers_of, _take_info, waits_for_slaves
from pymq.client.administration.replicas import BrokerReport
from pymq.errors import ConnectionFailed, RequestTimeout
from pymq.protocol.admin_bodies import FollowingStatus, ReplicationStatus, SlaveStatus
from pymq.protocol.controller import EpochCache, ReplicaIdentity, ReplicaInfo

MASTER, SLAVE, OTHER = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def slave_status(peer: str, behind: int, **more: int | None) -> SlaveStatus:
    return SlaveStatus(
        peer=peer,
        confirmed_end=1000 - behind,
        sent_end=1000,
        behind_bytes=behind,
        in_sync=behind < 500,
        bytes_per_s=0,
        broker_id=more.get("broker_id"),
        behind_ms=more.get("behind_ms"),
    )


def report(log_end: int, *, config: str = "", status: ReplicationStatus | None) -> BrokerReport:
    return BrokerReport(
        state={"commitLogMaxOffset": str(log_end)}, config=config or None, status=status
    )


def group_of(*slaves: SlaveStatus, speaks: bool = True, config: str = "") -> Group:
    """Return a master and two slaves, as the name servers and they themselves say."""
    status = ReplicationStatus(slaves=list(slaves)) if speaks else None
    following = ReplicationStatus(master=False) if speaks else None
    group = Group(cluster="c", name="g")
    for broker_id, address, end, said in (
        (0, MASTER, 1000, status), (1, SLAVE, 900, following), (2, OTHER, 400, following)
    ):  # fmt: skip
        group.replicas.append(
            Replica(
                address=address,
                report=report(end, config=config, status=said),
                broker_id=broker_id,
            )
        )
    return group


def test_the_master_says_how_far_a_slave_is() -> None:
    group = group_of(
        slave_status("10.0.0.2:4711", 30), slave_status("10.0.0.3:4712", 600, behind_ms=2_500)
    )
    _take_info(group)
    assert [group.lag(one) for one in group.replicas] == [(None, None), (30, None), (600, 2.5)]
    assert [one.in_sync for one in group.replicas] == [None, True, False]


def test_a_slave_that_has_everything_is_no_seconds_behind() -> None:
    group = group_of(slave_status("10.0.0.2:4711", 0))
    assert group.lag(group.replicas[1]) == (0, 0.0)


def test_slaves_of_one_host_are_not_mixed_up() -> None:
    group = group_of(slave_status("10.0.0.2:1", 30), slave_status("10.0.0.2:2", 600))
    _take_info(group)
    assert group.lag(group.replicas[1]) == (100, None), "from the ends of the logs"
    assert group.replicas[1].in_sync is None


@pytest.mark.parametrize(
    ("follow", "behind", "in_sync"),
    [
        ((True, True), (0, 0), [True, True]),
        ((True, True), (0, 600), [None, None]),
        ((True, True), (600, 700), [False, False]),
        ((True, True), (0,), [None, None]),
        ((True, False), (0,), [True, None]),
        ((False, False), (0,), [None, None]),
        ((False, False), (), [None, None]),
    ],
)
def test_slaves_of_one_host_follow_closely_if_all_of_them_do(
    follow: tuple[bool, bool], behind: tuple[int, ...], in_sync: list[bool | None]
) -> None:
    """The master says how many there are, and each of them whether it is one of them."""
    group = group_of(*(slave_status(f"10.0.0.2:{one + 1}", one) for one in behind))
    for place, (host, is_active) in enumerate(zip(("2:1", "2:2"), follow, strict=True), 1):
        following = FollowingStatus(is_active=is_active)
        status = ReplicationStatus(master=False, following=following)
        group.replicas[place] = replace(
            group.replicas[place], address=f"10.0.0.{host}", report=report(1000, status=status)
        )
    seconds = [group.lag(one)[1] for one in group.replicas[1:]]
    _take_info(group)
    assert [one.in_sync for one in group.replicas] == [None, *in_sync]
    assert len(behind) == 2 or [one is None for one in seconds] == [one is None for one in in_sync]


def test_who_has_as_much_and_does_not_follow_is_behind_for_unknown_times() -> None:
    group = group_of()
    group.replicas[1] = replace(
        group.replicas[1], report=report(1000, status=ReplicationStatus(master=False))
    )
    assert group.lag(group.replicas[1]) == (0, None)


def test_brokers_of_4_9_say_less() -> None:
    group = group_of(speaks=False)
    _take_info(group)
    assert [one.role for one in group.replicas] == ["master", "slave", "slave"]
    assert group.lag(group.replicas[2]) == (600, None)
    assert [one.in_sync for one in group.replicas] == [None, None, None]


@pytest.mark.parametrize(
    ("problem", "state"),
    [(RequestTimeout("late"), "silent"), (ConnectionFailed("no"), "away"), (None, "up")],
)
def test_states(problem: ConnectionFailed | RequestTimeout | None, state: str) -> None:
    one = Replica(address=MASTER, report=BrokerReport(problem=problem), broker_id=0)
    assert one.state == state
    assert one.role == "master", "as the name servers say"
    if problem is None:
        assert replace(one, broker_id=None).state == "unregistered"
    assert replace(one, broker_id=None).role is None


def test_a_master_that_is_away_leaves_lags_unknown() -> None:
    group = group_of(slave_status("10.0.0.2:4711", 30))
    away = BrokerReport(problem=ConnectionFailed("no"))
    group.replicas[0] = replace(group.replicas[0], report=away)
    assert group.lag(group.replicas[1]) == (None, None)
    assert group.master is group.replicas[0]


def test_of_two_that_are_called_masters_the_one_that_answers_counts() -> None:
    group = group_of()
    new = replace(group.replicas[1], report=report(1100, status=ReplicationStatus()))
    old = replace(group.replicas[0], report=BrokerReport(problem=RequestTimeout("frozen")))
    group.replicas = [old, new]
    assert group.master is new


@pytest.mark.parametrize(
    ("configs", "found"),
    [
        (["enableControllerMode=true\ncontrollerAddr=h:1;i:2\n"], ("h:1", "i:2")),
        (["enableControllerMode=false\ncontrollerAddr=\n"], ()),
        (["brokerRole=SLAVE\n", "enableControllerMode=true\ncontrollerAddr=h:1\n"], ("h:1",)),
        (["enableControllerMode=true\ncontrollerAddr=nonsense\n", "\\u12"], None),
        ([], None),
        ([""], None),
    ],
)
def test_whether_there_is_a_controller(configs: list[str], found: tuple[str, ...] | None) -> None:
    replicas = [
        Replica(address=MASTER, report=report(0, config=text, status=None)) for text in configs
    ]
    assert _controllers_of(replicas) == found


@pytest.mark.parametrize(
    ("config", "waits"),
    [
        ("brokerRole=SYNC_MASTER\n", True),
        ("brokerRole=SYNC_MASTER\nallAckInSyncStateSet=false\n", False),
        ("brokerRole=ASYNC_MASTER\n", False),
        ("", False),
    ],
)
def test_whether_a_master_waits(config: str, waits: bool) -> None:
    assert waits_for_slaves(report(0, config=config, status=None)) is waits


# ----------------------------------------------------------------------------------- handovers


def identity(broker_id: int, address: str, *, alive: bool = True) -> ReplicaIdentity:
    return ReplicaIdentity(
        broker_name="g", broker_id=broker_id, address=address, is_alive=alive
    )


def plan_of(behind: int, *, config: str, in_sync: bool = True, alive: bool = True) -> Plan:
    """Return the plan to make the slave with id 2 the master."""
    group = group_of(slave_status("10.0.0.2:1", behind, broker_id=2), config=config)
    members = [identity(1, MASTER)], [identity(2, SLAVE, alive=alive)]
    group.info = ReplicaInfo(
        master_broker_id=1,
        master_address=MASTER,
        master_epoch=3,
        in_sync=members[0] + (members[1] if in_sync else []),
        not_in_sync=[] if in_sync else members[1],
    )
    _take_info(group)
    old, new = group.replicas[:2]
    plan = Plan(group=group, info=group.info, leader="h:1", old=old, new=new)
    _judge(plan)
    return plan


SYNC, ASYNC = "brokerRole=SYNC_MASTER\n", "brokerRole=ASYNC_MASTER\n"


def test_what_is_in_sync_may_lag_if_the_master_waits() -> None:
    plan = plan_of(70, config=SYNC)
    plan.check(force=False)
    assert (plan.why_not, plan.warnings) == (None, [])
    row = plan.row()
    assert (row["fromMember"], row["toMember"], row["behindBytes"]) == (1, 2, 70)


def test_what_lags_behind_a_master_that_does_not_wait_would_lose_that() -> None:
    plan = plan_of(70, config=ASYNC)
    with pytest.raises(HandoverRefused, match="lacks 70 B of its log, which would be lost"):
        plan.check(force=False)
    plan.check(force=True)
    (warning,) = plan_of(0, config=ASYNC).warnings
    assert "stop the producers first" in warning


def test_what_is_not_in_sync_may_lose_something() -> None:
    plan = plan_of(70, config=SYNC, in_sync=False)
    with pytest.raises(HandoverRefused, match="not in the sync state set and lacks 70 B"):
        plan.check(force=False)
    plan.check(force=True)


def test_who_is_not_alive_cannot_be_forced() -> None:
    with pytest.raises(HandoverRefused, match="is not alive"):
        plan_of(0, config=SYNC, alive=False).check(force=True)


def test_ids_are_those_of_the_controller() -> None:
    epochs = EpochCache(cluster_name="c", broker_name="g", broker_id=0)
    slave = Replica(address=SLAVE, report=BrokerReport(epochs=epochs), broker_id=4)
    assert slave.member_id == 4 and slave.epoch is None
    assert replace(slave, broker_id=0).member_id is None
    assert replace(slave, member=identity(7, SLAVE)).member_id == 7


@pytest.mark.parametrize("is_in_sync", [True, False])
def test_a_broker_whose_store_was_wiped_is_its_new_member(is_in_sync: bool) -> None:
    """The controller keeps the old one: at the same address, and not alive any more."""
    group = group_of()
    old, new = identity(2, SLAVE, alive=False), identity(3, SLAVE)
    group.info = ReplicaInfo(
        master_broker_id=1,
        master_address=MASTER,
        in_sync=[identity(1, MASTER), *([new] if is_in_sync else [old])],
        not_in_sync=[old] if is_in_sync else [new],
    )
    _take_info(group)
    slave = group.replicas[1]
    assert (slave.member_id, slave.in_sync) == (3, is_in_sync)
