"""Making another broker the master of its group, with what that would lose told before."""

import threading
import time
from dataclasses import dataclass, field

from pymq.cli.replicas import Group, Groups, Replica, waits_for_slaves
from pymq.client.cluster.routes import MASTER_ID
from pymq.client.threaded.admin import Admin
from pymq.errors import ConfigurationError, PymqError, RequestTimeout
from pymq.protocol.controller import ReplicaInfo

_POLL_S = 0.05


class HandoverRefused(PymqError):
    """Another master was not asked for; the text says what would be lost, or what is missing."""


@dataclass(slots=True, kw_only=True)
class Plan:
    """A master that is to be replaced, and by whom.

    Attributes:
        leader: the controller to be asked.
        old: None: there is no master.
        why_not: what would be lost, or why it cannot be.
        is_forbidden: whether it cannot be, whatever may be lost.
        warnings: what else may happen.
    """

    group: Group
    info: ReplicaInfo
    leader: str
    old: Replica | None
    new: Replica
    why_not: str | None = None
    is_forbidden: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        """Is it the master already?"""
        return self.old is self.new

    def check(self, *, force: bool) -> None:
        """Refuse it unless nothing speaks against it.

        Args:
            force: whether messages may be lost.

        Raises:
            HandoverRefused: something does.
        """
        if self.why_not is not None and (self.is_forbidden or not force):
            raise HandoverRefused(self.why_not)

    def row(self) -> dict[str, object]:
        """Return what it is about, for output."""
        behind_bytes, behind_s = self.group.lag(self.new)
        old = self.old
        return {
            "broker": self.group.name,
            "fromMember": None if old is None else old.member_id,
            "from": None if old is None else old.address,
            "toMember": self.new.member_id,
            "to": self.new.address,
            "inSync": self.new.in_sync,
            "behindBytes": behind_bytes,
            "behindSeconds": behind_s,
            "controller": self.leader,
        }


class Handover:
    """Finds out what would happen, and has it happen.

    Args:
        admin: asks name servers, brokers and controllers.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._replicas = admin.replicas

    def plan(self, name: str, to: str | None, controllers: tuple[str, ...]) -> Plan:
        """Return what is to happen.

        Args:
            name: of the group.
            to: id or address of the new master; None: any other one that has everything.
            controllers: ``host:port``; empty: those that the brokers name.

        Raises:
            ConfigurationError: there is no such group or broker, or no controller.
            HandoverRefused: no other broker has everything.
            PymqError: the controllers cannot be asked.
        """
        groups = Groups(self._admin)
        group = _the_one(groups.find(name, controllers), name)
        if group.controllers is None:
            problems = "; ".join(f"{one.address}: {one.report.problem}" for one in group.replicas)
            raise ConfigurationError(
                f"no broker of {name!r} says who its controllers are ({problems}): give them with "
                "--controller HOST:PORT"
            )
        if not group.controllers:
            raise ConfigurationError(_by_hand(group))
        if groups.failures:
            raise groups.failures[0]
        if group.info is None:
            raise ConfigurationError(
                f"the controllers {', '.join(group.controllers)} know no group {name!r}"
            )
        info, old = group.info, _master_of(group, group.info)
        new = _best(group, old) if to is None else _candidate(group, to)
        leader = self._replicas.leader(group.controllers)
        plan = Plan(group=group, info=info, leader=leader, old=old, new=new)
        if not plan.is_done:
            _judge(plan)
        return plan

    def carry_out(self, plan: Plan, *, wait_s: float) -> tuple[int, float]:
        """Ask for the new master; return its epoch, and after how many seconds it served.

        Args:
            wait_s: how long that may take.

        Raises:
            RequestTimeout: it is elected, but did not serve in time; or nobody knows.
            PymqError: the controller refused, or cannot be asked.
        """
        member_id = plan.new.member_id
        assert member_id is not None
        begun_s = time.monotonic()
        group = plan.group
        epoch = self._replicas.designate(plan.leader, group.cluster, group.name, member_id)
        pause = threading.Event()
        while not self._serves(group.name, plan.new.address):
            if time.monotonic() > begun_s + wait_s:
                raise RequestTimeout(
                    f"broker {member_id} of {group.name!r} at {plan.new.address} was made the "
                    f"master of epoch {epoch}, but does not serve after {wait_s:g} s: see its "
                    "log, and `pymq cluster list`"
                )
            pause.wait(_POLL_S)
        return epoch, time.monotonic() - begun_s

    def _serves(self, name: str, address: str) -> bool:
        """Does it run as the master, and are clients told so?"""
        try:
            found = self._admin.cluster().brokers.get(name)
            is_told = found is not None and found.addresses.get(MASTER_ID) == address
            return is_told and self._replicas.is_master(address)
        except PymqError:
            return False


def _the_one(groups: list[Group], name: str) -> Group:
    if len(groups) == 1:
        return groups[0]
    if groups:
        clusters = ", ".join(group.cluster for group in groups)
        raise ConfigurationError(f"{name!r} is in several clusters: {clusters}")
    raise ConfigurationError(
        f"no broker {name!r} is registered: `pymq cluster list` shows those that are; if its "
        "brokers run and wait for a master, give --controller HOST:PORT"
    )


def _by_hand(group: Group) -> str:
    slaves = [one.address for one in group.replicas if not one.is_master]
    master = group.master
    if not slaves:
        return (
            f"{group.name!r} has no controller, and no slave is registered: there is no other "
            "broker that could be its master"
        )
    return (
        f"{group.name!r} has no controller, so its master is changed by hand: stop its producers, "
        f"wait until `pymq cluster list` shows a slave ({', '.join(slaves)}) 0 B behind, stop the "
        f"master ({'away' if master is None else master.address}) and that slave, and start the "
        "slave with brokerRole=SYNC_MASTER and brokerId=0, then the other one with "
        "brokerRole=SLAVE and brokerId=1 (docs/replication.md)"
    )


def _master_of(group: Group, info: ReplicaInfo) -> Replica | None:
    for one in group.replicas:
        if one.member_id is not None and one.member_id == info.master_broker_id:
            return one
    return None


def _members_text(group: Group) -> str:
    members = sorted(
        (one.member_id, one.address) for one in group.replicas if one.member_id is not None
    )
    return ", ".join(f"{number} at {address}" for number, address in members)


def _candidate(group: Group, to: str) -> Replica:
    for one in group.replicas:
        if one.member is not None and to in (str(one.member_id), one.address):
            return one
    raise ConfigurationError(
        f"--to {to}: expected id or address of a broker of {group.name!r}: {_members_text(group)}"
    )


def _best(group: Group, old: Replica | None) -> Replica:
    able = [
        one
        for one in group.replicas
        if one is not old and one.in_sync and one.member is not None and one.member.is_alive
    ]
    if not able:
        raise HandoverRefused(
            f"no other broker of {group.name!r} is alive and in the sync state set, so messages "
            f"could be lost: {_members_text(group)}; start them, and wait until `pymq cluster "
            "list` shows one that is"
        )
    return max(able, key=lambda one: (one.log_end or 0, -(one.member_id or 0)))


def _judge(plan: Plan) -> None:
    """Add what speaks against it."""
    new, old, name = plan.new, plan.old, plan.group.name
    behind_bytes, _ = plan.group.lag(new)
    lack = "an unknown part" if behind_bytes is None else f"{behind_bytes} B"
    who = f"broker {new.member_id} of {name!r} at {new.address}"
    if new.member is None or not new.member.is_alive:
        plan.is_forbidden = True
        plan.why_not = f"{who} is not alive, as controller {plan.leader} says: start it first"
    elif not new.in_sync:
        plan.why_not = (
            f"{who} is not in the sync state set and lacks {lack} of its master's log: what was "
            "acknowledged of that would be lost. Wait until it is in sync; if there is no other "
            "way, --force, and a controller that allows it (enableElectUncleanMaster)"
        )
    elif old is not None and old.state == "up" and not waits_for_slaves(old.report):
        if behind_bytes == 0:
            plan.warnings.append(
                "the master waits for no slave (brokerRole=SYNC_MASTER): what it acknowledges "
                "until it hears of this may be lost; stop the producers first"
            )
        else:
            plan.why_not = (
                f"the master of {name!r} waits for no slave (brokerRole=SYNC_MASTER), and {who} "
                f"lacks {lack} of its log, which would be lost. Stop the producers and wait until "
                "`pymq cluster list` shows 0 B behind; --force to lose it"
            )
    if old is not None and old.state != "up":
        plan.warnings.append(
            f"the master at {old.address} is {old.state}, so it is not known what {who} lacks of "
            "its log"
        )
