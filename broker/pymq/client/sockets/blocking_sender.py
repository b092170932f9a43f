"""Sending over plain sockets: one prepared message or batch at a time, tried on several queues.

What may be tried again, and what that may store twice: see ``blocking_client``. A send to one
certain queue is tried again only when nothing of it reached the broker.
"""

import itertools
import secrets

from pymq.client import operations
from pymq.client.checks import check_seconds
from pymq.client.cluster.network import advertised
from pymq.client.cluster.routes import has_master, pick_queue
from pymq.client.operations import PreparedMessage, Send, SendResult, may_send_elsewhere
from pymq.client.sending.send_retry import pause_s
from pymq.client.sockets.blocking_pool import BlockingPool
from pymq.clock import Clock
from pymq.errors import (
    BrokerError,
    ConnectionFailed,
    LocalProtocolError,
    PymqError,
    RequestTimeout,
    RouteNotFound,
)
from pymq.protocol.bodies import MessageQueue


class BlockingSender:
    """Sends what is prepared; for one thread.

    Args:
        pool: connections and routes.
        clock: for born timestamps.
    """

    def __init__(self, pool: BlockingPool, clock: Clock) -> None:
        self._pool = pool
        self._config = pool.config
        self._clock = clock
        # Or each of many clients that live for one message would choose the same queue.
        self._turn = itertools.count(secrets.randbelow(1 << 16))

    def send(
        self,
        prepared: PreparedMessage,
        queue: MessageQueue | None,
        deadline_s: float | None = None,
    ) -> SendResult:
        """Send a message or a batch and wait until the broker has stored it.

        Args:
            prepared: what to send.
            queue: where to; ``None``: the next queue of the topic, another one after a failure.
            deadline_s: how long to try; ``None``: ``send_retries`` times.

        Raises:
            LocalProtocolError: ``queue`` is not a queue of the topic.
            PymqError: the last of the failures.
        """
        if queue is not None and not isinstance(queue, MessageQueue):
            raise LocalProtocolError(f"queue={queue!r:.80}, expected one of write_queues(topic)")
        if queue is not None and queue.topic != prepared.topic:
            raise LocalProtocolError(
                f"message to topic {prepared.topic!r} for a queue of topic {queue.topic!r}"
            )
        until_s = None
        if deadline_s is not None:
            check_seconds("deadline_s", deadline_s)
            until_s = self._clock.monotonic_s() + deadline_s
        unknown: PymqError | None = None
        avoid: set[str] = set()
        failures, left = 0, self._config.send_retries
        try:
            while True:
                target: MessageQueue | None = None
                try:
                    route = self._pool.write_route(prepared.topic)
                    target = queue or pick_queue(route.write_queues, next(self._turn), avoid=avoid)
                    address = route.address(target.broker_name)
                    operation = self.operation(prepared, target)
                    return self._pool.ask(address, operation, hint=advertised(target.broker_name))
                # Of an order topic there may be no route: one of its masters is away.
                except (BrokerError, ConnectionFailed, RequestTimeout, RouteNotFound) as error:
                    self._pool.routes.doubt(prepared.topic)
                    if not _may_send_again(error, queue):
                        raise
                    if until_s is None and (left == 0 or target is None):
                        raise
                    if target is None and self._is_mistake(prepared.topic, error):
                        raise
                    if not error.outcome_known:
                        unknown = error
                    failures += 1
                    if until_s is not None and not self._wait(failures, until_s):
                        raise
                left -= 1
                if target is not None:
                    avoid.add(target.broker_name)
        except PymqError as error:
            failure = error.after_unknown(unknown)
            raise failure from failure.__cause__

    def _is_mistake(self, topic: str, error: PymqError) -> bool:
        """Does nobody know a topic, and did nobody know it before?"""
        is_certain = isinstance(error, RouteNotFound) and error.is_certain
        if not is_certain or self._pool.routes.find(topic) is not None:
            return False
        try:  # That of the topic may be away where there is no broker at all.
            return has_master(self._pool.ask_name_servers(operations.cluster_info()))
        except PymqError:
            return False

    def _wait(self, failures: int, until_s: float) -> bool:
        """Wait before another attempt; return whether there is time for it."""
        wait_s = pause_s(failures, has_other=failures == 1)
        if self._clock.monotonic_s() + wait_s >= until_s:
            return False
        self._pool.pause(wait_s)
        return True

    def operation(self, prepared: PreparedMessage, queue: MessageQueue) -> Send:
        """Return one attempt to send it to a queue."""
        return Send(
            prepared,
            queue,
            group=self._config.producer_group,
            now_ms=self._clock.wall_ms(),
            default_queue_count=self._config.default_queue_count,
        )


def _may_send_again(error: PymqError, queue: MessageQueue | None) -> bool:
    """May a send be tried again, which may store a second copy?

    Args:
        error: of the last attempt.
        queue: the only one allowed; ``None``: any queue of the topic will do.
    """
    if queue is not None:
        return error.retriable and error.outcome_known
    return may_send_elsewhere(error)
