"""What is known of every broker: its role, and how far it is behind its master."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pymq.client.administration.replicas import BrokerReport
from pymq.client.cluster.config import parse_name_servers
from pymq.client.cluster.routes import MASTER_ID
from pymq.client.threaded.admin import Admin
from pymq.errors import ConfigurationError, PymqError, RequestTimeout
from pymq.protocol.addresses import split_address
from pymq.protocol.admin_bodies import SlaveStatus
from pymq.protocol.controller import ReplicaIdentity, ReplicaInfo
from pymq.settings import parse_properties

#: Of a group that only controllers know, who do not say its cluster, and do not need it.
DEFAULT_CLUSTER = "DefaultCluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One broker of a group.

    Attributes:
        broker_id: as the name servers have it, 0 for a master; None: they do not have it.
        member: as the controller has it; None: there is no controller, or it does not say.
        in_sync: whether it is in the sync state set; without a controller, whether the master
            says that it follows closely. None: unknown, or the master of such a group.
    """

    address: str
    report: BrokerReport
    broker_id: int | None = None
    member: ReplicaIdentity | None = None
    in_sync: bool | None = None

    @property
    def state(self) -> str:
        """Does it answer?"""
        problem = self.report.problem
        if problem is not None:
            return "silent" if isinstance(problem, RequestTimeout) else "away"
        return "up" if self.broker_id is not None else "unregistered"

    @property
    def is_master(self) -> bool:
        """Is it a master, in its own words, or else in those of the name servers?"""
        if self.report.status is not None:
            return self.report.status.master
        return self.broker_id == MASTER_ID

    @property
    def says_it_follows(self) -> bool:
        """Is it connected to a master, in its own words?"""
        return self.report.status is not None and self.report.status.following.is_active

    @property
    def role(self) -> str | None:
        """``master`` or ``slave``; None: unknown."""
        if self.report.status is None and self.broker_id is None:
            return None
        return "master" if self.is_master else "slave"

    @property
    def member_id(self) -> int | None:
        """The id that the controller knows it by."""
        if self.member is not None:
            return self.member.broker_id
        return self.broker_id if self.broker_id and self.report.epochs is not None else None

    @property
    def epoch(self) -> int | None:
        """The last epoch in its log."""
        epochs = self.report.epochs
        return epochs.epochs[-1].epoch if epochs is not None and epochs.epochs else None

    @property
    def log_end(self) -> int | None:
        """Physical offset at which its log ends."""
        text = (self.report.state or {}).get("commitLogMaxOffset", "")
        return int(text) if text.isdecimal() else None


@dataclass(slots=True, kw_only=True)
class Group:
    """The brokers of one name.

    Attributes:
        controllers: ``host:port`` of each; empty: it has none; None: nobody says.
        info: the group as the controller has it.
    """

    cluster: str
    name: str
    replicas: list[Replica] = field(default_factory=list)
    controllers: tuple[str, ...] | None = None
    info: ReplicaInfo | None = None

    @property
    def master(self) -> Replica | None:
        """The master that answers as such, or the one that the name servers have."""
        masters = [one for one in self.replicas if one.is_master]
        return min(masters, key=lambda one: (one.state != "up", one.broker_id != 0), default=None)

    def lag(self, replica: Replica) -> tuple[int | None, float | None]:
        """Return how much of the log a slave lacks: bytes, and for how many seconds already."""
        master = self.master
        if replica.is_master or master is None or master.report.state is None:
            return None, None
        status = self.slave_status(replica)
        behind_bytes: int | None = None
        if status is not None:
            behind_bytes = max(0, status.behind_bytes)
        elif master.log_end is not None and replica.log_end is not None:
            behind_bytes = max(0, master.log_end - replica.log_end)
        if status is not None and status.behind_ms is not None:
            return behind_bytes, status.behind_ms / 1000
        # Who has as much as the master, and does not follow it, has been behind for unknown times.
        is_complete = behind_bytes == 0 and bool(self._connections(replica))
        return behind_bytes, 0.0 if is_complete else None

    def follows_closely(self, replica: Replica) -> bool | None:
        """Return what the master says of a slave, without a controller; None: nothing."""
        found = {one.in_sync for one in self._connections(replica)}
        return found.pop() if len(found) == 1 else None

    def slave_status(self, replica: Replica) -> SlaveStatus | None:
        """Return what the master says of a slave; None: nothing, or it may be of another one."""
        found = self._connections(replica)
        return found[0] if len(found) == 1 else None

    def _connections(self, replica: Replica) -> list[SlaveStatus]:
        """Return the connections to the master of which one is a slave's; none: it has none.

        RocketMQ's masters, and ours without a controller, tell only from which address a slave has
        connected, and not from its own port. So of a host with several slaves it is known which
        connections are theirs if there is one for each, but not which of them is whose.
        """
        master = self.master
        status = master.report.status if master is not None else None
        if status is None or replica.is_master:
            return []
        for one in status.slaves:
            if one.broker_id is not None and one.broker_id == replica.member_id:
                return [one]
        host = _host(replica.address)
        here = [one for one in status.slaves if one.broker_id is None and _host(one.peer) == host]
        slaves = [
            one for one in self.replicas if not one.is_master and _host(one.address) == host
        ]
        if len(slaves) > 1:
            slaves = [one for one in slaves if one.says_it_follows]
        return here if len(here) == len(slaves) and replica in slaves else []


def _host(address: str) -> str:
    try:
        return split_address(address.removeprefix("/"))[0]
    except ConfigurationError:
        return address


class Groups:
    """Finds out about groups.

    Attributes:
        failures: why what controllers know is missing.
    """

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._replicas = admin.replicas
        self.failures: list[PymqError] = []

    def find(
        self, name: str | None = None, controllers: tuple[str, ...] = ()
    ) -> "list[Group]":
        """Return the groups, sorted by cluster and name.

        Args:
            name: only this one; none is returned if no name server knows it, and no controllers
                are given.
            controllers: ask these; otherwise those that the brokers name.

        Raises:
            ConnectionFailed: no name server could be asked.
        """
        info = self._admin.cluster()
        listed = {
            (cluster, one): info.brokers[one].addresses
            for cluster, names in sorted(info.clusters.items())
            for one in sorted(names & info.brokers.keys())
            if name in (None, one)
        }
        if not listed and name is not None and controllers:
            # Brokers that wait for a master are not registered.
            listed[DEFAULT_CLUSTER, name] = {}
        every = [address for addresses in listed.values() for address in addresses.values()]
        reports = self._replicas.reports(every)
        groups = []
        for (cluster, one), addresses in listed.items():
            group = Group(cluster=cluster, name=one)
            for broker_id, address in sorted(addresses.items()):
                report = reports[address]
                group.replicas.append(
                    Replica(address=address, report=report, broker_id=broker_id)
                )
            group.controllers = controllers or _controllers_of(group.replicas)
            groups.append(group)
        self._ask_controllers(groups)
        for group in groups:
            _take_info(group)
        return groups

    def _ask_controllers(self, groups: Iterable[Group]) -> None:
        by_controllers: dict[tuple[str, ...], list[Group]] = {}
        for group in groups:
            if group.controllers:
                by_controllers.setdefault(group.controllers, []).append(group)
        for controllers, members in by_controllers.items():
            try:
                leader = self._replicas.leader(controllers)
                found = self._replicas.groups(leader, {group.name for group in members})
            except PymqError as error:
                self.failures.append(error)
                continue
            for group in members:
                group.info = found.get(group.name)
        self._find_unregistered(group for group in groups if group.info is not None)

    def _find_unregistered(self, groups: Iterable[Group]) -> None:
        """Add the brokers that controllers know, and name servers do not."""
        missing = {}
        for group in groups:
            known = {one.address for one in group.replicas}
            for member in _members(group.info):
                if member.address and member.address not in known:
                    missing[member.address] = group
        for address, report in self._replicas.reports(missing).items():
            missing[address].replicas.append(Replica(address=address, report=report))


def _controllers_of(replicas: Iterable[Replica]) -> tuple[str, ...] | None:
    found: tuple[str, ...] | None = None
    for replica in replicas:
        config = _config_of(replica.report)
        if config.get("enableControllerMode") == "true" and config.get("controllerAddr"):
            try:
                return parse_name_servers(config["controllerAddr"])
            except ConfigurationError:
                continue
        if config:
            found = ()
    return found


def _config_of(report: BrokerReport) -> Mapping[str, str]:
    if report.config is None:
        return {}
    try:
        return parse_properties(report.config, source="the broker's settings")
    except ConfigurationError:
        return {}


def waits_for_slaves(report: BrokerReport) -> bool:
    """Has what a master acknowledges reached all members of the sync state set?"""
    config = _config_of(report)
    waits = config.get("brokerRole") == "SYNC_MASTER"
    return waits and config.get("allAckInSyncStateSet", "true") == "true"


def _members(info: ReplicaInfo | None) -> list[ReplicaIdentity]:
    return [] if info is None else [*info.in_sync, *info.not_in_sync]


def _take_info(group: Group) -> None:
    """Add to each broker what the controller knows or, without one, what the master does."""
    # One that was started with an empty store is known by its old id, too: it has a higher one.
    every = sorted(_members(group.info), key=lambda one: (one.is_alive, one.broker_id))
    members = {one.address: one for one in every}
    in_sync = {one.broker_id for one in group.info.in_sync} if group.info is not None else set()
    replicas = []
    for one in group.replicas:
        member = members.get(one.address)
        is_in_sync: bool | None = None
        if group.info is not None:
            is_in_sync = member is not None and member.broker_id in in_sync
        else:
            is_in_sync = group.follows_closely(one)
        replicas.append(
            Replica(
                address=one.address,
                report=one.report,
                broker_id=one.broker_id,
                member=member,
                in_sync=is_in_sync,
            )
        )
    group.replicas = replicas
