"""One message that an operator has this member handle now, wherever it lies (309).

``mqadmin`` and dashboards call it to consume directly, or to resend. No queue, offset, hook or
trace is touched: whatever becomes of the message here, it stays what it is for the group.

Source: RocketMQ ClientRemotingProcessor.consumeMessageDirectly, ConsumeMessageConcurrentlyService.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from pymq.client.cluster.pool import ClientPool
from pymq.client.consuming.consumer_config import ConsumerConfig
from pymq.client.consuming.handler import is_async
from pymq.client.consuming.workers import Calls
from pymq.client.group.retry import visible_topic
from pymq.errors import PymqError
from pymq.net.channel import AsyncChannel
from pymq.net.tasks import calling, is_cancelled
from pymq.net.threads import in_thread
from pymq.protocol.client_bodies import DirectResult
from pymq.protocol.codes import ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.groups import ConsumeDirectlyRequest
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.outcomes import RAISED, RETURNED, Outcome
from pymq.protocol.record import decode_record


class _Alone:
    """A message that no queue has delivered; remembers its outcome."""

    def __init__(self, message: ReceivedMessage) -> None:
        self.message = message
        self._lock = threading.Lock()
        self._outcome: Outcome | None = None
        message._hold(self)

    def settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
        """Take its outcome. Raises what ``ReceivedMessage.ack`` does."""
        with self._lock:
            if self._outcome is not None:
                self._outcome.settle(message, outcome)
            self._outcome = outcome

    def end(self, outcome: Outcome) -> Outcome:
        """Return its outcome: the one it has, else this one."""
        with self._lock:
            self._outcome = self._outcome or outcome
            return self._outcome


class DirectCalls:
    """Calls the handler of one consumer for such messages.

    Args:
        config: of the consumer.
        pool: its connections.
    """

    def __init__(self, config: ConsumerConfig, pool: ClientPool) -> None:
        self._config = config
        self._pool = pool
        #: What each ``run`` calls that goes on.
        self._running: list[Calls] = []

    @contextmanager
    def during(self, calls: Calls) -> Iterator[None]:
        """Call this handler inside the block; of several, that of the latest."""
        self._running.append(calls)
        try:
            yield
        finally:
            self._running.remove(calls)

    def answer(self, channel: AsyncChannel, request: Command) -> None:
        """Answer a request of a broker when the handler has ended."""
        try:
            message = self._message(request)
            calls = self._calls()
        except (LookupError, PymqError) as error:
            remark = str(error.args[0])
            channel.respond(request, request.reply(ResponseCode.SYSTEM_ERROR, remark))
            return
        self._pool.spawn("direct call", self._handle(channel, request, message, calls))

    def _calls(self) -> Calls:
        if not self._running:
            raise LookupError(
                f"this member of group {self._config.group} takes its messages itself and has no "
                "handler that could be called (Consumer.run)"
            )
        return self._running[-1]

    def _message(self, request: Command) -> ReceivedMessage:
        header = ConsumeDirectlyRequest.from_fields(request.fields)
        if header.consumer_group != self._config.group:
            raise LookupError(
                f"The Consumer Group <{header.consumer_group}> not exist in this consumer"
            )
        message = ReceivedMessage.from_record(decode_record(request.body), header.broker_name or "")
        topic = visible_topic(message.topic, message.properties)
        message.topic = self._pool.network.unwrap(topic)
        return message

    async def _handle(
        self, channel: AsyncChannel, request: Command, message: ReceivedMessage, calls: Calls
    ) -> None:
        begun_s = time.monotonic()
        alone = _Alone(message)
        error: BaseException | None = None
        try:
            with calling():  # It may close the consumer, which waits for this task otherwise.
                result = await (_called if is_async(calls.handler) else _called_in_thread)(
                    calls, message
                )
            calls.check_result(result)
        except (Exception, asyncio.CancelledError) as failure:
            if is_cancelled():
                raise  # the consumer is closed
            error = failure
        outcome = alone.end(RETURNED if error is None else RAISED)
        answer = DirectResult(
            is_ordered=self._config.orderly,
            result="CR_SUCCESS" if outcome.delay_level is None else "CR_LATER",
            remark=None if outcome is RETURNED else f"the message {outcome.text}",
            took_ms=int((time.monotonic() - begun_s) * 1000),
        )
        if error is not None and outcome is RAISED:
            answer.result = "CR_THROW_EXCEPTION"
            answer.remark = f"{type(error).__name__}: {error}"
        channel.respond(request, request.reply(ResponseCode.SUCCESS, body=answer.encode()))


async def _called(calls: Calls, message: ReceivedMessage) -> Any:
    result = calls.call_alone(message)
    return await result if isinstance(result, Awaitable) else result


async def _called_in_thread(calls: Calls, message: ReceivedMessage) -> Any:
    """Call a plain function, in a thread that does not keep the process alive if it hangs."""
    result = await in_thread("pymq direct", calls.call_alone, message)
    return await result if isinstance(result, Awaitable) else result
