"""The routes that a client has, pure: how old they are, and what a new one changes."""

from dataclasses import dataclass, field

from pymq.client.cluster.routes import MASTER_ID, Route
from pymq.protocol.bodies import MessageQueue

#: A provisional route is old after this; creating the topic takes its broker this long.
PROVISIONAL_AGE_S = 1.0

#: A broker that has left a route may restart: for ``LEFT_S`` we look for it every ``LEFT_AGE_S``.
LEFT_S = 120.0
LEFT_AGE_S = 2.0
#: Where a broker has slaves but no master, one of them may become it at any moment: for
#: ``ELECTION_S`` we look every ``ELECTION_AGE_S``.
ELECTION_S = 30.0
ELECTION_AGE_S = 0.2

#: A topic that brokers create when somebody sends to them comes to one after the other: after a
#: change of that kind we look again so soon, then in twice the time, and so on.
GROWN_AGE_S = 1.0
#: Names of topics that were asked for and not found, which are remembered; the latest ones.
MISSED_COUNT_MAX = 1_000

#: A known topic is not believed to be gone before name servers have said so for this long: one
#: that has just started knows of no broker until the next registration, every 30 s.
MISSING_S = 60.0
#: A route that no name server gave is asked for again so soon, then in twice the time, and so on.
UNREAD_AGE_S = 1.0


@dataclass(frozen=True, slots=True)
class RouteDifference:
    """What changed between two routes of a topic."""

    write_added: frozenset[MessageQueue]
    write_removed: frozenset[MessageQueue]
    read_added: frozenset[MessageQueue]
    read_removed: frozenset[MessageQueue]
    #: Addresses that are not in the new route.
    addresses_gone: frozenset[str]
    #: Brokers whose master is another one, or gone, or back.
    masters_changed: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(
            self.write_added
            or self.write_removed
            or self.read_added
            or self.read_removed
            or self.addresses_gone
            or self.masters_changed
        )


def difference(old: Route | None, new: Route) -> RouteDifference:
    """Return what changed; everything is new when there was no route."""
    write_before = frozenset(old.write_queues if old else ())
    read_before = frozenset(old.read_queues if old else ())
    write_now, read_now = frozenset(new.write_queues), frozenset(new.read_queues)
    return RouteDifference(
        write_now - write_before,
        write_before - write_now,
        read_now - read_before,
        read_before - read_now,
        route_addresses(old) - route_addresses(new),
        frozenset(name for name, _ in _masters(old) ^ _masters(new)),
    )


def _masters(route: Route | None) -> frozenset[tuple[str, str]]:
    return frozenset() if route is None else frozenset(route.masters().items())


def route_addresses(route: Route | None) -> frozenset[str]:
    """Return all addresses of a route."""
    if route is None:
        return frozenset()
    return frozenset(at for known in route.addresses.values() for at in known.values())


@dataclass(slots=True)
class _Entry:
    route: Route
    #: When it was last asked for.
    fetched_s: float
    #: When a name server gave it.
    read_s: float
    is_doubted: bool = False
    #: Is it read to find out whether a broker still is a master, for all routes that say so?
    is_probe: bool = False
    #: Since when name servers say that there is no such topic; ``None``: they do not.
    missing_since_s: float | None = None
    #: Since when it is asked for in vain, and again soon; ``None``: it is not.
    unread_since_s: float | None = None
    #: When it lost an address that has not come back; ``None``: it has all it ever had.
    left_s: float | None = None
    #: Since when a broker with slaves has no master; ``None``: they have.
    without_master_s: float | None = None
    #: When the topic came to its first broker, or to another one; ``None``: before we knew it.
    grown_s: float | None = None


def _worth_as_probe(entry: _Entry) -> tuple[bool, float]:
    return entry.route.is_provisional or entry.unread_since_s is not None, entry.fetched_s


@dataclass(slots=True)
class RouteTable:
    """The routes a client has, and how old they are.

    Times are the caller's monotonic clock, in seconds.
    """

    age_s: float
    _entries: dict[str, _Entry] = field(default_factory=dict)
    #: Topics that were looked for when there were none, the last ones of them; values say nothing.
    _missed: dict[str, None] = field(default_factory=dict)
    #: Broker name -> when a route that a name server gave last named it.
    _named_s: dict[str, float] = field(default_factory=dict)

    @property
    def topics(self) -> list[str]:
        """The topics that have a route here."""
        return list(self._entries)

    def find(self, topic: str) -> Route | None:
        """Return the route of a topic, however old."""
        entry = self._entries.get(topic)
        return None if entry is None else entry.route

    def fresh(self, topic: str, now_s: float) -> Route | None:
        """Return the route of a topic unless it is stale."""
        entry = self._entries.get(topic)
        return None if entry is None or self._is_stale(entry, now_s) else entry.route

    def stale(self, now_s: float) -> list[str]:
        """Return the topics whose routes are stale."""
        return [topic for topic, entry in self._entries.items() if self._is_stale(entry, now_s)]

    def _is_stale(self, entry: _Entry, now_s: float) -> bool:
        age_s = self.age_s
        if entry.route.is_provisional:
            age_s = min(age_s, PROVISIONAL_AGE_S)
        elif entry.left_s is not None and now_s - entry.left_s < LEFT_S:
            age_s = min(age_s, LEFT_AGE_S)
        since_s = entry.without_master_s
        if since_s is not None and now_s - since_s < ELECTION_S:
            age_s = min(age_s, ELECTION_AGE_S)
        if entry.grown_s is not None:
            age_s = min(age_s, max(GROWN_AGE_S, entry.fetched_s - entry.grown_s))
        if entry.unread_since_s is not None:
            age_s = min(age_s, max(UNREAD_AGE_S, entry.fetched_s - entry.unread_since_s))
        return entry.is_doubted or now_s - entry.fetched_s >= age_s

    def put(self, route: Route, now_s: float) -> RouteDifference:
        """Take a route that was just fetched; return what is different."""
        entry = self._entries.get(route.topic)
        change = difference(entry.route if entry else None, route)
        left_s = None
        if entry is not None and not entry.route.is_provisional:
            if change.addresses_gone:
                left_s = now_s
            elif route_addresses(route) == route_addresses(entry.route):
                left_s = entry.left_s
        without_master_s = None
        if len(route.masters()) < len(route.addresses):
            without_master_s = now_s
            if entry is not None and entry.without_master_s is not None:
                without_master_s = entry.without_master_s
        grown_s = None if entry is None else entry.grown_s
        if self._has_grown(entry, route):
            grown_s = now_s
        self._entries[route.topic] = _Entry(
            route, now_s, now_s, left_s=left_s, without_master_s=without_master_s, grown_s=grown_s
        )
        self._missed.pop(route.topic, None)
        self._named_s.update(dict.fromkeys(route.addresses, now_s))
        return change

    def _has_grown(self, entry: _Entry | None, route: Route) -> bool:
        """Is a topic, of which this is the route, at a broker where it was not?"""
        if entry is None:
            return route.topic in self._missed
        if entry.route.is_provisional:
            return not route.is_provisional
        if entry.left_s is not None:
            return False  # a broker that had left is back
        return not route.addresses.keys() <= entry.route.addresses.keys()

    def miss(self, topic: str) -> None:
        """Remember that name servers knew of no such topic."""
        if topic in self._entries:
            return
        self._missed.pop(topic, None)
        self._missed[topic] = None
        if len(self._missed) > MISSED_COUNT_MAX:  # of a client that tries one name after the other
            del self._missed[next(iter(self._missed))]

    def keep(self, topic: str, now_s: float, *, is_missing: bool) -> Route | None:
        """Go on with the route that a topic had, because no name server gave a new one.

        Args:
            topic: which.
            now_s: when that was found out.
            is_missing: the name servers say that there is no such topic. That is believed, and
                the route forgotten, when they have said so for ``MISSING_S``.

        Returns:
            The old route; ``None`` when there is none, or none any more.
        """
        entry = self._entries.get(topic)
        if entry is None:
            if is_missing:
                self.miss(topic)
            return None
        since_s = None
        if is_missing:
            since_s = now_s if entry.missing_since_s is None else entry.missing_since_s
            if entry.route.is_provisional or now_s - since_s >= MISSING_S:
                del self._entries[topic]
                return None
        self._entries[topic] = _Entry(
            entry.route,
            now_s,
            entry.read_s,
            missing_since_s=since_s,
            # Not while nobody answers: callers wait for that.
            unread_since_s=since_s,
            left_s=entry.left_s,
            without_master_s=entry.without_master_s,
            grown_s=entry.grown_s,
        )
        return entry.route

    def keep_watched(self, topic: str, now_s: float, *, is_missing: bool) -> bool:
        """Go on with a route that is read in the background, because no name server gave a new one.

        A broker that name servers do not know may be reached all the same, or come back with its
        topics: for that a route waits, however long. Its topic is believed to be gone only when
        they know the broker, and not the topic, for ``MISSING_S``.

        Args:
            topic: which.
            now_s: when that was found out.
            is_missing: all name servers were asked, and say that there is no such topic.

        Returns:
            Was the route forgotten?
        """
        entry = self._entries.get(topic)
        if entry is None:
            return False
        entry.fetched_s, entry.is_doubted, entry.is_probe = now_s, False, False
        if entry.unread_since_s is None:
            entry.unread_since_s = now_s
        if not is_missing:
            entry.missing_since_s = None
        elif entry.missing_since_s is None:
            entry.missing_since_s = now_s
        elif now_s - entry.missing_since_s >= MISSING_S and self._is_gone(entry):
            del self._entries[topic]
            self.miss(topic)
            return True
        return False

    def _is_gone(self, entry: _Entry) -> bool:
        """Were all brokers of a missing topic named by other routes since it is missing?"""
        assert entry.missing_since_s is not None
        return entry.route.is_provisional or all(
            self._named_s[name] > entry.missing_since_s for name in entry.route.addresses
        )

    def doubt(self, topic: str) -> None:
        """Make a topic's route stale, because something it says turned out wrong."""
        entry = self._entries.get(topic)
        if entry is not None:
            entry.is_doubted = True

    def doubt_master(self, address: str) -> None:
        """Make a route stale that says that this is the address of a master.

        One is enough to see whether it still is, and if so, others need not be read. It is the one
        that was not asked for the longest, of those that name servers give: next time another one.
        """
        named: dict[str, _Entry] = {}
        for entry in self._entries.values():
            for name, known in entry.route.addresses.items():
                if known.get(MASTER_ID) == address:
                    named[name] = min(named.get(name, entry), entry, key=_worth_as_probe)
        for entry in named.values():
            entry.is_doubted = entry.is_probe = True

    def is_probe(self, topic: str) -> bool:
        """Is the route of a topic read to find out who is a master?"""
        entry = self._entries.get(topic)
        return entry is not None and entry.is_probe

    def doubt_other_masters(self, broker_name: str, address: str) -> None:
        """Make the routes stale in which a broker has another master, or none."""
        for entry in self._entries.values():
            known = entry.route.addresses.get(broker_name)
            if known is not None and known.get(MASTER_ID) != address:
                entry.is_doubted = True

    def forget(self, topic: str) -> None:
        """Drop a topic's route, if there is one."""
        self._entries.pop(topic, None)

    def addresses(self) -> dict[str, dict[int, str]]:
        """Return broker name -> broker id -> address over all routes: who gets heartbeats.

        A broker is where the route says that was read last; others may be of topics that it has no
        more, or that were not read since it came back elsewhere.
        """
        merged: dict[str, dict[int, str]] = {}
        for entry in sorted(self._entries.values(), key=lambda entry: entry.read_s):
            merged.update(entry.route.addresses)
        return merged
