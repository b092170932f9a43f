"""What ``pymq doctor`` looks at, on the way of a message from the name server to its consumer.

Each check yields findings: what is well, or what is wrong, why, and what to do. What depends on
something that is wrong is not looked at.
"""

import ipaddress
import time
from collections.abc import Iterator
from typing import TypeVar

from pymq.cli.broker_settings import broker_settings
from pymq.cli.findings import Finding, State, acl_advice
from pymq.cli.group_diagnosis import GroupDiagnosis
from pymq.client import operations
from pymq.client.cluster.config import parse_name_servers
from pymq.client.cluster.name_server_lookup import is_lookup, look_up
from pymq.client.cluster.network import Network
from pymq.client.cluster.routes import MASTER_ID, Route
from pymq.client.threaded.admin import Admin
from pymq.errors import (
    BrokerError,
    ConfigurationError,
    ConnectionFailed,
    PymqError,
    RequestNotSupported,
    RequestTimeout,
    RouteNotFound,
)
from pymq.net.blocking import BlockingChannel
from pymq.net.recognition import recognized
from pymq.protocol.addresses import split_address
from pymq.protocol.bodies import TopicConfig
from pymq.protocol.codes import Permission
from pymq.protocol.names import DEFAULT_TOPIC, check_group, check_topic

T = TypeVar("T")

#: A port is asked what it speaks for this long.
RECOGNIZE_S = 1.0


class Diagnosis:
    """Looks at one cluster.

    Args:
        name_servers: ``host:port`` of each, or the URL at which they are looked up.
        topic, group: of whom more is wanted to be known.
        network: where brokers are reached.
        timeout_s: for each answer.
        watch_s: how long lag is watched before it is said to stand.

    Raises:
        LocalProtocolError: the name of topic or group is illegal.
    """

    def __init__(
        self,
        name_servers: tuple[str, ...],
        *,
        topic: str | None,
        group: str | None,
        network: Network,
        timeout_s: float,
        watch_s: float,
    ) -> None:
        if topic is not None:
            check_topic(topic)
        if group is not None:
            check_group(group)
        self._name_servers = name_servers
        self._topic = topic
        self._group = group
        self._network = network
        self._timeout_s = timeout_s
        self._watch_s = watch_s
        #: Can no name server be asked?
        self.is_unreachable = False

    def run(self) -> Iterator[Finding]:
        """Yield what is found."""
        able = []
        if is_lookup(self._name_servers[0]):
            yield self._looked_up(self._name_servers[0])
        for address in self._name_servers:
            finding = self._name_server(address)
            if finding.state is State.OK:
                able.append(address)
            yield finding
        if not able:
            self.is_unreachable = True
            return
        if len(able) > 1:
            yield from self._differences(able)
        with Admin(
            able,
            timeout_s=self._timeout_s,
            connect_timeout_s=self._timeout_s,
            network=self._network,
        ) as admin:
            yield from self._brokers(admin)
            route = None
            if self._topic is not None:
                try:
                    route = admin.topics.route(self._topic)
                except RouteNotFound:
                    yield self._missing_topic(admin, self._topic)
                else:
                    yield from self._look_at_topic(admin, self._topic, route)
            if self._group is not None:
                yield from GroupDiagnosis(
                    admin,
                    self._group,
                    self._topic,
                    self._watch_s,
                    network=self._network,
                ).run()

    # --- name servers

    def _looked_up(self, url: str) -> Finding:
        """Ask where the name servers are, and look at those from then on."""
        self._name_servers = ()
        try:
            found = parse_name_servers(look_up(url, self._network.unit_name))
            for address in found:
                split_address(address)  # and not a URL again
        except (ConnectionFailed, ConfigurationError) as error:
            text = str(error) if url in str(error) else f"{url} names no name servers: {error}"
            advice = (
                "the page at that URL has to be one line of host:port;host:port; or give the "
                "addresses themselves"
            )
            return Finding("look-up", State.WRONG, text, advice)
        self._name_servers = found
        return Finding("look-up", State.OK, f"{url} names {';'.join(found)}")

    def _name_server(self, address: str) -> Finding:
        check = "name server"
        began_s = time.monotonic()
        try:
            self._ask(address, operations.route(DEFAULT_TOPIC))
        except RequestNotSupported:
            return Finding(
                check,
                State.WRONG,
                f"{address} is a broker, or something else that knows no routes",
                "give the name server's port, usually 9876, not the broker's (10911)",
            )
        except BrokerError:
            pass  # Whatever else it says, it knows what a route is.
        except (PymqError, ConfigurationError) as error:
            _, advice = self._cause(address, error)
            return Finding(check, State.WRONG, f"{address} does not answer: {error}", advice)
        took_ms = (time.monotonic() - began_s) * 1000
        return Finding(check, State.OK, f"{address} answers in {took_ms:.0f} ms")

    def _differences(self, able: list[str]) -> Iterator[Finding]:
        """Compare which brokers the name servers know: a client asks one of them, any one."""
        known: dict[str, set[tuple[str, str]]] = {}
        for address in able:
            try:
                brokers = self._ask(address, operations.cluster_info()).brokers
            except PymqError as error:
                text = f"{address} does not say which brokers it knows: {error}"
                yield Finding("name server", State.WRONG, text, self._cause(address, error)[1])
                continue
            known[address] = {
                (name, at) for name, one in brokers.items() for at in one.addresses.values()
            }
        every = {place for places in known.values() for place in places}
        for address, places in known.items():
            if missing := sorted(every - places):
                names = ", ".join(f"{name} at {at}" for name, at in missing)
                yield Finding(
                    "name server",
                    State.WRONG,
                    f"{address} does not know {names}: clients that ask it do not find what is "
                    "there",
                    f"name {address} in namesrvAddr of each of these brokers, and see that they "
                    "can reach it; one that runs registers within 30 s",
                )

    def _ask(self, address: str, operation: operations.Operation[T]) -> T:
        channel = BlockingChannel.connect(*split_address(address), timeout_s=self._timeout_s)
        try:
            answer = channel.request(operation.request, self._timeout_s)
            return operation.result(answer, peer=address)
        finally:
            channel.close()

    def _cause(self, address: str, error: PymqError) -> tuple[bool, str]:
        """Return whether something else is at an address than what should be, and what to do."""
        kind = recognized(address, min(RECOGNIZE_S, self._timeout_s))
        if kind == "gRPC":
            advice = (
                "that is a gRPC port, for RocketMQ's 5.x clients: give the remoting port (name "
                "server 9876, proxy 8080)"
            )
        elif kind == "TLS":
            advice = "that port speaks TLS only: give one without, or tls.server.mode=permissive"
        elif isinstance(error, RequestTimeout):
            advice = (
                "it takes connections and is silent: is that process stopped or overloaded, or is "
                "another program at that port?"
            )
        elif "refused" in str(error).lower():
            advice = "nothing listens there: start it, or correct the port"
        else:
            advice = (
                "can this machine reach that host (name, route, firewall)? A container's address "
                "is of no use outside: see --map"
            )
        return kind is not None or isinstance(error, RequestTimeout), advice

    # --- brokers

    def _brokers(self, admin: Admin) -> Iterator[Finding]:
        addresses = admin.brokers.addresses()
        if not addresses:
            yield Finding(
                "broker",
                State.WRONG,
                "no broker is registered",
                "start one with this name server in its namesrvAddr; one that runs registers "
                "within 30 s",
            )
            return
        every = [at for known in addresses.values() for at in known.values()]
        reports = admin.replicas.reports(every)
        for name, known in addresses.items():
            if MASTER_ID not in known:
                yield Finding(
                    "broker",
                    State.WRONG,
                    f"{name} has no master, only {', '.join(known.values())}",
                    f"start its master, or promote a slave: pymq cluster demote {name}",
                )
            for number, address in known.items():
                report = reports[address]
                where = f"{name} ({'master' if number == MASTER_ID else f'slave {number}'})"
                if report.problem is not None:
                    yield self._unreachable(where, address, report.problem)
                    continue
                version = (report.state or {}).get("brokerVersionDesc", "of unknown version")
                yield Finding(
                    "broker", State.OK, f"{where} at {self._at(address)} answers, {version}"
                )

    def _at(self, address: str) -> str:
        reached = self._network.reached(address)
        return address if reached == address else f"{address}, mapped to {reached},"

    def _unreachable(self, where: str, address: str, error: PymqError) -> Finding:
        text = f"{where} advertises {address}, which cannot be used from here: {error}"
        is_something_else, advice = self._cause(self._network.reached(address), error)
        if is_something_else:
            return Finding("broker", State.WRONG, text, advice)
        hint = ""
        if _is_loopback(address) and not all(map(_is_loopback, self._name_servers)):
            hint = "it advertises its own loopback address, good on its machine only; "
        return Finding(
            "broker",
            State.WRONG,
            text,
            f"{hint}if it runs, set brokerIP1 in its configuration to an address that clients can "
            f"reach, or say where it is from here: --map {address}=HOST:PORT "
            "(Network(broker_address_map=...) in programs)",
        )

    # --- topics

    def _missing_topic(self, admin: Admin, topic: str) -> Finding:
        alike = [one for one in admin.topics.names() if one.lower() == topic.lower()]
        meant = f" Did you mean {alike[0]!r}?" if alike else ""
        return Finding(
            "topic",
            State.WRONG,
            f"no broker has topic {topic!r}",
            f"pymq topic create {topic}, or let the first send do it (autoCreateTopicEnable); one "
            f"just created is known after a second or two.{meant}",
        )

    def _look_at_topic(self, admin: Admin, topic: str, route: Route) -> Iterator[Finding]:
        yield Finding(
            "topic",
            State.OK,
            f"{topic!r} has {len(route.write_queues)} queues to write and "
            f"{len(route.read_queues)} to read on {', '.join(route.addresses)}",
        )
        try:
            configs = admin.topics.config(topic)
        except PymqError as error:
            text = f"it cannot be read: {error}"
            yield Finding("permission", State.WRONG, text, acl_advice(error))
            return
        for name, config in configs.items():
            yield from _permissions(admin, name, route.read_address(name), config)


def _permissions(admin: Admin, name: str, address: str, config: TopicConfig) -> Iterator[Finding]:
    lacking = [
        word
        for bit, word in ((Permission.READ, "read"), (Permission.WRITE, "written"))
        if not config.perm & bit
    ]
    if lacking:
        yield Finding(
            "permission",
            State.WRONG,
            f"{config.topic!r} must not be {' or '.join(lacking)} on {name} (perm {config.perm})",
            f"pymq topic update {config.topic} --perm 6",
        )
    try:
        perm = int(broker_settings(admin, name).get("brokerPermission", "6"))
    except (PymqError, ValueError):
        perm = int(Permission.READ | Permission.WRITE)
    if perm & 6 != 6:
        yield Finding(
            "permission",
            State.WRONG,
            f"broker {name} permits only {perm} (brokerPermission; 4: read, 2: write)",
            f"mqadmin updateBrokerConfig -b {address} -k brokerPermission -v 6 (pymq's brokers "
            "take that with pymqAllowConfigUpdate=true), or brokerPermission=6 in its "
            "configuration, and start it again",
        )
    elif not lacking:
        yield Finding(
            "permission", State.OK, f"{config.topic!r} may be read and written on {name}"
        )


def _is_loopback(address: str) -> bool:
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
