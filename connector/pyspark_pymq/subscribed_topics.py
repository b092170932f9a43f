"""What the driver knows of the subscribed topics: their queues' bounds, asked for sparingly.

An idle query asks for its latest offset about ninety times a second. So answers are delayed:
brokers are asked at most every ``PAUSE_MIN_S`` while messages arrive, and less often the longer
nothing arrives. An answer is never older than the question; ``processAllAvailable`` relies on it.

**Brokers that are away.** A name server forgets a broker that stops, so its queues are in no list
that could be asked for; they are known from the query's position. A broker that does not answer
for one of its queues has an ``Outage``, which becomes an error when it lasts longer than
``retryTimeoutMs``. So does a broker of which only a slave answers that has less than was read
already: what a slave lacks is not lost.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from pymq.client.blocking_pool import PASSING
from pymq.client.bulk_client import BulkClient
from pymq.client.routes import Route
from pymq.errors import ConnectionFailed, PymqError, RequestTimeout, RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Bounds, Offsets, named
from pyspark_pymq.options import SourceOptions
from pyspark_pymq.outages import Outages
from pyspark_pymq.retrying import pause
from pyspark_pymq.unrouted_queues import UNROUTED, UnroutedQueues, has_brokers

LOG = logging.getLogger(__name__)

PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 0.2  # other sources of the same query wait, too
#: How long a query that starts waits for name servers: a wrong address is likelier than a restart.
START_DEADLINE_S = 3.0
#: The same for brokers, whose address somebody registered.
START_BROKER_DEADLINE_S = 30.0


class SubscribedTopics:
    """Bounds of all queues of the subscribed topics. Lives in one driver process, for one query.

    Args:
        options: of the source.
        monotonic_s: the clock.
        wait: waits for a number of seconds.
        connect: makes the client.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = pause,
        connect: Callable[..., BulkClient] = BulkClient,
    ) -> None:
        self._options = options
        self._monotonic_s = monotonic_s
        self._wait = wait
        self._connect = connect
        self._client: BulkClient | None = None
        self._routes: list[Route] = []
        self._queues: set[MessageQueue] = set()
        self._bounds: Bounds = {}
        self._asked_at: float | None = None
        self._pause_s = PAUSE_MIN_S
        self._outages = Outages(
            options.request_timeout_s,
            f"start it within {options.retry_timeout_s:.0f} s (option retryTimeoutMs), or the "
            f"query {'fails' if options.fail_on_data_loss else 'continues without them'}",
            monotonic_s,
        )
        self._unrouted = UnroutedQueues(monotonic_s)
        self._from_masters: set[MessageQueue] = set()
        self._warned_of_slaves: set[str] = set()

    # --- asking

    def all_bounds(self) -> Bounds:
        """Return (first kept, next to be assigned) of every queue there is, at a start.

        Raises:
            RouteNotFound: there is no such topic; or a broker named in ``expectedBrokers``, or
                seen since the start, has no queue of any.
            ConnectionFailed: a broker that has a route, or every name server, does not answer.
            PymqError: a broker refused.
        """
        started_s = self._monotonic_s()
        expected = set(self._options.expected_brokers)
        seen: set[str] = set()
        said: set[str] = set()
        failure: PymqError
        while True:
            try:
                bounds = self.bounds(at_once=True)
                seen |= {queue.broker_name for queue in self._queues}
                missing = (expected | seen) - {queue.broker_name for queue in bounds}
                if not missing and not self._outages:
                    return bounds
                missing -= self._outages.brokers()
                if missing & expected:
                    failure = _not_there(missing & expected, bounds)
                    limit_s = self._options.retry_timeout_s
                else:
                    failure = _vanished(missing) if missing else self._outages.at_start()
                    limit_s = START_BROKER_DEADLINE_S
            except RouteNotFound as error:
                if not expected and not seen and has_brokers(self._open()):
                    raise
                failure = error
                limit_s = self._options.retry_timeout_s if expected else START_BROKER_DEADLINE_S
            except (ConnectionFailed, RequestTimeout) as error:
                failure, limit_s = error, START_DEADLINE_S
            limit_s = min(limit_s, self._options.retry_timeout_s)
            if self._monotonic_s() - started_s + PAUSE_MAX_S > limit_s:
                raise failure
            if str(failure) not in said and not self._outages:  # which are told of by themselves
                said.add(str(failure))
                LOG.warning("the query waits up to %.0f s before it starts: %s", limit_s, failure)
            self._wait(PAUSE_MAX_S)
            self._ask_again_for_all()

    def bounds(
        self, position: Mapping[MessageQueue, int] | None = None, *, at_once: bool = False
    ) -> Bounds:
        """Return the bounds of every queue whose broker answers; ``waits_for`` knows the others.

        Args:
            position: the queues the query knows and where it stands in them. They are asked
                for whether they have a route now or not.
            at_once: do not wait, however recent the last question is.

        Raises:
            ConnectionFailed: a broker that has queues of ``position`` has been away for longer
                than ``retryTimeoutMs``, and ``failOnDataLoss`` is true; or no name server can be
                asked about a topic of which nothing is known.
            RouteNotFound: there is no such topic.
            PymqError: a broker refused.
        """
        if self._asked_at is not None and not at_once:
            rest_s = self._asked_at + self._pause_s - self._monotonic_s()
            if rest_s > 0:
                self._wait(rest_s)
        client = self._open()
        try:
            bounds = self._ask(client, position or {})
        except PymqError:
            self.close()
            raise
        changed = bounds != self._bounds
        self._pause_s = PAUSE_MIN_S if changed else min(2 * self._pause_s, PAUSE_MAX_S)
        self._bounds, self._asked_at = bounds, self._monotonic_s()
        self._routes = client.known_routes()
        if position is not None:
            self._end_outages()
        return bounds

    def offsets_at(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> Offsets:
        """Return the first offset stored at or after a moment, of queues that can be asked now.

        Raises:
            PymqError: a broker refused.
        """
        client = self._open()
        found: Offsets = {}
        for queue in queues:
            try:
                found[queue] = client.offset_by_time(queue, timestamp_ms)
            except PASSING as error:
                LOG.warning("%s is new, and is looked at later: %s", named(queue), error)
        return found

    # --- what is known

    def known_bounds(self) -> Bounds:
        """Return the last answer, without asking anybody; empty before the first."""
        return self._bounds

    def routes(self) -> list[Route]:
        """Return the topics' routes, as last seen."""
        return self._routes

    def asks_master(self, queue: MessageQueue) -> bool:
        """Say whether a queue's bounds are its master's; a slave may lag behind."""
        return queue in self._from_masters

    def waits_for(self, queues: Iterable[MessageQueue]) -> bool:
        """Say whether there is no answer about one of the queues, and it is waited for."""
        return self._outages.wait_for(queues)

    def close(self) -> None:
        """Close the connections; later questions open new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _ask_again_for_all(self) -> None:
        """Have the next question ask everybody: no answer, and no route, is good enough."""
        self._outages.ask_at_once()
        client = self._open()
        for topic in self._options.topics:
            client.doubt_route(topic)

    # --- one question

    def _open(self) -> BulkClient:
        if self._client is None:
            self._client = self._connect(
                self._options.name_servers,
                timeout_s=self._options.request_timeout_s,
                read_deadline_s=PAUSE_MIN_S,  # retries are made here
                awaits_routes=True,
                routes=self._routes,
            )
        return self._client

    def _ask(self, client: BulkClient, position: Mapping[MessageQueue, int]) -> Bounds:
        queues, routed = self._current_queues(client, position)
        asked_s = self._monotonic_s()
        by_masters = dict(self._unrouted.known(routed))
        due = self._outages.due(queues)
        rest = [queue for queue in queues if queue not in by_masters]
        answer = client.try_bounds(self._outages.without(rest))
        found, failed = by_masters | answer.found, dict(answer.failed)
        for of_broker, timeout_s in due.values():
            answer = client.try_bounds(of_broker, timeout_s=timeout_s)
            found |= answer.found
            failed |= answer.failed
        by_masters |= self._ask_masters(client, queues, found, failed)
        self._from_masters = {
            queue for queue in found if queue in by_masters or client.asks_master(queue)
        }
        self._check_slaves(client, position, found, failed)
        for name in set(due) - set(failed):
            self._outages.ended(name)
        self._outages.failed(failed, [queue for queue in queues if queue not in found], asked_s)
        return found

    def _ask_masters(
        self,
        client: BulkClient,
        queues: Iterable[MessageQueue],
        found: dict[MessageQueue, tuple[int, int]],
        failed: dict[str, PymqError],
    ) -> Bounds:
        """Ask masters about queues that have no route; add to what is found.

        Failures are cleared, or say what there is to say of queues that are known to exist: their
        topic need not be created.
        """
        brokers = {name for name, reason in failed.items() if isinstance(reason, UNROUTED)}
        missing = [q for q in queues if q.broker_name in brokers and q not in found]
        if not missing:
            return {}
        answers = self._unrouted.ask(client, missing)
        found |= answers
        away = {queue.broker_name for queue in missing if queue not in answers}
        for name in brokers:
            if name in away:
                failed[name] = RouteNotFound("no name server knows a route to them")
            else:
                del failed[name]
        return answers

    def _check_slaves(
        self,
        client: BulkClient,
        position: Mapping[MessageQueue, int],
        found: dict[MessageQueue, tuple[int, int]],
        failed: dict[str, PymqError],
    ) -> None:
        """Discard the answers of slaves that lag behind the query."""
        for queue in list(found):
            first, end = found[queue]
            if queue in self._from_masters:
                self._warned_of_slaves.discard(queue.broker_name)
            elif first <= position.get(queue, first) <= end:
                self._warn_of_slave(queue.broker_name)
            else:
                client.doubt_route(queue.topic)
                lagging = _lagging(queue, position[queue], found.pop(queue))
                failed.setdefault(queue.broker_name, lagging)

    def _current_queues(
        self, client: BulkClient, position: Mapping[MessageQueue, int]
    ) -> tuple[list[MessageQueue], set[MessageQueue]]:
        """Return the queues of all topics, those that have lost their route included.

        Returns:
            All of them, sorted; those that have a route.
        """
        queues = {queue for queue in position if queue.topic in self._options.topics}
        routed: set[MessageQueue] = set()
        for topic in self._options.topics:
            try:
                routed.update(client.read_queues(topic))
            except PASSING:
                before = {queue for queue in self._queues if queue.topic == topic}
                if not before and not any(queue.topic == topic for queue in queues):
                    raise
                queues |= before  # Asking them says why there is no answer.
        self._queues = queues | routed
        return sorted(self._queues), routed

    def _end_outages(self) -> None:
        """Fail when a broker has been away for too long, or continue without it."""
        names = self._outages.longer_than(self._options.retry_timeout_s)
        if not names:
            return
        if self._options.fail_on_data_loss:
            raise self._outages.too_long(names)
        self._outages.accept(names)
        LOG.warning("continuing (failOnDataLoss=false), although %s", self._outages.told(names))

    def _warn_of_slave(self, name: str) -> None:
        if name not in self._warned_of_slaves:
            self._warned_of_slaves.add(name)
            LOG.warning(
                "the master of broker %s is away and a slave is read: messages that it has not "
                "copied yet are missing until the master is back",
                name,
            )


def _lagging(queue: MessageQueue, offset: int, bounds: tuple[int, int]) -> RouteNotFound:
    return RouteNotFound(
        f"the master of broker {queue.broker_name} is away, and its slave lags behind: it has "
        f"{bounds[0]} up to {bounds[1]} of {named(queue)}, the query stands at {offset}"
    )


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
