"""The queues of topics on all brokers, as the name servers know them.

Source: RocketMQ TopicRouteInfoManager.
"""

import asyncio
import logging
from collections.abc import Sequence

from pymq.broker.single_question import ask_alone
from pymq.broker.state.topics import QUEUE_COUNT_MAX, TopicTable
from pymq.clock import Clock
from pymq.errors import ConnectionFailed, PymqError, RequestTimeout, TopicNotExist
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol import names
from pymq.protocol.bodies import MessageQueue, TopicRoute
from pymq.protocol.codes import Permission, RequestCode
from pymq.protocol.headers.routes import RouteRequest

_log = logging.getLogger(__name__)

#: A route is asked for again after this time (RocketMQ loadBalancePollNameServerInterval).
FRESH_S = 30.0
#: A topic that does not exist may be created at any time, name servers may come back, and what they
#: cannot tell they may be able to tell later: they are asked again after this time.
AGAIN_S = 1.0
#: Topics that are asked for at a time. Each takes a connection; who wants more waits.
ASKING_COUNT_MAX = 4
TIMEOUT_S = 3.0
#: Routes that are remembered, and topics whose route cannot be told.
_COUNT_MAX = 10_000
_READ = int(Permission.READ)
_SILENT = "the name servers"


class TopicRoutes:
    """Looks up routes; a duty that ends what it still asks for.

    Only who wants a topic of which nothing is known waits. A route that is no longer fresh is used
    while it is asked for again.

    Args:
        broker_name: ours.
        name_servers: their addresses; without any, there are no other brokers.
        topics: ours.
    """

    def __init__(
        self, broker_name: str, name_servers: Sequence[str], topics: TopicTable, clock: Clock
    ) -> None:
        self._broker_name = broker_name
        #: In the order in which they are asked: those that did not answer come last.
        self._name_servers = list(name_servers)
        self._topics = topics
        self._clock = clock
        self._said = SaidOnce(_log)
        self._asking = asyncio.Semaphore(ASKING_COUNT_MAX)
        self._tasks = Tasks("routes of topics")
        #: Topics that are being asked for in a task.
        self._refreshing: set[str] = set()
        #: Until then no name server is asked: none has answered.
        self._silent_until_s = 0.0
        #: Topic -> until when that is fresh, and its queues; None: there is no such topic.
        self._known: dict[str, tuple[float, list[MessageQueue] | None]] = {}
        #: Topic whose route cannot be told -> until when it is not asked for.
        self._untold: dict[str, float] = {}

    def start(self) -> None:
        """Nothing to begin with."""

    async def close(self) -> None:
        """Ask for nothing any more in the background; idempotent."""
        await self._tasks.close()

    async def queues(self, topic: str) -> list[MessageQueue] | None:
        """Return the readable queues of a topic; None if there is no such topic."""
        if not self._name_servers or names.topic_objection(topic) is not None:
            return self._own(topic)
        if not self._is_settled(topic):
            if topic in self._known and self._known[topic][1] is not None:
                self._refresh(topic)
            else:
                await self._look_up(topic)
        known = self._known.get(topic)
        if known is None or (known[1] is None and not self._is_known(topic)):
            return self._own(topic)
        return known[1]

    def _refresh(self, topic: str) -> None:
        """Ask for a topic whose queues are known, unless that is being done; wait for nothing."""
        if topic not in self._refreshing and not self._tasks.is_closed:
            self._refreshing.add(topic)
            self._tasks.start("refresh", self._refreshed(topic))

    async def _refreshed(self, topic: str) -> None:
        try:
            await self._look_up(topic)
        finally:
            self._refreshing.discard(topic)

    async def _look_up(self, topic: str) -> None:
        async with self._asking:
            if not self._is_settled(topic):  # nobody has asked for it meanwhile
                await self._ask(topic)

    def _is_settled(self, topic: str) -> bool:
        """Is what we have all that can be said now?"""
        asked_again_s = max(self._silent_until_s, self._untold.get(topic, 0.0))
        return self._clock.monotonic_s() < asked_again_s or self._is_known(topic)

    def _is_known(self, topic: str) -> bool:
        known = self._known.get(topic)
        return known is not None and self._clock.monotonic_s() < known[0]

    def _own(self, topic: str) -> list[MessageQueue] | None:
        config = self._topics.find(topic)
        if config is None or not config.perm & _READ:
            return None
        return [
            MessageQueue(topic, self._broker_name, number)
            for number in range(config.read_queue_count)
        ]

    async def _ask(self, topic: str) -> None:
        """Find out about a topic; without an answer, what was known of it stays."""
        failure: PymqError | None = None
        has_answer = False
        for server in tuple(self._name_servers):
            try:
                route = await ask_route(server, topic)
            except (ConnectionFailed, RequestTimeout) as error:
                self._name_servers.remove(server)
                self._name_servers.append(server)
                failure = failure or error
            except PymqError as error:  # of this topic, perhaps: others are still asked for
                failure, has_answer = error, True
            else:
                self._told(topic, route)
                return
        if has_answer:
            self._not_told(topic, failure)
            return
        self._silent_until_s = self._clock.monotonic_s() + AGAIN_S
        self._said.warn(_SILENT, "no name server tells the route of %.300s: %s", topic, failure)

    def _told(self, topic: str, route: TopicRoute | None) -> None:
        self._said.over(_SILENT, "the name servers tell routes again")
        if self._untold.pop(topic, None) is not None:
            self._said.over(topic, "the name servers tell the route of %s again", topic)
        found = None if route is None else _readable(topic, route)
        if len(self._known) >= _COUNT_MAX:
            self._known.clear()
        fresh_s = AGAIN_S if found is None else FRESH_S
        self._known[topic] = self._clock.monotonic_s() + fresh_s, found

    def _not_told(self, topic: str, failure: PymqError | None) -> None:
        """Leave one topic alone for a while: a name server has answered, but not with its route."""
        if len(self._untold) >= _COUNT_MAX:
            for one in self._untold:
                self._said.over(one)
            self._untold.clear()
        self._untold[topic] = self._clock.monotonic_s() + AGAIN_S
        self._said.warn(topic, "the name servers do not tell the route of %s: %s", topic, failure)


async def ask_route(name_server: str, topic: str) -> TopicRoute | None:
    """Return the route of a topic; None if there is no such topic.

    Raises:
        PymqError: as ``ask_name_server``, or the answer is no route.
    """
    request = RouteRequest(topic=topic, accept_standard_json_only=True).to_fields()
    code = RequestCode.GET_ROUTEINFO_BY_TOPIC
    answer = await ask_name_server(name_server, code, request, name="route")
    return None if answer is None else TopicRoute.decode(answer)


async def ask_name_server(
    address: str, code: int, fields: dict[str, str] | None, *, name: str
) -> bytes | None:
    """Return the body of a name server's answer; None if it says that there is no such topic.

    Raises:
        ConnectionFailed, RequestTimeout: it does not answer.
        PymqError: it refuses, or the request cannot be sent.
    """
    try:
        answer = await ask_alone(
            *(address, code, fields, name), connect_timeout_s=TIMEOUT_S, timeout_s=TIMEOUT_S
        )
    except TopicNotExist:
        return None
    return bytes(answer.body)


def _readable(topic: str, route: TopicRoute) -> list[MessageQueue]:
    return [
        MessageQueue(topic, queues.broker_name, number)
        for queues in route.queues
        if queues.perm & _READ
        for number in range(min(queues.read_queue_count, QUEUE_COUNT_MAX))
    ]
