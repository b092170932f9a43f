"""Sending encoded batches, several in flight, to brokers that come and go; for one thread.

Batches are taken one after the other, and what is in flight is waited for in that order. One that
fails comes back and is sent again, alone, before anything that was given later: to another broker
if its target allows that, else to the same queue, until it has failed for ``retry_s``. Whatever was
written and not acknowledged may be stored, so a batch can be there twice. What bounds that:

* A broker that did not answer, and any new connection, first gets a request that changes nothing.
  No second batch is written to a frozen broker, or over a dead connection, before that is answered.
* A status such as FLUSH_DISK_TIMEOUT says that a batch is stored and not secured. It counts as a
  failure where ``wants_secured`` says so, and each copy of one batch waits twice as long as the
  one before: about ``log2(retry_s)`` copies at the most.

Where batches go, and that each queue gets them in their order: ``batch_targets``.
"""

import bisect
import logging
import time
from collections import deque
from collections.abc import Callable

from pymq.client.cluster.network import advertised
from pymq.client.cluster.routes import Route
from pymq.client.operations import PreparedMessage, Send, SendResult, may_send_elsewhere
from pymq.client.sending.preencoded_records import BrokerKind, as_batch
from pymq.client.sockets.batch_request import Batch, BatchRequest, unsecured
from pymq.client.sockets.batch_targets import (
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    BatchTarget,
    QueueChooser,
    fitting,
)
from pymq.client.sockets.blocking_pool import BlockingPool, timed_out
from pymq.client.sockets.delayed_sends import DelayedMessage
from pymq.errors import (
    BrokerError,
    ConnectionFailed,
    DurabilityUnknown,
    LocalProtocolError,
    NoPermission,
    PymqError,
    RequestTimeout,
    RouteNotFound,
)
from pymq.net.blocking import BlockingChannel
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.command import Command
from pymq.protocol.records_body import RecordsBody

_log = logging.getLogger(__name__)

#: Batches, and bytes of them, that are in flight.
BATCHES_IN_FLIGHT, BATCH_BYTES_IN_FLIGHT = 8, 16 << 20
#: Pause before a batch that was stored and not secured is sent to the same broker once more.
UNSECURED_PAUSE_S = 1.0

_FAILURES = (BrokerError, ConnectionFailed, DurabilityUnknown, RequestTimeout, RouteNotFound)


class BatchPipeline:
    """Sends batches; ``flush`` waits until all are acknowledged. Unusable after an error."""

    def __init__(
        self,
        pool: BlockingPool,
        operation: Callable[[MessageQueue, Batch], Send],
        on_stored: Callable[[int, SendResult], None] | None = None,
        *,
        in_flight_max: int = BATCHES_IN_FLIGHT,
        retry_s: float | None = None,
        retries_max: int | None = None,
        awaits_routes: bool = False,
        wants_secured: bool = False,
        first_turn: int = 0,
    ) -> None:
        """Prepare a pipeline.

        Args:
            pool: connections and routes.
            operation: makes one attempt to send a batch to a queue.
            on_stored: gets the number of a batch, counted from 0, and where it is.
            in_flight_max: batches in flight at a time.
            retry_s: a batch that failed for longer is given up; ``None``: however long.
            retries_max: one that failed more often is; ``None``: however often.
            awaits_routes: a topic or broker without a route is away, and not misspelt.
            wants_secured: a batch is acknowledged when it is as secure as the broker's settings
                promise, and not before.
            first_turn: which of a topic's queues comes first; senders should differ.
        """
        self._pool = pool
        self._operation = operation
        self._on_stored = on_stored
        self._in_flight_max = in_flight_max
        self._retry_s = retry_s
        self._retries_max = retries_max
        self._awaits_routes = awaits_routes
        self._wants_secured = wants_secured
        self._queues = QueueChooser(first_turn, in_flight_max)
        self._unsent: deque[BatchRequest] = deque()  # by number
        self._in_flight: deque[BatchRequest] = deque()  # as they were sent
        self._in_flight_bytes = 0
        self._count = self._stored_count = 0
        self._routes: dict[str, Route] = {}
        self._seen: dict[str, set[MessageQueue]] = {}
        self._said: set[str] = set()

    # --- what users call

    def takes_records(self, target: BatchTarget) -> bool:
        """Say whether the broker whose turn it is for a target takes pre-encoded records.

        They may be given to ``send`` anyway, which makes a plain batch of them where need be. A
        broker that does not answer is not waited for.

        Raises:
            LocalProtocolError: there is no such topic or queue.
        """
        while True:
            try:
                queue = self._choose(target, self._count)
            except _FAILURES:
                return False
            if self._queues.broker(queue.broker_name).avoid_until_s > time.monotonic():
                return False  # as all that could be chosen
            try:
                return self._open(queue)[1].takes_records
            except _FAILURES as error:
                self._broker_failed(queue, error)

    def send(self, target: BatchTarget, batch: Batch) -> None:
        """Send a batch, when there is room.

        Args:
            target: where it may go.
            batch: must not change before it is acknowledged.

        Raises:
            LocalProtocolError: it is too large, or there is no such topic or queue.
            PymqError: this or an earlier batch was refused, or could not be sent until it was
                time to give up. ``outcome_known`` is false when any of them may be stored all the
                same; a note says how many were acknowledged.
        """
        limit = self._pool.config.body_bytes_max
        request = BatchRequest(self._count, target, batch)
        least = 0 if isinstance(batch, PreparedMessage) else 1  # A message may be empty.
        if not least <= request.size_bytes <= limit:
            raise LocalProtocolError(
                f"batch {self._count} to topic {target.topic!r} has {request.size_bytes} B, "
                f"expected {least}..{limit} (body_bytes_max); send fewer messages at once"
            )
        self._unsent.append(request)
        self._count += 1
        self._work(drain=False)

    def flush(self) -> None:
        """Return when all batches are acknowledged; raises what ``send`` does."""
        self._work(drain=True)

    def abandon(self) -> None:
        """Give up what is in flight."""
        for request in self._in_flight:
            request.channel.forget(request.opaque)
        self._in_flight.clear()
        self._unsent.clear()

    # --- the work

    def _work(self, *, drain: bool) -> None:
        """Send what is unsent; with ``drain``, wait until all of it is acknowledged."""
        try:
            while self._unsent or (drain and self._in_flight):
                if not (self._unsent and self._begin_next()):
                    self._finish_oldest()
        except PymqError as error:
            failure = error
            if not isinstance(error, LocalProtocolError):
                failure = error.after_unknown(self._why_unknown())
            failure.add_note(f"{self._stored_count} batches were acknowledged before")
            self.abandon()
            raise failure from failure.__cause__

    def _begin_next(self) -> bool:
        """Send the first unsent batch, or let it fail; false if an answer must be awaited first."""
        request = self._unsent[0]
        if self._in_flight and self._must_wait(request):
            return False
        queue = None
        try:
            queue = self._choose(request.target, request.number, last=request.queue)
            if not self._queues.has_room(queue, request.number):
                return False
            health = self._queues.broker(queue.broker_name)
            now_s = time.monotonic()
            is_avoided = health.avoid_until_s > now_s
            ready_s = max(health.retry_at_s, request.not_before_s if is_avoided else 0.0)
            if ready_s > now_s:
                if not self._in_flight:
                    self._pool.pause(ready_s - now_s)
                return not self._in_flight
            self._write(request, queue)
        except _FAILURES as error:
            self._unsent.popleft()
            if queue is not None:
                self._broker_failed(queue, error)
            self._failed(request, queue, error)
            if queue is None:
                self._pool.pause(min(PAUSE_FIRST_S * 2**request.failures, PAUSE_MAX_S))
            return True
        self._unsent.popleft()
        self._in_flight.append(request)
        self._in_flight_bytes += request.size_bytes
        self._queues.sent(queue, request.number, request.size_bytes)
        return True

    def _must_wait(self, request: BatchRequest) -> bool:
        """Must something in flight be finished before a batch is sent?"""
        return (
            len(self._in_flight) >= self._in_flight_max
            or self._in_flight_bytes >= BATCH_BYTES_IN_FLIGHT
            # What failed before goes alone, so that nothing overtakes it again and again.
            or request.failures > 0
            or any(other.failures for other in self._in_flight)
            # What went that way comes back, and has to be sent first.
            or not all(other.channel.is_open for other in self._in_flight)
        )

    def _write(self, request: BatchRequest, queue: MessageQueue) -> None:
        channel, kind = self._open(queue)
        batch = request.batch
        if isinstance(batch, RecordsBody) and not kind.takes_records:
            batch = as_batch(batch)
        elif isinstance(batch, DelayedMessage):
            batch.check_broker(kind, f"{queue.broker_name!r} ({channel.peer})")
        request.queue, request.channel = queue, channel
        request.send = self._operation(queue, batch)
        request.sent_s = time.monotonic()
        request.opaque = channel.send(request.send.request, self._pool.deadline_s())

    def _finish_oldest(self) -> None:
        request, timeout_s = self._in_flight[0], self._pool.config.timeout_s
        # Over a slow network writing takes its time, and so do the answers to what was before.
        deadline_s = max(request.channel.written_s, request.channel.heard_s) + timeout_s
        try:
            response = request.channel.receive(request.opaque, deadline_s)
        except RequestTimeout as error:
            timeout = timed_out(request.channel.peer, request.send, timeout_s, request.sent_s)
            timeout.__cause__ = error
            self._lost(request, timeout)
        except ConnectionFailed as error:
            self._lost(request, error)
        else:
            self._remove(request)
            self._settle(request, response)

    def _lost(self, oldest: BatchRequest, error: PymqError) -> None:
        """The oldest batch was not answered; take back what went the same way and is not, either.

        It could be answered later. But a pymq broker answers in order, and so that nothing
        overtakes anything, all of it is sent again.
        """
        assert oldest.queue is not None
        self._broker_failed(oldest.queue, error)
        lost = [request for request in self._in_flight if request.channel is oldest.channel]
        unanswered = [(oldest, error)]
        oldest.unknown = error
        for request in lost[1:]:
            try:
                response = request.channel.receive(request.opaque, 0.0)
            except PymqError:
                # Written in full, whatever the failure was that ended the connection.
                unanswered.append((request, ConnectionFailed(str(error), sent=True)))
            else:
                # A refusal may end all of it; so what is not answered is still in flight here.
                self._remove(request)
                self._settle(request, response)
        for request, failure in unanswered:
            self._remove(request)
            self._failed(request, request.queue, failure)

    def _remove(self, request: BatchRequest) -> None:
        assert request.queue is not None
        self._in_flight.remove(request)
        self._in_flight_bytes -= request.size_bytes
        self._queues.ended(request.queue)

    def _settle(self, request: BatchRequest, response: Command) -> None:
        """Take the answer to a batch."""
        queue, peer = request.queue, request.channel.peer
        assert queue is not None
        try:
            result = request.send.result(response, peer=peer)
            if self._wants_secured and result.durability_unknown:
                request.unsecured += 1
                raise unsecured(request, result.status, peer)
        except (BrokerError, DurabilityUnknown) as error:
            self._broker_failed(queue, error)
            self._failed(request, queue, error)
        else:
            self._queues.broker(queue.broker_name).succeeded()
            self._stored_count += 1
            if self._on_stored is not None:
                self._on_stored(request.number, result)

    # --- failures

    def _broker_failed(self, queue: MessageQueue, error: PymqError) -> None:
        """Record that a request to a broker failed."""
        self._queues.broker(queue.broker_name).failed(time.monotonic())
        if not isinstance(error, (BrokerError, DurabilityUnknown)):
            route = self._routes.get(queue.topic)
            address = route.masters().get(queue.broker_name) if route is not None else None
            if address is not None:
                self._pool.distrust(address)

    def _failed(self, request: BatchRequest, queue: MessageQueue | None, error: PymqError) -> None:
        """Put a batch back in its place among the unsent, or raise the error if that is the end."""
        now_s = time.monotonic()
        request.failures += 1
        if request.failed_s is None:
            request.failed_s = now_s
        if not error.outcome_known:
            request.unknown = error
        if isinstance(error, DurabilityUnknown):
            request.not_before_s = now_s + UNSECURED_PAUSE_S * 2 ** (request.unsecured - 1)
            if self._retry_s is not None:  # so that the last copy is sent in time
                request.not_before_s = min(request.not_before_s, request.failed_s + self._retry_s)
        if isinstance(error, NoPermission) and queue is not None:
            request.denied |= {queue.broker_name}
        bisect.insort(self._unsent, request, key=lambda one: one.number)
        self._pool.routes.doubt(request.target.topic)
        if not self._may_go_on(request, error, now_s):
            raise error
        if str(error) not in self._said:
            self._said.add(str(error))
            _log.warning("topic %s: trying again: %s", request.target.topic, error)

    def _may_go_on(self, request: BatchRequest, error: PymqError, now_s: float) -> bool:
        assert request.failed_s is not None
        if self._retries_max is not None and request.failures > self._retries_max:
            return False
        if self._retry_s is not None and now_s >= request.failed_s + self._retry_s:
            error.add_note(f"it was tried again for {now_s - request.failed_s:.0f} s")
            return False
        if isinstance(error, RouteNotFound):
            return self._awaits_routes
        if isinstance(error, NoPermission):  # which another broker may give
            queues = self._routes[request.target.topic].write_queues
            fit = fitting(request.target, queues, self._seen[request.target.topic])
            return not {queue.broker_name for queue in fit} <= request.denied
        return may_send_elsewhere(error)

    def _why_unknown(self) -> PymqError | None:
        """Return why batches may be stored that were not acknowledged; ``None``: none can be."""
        for request in (*self._in_flight, *self._unsent):
            if request.unknown is not None:
                return request.unknown
        if not self._in_flight:
            return None
        count = len(self._in_flight)
        return ConnectionFailed(f"{count} batches were not answered yet", sent=True)

    # --- routes and connections

    def _choose(
        self, target: BatchTarget, number: int, last: MessageQueue | None = None
    ) -> MessageQueue:
        """Return the queue whose turn it is.

        Raises:
            LocalProtocolError: there is no such topic or queue.
            RouteNotFound, ConnectionFailed, RequestTimeout, BrokerError: no route is known.
        """
        route = self._route(target.topic)
        queues = fitting(target, route.write_queues, self._seen[target.topic])
        return self._queues.choose(target, number, queues, time.monotonic(), last=last)

    def _route(self, topic: str) -> Route:
        """Return the route of a topic; the last one there was, while there is none."""
        last = self._routes.get(topic)
        try:
            route = self._pool.write_route(topic)
        except _FAILURES:
            if last is None:
                raise
            return last
        if route is not last:
            self._routes[topic] = route
            self._seen.setdefault(topic, set()).update(route.write_queues)
        return route

    def _open(self, queue: MessageQueue) -> tuple[BlockingChannel, BrokerKind]:
        """Return a connection that works to a queue's broker, and what that is."""
        address = self._route(queue.topic).address(queue.broker_name)
        hint = advertised(queue.broker_name)
        kind = self._pool.broker_kind(address, hint)
        depth = self._in_flight_max if kind.takes_records else 1
        self._queues.broker(queue.broker_name).depth = depth
        return self._pool.channel(address, hint), kind
