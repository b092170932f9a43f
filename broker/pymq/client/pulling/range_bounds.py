"""Which queues a range is read in, and where in each it begins and ends. With asyncio.

What is left out here is left out of the range without a word. So masters are asked
(``queue_questions``), what fails is tried again until the deadline, and a broker that a topic was
seen at, or is expected at, is waited for.
"""

import operator
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Any, SupportsIndex, TypeVar

from pymq.client.cluster.pool import ClientPool
from pymq.client.cluster.routes import Route, no_read_queue
from pymq.client.pulling.queue_choice import check_queues, place_in
from pymq.client.pulling.queue_questions import master_channel, of_each
from pymq.client.pulling.read_patience import ReadPatience
from pymq.client.sockets.blocking_pool import PASSING
from pymq.errors import ConfigurationError, OffsetOutOfRange, RouteNotFound
from pymq.protocol.bodies import MessageQueue

T = TypeVar("T")


class RangeBounds:
    """Finds bounds, and remembers where topics were seen. For one event loop.

    Args:
        pool: connections and routes.
        deadline_s: what fails is tried again until this has passed.
    """

    def __init__(self, pool: ClientPool, *, deadline_s: float) -> None:
        self._pool = pool
        self._deadline_s = deadline_s
        self._open_master = partial(master_channel, pool)
        #: Topic -> names of the brokers whose routes had queues of it.
        self._seen: dict[str, set[str]] = {}

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues that can be read now.

        Raises:
            RouteNotFound: no name server knows the topic, or nothing of it can be read.
            ConnectionFailed: no name server answers.
        """
        return self._see(await self._pool.routes.route(topic))

    async def find(
        self,
        topic: str,
        start: object,
        end: object,
        queues: list[MessageQueue] | None,
        expected: Collection[str],
    ) -> dict[MessageQueue, tuple[int, int]]:
        """Return first offset and end of the range in each queue.

        Args:
            topic: which.
            start, end: as ``Reader.read`` takes them.
            queues: in which; ``None``: those of a mapping, else all that can be read.
            expected: names of brokers, see there.

        Raises:
            ConfigurationError, RouteNotFound, OffsetOutOfRange, PymqError: see there.
        """
        for given in (start, end):
            if queues is None and isinstance(given, Mapping):
                queues = check_queues(given)
        if queues is None:
            queues = await self._all_queues(topic, expected)
        else:
            await self._check_there(topic, queues, expected)
        firsts = await self._offsets(queues, "start", start)
        ends = await self._offsets(queues, "end", end)
        bounds = {queue: (firsts[queue], ends[queue]) for queue in queues}
        if _is_numeric(start):
            behind = [queue for queue, (first, last) in bounds.items() if first > last]
            if behind and _is_numeric(end):
                queue = behind[0]
                raise ConfigurationError(
                    f"end={ends[queue]} is before start={firsts[queue]} in {queue}"
                )
            for queue, last in (await self._offsets(behind, "end", "last")).items():
                if firsts[queue] > last:
                    raise OffsetOutOfRange(
                        f"topic {topic!r}, {queue.broker_name}:{queue.queue_id}: there is no "
                        f"offset {firsts[queue]}, the queue ends at {last}"
                    )
        return bounds

    # --- queues

    async def _all_queues(self, topic: str, expected: Collection[str]) -> list[MessageQueue]:
        """Return the queues of a topic when all brokers that it should be at are in the route.

        A topic that nobody has seen or expects anywhere is a mistake, and not waited for.
        """
        wanted = {*expected, *self._seen.get(topic, ())}
        patience = ReadPatience(self._pool, topic, deadline_s=self._deadline_s)
        while True:
            try:
                route = await self._pool.routes.route(topic, refresh=True)
            except PASSING as error:
                if isinstance(error, RouteNotFound) and error.is_certain and not wanted:
                    raise
                await patience.wait(error)
                continue
            missing = wanted - {queue.broker_name for queue in route.read_queues}
            if not missing:
                return self._see(route)
            await patience.wait(_missing(route, missing))

    def _see(self, route: Route) -> list[MessageQueue]:
        if not route.read_queues:
            raise no_read_queue(route)
        names = {queue.broker_name for queue in route.read_queues}
        self._seen.setdefault(route.topic, set()).update(names)
        return list(route.read_queues)

    async def _check_there(
        self, topic: str, queues: list[MessageQueue], expected: Collection[str]
    ) -> None:
        """Refuse queues that the topic does not have. A broker that is away may have any."""
        for queue in queues:
            if queue.topic != topic:
                raise ConfigurationError(f"{queue} is not a queue of topic {topic!r}")
        unnamed = sorted({*expected} - {queue.broker_name for queue in queues})
        if unnamed:
            raise ConfigurationError(
                f"expected_brokers names {', '.join(unnamed)}, of which no queue is to be read; "
                "name some, or leave it out"
            )
        try:
            known = (await self._pool.routes.route(topic)).read_queues
            if not set(queues) <= set(known):  # Some may be new.
                known = (await self._pool.routes.route(topic, refresh=True)).read_queues
        except PASSING:
            return  # What is asked next waits for it, and tells it in the end.
        for queue in queues:
            ids = sorted(one.queue_id for one in known if one.broker_name == queue.broker_name)
            if ids and queue.queue_id not in ids:
                raise ConfigurationError(
                    f"{queue} is not there, or must not be read: its broker has queues {ids}"
                )

    # --- places

    async def _offsets(
        self, queues: list[MessageQueue], name: str, place: object
    ) -> dict[MessageQueue, int]:
        if isinstance(place, Mapping):
            missing = [queue for queue in queues if queue not in place]
            if missing:
                raise ConfigurationError(f"{name}: there is no offset for {missing[0]}")
            return {queue: _offset(f"{name} of {queue}", place[queue]) for queue in queues}
        if _is_numeric(place):
            return dict.fromkeys(queues, _offset(name, place))
        find = partial(place_in, self._pool, where=place, open_channel=self._open_master)
        return await of_each(queues, lambda queue: self._patiently(queue, find))

    async def _patiently(
        self, queue: MessageQueue, find: Callable[[MessageQueue], Awaitable[T]]
    ) -> T:
        patience = ReadPatience(self._pool, queue.topic, deadline_s=self._deadline_s)
        while True:
            try:
                return await find(queue)
            except PASSING as error:
                await patience.wait(error)


def _missing(route: Route, missing: Collection[str]) -> RouteNotFound:
    there = sorted({queue.broker_name for queue in route.read_queues})
    return RouteNotFound(
        f"topic {route.topic!r}: broker {', '.join(sorted(missing))}, which was there in an "
        f"earlier read or is among expected_brokers, is not there now; the topic has queues on "
        f"{', '.join(there) or 'none'}. Start it; to read what is there without it, give "
        "queues=await reader.queues(topic); if it does not have the topic any more, make a new "
        "Reader"
    )


def _is_numeric(place: object) -> bool:
    """Are these offsets, rather than places that a broker is asked for?"""
    return isinstance(place, Mapping | SupportsIndex) and not isinstance(place, bool)


def _offset(name: str, value: Any) -> int:
    """Return an offset that a user gives, perhaps as a number of numpy.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass  # told below
    raise ConfigurationError(f"{name}={value!r:.80}: expected an offset, a whole number")
