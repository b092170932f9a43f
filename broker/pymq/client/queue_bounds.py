"""Bounds of many queues, requested from all their brokers at the same time."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from pymq.client import operations
from pymq.client.blocking_pool import PASSING, BlockingPool, timed_out
from pymq.client.operations import Operation
from pymq.errors import ConnectionFailed, PymqError, RequestTimeout
from pymq.net.blocking import BlockingChannel
from pymq.protocol.bodies import MessageQueue

#: Small requests that are in flight to all brokers together.
PIPELINE_COUNT = 256


@dataclass(slots=True)
class BoundsAnswer:
    """The answers to one round of requests.

    Attributes:
        found: (first offset kept, end) of the queues whose brokers answered.
        failed: broker name -> why one of its queues has no answer.
        topic_ids: (topic, broker name) -> which topic of that name it is; of pymq brokers.
    """

    found: dict[MessageQueue, tuple[int, int]] = field(default_factory=dict)
    failed: dict[str, PymqError] = field(default_factory=dict)
    topic_ids: dict[tuple[str, str], str] = field(default_factory=dict)


def ask_bounds(
    pool: BlockingPool, queues: Sequence[MessageQueue], *, timeout_s: float
) -> BoundsAnswer:
    """Ask once for the bounds of queues; a broker that does not answer delays no other's answer.

    The routes of topics of which a queue has no answer are doubted.

    Args:
        pool: connections and routes.
        queues: each once.
        timeout_s: for the answers to ``PIPELINE_COUNT`` requests.

    Raises:
        ClientMisplaced: another thread waits for an answer.
        PymqError: a broker refused, for good.
    """
    answer = BoundsAnswer()
    silent: set[str] = set()
    each = PIPELINE_COUNT // 2
    for start in range(0, len(queues), each):
        _Round(pool, answer, silent, timeout_s).ask(queues[start : start + each])
    return answer


class _Round:
    """One set of requests that are in flight together."""

    def __init__(
        self, pool: BlockingPool, answer: BoundsAnswer, silent: set[str], timeout_s: float
    ) -> None:
        self._pool = pool
        self._answer = answer
        self._silent = silent  # brokers that are not asked again
        self._timeout_s = timeout_s
        self._deadline_s = time.monotonic() + timeout_s

    def ask(self, queues: Sequence[MessageQueue]) -> None:
        sent: list[tuple[MessageQueue, Operation[int], BlockingChannel, int]] = []
        try:
            for queue in queues:
                self._send(queue, sent)
            while sent:
                queue, first, channel, opaque = sent[0]
                low = self._receive(queue, first, channel, opaque)
                _, last, _, opaque = sent[1]
                end = self._receive(queue, last, channel, opaque)
                if low is not None and end is not None:
                    self._answer.found[queue] = (low, max(low, end))
                del sent[:2]
        finally:
            for _, _, channel, opaque in sent:
                channel.forget(opaque)

    def _send(
        self,
        queue: MessageQueue,
        sent: list[tuple[MessageQueue, Operation[int], BlockingChannel, int]],
    ) -> None:
        if queue.broker_name in self._silent:
            return
        end = operations.max_offset(queue, self._answer.topic_ids)
        pair = operations.min_offset(queue), end
        try:
            channel = self._pool.read_channel(queue)
            with self._pool.alone():
                opaques = [channel.send(one.request, self._deadline_s) for one in pair]
        except PASSING as error:
            self._failed(queue, error)
            return
        for one, opaque in zip(pair, opaques, strict=True):
            sent.append((queue, one, channel, opaque))

    def _receive(
        self, queue: MessageQueue, operation: Operation[int], channel: BlockingChannel, opaque: int
    ) -> int | None:
        if queue.broker_name in self._silent:
            channel.forget(opaque)
            return None
        try:
            with self._pool.alone():
                response = channel.receive(opaque, self._deadline_s)
            return operation.result(response, peer=channel.peer)
        except RequestTimeout:
            self._failed(queue, timed_out(channel.peer, operation, self._timeout_s))
        except PASSING as error:
            self._failed(queue, error)
        return None

    def _failed(self, queue: MessageQueue, error: PymqError) -> None:
        self._answer.failed.setdefault(queue.broker_name, error)
        self._pool.routes.doubt(queue.topic)
        if isinstance(error, (ConnectionFailed, RequestTimeout)):
            self._silent.add(queue.broker_name)
