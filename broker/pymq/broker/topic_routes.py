"""The queues of topics on all brokers, as the name servers know them.

Source: RocketMQ TopicRouteInfoManager.
"""

import asyncio
import logging
from collections.abc import Sequence

from pymq.broker.state.topics import QUEUE_COUNT_MAX, TopicTable
from pymq.clock import Clock
from pymq.errors import PymqError
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.protocol.bodies import MessageQueue, TopicRoute
from pymq.protocol.codes import LanguageCode, Permission, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.routes import RouteRequest

_log = logging.getLogger(__name__)

#: A route is asked for again after this time (RocketMQ loadBalancePollNameServerInterval).
FRESH_S = 30.0
#: A topic that does not exist may be created at any time, and name servers may come back: they are
#: asked again after this time.
AGAIN_S = 1.0
#: Topics that are asked for at a time. Each takes a connection; who wants more waits.
ASKING_COUNT_MAX = 4
TIMEOUT_S = 3.0
#: Routes that are remembered.
_COUNT_MAX = 10_000
_READ = int(Permission.READ)
_SILENT = "the name servers"


class TopicRoutes:
    """Looks up routes.

    Args:
        broker_name: ours.
        name_servers: their addresses; without any, there are no other brokers.
        topics: ours.
    """

    def __init__(
        self, broker_name: str, name_servers: Sequence[str], topics: TopicTable, clock: Clock
    ) -> None:
        self._broker_name = broker_name
        self._name_servers = name_servers
        self._topics = topics
        self._clock = clock
        self._said = SaidOnce(_log)
        self._asking = asyncio.Semaphore(ASKING_COUNT_MAX)
        #: Until then no name server is asked: none has answered.
        self._silent_until_s = 0.0
        #: Topic -> until when that is fresh, and its queues; None: there is no such topic.
        self._known: dict[str, tuple[float, list[MessageQueue] | None]] = {}

    async def queues(self, topic: str) -> list[MessageQueue] | None:
        """Return the readable queues of a topic; None if there is no such topic."""
        if not self._name_servers:
            return self._own(topic)
        if not self._is_fresh(topic):
            async with self._asking:
                if not self._is_fresh(topic):  # nobody has asked for it meanwhile
                    await self._ask(topic)
        known = self._known.get(topic)
        if known is None or (known[1] is None and not self._is_known(topic)):
            return self._own(topic)
        return known[1]

    def _is_fresh(self, topic: str) -> bool:
        """Is what we have all that can be said now?"""
        return self._clock.monotonic_s() < self._silent_until_s or self._is_known(topic)

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
        try:
            route = await ask_route(self._name_servers, topic)
        except PymqError as error:
            self._silent_until_s = self._clock.monotonic_s() + AGAIN_S
            self._said.warn(_SILENT, "no name server tells the route of %.300s: %s", topic, error)
            return
        self._said.over(_SILENT, "the name servers tell routes again")
        found = None if route is None else _readable(topic, route)
        if len(self._known) >= _COUNT_MAX:
            self._known.clear()
        fresh_s = AGAIN_S if found is None else FRESH_S
        self._known[topic] = self._clock.monotonic_s() + fresh_s, found


async def ask_route(name_servers: Sequence[str], topic: str) -> TopicRoute | None:
    """Return the route of a topic; None if there is no such topic.

    Raises:
        PymqError: no name server answers.
    """
    request = RouteRequest(topic=topic, accept_standard_json_only=True).to_fields()
    answer = await ask_name_servers(
        name_servers, RequestCode.GET_ROUTEINFO_BY_TOPIC, request, name="route"
    )
    return None if answer is None else TopicRoute.decode(answer)


async def ask_name_servers(
    name_servers: Sequence[str], code: int, fields: dict[str, str] | None, *, name: str
) -> bytes | None:
    """Ask one name server after the other; return the body of the first answer.

    None if it says that there is no such topic.

    Raises:
        PymqError: none of them answers, or there is none.
    """
    failure = PymqError(f"{name}: there is no name server (namesrvAddr)")
    for address in name_servers:
        try:
            channel = await AsyncChannel.connect(address, TIMEOUT_S)
            try:
                answer = await channel.request(
                    Command(code, fields, language=LanguageCode.JAVA), TIMEOUT_S, description=name
                )
            finally:
                channel.close()
            if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                return None
            if answer.code != ResponseCode.SUCCESS:
                raise PymqError(f"{address}: code {answer.code}, {answer.remark}")
            return bytes(answer.body)
        except PymqError as error:
            failure = error
    raise failure


def _readable(topic: str, route: TopicRoute) -> list[MessageQueue]:
    return [
        MessageQueue(topic, queues.broker_name, number)
        for queues in route.queues
        if queues.perm & _READ
        for number in range(min(queues.read_queue_count, QUEUE_COUNT_MAX))
    ]
