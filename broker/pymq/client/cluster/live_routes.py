"""The routes of the topics that an asyncio client uses, kept up to date while it is open.

A route is read again when it is older than ``age_s``; at once when a send or a pull found it wrong,
or a master fails as one does that is a slave now; often while a broker with slaves has no master,
and after a topic has come to another broker; within a second when it is only borrowed from
``TBW102``. One that no name server gives stays in use, and is asked for less and less often. It is
forgotten when name servers have known its brokers for a while, and not its topic.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator

from pymq.client import operations
from pymq.client.cluster.name_servers import NameServers
from pymq.client.cluster.refusing_masters import RefusingMasters
from pymq.client.cluster.route_table import RouteTable
from pymq.client.cluster.routes import (
    Route,
    existing_route,
    has_master,
    no_route,
    provisional_route,
)
from pymq.client.cluster.shared_work import SharedWork
from pymq.clock import Clock
from pymq.errors import (
    ConnectionFailed,
    NotReplicated,
    PymqError,
    RequestTimeout,
    ServiceNotAvailable,
    SystemBusy,
    TopicNotExist,
)
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.net.waiting import happens
from pymq.protocol.names import DEFAULT_TOPIC

_log = logging.getLogger(__name__)

#: A route is not read again within this, whoever doubts it.
ROUTE_READ_MIN_S = 0.2
#: How often we look for routes that are old.
ROUTE_CHECK_S = 1.0
#: So many are read at a time: one that a silent name server is asked for does not delay the others.
ROUTE_READS_MAX = 16
#: What is asked of a master that is away, a slave now, or cut off from its slaves, one of which may
#: have taken over; or of one that is only busy.
_NO_MASTER = (ConnectionFailed, RequestTimeout, NotReplicated, ServiceNotAvailable, SystemBusy)


class LiveRoutes:
    """Routes by topic. For one event loop.

    Args:
        name_servers: who is asked.
        tasks: owner of the requests that several callers wait for.
        age_s: routes are read again when they are older.
        check_open: raises when the client is not open.
        on_change: called with each topic whose route has changed, or was forgotten.
        clock: for the routes' age.

    Attributes:
        on_new_master: called with the address at which a known broker has its master now.
    """

    on_new_master: Callable[[str], None]

    def __init__(
        self,
        name_servers: NameServers,
        tasks: Tasks,
        *,
        age_s: float,
        check_open: Callable[[], None],
        on_change: Callable[[str], None] | None,
        clock: Clock,
    ) -> None:
        self._name_servers = name_servers
        self._check_open = check_open
        self._on_change = on_change
        self._clock = clock
        self._table = RouteTable(age_s)
        self._refusing = RefusingMasters(age_s)
        #: By broker name, as the latest of all routes says.
        self._masters: dict[str, str] = {}
        self.on_new_master = lambda _: None
        self._read_at: dict[str, float] = {}
        self._reading: SharedWork[PymqError | None] = SharedWork(tasks, "route of", self._read)
        self._troubles = SaidOnce(_log)
        self._doubted = asyncio.Event()

    def find(self, topic: str) -> Route | None:
        """Return the route of a topic as last read, without asking."""
        return self._table.find(topic)

    def addresses(self) -> dict[str, dict[int, str]]:
        """Return broker name -> broker id -> address over all routes."""
        return self._table.addresses()

    async def route(
        self,
        topic: str,
        *,
        refresh: bool = False,
        create_queue_count: int | None = None,
    ) -> Route:
        """Return the route of a topic, and keep it fresh from now on.

        Args:
            topic: which.
            refresh: ask again although it is known, unless that was done just now.
            create_queue_count: for a topic that does not exist, return the provisional route
                with which a send creates it, with at most this many queues per broker.

        Raises:
            RouteNotFound: no name server knows the topic.
            ConnectionFailed: no name server answers.
            ClientClosed: we are closed.
        """
        self._check_open()
        known = self._table.find(topic)
        if known is not None and not (refresh and self._may_read(topic)):
            return known
        error = await self._reading.wait_result(topic)
        known = self._table.find(topic)
        if known is None and isinstance(error, TopicNotExist) and create_queue_count is not None:
            known = await self._provisional_route(topic, create_queue_count)
        if known is not None:
            return known
        if error is None or isinstance(error, TopicNotExist):
            missing = no_route(topic, self._name_servers.addresses, error)
            if missing.is_certain and create_queue_count is not None:
                missing.is_certain = await self._knows_master()
            raise missing
        raise error

    def doubt(self, topic: str) -> None:
        """A topic's route turned out wrong: read it again soon."""
        self._table.doubt(topic)
        self._doubted.set()

    def doubt_master(self, address: str) -> None:
        """A broker cannot be reached, or refuses what masters do: look whether it is one still.

        It may just be busy, for hours: it is looked less and less often, at one route. The others
        are read when that one has another master.
        """
        if self._refusing.refused(address, self._clock.monotonic_s()):
            self._table.doubt_master(address)
            self._doubted.set()

    @contextlib.contextmanager
    def hearing(self, address: str) -> Iterator[None]:
        """Doubt that a broker is a master if it does not do what was asked, in a certain way."""
        try:
            yield
        except _NO_MASTER:
            self.doubt_master(address)
            raise

    async def watch(self, refreshed: Callable[[], None]) -> None:
        """Keep the routes fresh; runs until it is cancelled.

        Args:
            refreshed: called after routes were read.
        """
        while True:
            try:
                count = await self.refresh()
                if count:
                    refreshed()
            except Exception:
                _log.exception("routes could not be read again; trying again")
                count = 0
            # One that is doubted again at once is not read again at once.
            await asyncio.sleep(ROUTE_READ_MIN_S if count else 0)
            await happens(self._doubted, ROUTE_READ_MIN_S if count else ROUTE_CHECK_S)
            self._doubted.clear()

    async def refresh(self) -> int:
        """Read the routes again that are old or doubted; return how many."""
        stale = self._table.stale(self._clock.monotonic_s())
        for first in range(0, len(stale), ROUTE_READS_MAX):
            topics = stale[first : first + ROUTE_READS_MAX]
            for error in await asyncio.gather(*map(self._reading.wait_result, topics)):
                if error is None or isinstance(error, TopicNotExist):
                    self._troubles.over("routes", "routes are read again")
                else:
                    self._troubles.warn(
                        "routes", "routes cannot be read again, the old ones stay in use: %s", error
                    )
        return len(stale)

    def _may_read(self, topic: str) -> bool:
        return self._clock.monotonic_s() - self._read_at.get(topic, -1e9) > ROUTE_READ_MIN_S

    async def _read(self, topic: str) -> PymqError | None:
        try:
            found = await self._name_servers.ask(lambda: operations.route(topic))
            route = existing_route(topic, found)
        except PymqError as error:
            # Also when the topic has no route any more the old one is kept, as official
            # clients do: a broker that restarts comes back to it.
            if isinstance(error, TopicNotExist):
                self._table.miss(topic)
            is_gone = isinstance(error, TopicNotExist) and error.is_certain
            now_s = self._clock.monotonic_s()
            if self._table.keep_watched(topic, now_s, is_missing=is_gone):
                self._read_at.pop(topic, None)
                self._changed(topic)
            return error
        self._read_at[topic] = self._clock.monotonic_s()
        self._put(route)
        return None

    async def _provisional_route(self, topic: str, queue_count: int) -> Route | None:
        try:
            template = await self._name_servers.ask(lambda: operations.route(DEFAULT_TOPIC))
        except TopicNotExist:
            return None
        if self._table.find(topic) is None:
            self._put(provisional_route(topic, template, queue_count))
        return self._table.find(topic)

    async def _knows_master(self) -> bool:
        """Could some broker have created a topic? If not, that of the topic may just be away."""
        try:
            return has_master(await self._name_servers.ask(operations.cluster_info))
        except PymqError as error:
            _log.debug("whether there is any broker is not known: %s", error)
            return False

    def _put(self, route: Route) -> None:
        was_probe = self._table.is_probe(route.topic)
        change = self._table.put(route, self._clock.monotonic_s())
        if not change:
            return
        new = set[str]()
        for name, address in route.masters().items():
            is_new = self._masters.get(name, address) != address
            self._masters[name] = address
            if is_new:
                new.add(address)
            if is_new or (was_probe and name in change.masters_changed):
                self._table.doubt_other_masters(name, address)
                self._doubted.set()
        if new:
            self._refusing.changed()
        try:
            for address in new:
                self.on_new_master(address)
        finally:
            self._changed(route.topic)

    def _changed(self, topic: str) -> None:
        if self._on_change is not None:
            self._on_change(topic)
