"""Sends random requests to a server in this process and watches what they do to it.

What must hold: every request that wants an answer gets one, on a connection that stays open; no
answer shows the inside of the server; no turn of its event loop takes long; its memory stays as it
is. Exceptions that nobody foresaw are logged with a traceback, and fail every test.
"""

import asyncio
import faulthandler
import re
import resource
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

from tests.cluster.fuzz_requests import HELD

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol.command import Command
from pymq.protocol.framing import FrameDecoder, encode_frame

#: Requests that are unanswered at the same time, and sent at once.
WINDOW: Final = 256
#: How long the last answers may take: some wait for clients that do not answer.
ANSWER_S: Final = 120.0
#: Most processor time that one turn of the loop may take: ten times what the longest one does, as
#: processors that others share are several times slower at times.
TURN_S: Final = 3.0
#: Names of what Python raises, in remarks.
_INSIDES: Final = re.compile(
    r"\b(?!Remote|Local)\w*(?:Error|Exception)\b:|Traceback|object has no attribute"
    r"|not subscriptable|unsupported operand|NoneType|list index|KeyError|struct\."
)


class LoopThread:
    """An event loop in a thread, and the longest time that one of its turns took."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.longest_turn_s = 0.0
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._watch: asyncio.Task[None] | None = None
        self.run(self._start())

    async def _start(self) -> None:
        self._watch = asyncio.create_task(self._watch_turns())

    async def _watch_turns(self) -> None:
        while True:
            # Processor time of the loop's thread: a busy machine must not fail the test.
            before_s = time.thread_time()
            await asyncio.sleep(0.01)
            self.longest_turn_s = max(self.longest_turn_s, time.thread_time() - before_s)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(ANSWER_S)

    async def _end(self) -> None:
        assert self._watch is not None
        self._watch.cancel()
        await asyncio.wait([self._watch])

    def stop(self) -> None:
        self.run(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(ANSWER_S)
        self.loop.close()


class Sender:
    """One connection that sends random requests and reads the answers.

    Attributes:
        open: requests without an answer, by number.
        codes: how often each request got each response code.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=ANSWER_S)
        self._decoder = FrameDecoder()
        self._left = b""
        self.open: dict[int, Command] = {}
        self.codes: Counter[tuple[int, int]] = Counter()

    @property
    def unanswered(self) -> list[Command]:
        """Requests that want an answer and have none, but for those that may be held."""
        return [one for one in self.open.values() if one.code not in HELD]

    def put(self, requests: Iterable[Command]) -> None:
        """Begin to send requests."""
        for request in requests:
            try:
                self._left += encode_frame(request)
            except LocalProtocolError:
                continue  # half a surrogate pair cannot be sent
            if not request.is_one_way:
                self.open[request.opaque] = request

    @property
    def is_sending(self) -> bool:
        return bool(self._left)

    def write(self) -> None:
        """Send what the socket takes."""
        self._left = self._left[self.socket.send(self._left) :]

    def read(self) -> None:
        """Take the answers that are there, and answer what is asked."""
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionError:
            data = b""
        assert data, f"the connection was closed on one of {request_text(self.unanswered)}"
        for command in self._decoder.feed(data):
            assert isinstance(command, Command)
            if command.is_response:
                self._take(command)
            elif not command.is_one_way:
                self._left += encode_frame(command.reply(1, "no"))

    def _take(self, response: Command) -> None:
        request = self.open.pop(response.opaque, None)
        assert request is not None, f"nobody asked for {response!r:.300}"
        self.codes[request.code, response.code] += 1
        found = _INSIDES.search(response.remark or "")
        assert found is None, f"{request!r:.2000} was answered {response.remark!r}"


def exchange(senders: Sequence[Sender], *, until: int) -> None:
    """Send and read until each has sent all and has at most ``until`` requests unanswered.

    Raises:
        AssertionError: an answer did not come, or was wrong; or a connection was closed.
    """
    deadline = time.monotonic() + ANSWER_S
    while busy := [one for one in senders if one.is_sending or len(one.unanswered) > until]:
        left = [request for one in busy for request in one.unanswered]
        if time.monotonic() > deadline:
            faulthandler.dump_traceback()  # who holds them up
            raise AssertionError(f"no answer to {request_text(left)}")
        sending = {one for one in busy if one.is_sending}
        with selectors.DefaultSelector() as selector:
            for one in senders:
                writes = selectors.EVENT_WRITE if one in sending else 0
                selector.register(one.socket, selectors.EVENT_READ | writes, one)
            ready = selector.select(1.0)
        for key, events in ready:
            if events & selectors.EVENT_READ:
                key.data.read()
            if events & selectors.EVENT_WRITE:
                key.data.write()


def request_text(requests: Sequence[Command]) -> str:
    return f"{len(requests)} requests:\n" + "\n".join(f"{one!r:.600}" for one in requests[:20])


def send_torn(address: str, data: bytes) -> None:
    """Send bytes that may be anything, on a connection of their own, and read to its end.

    Raises:
        AssertionError: the connection does not end.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=ANSWER_S) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            decoder = FrameDecoder()
            while received := connection.recv(1 << 16):
                decoder.feed(received)
        except ConnectionError:
            pass  # the server had enough of it
        except RemoteProtocolError as error:
            raise AssertionError(f"the answer to {data!r:.500} is no frame: {error}") from error


def resident_bytes() -> int:
    """Return how much memory this process has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def fuzz(
    address: str,
    make: Callable[[int], Command],
    *,
    count: int,
    connections: int = 4,
) -> Counter[tuple[int, int]]:
    """Send ``count`` requests over several connections; return what was answered, how often."""
    senders = [Sender(address) for _ in range(connections)]
    opaque = 0
    try:
        while opaque < count:
            for sender in senders:
                sender.put(make(opaque + number) for number in range(WINDOW // 4))
                opaque += WINDOW // 4
            exchange(senders, until=WINDOW)
        exchange(senders, until=0)
        return sum((sender.codes for sender in senders), Counter())
    finally:
        for sender in senders:
            sender.socket.close()
