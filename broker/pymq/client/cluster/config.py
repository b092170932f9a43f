"""How a client finds its cluster, and its limits of time and size."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pymq.client.checks import check_count, check_seconds
from pymq.client.cluster.name_server_lookup import is_lookup
from pymq.client.cluster.network import PLAIN, Network
from pymq.client.operations import BODY_BYTES_MAX, DEFAULT_QUEUE_COUNT
from pymq.errors import ConfigurationError
from pymq.protocol.addresses import split_address
from pymq.protocol.compression import COMPRESS_BYTES_MIN, LEVEL_DEFAULT, Compression
from pymq.protocol.framing import FRAME_BYTES_MAX
from pymq.protocol.names import DEFAULT_PRODUCER_GROUP, check_group

_SEPARATOR = re.compile(r"[;,\s]+")

#: Who has not taken a connection by then is away, however long an answer may take.
CONNECT_TIMEOUT_S = 3.0


#: Name servers of programs that were given none, as for official clients.
NAME_SERVER_VARIABLE = "NAMESRV_ADDR"
# Official clients take what follows for an address, unless there is a path.
_ENDPOINT = re.compile(r"https?://([^/?#]+)/*", re.IGNORECASE)


def parse_name_servers(text: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the addresses in one string or several, separated by ``;`` or ``,``.

    Args:
        text: ``host:port`` of each; or the URL at which they are looked up,
            ``http://host:port/path``, alone; ``None``: what the environment variable
            ``NAMESRV_ADDR`` says.

    Raises:
        ConfigurationError: there is none, or one is not ``host:port``.
    """
    if text is None:
        text = os.environ.get(NAME_SERVER_VARIABLE, "")
        if not text.strip():
            raise ConfigurationError(
                "no name servers: give host:port of one or more, such as '127.0.0.1:9876', or set "
                f"{NAME_SERVER_VARIABLE} in the environment"
            )
    parts = [text] if isinstance(text, str) else text
    if not isinstance(parts, Sequence) or not all(isinstance(part, str) for part in parts):
        raise ConfigurationError(
            f"name servers {text!r:.200}: expected a str such as '127.0.0.1:9876', or several"
        )
    found = [address for part in parts for address in _SEPARATOR.split(part.strip()) if address]
    if not found:
        raise ConfigurationError(
            f"name servers {text!r}: expected one or more host:port, separated by ';' or ','"
        )
    if len(found) == 1 and is_lookup(found[0]):
        return (found[0],)
    found = [
        endpoint[1] if (endpoint := _ENDPOINT.fullmatch(address)) else address for address in found
    ]
    for address in found:
        split_address(address)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """What all clients share; fixed for a client's lifetime.

    Attributes:
        name_servers: ``host:port`` of each; they know nothing of each other. Or the URL at which
            they are looked up.
        network: where brokers are reached, and who we say we are.
        producer_group: the group sends are made in.
        timeout_s: for the answer to one request, from a peer that does nothing meanwhile. While it
            takes a large request, or a large answer comes in, that may take many times as long.
        connect_timeout_s: for a connection to be made; ``None``: ``timeout_s``, but at most
            ``CONNECT_TIMEOUT_S``.
        read_deadline_s: reads are tried again until this has passed without any progress.
        send_retries: how often a failed send of ``BlockingClient`` is tried again on another
            queue; ``Producer`` has ``retries``. A failure whose outcome is unknown may have stored
            the message: then it is there twice, with the same message id.
        route_age_s: routes older than this are asked for again (pollNameServerInterval).
        awaits_routes: all topics that will be used are known to exist. One without a route is
            then taken for one whose brokers are away for the moment: reads and batches are tried
            again as after other failures, and no topic is created. Otherwise it is taken for a
            mistake, and the error raised at once. Only ``BlockingClient`` looks at it.
        default_queue_count: most queues of a topic that a send creates.
        body_bytes_max: largest body, and largest batch.
        compression, compress_bytes_min, compress_level: which bodies are compressed, and how;
            ``compress_bytes_min=None``: none.
        frame_bytes_max: largest frame sent or taken.
    """

    name_servers: tuple[str, ...]
    producer_group: str = DEFAULT_PRODUCER_GROUP
    timeout_s: float = 3.0
    connect_timeout_s: float | None = None
    read_deadline_s: float = 15.0
    send_retries: int = 2
    route_age_s: float = 30.0
    awaits_routes: bool = False
    default_queue_count: int = DEFAULT_QUEUE_COUNT
    body_bytes_max: int = BODY_BYTES_MAX
    compression: Compression = Compression.ZLIB
    compress_bytes_min: int | None = COMPRESS_BYTES_MIN
    compress_level: int = LEVEL_DEFAULT
    frame_bytes_max: int = FRAME_BYTES_MAX
    network: Network = PLAIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "name_servers", parse_name_servers(self.name_servers))
        check_group(self.producer_group)
        check_network(self.network)
        for name in ("timeout_s", "read_deadline_s", "route_age_s"):
            check_seconds(name, getattr(self, name))
        if self.connect_timeout_s is not None:
            check_seconds("connect_timeout_s", self.connect_timeout_s)
        check_count("send_retries", self.send_retries, 0, 100)
        check_count("default_queue_count", self.default_queue_count, 1)
        if not isinstance(self.compression, Compression):
            names = ", ".join(f"Compression.{member.name}" for member in Compression)
            raise ConfigurationError(
                f"compression={self.compression!r:.80}: expected one of {names}"
            )
        if self.compress_bytes_min is not None:
            check_count("compress_bytes_min", self.compress_bytes_min, 0)
        check_count("compress_level", self.compress_level, 1, 9)
        check_count("frame_bytes_max", self.frame_bytes_max, 1)
        check_count("body_bytes_max", self.body_bytes_max, 1)
        if self.body_bytes_max >= self.frame_bytes_max:
            raise ConfigurationError(
                f"body_bytes_max={self.body_bytes_max}: expected 1..{self.frame_bytes_max - 1}, "
                "below frame_bytes_max"
            )


def check_network(value: object) -> None:
    """Accept a Network.

    Raises:
        ConfigurationError: it is something else.
    """
    if not isinstance(value, Network):
        raise ConfigurationError(
            f"network={value!r:.80}: expected a pymq.Network, such as "
            "Network(broker_address_map={'172.17.0.3:10911': '127.0.0.1:10911'})"
        )


def connect_s(config: ClientConfig) -> float:
    """Return for how many seconds a connection may be made."""
    if config.connect_timeout_s is not None:
        return config.connect_timeout_s
    return min(config.timeout_s, CONNECT_TIMEOUT_S)
