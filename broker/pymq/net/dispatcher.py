"""Takes requests to their handlers and every answer back: the only way through a server.

A request passes, in this order: the guard (may its sender do this at all?), its handler, the
translation of errors into responses, the connection, the observer (what was answered, and how
fast). A handler has three ways to answer:

* it returns a response: the fast path;
* it is a coroutine function: it may wait for a disk or a peer, in a task of its own;
* it keeps the request and returns None: whoever gets the answer later calls ``Request.respond``,
  or ``Request.resume`` with the work that is left to do.

Source: RocketMQ NettyRemotingAbstract.processRequestCommand, RequestTask.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from inspect import CORO_CREATED, getcoroutinestate
from time import monotonic, perf_counter
from typing import Any, Generic, TypeAlias, TypeVar

from pymq.errors import BrokerError, ProtocolError, PymqError, refusal
from pymq.net.admission import Admission
from pymq.net.observer import Observer
from pymq.net.server import ServerConnection
from pymq.net.tasks import Tasks, waiting_code
from pymq.protocol.codes import CommandFlag, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.framing import Incoming, commands_of
from pymq.protocol.plain_runs import PlainRun

_log = logging.getLogger(__name__)

_ONE_WAY, _RESPONSE = int(CommandFlag.ONE_WAY), int(CommandFlag.RESPONSE)
#: Most requests whose handlers wait at the same time.
WAITING_COUNT_MAX = 10_000
TURN_S = 0.02  # when the first requests of a turn took longer, the others wait for the next one
#: Requests that waited less to be handled are not late for anything.
LATE_S = 0.1
_DRAIN_LOOK_S = 0.005
#: Of an unforeseen error's message in a remark.
_REMARK_CHARACTERS_MAX = 1000


@dataclass(slots=True)
class PartedResponse:
    """A response whose body is in pieces, which are sent without being copied.

    The pieces must stay valid until they are written.
    """

    head: Command
    parts: Sequence[memoryview]


Response: TypeAlias = Command | PartedResponse
#: What a handler returns: the response, a coroutine to wait for, or None: it comes later.
Answer: TypeAlias = Response | Coroutine[Any, Any, Response | None] | None


class Request:
    """One request of one connection, and the means to answer it."""

    __slots__ = ("_begun_s", "_dispatcher", "command", "connection")

    def __init__(
        self,
        dispatcher: "Dispatcher",
        connection: ServerConnection,
        command: Command,
        begun_s: float,
    ) -> None:
        self._dispatcher = dispatcher
        self.connection = connection
        self.command = command
        self._begun_s = begun_s

    @property
    def fields(self) -> dict[str, str] | None:
        """The fields of its header."""
        return self.command.fields

    @property
    def body(self) -> bytes | memoryview:
        """Its body."""
        return self.command.body

    def response(
        self,
        code: int,
        remark: str | None = None,
        fields: dict[str, str] | None = None,
        body: bytes | memoryview = b"",
    ) -> Command:
        """Return a response to it, still to be sent."""
        return self.command.reply(code, remark, fields, body)

    def respond(self, response: Response) -> None:
        """Answer, unless the request is one-way."""
        command = self.command
        if isinstance(response, PartedResponse):
            head, parts = response.head, response.parts
            self.connection.respond(command, head, parts)
        else:
            head = response
            self.connection.respond(command, head)
        self._finished(head.code)

    def respond_encoded(self, code: int, frame: bytes) -> None:
        """Answer with a frame that the caller encoded.

        Args:
            code: the response code in it.
            frame: the whole frame.
        """
        command = self.command
        if not command.flag & _ONE_WAY:
            self.connection.send(frame)
        observer = self._dispatcher.observer  # as in _finished: once for every message sent
        if observer is not None:
            observer.finished(command.code, code, perf_counter() - self._begun_s)

    def resume(self, work: Callable[[], Answer]) -> None:
        """Continue a held request: what ``work`` returns or raises is its answer.

        Its time is measured from now on, because it was held on purpose.
        """
        self._begun_s = perf_counter()
        self._dispatcher.run(self, work)

    def abandon(self) -> None:
        """Give up a request: its sender has disconnected, or would misread the answer."""
        self._finished(None)

    def _finished(self, response_code: int | None) -> None:
        observer = self._dispatcher.observer
        if observer is not None:
            elapsed_s = perf_counter() - self._begun_s
            observer.finished(self.command.code, response_code, elapsed_s)


_Plain = TypeVar("_Plain", bound=PlainRun)


class RequestRun(Generic[_Plain]):
    """A run of plain requests of one connection, which are handled and answered as one."""

    __slots__ = ("_begun_s", "_dispatcher", "connection", "plain")

    def __init__(
        self,
        dispatcher: "Dispatcher",
        connection: ServerConnection,
        plain: _Plain,
        begun_s: float,
    ) -> None:
        self._dispatcher = dispatcher
        self.connection = connection
        self.plain = plain
        self._begun_s = begun_s

    def respond_encoded(self, code: int, frames: bytes) -> None:
        """Answer all of them with frames that the caller encoded.

        Args:
            code: the response code in each.
            frames: the responses, in order; none if the requests are one-way.
        """
        if frames:
            self.connection.send(frames)
        observer = self._dispatcher.observer
        if observer is not None:
            elapsed_s = perf_counter() - self._begun_s
            observer.finished(self.plain.code, code, elapsed_s, len(self.plain))

    def requests(self) -> list[Request]:
        """Return them one by one, to be answered so."""
        return [
            Request(self._dispatcher, self.connection, command, self._begun_s)
            for command in commands_of(self.plain)
        ]


#: Handles a request; refuses it by raising a BrokerError (``errors.refusal``), whose code and
#: remark become the response.
Handler: TypeAlias = Callable[[Request], Answer]
#: Handles a run of plain requests; False, and nothing happened, if something about them asks for a
#: closer look at each.
RunHandler: TypeAlias = Callable[[RequestRun[Any]], bool]
#: Checks a request before its handler gets it; refuses it as a handler does.
Guard: TypeAlias = Callable[[Request], None]


class Dispatcher:
    """Hands the commands of every connection to their handlers.

    Whatever goes wrong, the connection stays open and a request that expects an answer gets one,
    but for refusals that its sender would misread.

    Args:
        owner: whose requests these are, for logs.
        tables: request code to handler. A code given twice is a bug.
        guard: access control; None lets everybody do everything.
        observer: told of every request.
        admission: refuses requests while there are too many.
        run_handlers: request code to handler of runs. With a guard each request is handled by
            itself.
        waiting_count_max: most handlers that may wait at the same time; beyond it requests that
            would have to wait are refused with SYSTEM_BUSY.
        is_misread: returns whether the sender of a request misreads a refusal, given its code.
    """

    def __init__(
        self,
        owner: str,
        *tables: Mapping[int, Handler],
        guard: Guard | None = None,
        observer: Observer | None = None,
        admission: Admission | None = None,
        run_handlers: Mapping[int, RunHandler] | None = None,
        waiting_count_max: int = WAITING_COUNT_MAX,
        is_misread: Callable[[Command, int], bool] = lambda command, code: False,
    ) -> None:
        self._is_misread = is_misread
        self._handlers: dict[int, Handler] = {}
        for table in tables:
            twice = self._handlers.keys() & table.keys()
            assert not twice, f"{owner}: requests {sorted(twice)} have two handlers"
            self._handlers.update(table)
        self._guard = guard
        self._admission = admission
        self._run_handlers = (run_handlers or {}) if guard is None else {}
        self.observer = observer
        self._tasks = Tasks(f"{owner}: requests")
        self._waiting_count_max = waiting_count_max
        #: Requests whose handlers wait, and those.
        self._waiting: dict[Request, Coroutine[Any, Any, Response | None]] = {}
        self._is_closed = False

    def on_commands(self, connection: ServerConnection, commands: Sequence[Incoming]) -> None:
        """Handle commands that arrived together, in order; after ``TURN_S`` in another turn."""
        handlers, guard, admission = self._handlers, self._guard, self._admission
        begun_s = perf_counter()
        if admission is not None:
            waited_s = monotonic() - connection.input_at
            if waited_s > LATE_S or admission.is_strained:
                commands = self._admitted(connection, commands, admission, waited_s)
        for number, command in enumerate(commands):
            is_long = number and perf_counter() - begun_s > TURN_S
            if is_long and connection.postpone(commands[number:]):
                return
            if not isinstance(command, Command):
                self._on_run(connection, command, begun_s)
                continue
            if command.flag & _RESPONSE:
                connection.answered(command)  # to a request of ours
                continue
            request = Request(self, connection, command, begun_s)
            try:
                handler = handlers.get(command.code)
                if handler is None or self._is_closed:
                    raise self._refusal(command)
                if guard is not None:
                    guard(request)
                answer = handler(request)
            except Exception as error:
                self._refuse(request, error)
                continue
            if answer is not None:
                self._answer(request, answer)

    def _admitted(
        self,
        connection: ServerConnection,
        commands: Sequence[Incoming],
        admission: Admission,
        waited_s: float,
    ) -> Sequence[Incoming]:
        """Refuse some of the commands; return the others."""
        admitted: list[Incoming] = []
        singles = [
            one
            for incoming in commands
            for one in ((incoming,) if isinstance(incoming, Command) else commands_of(incoming))
        ]
        begun_s = perf_counter()
        for number, command in enumerate(singles, 1):
            if not command.flag & _RESPONSE:
                try:
                    admission.check(command.code, waited_s, len(singles) - number)
                except BrokerError as error:
                    request = Request(self, connection, command, begun_s)
                    self._refuse(request, error)
                    continue
            admitted.append(command)
        return admitted

    def _on_run(self, connection: ServerConnection, plain: PlainRun, begun_s: float) -> None:
        handler = self._run_handlers.get(plain.code)
        if handler is not None and not self._is_closed:
            run = RequestRun(self, connection, plain, begun_s)
            try:
                if handler(run):
                    return
            except Exception as error:
                for request in run.requests():
                    self._refuse(request, error)
                return
        self.on_commands(connection, commands_of(plain))

    def run(self, request: Request, work: Callable[[], Answer]) -> None:
        """Answer a request with what ``work`` returns or raises."""
        try:
            answer = work()
        except Exception as error:
            self._refuse(request, error)
        else:
            self._answer(request, answer)

    def _refuse(self, request: Request, error: Exception) -> None:
        """Answer a request that failed."""
        response = _error_response(request, error)
        if self._is_misread(request.command, response.code):
            request.abandon()
        else:
            request.respond(response)

    def _refusal(self, command: Command) -> BrokerError:
        if self._is_closed:
            return refusal(ResponseCode.SERVICE_NOT_AVAILABLE, "shutting down; try again later")
        return refusal(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {command.code} not supported",
        )

    def _answer(self, request: Request, answer: Answer) -> None:
        if isinstance(answer, (Command, PartedResponse)):
            request.respond(answer)
        elif answer is not None:
            try:
                self._begin_wait(request.command.code)
            except BrokerError as error:
                answer.close()
                self._refuse(request, error)
                return
            self._waiting[request] = answer
            self._tasks.start(f"request {request.command.code}", self._wait(request, answer))

    def _begin_wait(self, code: int) -> None:
        if len(self._waiting) >= self._waiting_count_max:
            busy = f"{len(self._waiting)} requests wait here, as many as may; ask again later"
            raise refusal(ResponseCode.SYSTEM_BUSY, busy)
        if self._admission is not None:
            self._admission.begin_wait(code)

    async def _wait(self, request: Request, answer: Coroutine[Any, Any, Response | None]) -> None:
        done: Response | Exception | None
        waiting_code.set(request.command.code)  # for this task alone
        try:
            done = await answer
        except Exception as error:
            done = error
        finally:
            if self._admission is not None:
                self._admission.end_wait(request.command.code)
        del self._waiting[request]
        if isinstance(done, Exception):
            self._refuse(request, done)
        elif done is not None:
            request.respond(done)

    async def close(self, *, drain_s: float = 0.0) -> None:
        """Refuse further requests, give handlers that wait so long, cancel the rest; idempotent."""
        deadline_s = monotonic() + drain_s
        while self._waiting and monotonic() < deadline_s:
            await asyncio.sleep(_DRAIN_LOOK_S)
        self._is_closed = True
        begun = [one for one in self._waiting.values() if getcoroutinestate(one) != CORO_CREATED]
        await self._tasks.close()
        waiting, self._waiting = self._waiting, {}
        for request, answer in waiting.items():
            answer.close()
            done = "it may have been done, or not" if answer in begun else "try again later"
            error = refusal(ResponseCode.SERVICE_NOT_AVAILABLE, f"shutting down; {done}")
            self._refuse(request, error)


def _error_response(request: Request, error: Exception) -> Command:
    """Return the response to a failed request; log what is not the sender's fault."""
    command = request.command
    if isinstance(error, BrokerError):
        return command.reply(error.code, error.remark or str(error), error.fields)
    if isinstance(error, PymqError):
        if not isinstance(error, ProtocolError):
            _log.error("request %d of %s failed: %s", command.code, request.connection.peer, error)
        return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
    _log.error("request %d of %s failed", command.code, request.connection.peer, exc_info=error)
    remark = f"{type(error).__name__}: {error}"[:_REMARK_CHARACTERS_MAX]
    return command.reply(ResponseCode.SYSTEM_ERROR, remark)
