"""A server that a test plays itself, on a thread of its own: for clients that block."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from tests.interop.peers import free_port

from pymq.errors import RemoteProtocolError
from pymq.protocol.bodies import BrokerData, MessageQueue, QueueData, TopicRoute
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.framing import FrameDecoder, encode_frame

#: What a server says to a request; ``None``: nothing at all.
Answer = Callable[[Command], Command | None]


def closed_address() -> str:
    """Return an address at which nobody listens."""
    return f"127.0.0.1:{free_port(0)}"


@contextmanager
def unreachable_address() -> Iterator[str]:
    """Yield an address that does not take connections and does not refuse them, either."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):  # fill its queue of connections that nobody accepts
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


class Played:
    """Answers each request as the test says, and remembers it.

    ``stop`` closes the listener and all connections; ``start`` opens the same port again.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Command] = []
        self.accepted = 0
        self._port = free_port(0)
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", self._port))
        self._spawn(self._accept, self._listener)
        return self

    def stop(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the client was quicker
        for thread in self._threads:
            thread.join(60)
        self._threads.clear()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def count(self, code: int) -> int:
        return sum(request.code == code for request in self.requests)

    def _spawn(self, target: Callable[[socket.socket], None], argument: socket.socket) -> None:
        thread = threading.Thread(target=target, args=(argument,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._connections.append(connection)
            self._spawn(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        decoder = FrameDecoder()
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    for request in decoder.feed(data):
                        self.requests.append(request)
                        response = self.answer(request)
                        if response is not None and not request.is_one_way:
                            connection.sendall(encode_frame(response))
            except (OSError, RemoteProtocolError):
                return


def route_to(address: str, queue_count: int = 1, name: str = "broker-a") -> TopicRoute:
    """Return a route to one master."""
    count = {"read_queue_count": queue_count, "write_queue_count": queue_count}
    return TopicRoute(
        queues=[QueueData(broker_name=name, perm=6, **count)],
        brokers=[BrokerData(broker_name=name, addresses={0: address})],
    )


class PlayedNameServer(Played):
    """Knows the routes it is given; ``refusal`` is what it says instead while it is set."""

    def __init__(self, routes: dict[str, TopicRoute] | None = None) -> None:
        super().__init__(self._route)
        self.routes = routes or {}
        self.refusal: int | None = None

    def _route(self, request: Command) -> Command:
        if self.refusal is not None:
            return request.reply(self.refusal, "name server not ready")
        assert request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC
        route = self.routes.get((request.fields or {})["topic"])
        if route is None:
            return request.reply(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
        return request.reply(0, body=route.encode())


class PlayedBroker(Played):
    """Has queues with the offsets ``0..end``, takes sends; silent while ``is_silent``."""

    def __init__(self, end: int = 7) -> None:
        super().__init__(self._answer)
        self.end = end
        self.is_silent = False

    def _answer(self, request: Command) -> Command | None:
        if self.is_silent:
            return None
        fields = request.fields or {}
        if request.code == RequestCode.GET_MIN_OFFSET:
            return request.reply(0, fields={"offset": "0"})
        if request.code == RequestCode.GET_MAX_OFFSET:
            return request.reply(0, fields={"offset": str(self.end)})
        if request.code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            stored = {"msgId": "ID", "queueId": fields["e"], "queueOffset": str(self.end)}
            return request.reply(0, fields=stored)
        return request.reply(0, fields={})


QUEUE = MessageQueue("T", "broker-a", 0)
