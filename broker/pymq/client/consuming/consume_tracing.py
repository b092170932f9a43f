"""Message trace of a consumer: what it was given, when, and what became of it.

Two lines for each message, fields as in ``trace_writer``::

    SubBefore  time  region  group  request-id  message-id  tries  keys
    SubAfter   request-id  message-id  cost-ms  success  keys  how  time  group

``request-id`` joins the two; ``how`` is 0 for success, 1 for longer than the consume time-out, 2
for a handler that raised, 4 for what goes back otherwise.

Source: RocketMQ TraceDataEncoder, ConsumeMessageTraceHookImpl, ConsumeReturnType.
"""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Sequence

from pymq.client.cluster.config import connect_s
from pymq.client.cluster.pool import ClientPool
from pymq.client.consuming.consume_hooks import ConsumeHook, ConsumeOutcome, ConsumeResult
from pymq.client.consuming.consumer_config import ConsumerConfig
from pymq.client.sending.producer_config import ProducerConfig
from pymq.client.sending.send_maker import SendMaker
from pymq.client.sending.sender import Sender
from pymq.client.sending.trace_writer import TraceWriter, joined
from pymq.clock import Clock
from pymq.protocol.headers.send import REGION
from pymq.protocol.message import REGION as REGION_PROPERTY
from pymq.protocol.message import TRACE_ON, ReceivedMessage

_SUCCESS, _TIME_OUT, _EXCEPTION, _FAILED = 0, 1, 2, 4


class ConsumeTracer(ConsumeHook):
    """Writes the trace of one consumer. Hooks are called in any thread.

    Args:
        pool: of the consumer.
        config: of the consumer.
        topic: where to; messages of that topic are not traced.
        clock: for timestamps.
    """

    def __init__(
        self, pool: ClientPool, config: ConsumerConfig, topic: str, clock: Clock
    ) -> None:
        sending = ProducerConfig(
            name_servers=config.name_servers,
            producer_group=config.group,
            timeout_s=config.timeout_s,
            connect_timeout_s=connect_s(config),
        )
        self._pool = pool
        self._group = config.group
        self._timeout_s = config.consume_timeout_s
        self._clock = clock
        self._sender = Sender(pool, sending, clock=clock)
        maker = SendMaker(pool, self._sender, sending, clock)
        self._writer = TraceWriter(pool, self._sender, maker, topic)
        #: First message of a call -> what joins its lines. Of several threads, each its own.
        self._request_ids: dict[int, str] = {}

    def before(self, messages: Sequence[ReceivedMessage]) -> None:
        """Write down what is about to be handled."""
        traced = self._traced(messages)
        if not traced:
            return
        request_id = uuid.uuid4().hex.upper()
        self._request_ids[id(messages[0])] = request_id
        now_ms = str(self._clock.wall_ms())
        self._add(
            [
                (
                    joined(
                        "SubBefore",
                        now_ms,
                        message.properties.get(REGION_PROPERTY, REGION),
                        self._group,
                        request_id,
                        message.message_id,
                        str(message.reconsume_times),
                        " ".join(message.keys),
                    ),
                    (message.message_id, *message.keys),
                )
                for message in traced
            ]
        )

    def after(self, outcome: ConsumeOutcome) -> None:
        """Write down what became of it."""
        messages = outcome.messages
        request_id = self._request_ids.pop(id(messages[0]), None)
        if request_id is None:
            return
        traced = {id(message) for message in self._traced(messages)}
        cost_ms = str(round(outcome.took_s * 1000 / len(messages)))
        now_ms = str(self._clock.wall_ms())
        self._add(
            [
                (
                    joined(
                        "SubAfter",
                        request_id,
                        message.message_id,
                        cost_ms,
                        "true" if result is ConsumeResult.DONE else "false",
                        " ".join(message.keys),
                        str(self._how(outcome, result)),
                        now_ms,
                        self._group,
                    ),
                    (message.message_id, *message.keys),
                )
                for message, result in zip(messages, outcome.results, strict=True)
                if id(message) in traced
            ]
        )

    def _traced(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return those that are not traces, and whose producer has not switched it off."""
        topic = self._writer.topic
        return [
            message
            for message in messages
            if message.topic != topic and message.properties.get(TRACE_ON) != "false"
        ]

    def _how(self, outcome: ConsumeOutcome, result: ConsumeResult) -> int:
        if result is not ConsumeResult.DONE:
            return _FAILED if outcome.error is None else _EXCEPTION
        return _TIME_OUT if outcome.took_s >= self._timeout_s else _SUCCESS

    def _add(self, lines: list[tuple[str, Sequence[str]]]) -> None:
        if self._pool.is_open and self._pool.home.is_own_thread:
            self._writer.add(lines)
        elif self._pool.is_open:
            self._pool.loop.call_soon_threadsafe(self._writer.add, lines)

    # --- in the event loop

    def route_changed(self, topic: str) -> None:
        """Find out the queues of a topic again."""
        self._sender.route_changed(topic)

    async def wait_written(self, until_s: float) -> None:
        """Send what waits, and wait for the answers until then (monotonic) at the longest."""
        self._writer.flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(until_s - time.monotonic(), 0)):
                await self._sender.window.wait_idle()
