"""The routes of the topics that a consumer reads: what is not there yet is waited for, and said."""

import logging
from collections.abc import Iterable, Mapping

from pymq.client.cluster.pool import ClientPool
from pymq.client.cluster.routes import Route
from pymq.client.group.start_policy import StartPolicy
from pymq.errors import ClientClosed, PymqError, RouteNotFound
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import MessageQueue, Subscription
from pymq.protocol.names import retry_topic

_log = logging.getLogger(__name__)


class SubscribedRoutes:
    """Finds the routes of a consumer's topics. For one event loop.

    Args:
        group: consumer group.
        subscriptions: by topic; changed by their owner.
        pool: connections.
    """

    def __init__(
        self, group: str, subscriptions: Mapping[str, Subscription], pool: ClientPool
    ) -> None:
        self._group = group
        self._subscriptions = subscriptions
        self._pool = pool
        self._troubles = SaidOnce(_log)
        #: Topics that name servers could not be asked about.
        self._unanswered: set[str] = set()
        #: Topic -> when it was first looked for, ms since 1970, and the queues it had then.
        self._first_found: dict[str, tuple[int, frozenset[MessageQueue]]] = {}
        #: When it was first asked where to begin in a queue, ms since 1970.
        self._begun_ms: dict[MessageQueue, int] = {}

    async def find(self) -> dict[str, Route]:
        """Return the routes by topic, of the topics that have one."""
        for topic in self._first_found.keys() - self._subscriptions.keys():
            del self._first_found[topic]
            for queue in [one for one in self._begun_ms if one.topic == topic]:
                del self._begun_ms[queue]
        routes: dict[str, Route] = {}
        for topic in list(self._subscriptions):
            route = await self._find(topic)
            if route is not None:
                routes[topic] = route
        return routes

    def start_in(
        self, queue: MessageQueue, start: StartPolicy, *, is_known: bool = False
    ) -> StartPolicy:
        """Return where to begin in a queue: one that came later was empty when others were found.

        Who asks again could not begin there: its broker did not answer. What has come meanwhile is
        to be read, too.

        Args:
            queue: of a topic that was found.
            start: where a group begins in the queues that were there.
            is_known: it was there, whenever its topic was found.
        """
        since_ms, first = self._first_found[queue.topic]
        is_first_try = queue not in self._begun_ms
        begun_ms = self._begun_ms.setdefault(queue, self._pool.clock.wall_ms())
        if is_first_try and (is_known or queue in first):
            return start
        return start.for_later_queues(begun_ms if is_known else since_ms)

    def late(self, topic: str) -> None:
        """The queues of a topic cannot be divided for now: whoever gets them begins later."""
        if topic in self._first_found:
            self._first_found[topic] = (self._first_found[topic][0], frozenset())

    async def _find(self, topic: str) -> Route | None:
        try:
            route = await self._pool.routes.route(topic)
        except RouteNotFound as error:
            self._answered(topic)
            self._found(topic, ())
            if topic != retry_topic(self._group):
                self._troubles.warn(
                    ("route", topic), "group %r waits for a route: %s", self._group, error
                )
        except ClientClosed:
            pass
        except PymqError as error:
            self._unanswered.add(topic)
            self._troubles.warn(
                "routes",
                "group %r waits for a route of topic %r, trying again: %s",
                self._group,
                topic,
                error,
            )
        else:
            self._answered(topic)
            self._found(topic, route.read_queues)
            self._troubles.over(("route", topic))
            return route
        return None

    def _answered(self, topic: str) -> None:
        """Name servers answered about a topic; that of others may be known from before."""
        self._unanswered.discard(topic)
        if not self._unanswered & self._subscriptions.keys():
            self._troubles.over("routes")

    def _found(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        if topic not in self._first_found:
            self._first_found[topic] = (self._pool.clock.wall_ms(), frozenset(queues))
