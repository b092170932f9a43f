"""The route table: which brokers there are, and which topics they have.

A pure value: no clock, no socket; time is an argument. Invariants:

* an address has at most one id of its broker;
* there is no broker without an address, no cluster without a broker, and no topic without queues;
* every broker address has a liveness entry, made by its registration; an address that registers
  under another broker name or cluster leaves its previous one.

Queue data come from the master (id 0); while there is none, also from the slave with the smallest
id, if it is a 5.x broker; without write permission if it may act as master. ``BrokerData`` and
``QueueData`` are replaced, never modified, so that a route handed out does not change.

Source: RocketMQ RouteInfoManager.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from pymq.namesrv.registrations import Live, Registration, group_of, heir_of, unknown
from pymq.namesrv.route_data import MASTER_ID, acting, queue_data
from pymq.protocol.bodies import (
    BrokerData,
    ClusterInfo,
    DataVersion,
    QueueData,
    TopicList,
    TopicRoute,
)
from pymq.protocol.codes import Permission
from pymq.protocol.names import MEMBERS_PREFIX

_log = logging.getLogger(__name__)

_WRITE = int(Permission.WRITE)
_READ_WRITE = int(Permission.READ | Permission.WRITE)


@dataclass(frozen=True, slots=True)
class MasterAddresses:
    """Where a slave finds its master."""

    address: str
    ha_address: str | None


@dataclass(slots=True)
class RouteTable:
    """All brokers and topics known to this name server.

    Args:
        expiry_s: seconds without a sign of life after which a broker is gone.
    """

    expiry_s: float = 120.0
    _brokers: dict[str, BrokerData] = field(default_factory=dict)
    _topics: dict[str, dict[str, QueueData]] = field(default_factory=dict)  # by broker name
    _live: dict[str, Live] = field(default_factory=dict)  # by address

    # --- brokers

    def register(self, broker: Registration, now_s: float) -> MasterAddresses | None:
        """Add a broker, or renew it.

        Args:
            broker: what it announces.
            now_s: monotonic seconds, as everywhere in this class.

        Returns:
            The master's addresses, for a slave whose master is known.

        Raises:
            BrokerSystemError: a new broker announces a single topic. That is an incremental
                registration; taken for the whole table it would hide all other topics.
        """
        known = self._live.get(broker.address)
        rival = None if known is None else known.rival
        if known is not None and known.moved(broker):
            rival = self._moved(known, broker)
            known = None
        addresses = self._addresses_without(broker)
        previous = addresses.get(broker.broker_id)
        if previous not in (None, broker.address) and self._is_outdated(broker, previous):
            return None
        if previous is None and len(broker.topics.topics) == 1:
            raise unknown(broker)
        unchanged = (
            previous is not None and known is not None and known.version == broker.topics.version
        )
        self._enter(broker, addresses, only_missing=unchanged)
        expiry_s = self.expiry_s if broker.expiry_s is None else broker.expiry_s
        is_known = known is not None and known.broker.broker_id == broker.broker_id
        since_s = known.since_s if known is not None and is_known else now_s
        self._live[broker.address] = Live(broker, now_s, expiry_s, rival, since_s)
        return self._master_of(broker, addresses)

    def _moved(self, known: Live, broker: Registration) -> object:
        """Remove what an address was that is another broker now; return what ``rival`` is then."""
        before = known.broker
        self.unregister(broker_name=before.broker_name, address=broker.address)
        if before.connection in (None, broker.connection):
            return None
        if known.rival is None:  # otherwise they put each other out in turns, and it was said
            _log.warning(
                "%s and %s both register %s as their address, and put each other out of the "
                "routes: set brokerIP1 (or listenPort) of each to what only it has. If this is "
                "one broker with a new name, stop the process that has the old one",
                group_of(before),
                group_of(broker),
                broker.address,
            )
        return before.connection

    def _enter(
        self, broker: Registration, addresses: dict[int, str], *, only_missing: bool = False
    ) -> None:
        """Add a broker to its group, whose other addresses are given, and its topics."""
        addresses[broker.broker_id] = broker.address
        self._brokers[broker.broker_name] = BrokerData(
            broker_name=broker.broker_name,
            cluster=broker.cluster,
            addresses=addresses,
            enable_acting_master=bool(broker.acting_master),
            zone_name=broker.zone_name,
        )
        self._enter_topics(broker, addresses, only_missing=only_missing)

    def _addresses_without(self, broker: Registration) -> dict[int, str]:
        """Return the addresses of this broker's name, without its own under another id."""
        known = self._brokers.get(broker.broker_name)
        return {
            broker_id: address
            for broker_id, address in (known.addresses if known else {}).items()
            if address != broker.address or broker_id == broker.broker_id
        }

    def _is_outdated(self, broker: Registration, holder: str | None) -> bool:
        """Was the current holder of the id elected later than the newcomer?"""
        live = self._live.get(holder or "")
        if live is None or live.version.state_version <= broker.topics.version.state_version:
            return False
        _log.warning(
            "%s claims id %d of %s, which %s holds with state version %d against %d: ignored",
            broker.address,
            broker.broker_id,
            broker.broker_name,
            holder,
            live.version.state_version,
            broker.topics.version.state_version,
        )
        return True

    def _enter_topics(
        self, broker: Registration, addresses: dict[int, str], *, only_missing: bool
    ) -> None:
        speaks_for_all = broker.broker_id == MASTER_ID or (
            broker.acting_master is not None and broker.broker_id == min(addresses)
        )
        if not speaks_for_all:
            return
        read_only = broker.broker_id != MASTER_ID and bool(broker.acting_master)
        name = broker.broker_name
        for topic in broker.topics.topics.values():
            queues = self._topics.setdefault(topic.topic, {})
            if not only_missing or name not in queues:
                queues[name] = queue_data(name, topic, read_only=read_only)

    def _master_of(self, broker: Registration, addresses: dict[int, str]) -> MasterAddresses | None:
        master = addresses.get(MASTER_ID)
        if broker.broker_id == MASTER_ID or master is None:
            return None
        live = self._live.get(master)
        return MasterAddresses(master, live.broker.ha_address) if live else None

    def unregister(self, *, broker_name: str, address: str) -> None:
        """Remove one address of a broker; with the last one also the broker and its queues.

        If another broker of the same name and id is alive, it is there instead.
        """
        live = self._live.get(address)
        if live is not None and live.broker.broker_name == broker_name:
            del self._live[address]
        else:
            live = None
        self._take_out(broker_name, address, live)

    def _take_out(self, broker_name: str, address: str, gone: Live | None) -> None:
        """Take an address, which is not alive any more, out of the routes."""
        known = self._brokers.get(broker_name)
        if known is None:
            return
        left = {i: a for i, a in known.addresses.items() if a != address}
        if left == known.addresses:
            return
        if not left:
            del self._brokers[broker_name]
            self._remove_queues(broker_name, list(self._topics))
        else:
            self._brokers[broker_name] = replace(known, addresses=left)
            if known.enable_acting_master and MASTER_ID not in left:
                self._change_permission(broker_name, lambda perm: perm & ~_WRITE)
        heir = None if gone is None else heir_of(gone, self._live.values())
        if heir is not None:
            self._enter(heir, left)
            _log.warning(
                "%s (id %d) is at %s again: the broker of the same name and id at %s, which had "
                "put it out of the routes, is gone",
                broker_name,
                heir.broker_id,
                heir.address,
                address,
            )

    def heard_of(self, address: str, now_s: float) -> bool:
        """Record a sign of life; return whether the address is registered."""
        live = self._live.get(address)
        if live is None:
            return False
        live.seen_s = now_s
        return True

    def registration_of(self, address: str) -> Registration | None:
        """Return what an address last registered."""
        live = self._live.get(address)
        return live.broker if live else None

    def version_of(self, address: str) -> DataVersion | None:
        """Return the version of the topics that an address last registered."""
        known = self.registration_of(address)
        return known.topics.version if known else None

    def grant(self, stall_s: float, now_s: float) -> None:
        """Count some seconds, in which nobody could be heard, as nobody's silence."""
        for live in self._live.values():
            live.seen_s = min(live.seen_s + stall_s, now_s)
            live.since_s = min(live.since_s + stall_s, now_s)

    def expire(self, now_s: float) -> list[Registration]:
        """Remove and return the brokers that were silent for too long."""
        late = [live.broker for live in self._live.values() if now_s - live.seen_s > live.expiry_s]
        self._remove(late)
        return late

    def connection_ended(self, connection: object) -> list[Registration]:
        """Remove and return the brokers whose last registration came over this connection."""
        gone = [live.broker for live in self._live.values() if live.broker.connection is connection]
        for live in self._live.values():
            if live.rival is connection:
                live.rival = None
        self._remove(gone)
        return gone

    def _remove(self, brokers: Iterable[Registration]) -> None:
        gone = [self._live.pop(broker.address) for broker in brokers]  # nobody's heirs
        for live in gone:
            self._take_out(live.broker.broker_name, live.broker.address, live)

    # --- topics

    def register_topic(self, topic: str, queues: list[QueueData]) -> bool:
        """Add a topic's queues; False, and nothing is added, if a broker is unknown."""
        if not queues or any(queue.broker_name not in self._brokers for queue in queues):
            return False
        self._topics.setdefault(topic, {}).update({queue.broker_name: queue for queue in queues})
        return True

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Remove a topic, everywhere or from the brokers of one cluster."""
        for broker_name in list(self._topics.get(topic, ())):
            known = self._brokers.get(broker_name)
            if cluster is None or (known is not None and known.cluster == cluster):
                self._remove_queues(broker_name, [topic])

    def _remove_queues(self, broker_name: str, topics: Iterable[str]) -> None:
        for topic in topics:
            queues = self._topics[topic]
            queues.pop(broker_name, None)
            if not queues:
                del self._topics[topic]

    def wipe_write_permission(self, broker_name: str) -> int:
        """Forbid writing to a broker's queues until its topics change; return how many topics."""
        return self._change_permission(broker_name, lambda perm: perm & ~_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Make all queues of a broker readable and writable; return how many topics."""
        return self._change_permission(broker_name, lambda perm: _READ_WRITE)

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        changed = 0
        for queues in self._topics.values():
            queue = queues.get(broker_name)
            if queue is not None:
                queues[broker_name] = replace(queue, perm=change(queue.perm))
                changed += 1
        return changed

    # --- queries

    def route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic, ``None`` if no live broker has it."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [self._brokers[name] for name in queues if name in self._brokers]
        if not brokers:
            return None
        return TopicRoute(
            queues=list(queues.values()),
            brokers=brokers,
            filter_server_table=self._filter_servers(brokers),
        )

    def acting_route(self, topic: str) -> TopicRoute | None:
        """Return the route of a topic with slaves that act for their masters in their places."""
        route = self.route(topic)
        if route is None or topic.startswith(MEMBERS_PREFIX):
            return route
        is_writable = {one.broker_name: bool(one.perm & _WRITE) for one in route.queues}
        brokers = [
            acting(broker) if not is_writable[broker.broker_name] else broker
            for broker in route.brokers
        ]
        return replace(route, brokers=brokers)

    def _filter_servers(self, brokers: list[BrokerData]) -> dict[str, list[str]]:
        found = {}
        for broker in brokers:
            for address in broker.addresses.values():
                live = self._live.get(address)
                if live is not None and live.broker.filter_servers:
                    found[address] = list(live.broker.filter_servers)
        return found

    def broker(self, broker_name: str) -> BrokerData | None:
        """Return the addresses of one broker."""
        return self._brokers.get(broker_name)

    def clusters(self) -> ClusterInfo:
        """Return all brokers and the clusters they belong to."""
        return ClusterInfo(
            brokers=dict(self._brokers),
            clusters={name: frozenset(members) for name, members in self._by_cluster().items()},
        )

    def _by_cluster(self) -> dict[str, list[str]]:
        clusters: dict[str, list[str]] = {}
        for name, broker in self._brokers.items():
            clusters.setdefault(broker.cluster or "", []).append(name)
        return clusters

    def topics(self) -> TopicList:
        """Return the names of all topics."""
        return TopicList(topics=list(self._topics))

    def topics_of_cluster(self, cluster: str) -> TopicList:
        """Return the names of the topics on the brokers of a cluster."""
        members = set(self._by_cluster().get(cluster, ()))
        return TopicList(
            topics=[topic for topic, queues in self._topics.items() if members & queues.keys()]
        )

    def system_topics(self) -> TopicList:
        """Return the topics named after clusters and brokers, and the address of some broker."""
        names: list[str] = []
        for cluster, members in self._by_cluster().items():
            names += [cluster, *members]
        addresses = (a for broker in self._brokers.values() for a in broker.addresses.values())
        return TopicList(topics=names, broker_address=next(addresses, None))
