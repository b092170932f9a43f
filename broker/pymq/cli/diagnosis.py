"""What ``pymq doctor`` looks at, on the way of a message from the name server to its consumer.

Each check yields findings: what is well, or what is wrong, why, and what to do. What depends on
something that is wrong is not looked at.
"""

import ipaddress
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from pymq.cli.findings import Finding, State
from pymq.client import operations
from pymq.client.cluster.network import Network
from pymq.client.cluster.routes import MASTER_ID, Route
from pymq.client.group.group_progress import QueueLag
from pymq.client.threaded.admin import Admin
from pymq.errors import (
    BrokerError,
    ConfigurationError,
    GroupNotExist,
    NoPermission,
    PymqError,
    RequestNotSupported,
    RequestTimeout,
    RouteNotFound,
)
from pymq.net.blocking import BlockingChannel
from pymq.net.recognition import recognized
from pymq.protocol.addresses import split_address
from pymq.protocol.bodies import MessageQueue, TopicConfig
from pymq.protocol.codes import Permission
from pymq.protocol.names import DEFAULT_TOPIC

#: A port is asked what it speaks for this long.
RECOGNIZE_S = 1.0
_POLL_S = 0.1


class Diagnosis:
    """Looks at one cluster.

    Args:
        name_servers: ``host:port`` of each.
        topic, group: of whom more is wanted to be known.
        network: where brokers are reached.
        timeout_s: for each answer.
        watch_s: how long lag is watched before it is said to stand.
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
        for address in self._name_servers:
            finding = self._name_server(address)
            if finding.state is State.OK:
                able.append(address)
            yield finding
        if not able:
            self.is_unreachable = True
            return
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
                yield from self._look_at_group(admin, self._group)

    # --- name servers

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

    def _ask(self, address: str, operation: operations.Operation[Any]) -> None:
        channel = BlockingChannel.connect(*split_address(address), timeout_s=self._timeout_s)
        try:
            answer = channel.request(operation.request, self._timeout_s)
            operation.result(answer, peer=address)
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
            yield Finding("permission", State.WRONG, f"it cannot be read: {error}", _acl(error))
            return
        for name, config in configs.items():
            yield from _permissions(admin, name, config)

    # --- groups

    def _look_at_group(self, admin: Admin, group: str) -> Iterator[Finding]:
        try:
            configs = admin.groups.config(group)
            members = admin.groups.members(group)
        except GroupNotExist:
            yield Finding(
                "group",
                State.WRONG,
                f"no broker knows group {group!r}",
                f"pymq group create {group}, or let its first consumer do it "
                "(autoCreateSubscriptionGroup)",
            )
            return
        except PymqError as error:
            yield Finding("group", State.WRONG, f"it cannot be asked for: {error}", _acl(error))
            return
        off = [name for name, config in configs.items() if not config.consume_enable]
        if off:
            yield Finding(
                "group",
                State.WRONG,
                f"{group!r} may not consume on {', '.join(off)}",
                f"mqadmin updateSubGroup -g {group} -s true",
            )
        count, topic = len(members.connections), self._topic
        if not count:
            yield Finding(
                "group",
                State.WRONG,
                f"{group!r} has no members: nobody consumes",
                "start a consumer of the group; one that runs may use another name server or group",
            )
        elif topic is not None and topic not in members.subscriptions:
            yield Finding(
                "group",
                State.WRONG,
                f"{group!r} has members ({count}), and none subscribes to {topic!r} (but to "
                f"{', '.join(sorted(members.subscriptions)) or 'nothing'})",
                "members of a group all subscribe to the same: is the consumer's topic right?",
            )
        else:
            yield Finding("group", State.OK, f"{group!r} has members: {count}")
        yield from self._lag(admin, group, has_members=bool(count))

    def _lag(self, admin: Admin, group: str, *, has_members: bool) -> Iterator[Finding]:
        try:
            first = admin.offsets.lag(group, self._topic)
        except PymqError as error:
            yield Finding("lag", State.WRONG, f"it is not known: {error}", _acl(error))
            return
        behind = {one.queue: one for one in first if one.lag}
        if not behind:
            text = "nothing is left to consume" if first else "the group has committed nothing yet"
            yield Finding("lag", State.OK if first else State.NOTE, text)
            return
        standing = self._standing(lambda: admin.offsets.lag(group, self._topic), behind)
        total = sum(one.lag for one in behind.values())
        if not standing:
            yield Finding("lag", State.OK, f"{total} messages are left, and it moves")
            return
        advice = (
            "a handler hangs or fails there: look at its log, and at the message (pymq message at "
            f"{standing[0].queue.topic} {standing[0].consumer_offset}); pymq group reset passes it"
            if has_members
            else "start a consumer of the group"
        )
        for one in standing:
            queue = one.queue
            yield Finding(
                "lag",
                State.WRONG,
                f"{queue.topic} {queue.broker_name}:{queue.queue_id} stands at offset "
                f"{one.consumer_offset}, {one.lag} messages behind, for {self._watch_s:g} s at "
                "least",
                advice,
            )

    def _standing(
        self, ask: Callable[[], list[QueueLag]], behind: dict[MessageQueue, QueueLag]
    ) -> list[QueueLag]:
        """Return the queues in which the group does not move while it is watched."""
        pause, deadline_s = threading.Event(), time.monotonic() + self._watch_s
        left = dict(behind)
        while left and time.monotonic() < deadline_s:
            pause.wait(_POLL_S)
            for one in ask():
                before = left.get(one.queue)
                if before is not None and one.consumer_offset != before.consumer_offset:
                    del left[one.queue]
        return list(left.values())


def _permissions(admin: Admin, name: str, config: TopicConfig) -> Iterator[Finding]:
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
        settings = dict(
            line.strip().split("=", 1)
            for line in admin.brokers.config(name).splitlines()
            if "=" in line and not line.startswith("#")
        )
        perm = int(settings.get("brokerPermission", "6"))
    except (PymqError, ValueError):
        perm = int(Permission.READ | Permission.WRITE)
    if perm & 6 != 6:
        yield Finding(
            "permission",
            State.WRONG,
            f"broker {name} permits only {perm} (brokerPermission; 4: read, 2: write)",
            f"mqadmin updateBrokerConfig -b {name} -k brokerPermission -v 6",
        )
    elif not lacking:
        yield Finding(
            "permission", State.OK, f"{config.topic!r} may be read and written on {name}"
        )


def _acl(error: PymqError) -> str:
    if isinstance(error, NoPermission):
        return "access control is on: ask for the permission, or use an account that has it"
    return "see what is wrong with the brokers above"


def _is_loopback(address: str) -> bool:
    host, _ = split_address(address)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
