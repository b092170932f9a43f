"""What a query that starts asks brokers for, and how long it waits for those that are away.

Later a stream goes on without them. But a start that leaves one out would begin its queues where
nobody meant to, or, in a batch, never read them.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import (
    ConfigurationError,
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    RouteNotFound,
)
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Bounds, listed
from pyspark_pymq.source.options import SourceOptions
from pyspark_pymq.source.subscribed_topics import PAUSE_MAX_S, SubscribedTopics
from pyspark_pymq.source.topic_choice import AssignedQueue, TopicChoice

LOG = logging.getLogger(__name__)
T = TypeVar("T")

#: How long a query that starts waits for name servers: a wrong address is likelier than a restart.
DEADLINE_S = 3.0
#: The same for brokers, whose address somebody registered.
BROKER_DEADLINE_S = 30.0


class QueryStart:
    """Questions of a query that starts. Lives in one driver process.

    Args:
        options: of the source.
        topics: whom to ask.
    """

    def __init__(self, options: SourceOptions, topics: SubscribedTopics) -> None:
        self._options = options
        self._topics = topics
        self._expected = set(options.expected_brokers)

    def bounds(self, named: Iterable[MessageQueue] = (), *, may_be_none: bool = False) -> Bounds:
        """Return (first kept, next to be assigned) of every queue there is.

        Args:
            named: queues that the user has named; if their broker is not there, it is waited for.
            may_be_none: a pattern may match no topic.

        Raises:
            ConfigurationError: a queue that was assigned or named is not there.
            RouteNotFound: there is no such topic; or a broker named in ``expectedBrokers``, or
                seen since the start, has no queue of any.
            ConnectionFailed: a broker that has a route, or every name server, does not answer.
            PymqError: a broker refused.
        """
        named_queues = {AssignedQueue(q.topic, q.broker_name, q.queue_id) for q in named}
        wanted = named_queues | self._options.choice.assigned
        patience = _Patience(self._topics, self._options.retry_timeout_s)
        seen: set[str] = set()
        while True:
            try:
                bounds = self._topics.bounds(at_once=True)
                seen |= self._topics.seen_brokers()
                found = self._what_is_missing(bounds, seen, wanted, may_be_none=may_be_none)
                if found is None:
                    return bounds
                failure, limit_s = found
            except RouteNotFound as error:
                if not self._expected and not seen and self._topics.are_all_known():
                    raise
                failure = error
                limit_s = self._options.retry_timeout_s if self._expected else BROKER_DEADLINE_S
            except (ConnectionFailed, RequestTimeout) as error:
                failure, limit_s = error, DEADLINE_S
            patience.wait(failure, limit_s)

    def look_up(
        self, queues: Collection[MessageQueue], ask: Callable[[BulkClient, MessageQueue], T]
    ) -> dict[MessageQueue, T]:
        """Ask something about queues, until there is an answer about each.

        Raises:
            PymqError: a broker refused, or stayed away for too long.
        """
        patience = _Patience(self._topics, self._options.retry_timeout_s)
        found: dict[MessageQueue, T] = {}
        while missing := [queue for queue in queues if queue not in found]:
            answers, failed = self._topics.look_up(missing, ask)
            found |= answers
            for error in failed.values():
                patience.wait(error, BROKER_DEADLINE_S)
                break
        return found

    def _what_is_missing(
        self,
        bounds: Bounds,
        seen: set[str],
        wanted: Collection[AssignedQueue],
        *,
        may_be_none: bool,
    ) -> tuple[PymqError, float] | None:
        """Return what a start waits for, and for how long; None for nothing.

        Raises:
            ConfigurationError, RouteNotFound: it need not be waited for.
        """
        outages = self._topics.outages
        missing = (self._expected | seen) - {queue.broker_name for queue in bounds}
        if missing or outages:
            missing -= outages.brokers()
            if missing & self._expected:
                return _not_there(missing & self._expected, bounds), self._options.retry_timeout_s
            failure = _vanished(missing) if missing else outages.at_start()
            return failure, BROKER_DEADLINE_S
        absent = sorted(one for one in wanted if not one.is_among(bounds))
        if absent:
            routed = self._topics.routed_queues()
            there = {(queue.topic, queue.broker_name) for queue in routed}
            error = _absent(absent, self._options.choice, routed)
            if any((one.topic, one.broker_name) in there for one in absent):
                raise error
            return error, BROKER_DEADLINE_S  # Their brokers may be about to start.
        if not bounds and not may_be_none:
            nothing = _no_match(self._options.choice, self._topics.other_topics())
            if self._topics.are_all_known():
                raise nothing
            return nothing, BROKER_DEADLINE_S
        return None


class _Patience:
    """The waiting of one question."""

    def __init__(self, topics: SubscribedTopics, limit_s: float) -> None:
        self._topics = topics
        self._limit_s = limit_s
        self._started_s = topics.now_s()
        self._said: set[str] = set()

    def wait(self, failure: PymqError, limit_s: float) -> None:
        """Wait before the next try.

        Raises:
            PymqError: ``failure`` itself, if all tries have taken ``limit_s``.
        """
        limit_s = min(limit_s, self._limit_s)
        if self._topics.now_s() - self._started_s + PAUSE_MAX_S > limit_s:
            raise failure
        # Outages are told of by themselves.
        if str(failure) not in self._said and not self._topics.outages:
            self._said.add(str(failure))
            LOG.warning("the query waits up to %.0f s before it starts: %s", limit_s, failure)
        self._topics.wait_for_others()


def _vanished(brokers: Iterable[str]) -> RouteNotFound:
    return RouteNotFound(
        f"{', '.join(sorted(brokers))} had queues of the topics when the query began, and no name "
        f"server knows it any more; start it, then start the query again"
    )


def _not_there(missing: Iterable[str], bounds: Bounds) -> RouteNotFound:
    there = sorted({queue.broker_name for queue in bounds})
    return RouteNotFound(
        f"expectedBrokers: {', '.join(sorted(missing))} not found, the topics have queues on "
        f"{', '.join(there) or 'none'}; start what is missing, or remove its name from the option"
    )


def _absent(
    absent: Collection[AssignedQueue], choice: TopicChoice, there: Sequence[MessageQueue]
) -> ConfigurationError:
    names = ", ".join(f"{one.topic}/{one.broker_name or '*'}/{one.queue_id}" for one in absent)
    what = "assign names" if choice.assigned >= set(absent) else "offsets are given for"
    return ConfigurationError(
        f"{what} queues that do not exist: {names}; there are {listed(there)} (queues of "
        f"a broker that is down are not known: start it, or name what there is)"
    )


def _no_match(choice: TopicChoice, others: Collection[str]) -> RouteNotFound:
    some = ", ".join(list(others)[:8]) or "none"
    return RouteNotFound(
        f"{choice}: no topic matches; there are {some}{', ...' if len(others) > 8 else ''}. The "
        f"expression must match a whole name (orders.* rather than orders), and retry topics and "
        f"dead letters only match one that begins with %"
    )
