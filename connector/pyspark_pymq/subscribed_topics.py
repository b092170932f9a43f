"""What the driver knows of the queues: their first and next offsets, asked for sparingly.

An idle query asks for its latest offset about ninety times a second. So the answer is held back:
brokers are asked at most every ``PAUSE_MIN_S`` while messages arrive, and the less often the longer
nothing does. An answer is never older than the question; ``processAllAvailable`` relies on it.

**Brokers that are away.** A name server forgets a broker that ends, so its queues are not in any
list that could be asked for; they are known from the query's position. A broker whose queues
have no answer is an ``Outage``: said once, asked again now and then (one that is silent must not
keep the others' answers back), and an error when it lasts longer than ``retryTimeoutMs``. So is
a broker of which only a slave answers that has less than was read already: what a slave lacks is
not lost.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pymq.client.blocking import BlockingClient
from pymq.client.routes import Route
from pymq.errors import ConnectionFailed, PymqError, RequestTimeout, RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Bounds, Offsets, listed, named
from pyspark_pymq.options import SourceOptions
from pyspark_pymq.retrying import pause

LOG = logging.getLogger(__name__)

PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 0.2  # other sources of the same query wait, too
#: Patience at the start of a query: then a wrong address is likelier than a server that restarts.
START_PATIENCE_S = 3.0
#: The same for brokers, whose address somebody registered.
START_BROKER_PATIENCE_S = 30.0
#: A broker that is away is asked again after ten times what the last question took, within these:
#: a silent one costs the others a tenth of the time at most.
ASK_AGAIN_MIN_S = 0.5
ASK_AGAIN_MAX_S = 30.0
#: How long an answer of such a broker is waited for: first, then twice as long each time.
ASK_AGAIN_TIMEOUT_S = 0.5


@dataclass(slots=True)
class Outage:
    """A broker that has queues of the query and gives no answer about them. Times: monotonic."""

    since_s: float
    reason: PymqError
    ask_at_s: float
    timeout_s: float
    is_accepted: bool = False  # it lasted too long, and the query goes on without it


class SubscribedTopics:
    """Bounds of all queues of the subscribed topics. Lives in one driver process, for one query.

    Args:
        options: of the source.
        monotonic_s: the clock.
        wait: waits so many seconds.
        connect: makes the client.
    """

    def __init__(
        self,
        options: SourceOptions,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = pause,
        connect: Callable[..., BlockingClient] = BlockingClient,
    ) -> None:
        self._options = options
        self._monotonic_s = monotonic_s
        self._wait = wait
        self._connect = connect
        self._client: BlockingClient | None = None
        self._routes: list[Route] = []
        self._queues: set[MessageQueue] = set()
        self._bounds: Bounds = {}
        self._asked_at: float | None = None
        self._pause_s = PAUSE_MIN_S
        self._outages: dict[str, Outage] = {}
        self._warned_of_slaves: set[str] = set()

    # --- asking

    def all_bounds(self) -> Bounds:
        """Return (first kept, next to be assigned) of every queue there is, at a start.

        Raises:
            RouteNotFound: there is no such topic; or a broker that ``expectedBrokers`` names has
                no queue of any.
            ConnectionFailed: a broker that has a route, or every name server, does not answer.
            PymqError: a broker refused.
        """
        started_s = self._monotonic_s()
        expected = set(self._options.expected_brokers)
        failure: PymqError
        while True:
            try:
                bounds = self.bounds(at_once=True)
                missing = expected - {queue.broker_name for queue in bounds}
                if not missing and not self._outages:
                    return bounds
                if missing - set(self._outages):
                    failure, limit_s = _not_there(missing, bounds), self._options.retry_timeout_s
                else:
                    failure, limit_s = self._away(self._outages), START_BROKER_PATIENCE_S
            except RouteNotFound as error:
                if not expected:
                    raise
                failure, limit_s = error, self._options.retry_timeout_s
            except (ConnectionFailed, RequestTimeout) as error:
                failure, limit_s = error, START_PATIENCE_S
            waited_s = self._monotonic_s() - started_s
            if waited_s + PAUSE_MAX_S > min(limit_s, self._options.retry_timeout_s):
                raise failure
            self._wait(PAUSE_MAX_S)

    def bounds(
        self, position: Mapping[MessageQueue, int] | None = None, *, at_once: bool = False
    ) -> Bounds:
        """Return the bounds of every queue whose broker answers; ``waits_for`` knows the others.

        Args:
            position: the queues the query knows and where it stands in them. They are asked
                for whether they have a route now or not.
            at_once: without a pause, however short ago the last question was.

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
            self._end_patience()
        return bounds

    def offsets_at(self, queues: Iterable[MessageQueue], timestamp_ms: int) -> Offsets:
        """Return the first offset stored at a moment or later, of queues that can be asked now.

        Raises:
            PymqError: a broker refused.
        """
        client = self._open()
        found: Offsets = {}
        for queue in queues:
            try:
                found[queue] = client.offset_by_time(queue, timestamp_ms)
            except (ConnectionFailed, RequestTimeout, RouteNotFound) as error:
                LOG.warning("%s is new, and looked at later: %s", named(queue), error)
        return found

    # --- what is known

    def known(self) -> Bounds:
        """Return the last answer, without asking anybody; empty before the first."""
        return self._bounds

    def routes(self) -> list[Route]:
        """Return the topics' routes, as last seen."""
        return self._routes

    def asks_master(self, queue: MessageQueue) -> bool:
        """Say whether a queue's bounds are its master's; a slave may lag behind."""
        return any(
            route.topic == queue.topic and queue.broker_name in route.masters()
            for route in self._routes
        )

    def waits_for(self, queues: Iterable[MessageQueue]) -> bool:
        """Say whether one of the queues is on a broker that is away and is waited for."""
        names = {name for name, outage in self._outages.items() if not outage.is_accepted}
        return any(queue.broker_name in names for queue in queues)

    def close(self) -> None:
        """Close the connections. What is asked afterwards opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- one question

    def _open(self) -> BlockingClient:
        if self._client is None:
            self._client = self._connect(
                self._options.name_servers,
                timeout_s=self._options.request_timeout_s,
                read_deadline_s=PAUSE_MIN_S,  # the patience is here
                awaits_routes=True,
                routes=self._routes,
            )
        return self._client

    def _ask(self, client: BlockingClient, position: Mapping[MessageQueue, int]) -> Bounds:
        queues = self._current_queues(client, position)
        now_s = self._monotonic_s()
        answer = client.try_bounds(q for q in queues if q.broker_name not in self._outages)
        found, failed = dict(answer.found), dict(answer.failed)
        due = [name for name, outage in self._outages.items() if outage.ask_at_s <= now_s]
        for name in due:
            of_broker = [queue for queue in queues if queue.broker_name == name]
            answer = client.try_bounds(of_broker, timeout_s=self._outages[name].timeout_s)
            found |= answer.found
            failed |= answer.failed
        for queue in list(found):
            first, end = found[queue]
            if client.asks_master(queue):
                self._warned_of_slaves.discard(queue.broker_name)
            elif first <= position.get(queue, first) <= end:
                self._warn_of_slave(queue.broker_name)
            else:
                client.doubt_route(queue.topic)
                lagging = _lagging(queue, position[queue], found.pop(queue))
                failed.setdefault(queue.broker_name, lagging)
        for name in set(due) - set(failed):
            LOG.info("broker %s is back", name)
            del self._outages[name]
        self._note(failed, queues, now_s)
        return found

    def _current_queues(
        self, client: BlockingClient, position: Mapping[MessageQueue, int]
    ) -> list[MessageQueue]:
        """Return the queues of all topics: those that have a route, and those that had one."""
        queues = {queue for queue in position if queue.topic in self._options.topics}
        for topic in self._options.topics:
            try:
                queues.update(client.read_queues(topic))
            except (RouteNotFound, ConnectionFailed, RequestTimeout):
                before = {queue for queue in self._queues if queue.topic == topic}
                if not before and not any(queue.topic == topic for queue in queues):
                    raise
                queues |= before  # Asking them says why there is no answer.
        self._queues = queues
        return sorted(queues)

    # --- outages

    def _note(
        self, failed: Mapping[str, PymqError], queues: Iterable[MessageQueue], asked_s: float
    ) -> None:
        """Note the brokers that did not answer a question, and when to ask them again."""
        now_s = self._monotonic_s()
        again_s = min(max(10 * (now_s - asked_s), ASK_AGAIN_MIN_S), ASK_AGAIN_MAX_S)
        for name, reason in failed.items():
            known = self._outages.get(name)
            if known is not None:
                known.reason, known.ask_at_s = reason, now_s + again_s
                known.timeout_s = min(2 * known.timeout_s, self._options.request_timeout_s)
                continue
            timeout_s = min(ASK_AGAIN_TIMEOUT_S, self._options.request_timeout_s)
            self._outages[name] = Outage(now_s, reason, now_s + again_s, timeout_s)
            LOG.warning(
                "broker %s is away, and with it %s, which are read when it is back: %s",
                name,
                listed([queue for queue in queues if queue.broker_name == name]),
                reason,
            )

    def _end_patience(self) -> None:
        """Fail, or accept it, when a broker has been away for too long."""
        limit_s = self._monotonic_s() - self._options.retry_timeout_s
        over = {
            name: outage
            for name, outage in self._outages.items()
            if outage.since_s < limit_s and not outage.is_accepted
        }
        if not over:
            return
        failure = self._away(over)
        if self._options.fail_on_data_loss:
            raise failure
        for outage in over.values():
            outage.is_accepted = True
        LOG.warning("going on without them (failOnDataLoss=false): %s", failure)

    def _away(self, outages: Mapping[str, Outage]) -> ConnectionFailed:
        now_s = self._monotonic_s()
        parts = []
        for name, outage in sorted(outages.items()):
            queues = sorted(queue for queue in self._queues if queue.broker_name == name)
            parts.append(
                f"broker {name} has been away for {now_s - outage.since_s:.0f} s, and with it "
                f"{listed(queues)} ({outage.reason})"
            )
        return ConnectionFailed(
            f"{'; '.join(parts)}. Start it, or wait longer for it (option retryTimeoutMs). A "
            f"stream whose broker is gone for good goes on without it when failOnDataLoss is false"
        )

    def _warn_of_slave(self, name: str) -> None:
        if name not in self._warned_of_slaves:
            self._warned_of_slaves.add(name)
            LOG.warning(
                "the master of broker %s is away and a slave is read: messages that it has not "
                "copied yet are not there before the master is back",
                name,
            )


def _lagging(queue: MessageQueue, offset: int, bounds: tuple[int, int]) -> RouteNotFound:
    return RouteNotFound(
        f"the master of broker {queue.broker_name} is away, and its slave lags behind: of "
        f"{named(queue)} it has {bounds[0]} up to {bounds[1]}, the query stands at {offset}"
    )


def _not_there(missing: Iterable[str], bounds: Bounds) -> RouteNotFound:
    there = sorted({queue.broker_name for queue in bounds})
    return RouteNotFound(
        f"expectedBrokers: {', '.join(sorted(missing))} not found, the topics have queues on "
        f"{', '.join(there) or 'none'}; start what is missing, or take its name from the option"
    )
