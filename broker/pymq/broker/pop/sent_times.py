"""How late requests are read, by what their senders say of when they were sent.

A broker that stood still reads requests afterwards that their clients have given up long ago.
Clocks of clients may be wrong by any amount, so what counts is how much later a request is read, by
its own time, than the last one in time of the same client. (Where the host was suspended the clock
here stood still, too, and nothing is noticed.)
"""

import weakref
from dataclasses import dataclass

from pymq.net.server import ServerConnection

#: Smaller differences are the delay of the network, or clocks that drift.
SLACK_MS = 1000.0
#: Hosts that are remembered; beyond that all are learned again.
_HOSTS_MAX = 4096
#: The port at the end of a packed address.
_PORT_BYTES = 4


@dataclass(slots=True)
class _Client:
    """What is known of a connection, or a host: differences of our clock and its own, in ms.

    Attributes:
        in_time_offset_ms: of its last request that was in time; None: there was none.
        late_offset_ms: of its last request, if that was late; of a host, of the last one that was
            late and the first over its connection.
        late_at: when that was read.
    """

    in_time_offset_ms: float | None = None
    late_offset_ms: float | None = None
    late_at: float = 0.0


class SentTimes:
    """Tells how late requests are read."""

    def __init__(self) -> None:
        self._clients: weakref.WeakKeyDictionary[ServerConnection, _Client] = (
            weakref.WeakKeyDictionary()
        )
        #: The same of hosts: a client that gets no answer comes back over another connection.
        self._hosts: dict[bytes, _Client] = {}

    def late_ms(self, connection: ServerConnection, sent_ms: int) -> float:
        """Return for how long what is being handled has waited to be read; 0: not noticeably.

        The first request of a host has not. After a clock was set back one request of each
        connection seems to have, and none after it. Many clients may come from one address, each
        with its own clock: of one that connects for each request, the first one seems to have.

        Args:
            connection: over which it came.
            sent_ms: when it was sent, by the clock of its sender.
        """
        client = self._clients.get(connection)
        if client is None:
            client = self._clients[connection] = _Client()
        address = connection.packed_host[:-_PORT_BYTES]
        host = self._hosts.get(address)
        if host is None:
            if len(self._hosts) >= _HOSTS_MAX:
                self._hosts.clear()
            host = self._hosts[address] = _Client()
        read_at = connection.input_at
        found_ms = read_at * 1000 - sent_ms
        # What waited together is read at nearly one time, over however many connections.
        is_first = client.in_time_offset_ms is None
        known, pause_s = (host, SLACK_MS / 1000) if is_first else (client, 0.0)
        known_ms = known.in_time_offset_ms
        if known_ms is not None and found_ms - known_ms > SLACK_MS:
            is_clock = any(
                one.late_offset_ms is not None
                and read_at > one.late_at + least_s
                and found_ms > one.late_offset_ms - SLACK_MS
                for one, least_s in ((client, 0.0), (known, pause_s))
            )
            client.late_offset_ms, client.late_at = found_ms, read_at
            if known is host:
                host.late_offset_ms, host.late_at = found_ms, read_at
            if not is_clock:
                return found_ms - known_ms
        client.in_time_offset_ms, client.late_offset_ms = found_ms, None
        host.in_time_offset_ms = found_ms
        return 0.0
