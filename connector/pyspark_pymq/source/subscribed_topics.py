"""What the driver knows of the subscribed topics: their queues' bounds, asked for sparingly.

An idle query asks for its latest offset about ninety times a second. So answers are delayed:
brokers are asked at most every ``PAUSE_MIN_S`` while messages arrive, and less often the longer
nothing arrives. An answer is never older than the question; ``processAllAvailable`` relies on it.

**Brokers that are away.** A name server forgets a broker that stops, so its queues are in no list
that could be asked for; they are known from the query's position. A broker that does not answer
for one of its queues has an ``Outage``, which becomes an error when it lasts longer than
``retryTimeoutMs``. So does a broker of which only a slave answers that has less than was read
already: what a slave lacks is not lost. With long triggers, or batches, a broker may have been
there between two questions: what is away at both is waited for, as long as that is not known.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from pymq.client.cluster.routes import Route
from pymq.client.sockets.blocking_pool import PASSING
from pymq.client.sockets.bulk_client import BulkClient
from pymq.client.sockets.fitting_ranges import FittingAnswer
from pymq.errors import ConnectionFailed, PymqError, RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import Bounds, TopicIds, named
from pyspark_pymq.retrying import pause
from pyspark_pymq.source.masters import said_by_masters
from pyspark_pymq.source.options import SourceOptions
from pyspark_pymq.source.outages import Outages
from pyspark_pymq.source.topic_discovery import TopicDiscovery
from pyspark_pymq.unrouted_queues import UNROUTED, UnroutedQueues, knows_all

LOG = logging.getLogger(__name__)

T = TypeVar("T")

PAUSE_MIN_S = 0.01
PAUSE_MAX_S = 0.2  # other sources of the same query wait, too
#: An answer with enough for a full batch serves for this long. A question now and then finds what
#: is new or back, notices who is away, and keeps the reported lag true.
ANSWER_AGE_S = 1.0


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
        self._choice = options.choice
        self._discovery = TopicDiscovery(self._choice, options.topic_refresh_s, monotonic_s)
        self._routes: list[Route] = []
        self._queues: set[MessageQueue] = set()
        self._routed: set[MessageQueue] = set()
        self._bounds: Bounds = {}
        self._topic_ids: TopicIds = {}
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

    def bounds(
        self, position: Mapping[MessageQueue, int] | None = None, *, at_once: bool = False
    ) -> Bounds:
        """Return the bounds of every queue whose broker answers; ``waits_for`` knows the others.

        Args:
            position: the queues the query knows and where it stands in them, with a route or not.
                If their broker is away, and was at the last question, longer than
                ``retryTimeoutMs`` ago, it is waited for as long as that, and all queues with it.
            at_once: ask however recent the last question is; this wait remains.

        Raises:
            ConnectionFailed: a broker that has queues of ``position`` has been away for longer
                than ``retryTimeoutMs``, and ``failOnDataLoss`` is true; or no name server can be
                asked about a topic of which nothing is known.
            RouteNotFound: there is no such topic.
            PymqError: a broker refused.
        """
        limit_s = self._options.retry_timeout_s
        if self._asked_at is not None and self._monotonic_s() - self._asked_at > limit_s:
            self._outages.begin_again()
        bounds = self._ask_in_turn(position, at_once=at_once)
        if position is not None and (names := self._outages.in_doubt()):
            told = ", ".join(names)
            LOG.warning("%s away at the last question, and now: waiting %.0f s", told, limit_s)
            while self._outages.in_doubt():
                bounds = self._ask_in_turn(position, at_once=False)
        return bounds

    def _ask_in_turn(
        self, position: Mapping[MessageQueue, int] | None, *, at_once: bool
    ) -> Bounds:
        """Ask everybody once, not too soon after the last question."""
        if at_once:
            self._unrouted.forget()
        elif self._asked_at is not None:
            rest_s = self._asked_at + self._pause_s - self._monotonic_s()
            if rest_s > 0:
                self._wait(rest_s)
        client = self._open()
        try:
            # A query that starts has patience of its own.
            patience_s = 0.0 if position is None else self._options.retry_timeout_s
            bounds = self._ask(client, position or {}, patience_s)
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

    def look_up(
        self, queues: Iterable[MessageQueue], ask: Callable[[BulkClient, MessageQueue], T]
    ) -> tuple[dict[MessageQueue, T], dict[str, PymqError]]:
        """Ask something else about some queues; once.

        Args:
            queues: known ones.
            ask: asks about one of them.

        Returns:
            What was found; why brokers gave no answer, by their names.

        Raises:
            PymqError: a broker refused.
        """
        client = self._open()
        found: dict[MessageQueue, T] = {}
        failed: dict[str, PymqError] = {}
        for queue in queues:
            if queue.broker_name in failed:
                continue  # One that is silent costs a timeout.
            try:
                found[queue] = ask(client, queue)
            except PASSING as error:
                failed[queue.broker_name] = error
        return found, failed

    def fitting(self, wanted: Mapping[MessageQueue, tuple[int, int, int]]) -> FittingAnswer:
        """Ask once how far ranges go within a number of bytes; of brokers that are not away.

        Args:
            wanted: as for ``BulkClient.try_fitting``.
        """
        there = self._outages.without(wanted)
        names = {queue.broker_name for queue in there}
        try:
            answer = self._open().try_fitting({queue: wanted[queue] for queue in there})
        except PymqError as error:
            answer = FittingAnswer(failed=dict.fromkeys(names, error))
        for reason in answer.failed.values():
            LOG.debug("the sizes of messages are estimated: %s", reason)
        for name in {queue.broker_name for queue in wanted} - names:
            answer.failed[name] = ConnectionFailed(f"broker {name} is away")
        return answer

    # --- what is known

    def known_bounds(self) -> Bounds:
        """Return the last answer, without asking anybody; empty before the first."""
        return self._bounds

    @property
    def topic_ids(self) -> TopicIds:
        """The ids of topics that the last answer came with."""
        return self._topic_ids

    def routes(self) -> list[Route]:
        """Return the topics' routes, as last seen."""
        return self._routes

    def asks_master(self, queue: MessageQueue) -> bool:
        """Say whether a queue's bounds are its master's; a slave may lag behind."""
        return queue in self._from_masters

    def seen_brokers(self) -> set[str]:
        """Return the brokers that have queues of the topics, whether they answer or not."""
        return {queue.broker_name for queue in self._queues}

    def routed_queues(self) -> list[MessageQueue]:
        """Return all queues of the topics that have a route, assigned or not."""
        return sorted(self._routed)

    def other_topics(self) -> list[str]:
        """Return topics that a pattern does not match; for errors."""
        return self._discovery.others

    @property
    def outages(self) -> Outages:
        """The brokers that do not answer."""
        return self._outages

    @property
    def is_recent(self) -> bool:
        """Whether the last answer may serve once more, and no topics need to be looked for."""
        return (
            self._asked_at is not None
            and self._monotonic_s() - self._asked_at < ANSWER_AGE_S
            and not self._discovery.is_due
        )

    def waits_for(self, queues: Iterable[MessageQueue]) -> bool:
        """Say whether there is no answer about one of the queues, and it is waited for."""
        return self._outages.wait_for(queues)

    def close(self) -> None:
        """Close the connections; later questions open new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- while a query starts

    def now_s(self) -> float:
        """Return the monotonic time."""
        return self._monotonic_s()

    def are_all_known(self) -> bool:
        """Say whether a topic that no name server knows is not there."""
        return knows_all(self._open())

    def wait_for_others(self) -> None:
        """Wait, and have the next question ask everybody: no answer, and no route, is good enough.

        It serves nobody else meanwhile.
        """
        self._wait(PAUSE_MAX_S)
        self._outages.ask_at_once()
        self._discovery.look_at_once()
        client = self._open()
        for topic in self._discovery.topics:
            client.doubt_route(topic)

    # --- one question

    def _open(self) -> BulkClient:
        if self._client is None:
            self._client = self._connect(
                self._options.name_servers,
                timeout_s=self._options.request_timeout_s,
                read_deadline_s=PAUSE_MIN_S,  # retries are made here
                awaits_routes=True,
                network=self._options.network,
                routes=self._routes,
            )
        return self._client

    def _ask(
        self, client: BulkClient, position: Mapping[MessageQueue, int], patience_s: float
    ) -> Bounds:
        queues, routed = self._current_queues(client, position, patience_s)
        asked_s = self._monotonic_s()
        by_masters = dict(self._unrouted.known(routed))
        due = self._outages.due(queues)
        rest = [queue for queue in queues if queue not in by_masters]
        answer = client.try_bounds(self._outages.without(rest))
        found, failed = by_masters | answer.found, dict(answer.failed)
        topic_ids = dict(answer.topic_ids)
        for of_broker, timeout_s in due.values():
            answer = client.try_bounds(of_broker, timeout_s=timeout_s)
            found |= answer.found
            failed |= answer.failed
            topic_ids |= answer.topic_ids
        self._topic_ids = topic_ids
        by_masters |= self._ask_masters(client, queues, found, failed)
        self._from_masters = by_masters.keys() | said_by_masters(client, position, found)
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
        for queue, (first, end) in list(found.items()):
            if queue in self._from_masters:
                self._warned_of_slaves.discard(queue.broker_name)
            elif first <= position.get(queue, first) <= end:
                self._warn_of_slave(queue.broker_name)
            else:
                client.doubt_route(queue.topic)
                lagging = _lagging(queue, position[queue], found.pop(queue))
                failed.setdefault(queue.broker_name, lagging)

    def _current_queues(
        self, client: BulkClient, position: Mapping[MessageQueue, int], patience_s: float
    ) -> tuple[list[MessageQueue], set[MessageQueue]]:
        """Return the queues of all topics, those that have lost their route included.

        Returns:
            All of them, sorted; those that have a route.
        """
        queues = {queue for queue in position if self._choice.takes(queue)}
        routed: set[MessageQueue] = set()
        topics = {queue.topic for queue in queues}
        self._discovery.refresh(client, topics, patience_s=patience_s)
        for topic in self._discovery.topics:
            try:
                routed.update(client.read_queues(topic))
            except PASSING as error:
                before = {queue for queue in self._queues if queue.topic == topic}
                if not before and not any(queue.topic == topic for queue in queues):
                    if self._choice.pattern is not None and isinstance(error, UNROUTED):
                        continue  # It matched, and has just been deleted.
                    raise
                queues |= before  # Asking them says why there is no answer.
        self._routed = routed
        routed = set(filter(self._choice.takes, routed))
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
