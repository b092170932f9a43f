"""One end of a connection that asks the other: answers in any order, each request with a deadline.

Both ends ask. A client does all the time, a broker now and then: it asks its clients over the
connections that they opened. The numbers (``opaque``) of either end have nothing to do with those
of the other.

A single request has neither a task nor a timer of its own. One timer per connection watches the
earliest deadline, which keeps a hundred thousand requests a second affordable.

A request may be given more time while the peer is busy with what was sent before it. Otherwise much
that is sent over a slow link would be sent again and again, behind itself. A peer that has all and
answers slowly is not waited for as long: another one may be quicker.
"""

import asyncio
import functools
from collections.abc import Callable
from typing import TypeAlias

from pymq.errors import ConnectionFailed, PymqError, RequestTimeout
from pymq.net.buffers import BufferPool
from pymq.net.progress import Progress
from pymq.net.wire import Wire
from pymq.protocol.codes import MAY_BE_DONE, CommandFlag, consequence_of, request_name
from pymq.protocol.command import Command
from pymq.protocol.connection import PENDING_MAX, RequestTable
from pymq.protocol.framing import FRAME_BYTES_MAX, encode_parts
from pymq.protocol.plain_runs import PlainRunReader

#: Precision of deadlines, and that of a connection on which much is late.
SWEEP_S, LATE_SWEEP_S = 0.05, 0.25
#: After this it is looked again whether a peer is slow or silent.
EXTENSION_S = 1.0
#: How many times its usual wait a request has from when nothing much waits to leave any more (so
#: the peer has it, perhaps for long), and the peer does not come to it.
ANSWERING_FACTOR = 3
_ONE_WAY = int(CommandFlag.ONE_WAY)

#: Called once, with the response or with the reason why there is none; must not raise.
OnAnswer = Callable[[Command | PymqError], None]


#: What is kept of a request: on_answer, description, when it was asked, timeout_s, consequence,
#: until_s.
_Asked: TypeAlias = tuple[OnAnswer, str, float, float, str, float]


class AskingWire(Wire):
    """A connection over which we may ask.

    Args:
        buffers: where large frames are received.
        pending_max: most requests in flight at a time.
        frame_bytes_max: largest frame accepted.
        plain_runs: recognizes runs of requests, if there may be any.

    Attributes:
        late_until_s: until then, on the loop's clock, requests are known to be late, although the
            peer is not silent.
    """

    def __init__(
        self,
        buffers: BufferPool,
        *,
        pending_max: int = PENDING_MAX,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        plain_runs: PlainRunReader | None = None,
    ) -> None:
        super().__init__(buffers, frame_bytes_max=frame_bytes_max, plain_runs=plain_runs)
        self._table: RequestTable[_Asked] = RequestTable(pending_max=pending_max)
        self._sweep: asyncio.TimerHandle | None = None
        #: The deadline that the sweep is for; it comes a little later.
        self._swept_s = 0.0
        self._progress = Progress()
        self.late_until_s = 0.0
        self._writers: list[asyncio.Future[None]] = []

    # --- requests

    @property
    def pending_count(self) -> int:
        """Requests in flight."""
        return len(self._table)

    def register(
        self,
        description: str,
        timeout_s: float,
        on_answer: OnAnswer,
        *,
        consequence: str = MAY_BE_DONE,
        until_s: float = 0.0,
    ) -> int:
        """Return the ``opaque`` for a request that the caller then sends itself, at once.

        Args:
            description: of the request, for error messages.
            timeout_s: how long to wait for the answer from a peer that does nothing meanwhile.
            on_answer: called once, from the event loop, with the response or the error.
            consequence: what the error says besides when there is no response.
            until_s: until when to wait, on the loop's clock, while the peer takes what waits to
                leave; once nothing much waits any more, ``ANSWERING_FACTOR * timeout_s`` at most,
                while it answers what was asked before.

        Raises:
            ConnectionFailed: the connection is closed; nothing was sent.
            TooManyPending: ``pending_max`` requests are unanswered.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            self.check_open()
        now_s = self._loop.time()
        deadline_s = now_s + timeout_s
        asked = (on_answer, description, now_s, timeout_s, consequence, until_s)
        opaque = self._table.register(deadline_s, asked)
        if self._sweep is None or deadline_s < self._swept_s:
            self._schedule_sweep()
        return opaque

    def forget(self, opaque: int) -> None:
        """Give up a registered request; its ``on_answer`` is not called."""
        self._table.forget(opaque)

    def request_nowait(
        self, command: Command, timeout_s: float, *, description: str | None = None
    ) -> asyncio.Future[Command]:
        """Send a request; the future gets the response, whatever its code.

        It fails with RequestTimeout, or with ConnectionFailed when the connection is lost;
        in both cases the request may have taken effect.

        Args:
            command: its ``opaque`` is set here.
            timeout_s: how long to wait for the answer.
            description: of the request, for error messages.

        Raises:
            ConnectionFailed: the connection is closed; nothing was sent.
            LocalProtocolError: the command cannot be encoded.
            TooManyPending: ``pending_max`` requests are unanswered.
        """
        future: asyncio.Future[Command] = self._loop.create_future()

        def on_answer(answer: Command | PymqError) -> None:
            if future.done():
                return
            if isinstance(answer, Command):
                future.set_result(answer)
            else:
                future.set_exception(answer)

        description = description or f"request {request_name(command.code)}"
        consequence = consequence_of(command.code)
        command.opaque = self.register(description, timeout_s, on_answer, consequence=consequence)
        try:
            self._send_command(command)
        except BaseException:
            self.forget(command.opaque)
            raise
        return future

    async def request(
        self, command: Command, timeout_s: float, *, description: str | None = None
    ) -> Command:
        """Send a request and return its response, whatever its code.

        Raises:
            ConnectionFailed: the connection is closed or was lost.
            LocalProtocolError: the command cannot be encoded.
            RequestTimeout: no answer within ``timeout_s``.
            TooManyPending: ``pending_max`` requests are unanswered.
        """
        return await self.request_nowait(command, timeout_s, description=description)

    def send_one_way(self, command: Command) -> None:
        """Send a request that is never answered; if the connection is lost, so is it, silently.

        Raises:
            ConnectionFailed: the connection is closed; nothing was sent.
            LocalProtocolError: the command cannot be encoded.
        """
        self.check_open()
        command.flag |= _ONE_WAY
        self._send_command(command)

    def _send_command(self, command: Command) -> None:
        head, body = encode_parts(command, frame_bytes_max=self._decoder.frame_bytes_max)
        if body:
            self.send(head, body)
        else:
            self.send(head)

    # --- back-pressure

    def is_taking(self, within_s: float) -> bool:
        """Return whether much waits to leave, and the peer took some of it a moment ago."""
        self._look(self._loop.time())
        return self._progress.is_taking(within_s)

    def _look(self, now_s: float) -> None:
        if self._transport is not None:
            self._progress.look(self._transport, self._written_bytes, now_s)

    def resume_writing(self) -> None:
        """Called by asyncio."""
        super().resume_writing()
        self._wake_writers()

    async def wait_writable(self) -> None:
        """Wait until the peer has read most of what was sent, or is gone."""
        while self._paused and self.is_open:
            future: asyncio.Future[None] = self._loop.create_future()
            self._writers.append(future)
            await future

    def _wake_writers(self) -> None:
        writers, self._writers = self._writers, []
        for future in writers:
            if not future.done():
                future.set_result(None)

    # --- answers

    def answered(self, response: Command) -> None:
        """Hand a response to whoever waits for it; a late or unknown one is dropped."""
        token = self._table.resolve(response)
        if token is not None:
            self._progress.answered(response.opaque)
            token[0](response)

    def connection_ended(self, error: Exception | None) -> None:
        """Fail the requests in flight."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        reason = f": {error}" if error else ""
        for on_answer, description, _, _, consequence, _ in self._table.fail_all():
            on_answer(
                ConnectionFailed(
                    f"connection to {self.peer} was lost before {description} was answered"
                    f"{reason}{consequence}",
                    sent=True,
                )
            )
        self._wake_writers()

    # --- deadlines

    def _schedule_sweep(self) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        now_s = self._loop.time()
        self._look(now_s)  # What was taken long ago is not news when something is late.
        pause_s = LATE_SWEEP_S if now_s < self.late_until_s else SWEEP_S
        self._swept_s = max(self._table.earliest_s, now_s)
        self._sweep = self._loop.call_at(self._swept_s + pause_s, self._expire)

    def _expire(self) -> None:
        self._sweep = None
        now_s = self._loop.time()
        expired = self._table.expired(now_s, functools.partial(self._extended_s, now_s))
        for on_answer, description, asked_s, timeout_s, consequence, _ in expired:
            waited_s = max(timeout_s, round(now_s - asked_s))
            on_answer(
                RequestTimeout(
                    f"{self.peer} did not answer {description} within {waited_s:g} s{consequence}"
                )
            )
        if len(self._table) and self._sweep is None:
            self._schedule_sweep()

    def _extended_s(self, now_s: float, opaque: int, asked: _Asked) -> float:
        """Return until when to wait on for the answer to a request that is late."""
        _, _, asked_s, timeout_s, _, until_s = asked
        if now_s >= until_s:
            return now_s
        self._look(now_s)
        if not self._progress.is_taking(timeout_s):
            if now_s - self.read_at >= timeout_s or not self._progress.is_behind(opaque):
                return now_s
            left_s = max(asked_s, self._progress.waited_s)
            until_s = min(until_s, left_s + ANSWERING_FACTOR * timeout_s)
            if now_s >= until_s:
                return now_s
        self.late_until_s = now_s + EXTENSION_S + LATE_SWEEP_S
        return min(now_s + EXTENSION_S, until_s)
