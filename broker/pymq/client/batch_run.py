"""Sending encoded batches to one queue, several on their way at a time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from pymq.client.blocking_pool import PAUSE_S, BlockingPool, advertised, timed_out
from pymq.client.finished import RecordsBody
from pymq.client.operations import SEND_RETRY_CODES, Send, SendResult
from pymq.errors import (
    BrokerError,
    ConnectionFailed,
    LocalProtocolError,
    PymqError,
    RequestTimeout,
    RouteNotFound,
)
from pymq.net.blocking import BlockingChannel
from pymq.protocol.bodies import MessageQueue

#: Batches, and bytes of them, that are on their way unacknowledged.
BATCHES_IN_FLIGHT = 8
BATCH_BYTES_IN_FLIGHT = 16 << 20


def may_send_again(error: PymqError) -> bool:
    """Does RocketMQ's rule allow another try? It may make a second copy of the message."""
    if isinstance(error, BrokerError):
        return error.code in SEND_RETRY_CODES
    return isinstance(error, (ConnectionFailed, RequestTimeout))


def never_sent(error: PymqError) -> bool:
    """Is it certain that nothing reached the broker?"""
    return isinstance(error, ConnectionFailed) and error.outcome_known


#: A SEND_BATCH body, or records that need less of the broker.
Batch = bytes | bytearray | memoryview | RecordsBody


class _BodiesFailed(Exception):
    """What yields the bodies raised one of our errors: not ours to try again."""


class BatchRun:
    """One call of ``send_batches``: what is on its way, and what has to be sent again."""

    def __init__(
        self,
        pool: BlockingPool,
        operation: Callable[[Batch], Send],
        queue: MessageQueue,
        in_flight_max: int,
    ) -> None:
        """Prepare a run.

        Args:
            pool: connections and routes.
            operation: makes one try to send a batch to the queue.
            queue: where all go.
            in_flight_max: batches on their way at a time.
        """
        self._pool = pool
        self._operation = operation
        self._queue = queue
        self._in_flight_max = in_flight_max
        self._waiting: deque[tuple[int, Batch, Send, int]] = deque()
        self._again: deque[tuple[int, Batch]] = deque()
        self._waiting_bytes = 0
        self._results: dict[int, SendResult] = {}
        #: Batches that an attempt may have stored, and why that is not known.
        self._unknown: dict[int, PymqError] = {}

    def run(self, bodies: Iterable[Batch]) -> list[SendResult]:
        """Send all, and return a result for each, in their order; raises what it cannot mend."""
        pool, queue = self._pool, self._queue
        source = enumerate(bodies)
        retries = left = pool.config.send_retries
        channel: BlockingChannel | None = None
        more = True
        of_bodies: BaseException | None = None
        try:
            while more or self._again or self._waiting:
                try:
                    if channel is None:
                        address = pool.write_route(queue.topic).address(queue.broker_name)
                        channel = pool.channel(address, advertised(queue.broker_name))
                    while (more or self._again) and self._has_room():
                        task = self._again.popleft() if self._again else self._next(source)
                        if task is None:
                            more = False
                        else:
                            self._begin(channel, *task)
                    if self._waiting:
                        self._finish(channel)
                        left = retries
                except (BrokerError, ConnectionFailed, RequestTimeout, RouteNotFound) as error:
                    again = may_send_again(error)
                    if isinstance(error, RouteNotFound):
                        again = pool.config.awaits_routes
                    if left == 0 or not again:
                        raise
                    if not isinstance(error, BrokerError):
                        self._take_back(channel, error)
                        channel = None
                    pool.routes.doubt(queue.topic)
                    pool.pause(PAUSE_S * 2 ** (retries - left))
                    left -= 1
        except _BodiesFailed as failed:
            of_bodies = failed.__cause__
        except PymqError as error:
            failure = error.after_unknown(self._why_unknown())
            failure.add_note(f"{len(self._results)} batches were acknowledged before")
            raise failure from failure.__cause__
        finally:
            self._take_back(channel, None)
        if of_bodies is not None:
            raise of_bodies
        return [self._results[index] for index in range(len(self._results))]

    def _why_unknown(self) -> PymqError | None:
        """Return why batches may be stored that were not acknowledged; ``None``: none can be."""
        for error in self._unknown.values():
            return error
        if not self._waiting:
            return None
        return ConnectionFailed(f"{len(self._waiting)} batches were not answered yet", sent=True)

    def _has_room(self) -> bool:
        waiting = len(self._waiting)
        return waiting == 0 or (
            waiting < self._in_flight_max and self._waiting_bytes < BATCH_BYTES_IN_FLIGHT
        )

    def _next(self, source: Iterator[tuple[int, Batch]]) -> tuple[int, Batch] | None:
        try:
            index, batch = next(source)
        except StopIteration:
            return None
        except PymqError as error:
            raise _BodiesFailed from error
        limit = self._pool.config.body_bytes_max
        if not 0 < (size := _size_of(batch)) <= limit:
            raise LocalProtocolError(
                f"batch {index} to topic {self._queue.topic!r} has {size} B, expected "
                f"1..{limit} (body_bytes_max); send fewer messages at once"
            )
        return index, batch

    def _begin(self, channel: BlockingChannel, index: int, batch: Batch) -> None:
        send = self._operation(batch)
        try:
            opaque = channel.send(send.request, self._pool.deadline_s())
        except (ConnectionFailed, RequestTimeout) as error:
            self._again.appendleft((index, batch))
            if not error.outcome_known:
                self._unknown[index] = error
            raise
        self._waiting.append((index, batch, send, opaque))
        self._waiting_bytes += _size_of(batch)

    def _finish(self, channel: BlockingChannel) -> None:
        index, batch, send, opaque = self._waiting[0]
        try:
            response = channel.receive(opaque, self._pool.deadline_s())
        except RequestTimeout as error:
            raise timed_out(channel.peer, send, self._pool.config.timeout_s) from error
        self._waiting.popleft()
        self._waiting_bytes -= _size_of(batch)
        try:
            self._results[index] = send.result(response, peer=channel.peer)
        except BrokerError as error:
            self._again.append((index, batch))
            if not error.outcome_known:
                self._unknown[index] = error
            raise
        self._unknown.pop(index, None)

    def _take_back(self, channel: BlockingChannel | None, error: PymqError | None) -> None:
        """Give up what is in flight, and queue it to be sent again.

        Args:
            channel: where it was sent.
            error: why; ``None`` at the end of the run.
        """
        for index, batch, _, opaque in reversed(self._waiting):
            if channel is not None:
                channel.forget(opaque)
            if error is not None:
                # Written in full, whatever the failure was that ended the connection.
                self._unknown[index] = ConnectionFailed(str(error), sent=True)
            self._again.appendleft((index, batch))
        self._waiting.clear()
        self._waiting_bytes = 0


def _size_of(batch: Batch) -> int:
    body = batch.body if isinstance(batch, RecordsBody) else batch
    return memoryview(body).nbytes
