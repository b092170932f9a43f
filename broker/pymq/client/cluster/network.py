"""How brokers are reached when not at the addresses that they advertise, and who we say we are."""

import itertools
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pymq.errors import ConfigurationError
from pymq.protocol.addresses import join_address, split_address
from pymq.protocol.namespaces import check_namespace, unwrap, wrap

#: The port of RocketMQ's VIP channel is this much below the broker's.
VIP_PORT_BELOW = 2

_client_numbers = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Where brokers are, seen from here, and the names of this client.

    ::

        # Brokers in containers advertise addresses that only containers can reach.
        network = Network(broker_address_map={"172.17.0.3:10911": "127.0.0.1:10911"})

    Attributes:
        broker_address_map: advertised address -> the one to connect to instead, for containers,
            NAT and tunnels: ``host:port`` to ``host:port``, or a host to a host, whose brokers keep
            their ports. An address with a port counts more.
        vip_channel: send to the port of RocketMQ's VIP channel, which is 2 below the broker's
            (``vipChannelEnabled``); all else goes to the broker's own.
        unit_name: part of the client's id, and of the question at an ``http://`` name-server
            look-up (``unitName``).
        instance_name: part of the client's id instead of process id and time (``instanceName``).
            Members of a group need different ones.
        namespace: in which topics and groups are, so that several tenants of a cluster can use
            the same names (``setNamespace``): ``orders`` of namespace ``shop`` is ``shop%orders``
            to brokers. Names of the system are the same in all. ``BlockingClient`` has none.
        start_deadline_s: how long a client that starts waits for a name server that answers and
            knows a broker, and a producer for its ``check_topics``; ``math.inf``: for ever. 0, the
            default: it fails at once, and needs no broker. ``BlockingClient`` connects when it is
            used, and reads until its ``read_deadline_s``.
    """

    broker_address_map: Mapping[str, str] = field(default_factory=dict)
    vip_channel: bool = False
    unit_name: str | None = None
    instance_name: str | None = None
    namespace: str | None = None
    start_deadline_s: float = 0.0

    def __post_init__(self) -> None:
        pairs = self.broker_address_map
        if not isinstance(pairs, Mapping):
            raise ConfigurationError(
                f"broker_address_map={pairs!r:.200}: expected a dict such as "
                "{'172.17.0.3:10911': '127.0.0.1:10911'}"
            )
        object.__setattr__(
            self, "broker_address_map", dict(_checked_pair(*pair) for pair in pairs.items())
        )
        for name in ("unit_name", "instance_name"):
            value = getattr(self, name)
            if value is not None and not (
                isinstance(value, str) and value and not set(value) & set("@ \t\r\n/?&")
            ):
                raise ConfigurationError(
                    f"{name}={value!r:.80}: expected a name without spaces and any of @ / ? &"
                )
        if self.namespace is not None:
            check_namespace(self.namespace)
        wait_s: object = self.start_deadline_s
        if not isinstance(wait_s, int | float) or isinstance(wait_s, bool) or not wait_s >= 0:
            raise ConfigurationError(
                f"start_deadline_s={wait_s!r:.80}: expected seconds, 0 or more, or math.inf"
            )

    def reached(self, address: str) -> str:
        """Return where to connect to for an address that a broker advertises."""
        pairs = self.broker_address_map
        if not pairs:
            return address
        if (found := pairs.get(address)) is not None:
            return found
        host, port = split_address(address)
        elsewhere = pairs.get(host)
        return address if elsewhere is None else join_address(elsewhere, port)

    def send_address(self, address: str) -> str:
        """Return the advertised address of the port that sends go to."""
        if not self.vip_channel:
            return address
        host, port = split_address(address)
        return join_address(host, port - VIP_PORT_BELOW)

    def wrap(self, name: str) -> str:
        """Return what brokers call a topic or group."""
        return wrap(self.namespace, name) if self.namespace else name

    def unwrap(self, name: str) -> str:
        """Return what a topic or group that brokers call so is called in the namespace."""
        return unwrap(self.namespace, name) if self.namespace else name

    def client_id(
        self, host: str, instance: str | None = None, *, is_renewed: bool = False
    ) -> str:
        """Return who we are to brokers (RocketMQ buildMQClientId).

        Args:
            host: our address.
            instance: what tells this client from others, unless this network has a name for it;
                ``None``: the process and the time.
            is_renewed: a client of the parent process has the name, too.
        """
        unit = "" if self.unit_name is None else f"@{self.unit_name}"
        name = self.instance_name or instance
        if name is None:
            name = f"{os.getpid()}#{time.time_ns()}{next(_client_numbers)}"
        elif is_renewed:
            name = f"{name}-{os.getpid()}"
        return f"{host}@{name}{unit}"


def advertised(broker_name: str) -> str:
    """Return where a broker's address is from, for the error message when it cannot be reached."""
    return (
        f"broker {broker_name!r} advertises that address: if this machine cannot reach it, set "
        "brokerIP1 in the broker's configuration, or say where the broker is reached from here "
        "(broker_address_map, in Spark brokerAddressMap)"
    )


def _checked_pair(advertised: object, reached: object) -> tuple[str, str]:
    if not isinstance(advertised, str) or not isinstance(reached, str):
        raise ConfigurationError(
            f"broker_address_map: {advertised!r:.80} to {reached!r:.80}, expected two strings"
        )
    advertised, reached = _checked_end(advertised), _checked_end(reached)
    if _has_port(advertised) != _has_port(reached):
        raise ConfigurationError(
            f"broker_address_map: {advertised!r} to {reached!r}, expected host:port to host:port, "
            "or a host to a host"
        )
    return advertised, reached


def _has_port(text: str) -> bool:
    return "]:" in text or text.count(":") == 1


def _checked_end(text: str) -> str:
    if _has_port(text):
        return join_address(*split_address(text))
    host, _ = split_address(f"[{text.strip('[]')}]:1")
    return host


#: Brokers are where they say, and this client has no name of its own.
PLAIN = Network()
