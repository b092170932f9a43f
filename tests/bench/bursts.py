"""The lightest load that there can be: requests that were encoded before, answers only counted.

It costs the machine a fraction of what a client costs, so that a broker that shares two CPUs with
its load and with others can be busy all the time.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time

from pymq.protocol.addresses import split_address
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame
from pymq.protocol.headers.send import SendRequest

_LENGTH = struct.Struct(">I")
_TIMEOUT_S = 30.0
_OK = (b'"code":0,', b'"code":0}')


class Bursts:
    """Several connections; each sends some single messages at once, again when all are answered.

    Args:
        broker: ``host:port``.
        topic: which must exist, with ``queue_count`` queues.
        size: bytes of a body.
        in_flight: sends unanswered at a time, of all connections.
    """

    def __init__(
        self,
        broker: str,
        topic: str,
        size: int,
        *,
        in_flight: int,
        queue_count: int,
        connection_count: int = 4,
    ) -> None:
        self._each = in_flight // connection_count
        self._burst = b"".join(
            _request(topic, size, number, number % queue_count) for number in range(self._each)
        )
        self._selector = selectors.DefaultSelector()
        address = split_address(broker)
        self._sockets = [socket.create_connection(address) for _ in range(connection_count)]
        for one in self._sockets:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._selector.register(one, selectors.EVENT_READ, _Answers())

    def run(self, seconds: float) -> tuple[int, float]:
        """Send for so long and wait for the answers; return (messages, seconds)."""
        started = time.perf_counter()
        until = started + seconds
        for one in self._sockets:
            one.sendall(self._burst)
        waiting, count = len(self._sockets), 0
        while waiting:
            ready = self._selector.select(_TIMEOUT_S)
            assert ready, f"the broker has not answered for {_TIMEOUT_S:g} s"
            for key, _ in ready:
                one: socket.socket = key.fileobj  # type: ignore[assignment]
                answers: _Answers = key.data
                answers.take(one.recv(1 << 16))
                if answers.count < self._each:
                    continue
                assert answers.count == self._each
                answers.count = 0
                count += self._each
                if time.perf_counter() < until:
                    one.sendall(self._burst)
                else:
                    waiting -= 1
        return count, time.perf_counter() - started

    def close(self) -> None:
        """Close the connections."""
        self._selector.close()
        for one in self._sockets:
            one.close()


class _Answers:
    """Counts the answers on one connection; all must be successes."""

    def __init__(self) -> None:
        self.count = 0
        self._rest = b""

    def take(self, data: bytes) -> None:
        """Count what is complete now."""
        assert data, "the broker has closed the connection"
        data = self._rest + data
        at = 0
        while len(data) - at >= 4:
            size = 4 + _LENGTH.unpack_from(data, at)[0]
            if len(data) - at < size:
                break
            answer = data[at : at + size]
            assert any(text in answer for text in _OK), answer
            self.count += 1
            at += size
        self._rest = data[at:]


def _request(topic: str, size: int, opaque: int, queue_id: int) -> bytes:
    header = SendRequest(
        producer_group="bursts",
        topic=topic,
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=queue_id,
        sys_flag=0,
        born_timestamp=int(time.time() * 1000),
        flag=0,
        properties=f"UNIQ_KEY\x017F000001000012A9F{opaque:015X}\x02WAIT\x01true",
        reconsume_times=0,
        unit_mode=False,
        max_reconsume_times=None,
        batch=False,
    )
    fields = header.to_v2()
    return encode_frame(Command(RequestCode.SEND_MESSAGE_V2, fields, b"x" * size, opaque=opaque))
