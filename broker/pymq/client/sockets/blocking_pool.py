"""Connections, routes and retries of a blocking client: what ``pool`` is to asyncio."""

import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TypeVar

from pymq.client import operations
from pymq.client.cluster.config import ClientConfig, connect_s, parse_name_servers
from pymq.client.cluster.home import Process
from pymq.client.cluster.name_server_failures import NameServerFailures
from pymq.client.cluster.name_server_lookup import LOOKUP_S, is_lookup, look_up
from pymq.client.cluster.route_table import RouteTable
from pymq.client.cluster.routes import (
    Route,
    existing_route,
    no_route,
    no_write_queue,
    not_a_name_server,
    provisional_route,
)
from pymq.client.operations import Operation, check_send_topic
from pymq.client.sending.preencoded_records import BrokerKind, RecordsOffer
from pymq.client.sockets.backoff import Backoff
from pymq.errors import (
    BrokerError,
    ClientClosed,
    ClientMisplaced,
    ConfigurationError,
    ConnectionFailed,
    NotReplicated,
    PymqError,
    RemoteProtocolError,
    RequestNotSupported,
    RequestTimeout,
    RouteNotFound,
    ServiceNotAvailable,
    SystemBusy,
    TopicNotExist,
)
from pymq.net.blocking import BlockingChannel
from pymq.net.connecting import Peer
from pymq.protocol.addresses import split_address
from pymq.protocol.codes import consequence_of
from pymq.protocol.names import DEFAULT_TOPIC, check_topic

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: A broker that does not answer something small by then does not answer at all.
PROBE_S = 3.0

#: Transient failures of a read: another try, perhaps elsewhere, can succeed.
PASSING = (
    ConnectionFailed,
    RequestTimeout,
    RouteNotFound,
    TopicNotExist,
    SystemBusy,
    ServiceNotAvailable,
    NotReplicated,  # of commits: again, perhaps at another master
)


class BlockingPool:
    """One connection per address, opened when first used, and the routes; for one thread.

    The copy in a child made by ``fork`` opens connections of its own.
    """

    def __init__(self, config: ClientConfig, routes: Iterable[Route] = ()) -> None:
        self.config = config
        self._process = Process()
        self.routes = RouteTable(config.route_age_s)
        for route in routes:
            self.routes.put(route, time.monotonic())
        self._url = next((one for one in config.name_servers if is_lookup(one)), None)
        self._name_servers = config.name_servers if self._url is None else ()
        self._looked_up_at = -math.inf
        self._first_name_server = 0
        self._channels: dict[str, BlockingChannel] = {}
        #: Address -> the connection on which the broker was asked what it is, and the answer.
        self._offers: dict[str, tuple[BlockingChannel, BrokerKind]] = {}
        #: Why topics' old routes are used at the moment, as it was logged.
        self._why_old: dict[str, str] = {}
        #: Held during requests and answers: two threads would mix their bytes.
        self._asking = threading.Lock()
        self._closed = threading.Event()  # close() may come from a signal handler

    def close(self) -> None:
        """Close all connections. Idempotent."""
        self._closed.set()
        for channel in list(self._channels.values()):
            channel.close()
        self._channels.clear()

    # --- routes

    def route(self, topic: str) -> Route:
        """Return the route of an existing topic; the old one while no name server has a new one.

        Raises:
            RouteNotFound: no name server knows it, and has not for ``route_table.MISSING_S``.
            ConnectionFailed: no name server could be asked, and none ever was about this topic.
            BrokerError: likewise, but a name server refused.
            RemoteProtocolError: likewise, but the answer cannot be a route.
        """
        route = self.routes.fresh(topic, time.monotonic())
        if route is not None and not route.is_provisional:
            return route
        check_topic(topic)
        try:
            route = existing_route(topic, self.ask_name_servers(operations.route(topic), topic))
        except (ConnectionFailed, BrokerError, RemoteProtocolError, RouteNotFound) as error:
            is_missing = isinstance(error, RouteNotFound)
            old = self.routes.keep(topic, time.monotonic(), is_missing=is_missing)
            if old is None:
                raise
            if self._why_old.get(topic) != str(error):
                self._why_old[topic] = str(error)
                _log.warning("going on with the old route of topic %s: %s", topic, error)
            return old
        self._why_old.pop(topic, None)
        self._put(route)
        return route

    def _put(self, route: Route) -> None:
        """Take a new route, and close what only the one before named."""
        changed = self.routes.put(route, time.monotonic())
        if not changed.addresses_gone:
            return
        named = {at for known in self.routes.addresses().values() for at in known.values()}
        for address in changed.addresses_gone.difference(named, self._name_servers):
            channel = self._channels.get(address)
            if channel is not None and not channel.pending_count:
                self._channels.pop(address).close()

    def write_route(self, topic: str) -> Route:
        """Return a route with something to send to; of a topic to be created if need be.

        Raises:
            LocalProtocolError: the topic is illegal, or the broker's own.
            RouteNotFound: no name server knows the topic (and it is either awaited, or nobody
                would create it), or nothing of it can be written.
            ConnectionFailed, BrokerError: as ``route``.
        """
        route = self.routes.fresh(topic, time.monotonic())
        if route is None:
            check_send_topic(topic)
            try:
                route = self.route(topic)
            except RouteNotFound as missing:
                if self.config.awaits_routes:
                    raise
                try:
                    template = self.ask_name_servers(operations.route(DEFAULT_TOPIC), topic)
                except RouteNotFound:
                    raise missing from None
                route = provisional_route(topic, template, self.config.default_queue_count)
                self._put(route)
        if not route.write_queues:
            raise no_write_queue(route)
        return route

    def name_servers(self) -> tuple[str, ...]:
        """Return ``host:port`` of each, looked up if need be.

        Raises:
            ConnectionFailed: they cannot be looked up, and never were.
        """
        if self._url is not None and time.monotonic() - self._looked_up_at > LOOKUP_S:
            try:
                found = look_up(self._url, self.config.network.unit_name)
                self._name_servers = parse_name_servers(found)
            except (ConnectionFailed, ConfigurationError) as error:
                if not self._name_servers:
                    raise
                _log.warning("%s; going on with %s", error, ";".join(self._name_servers))
            self._looked_up_at = time.monotonic()
        return self._name_servers

    def ask_name_servers(self, operation: Operation[T], topic: str | None = None) -> T:
        """Return the answer of the first name server that has one.

        Name servers know nothing of each other: when one does not know a topic, the others are
        asked, too.

        Args:
            operation: what to ask.
            topic: the topic it is about, for the error message.

        Raises:
            RouteNotFound: those that answered do not know the topic.
            ConfigurationError: one is not a name server, but a broker.
            ConnectionFailed: none answered.
            BrokerError: one refused, and no other did it.
        """
        servers = self.name_servers()
        failures = NameServerFailures(servers)
        count = len(servers)
        for step in range(count):
            index = (self._first_name_server + step) % count
            address = servers[index]
            try:
                answer = self.ask(address, operation, hint="it was given as a name server")
            except (BrokerError, ConnectionFailed, RequestTimeout, RemoteProtocolError) as error:
                if isinstance(error, RequestNotSupported):
                    self._check_name_server(address)
                failures.add(error)
            else:
                self._first_name_server = index
                return answer
        failed = failures.error()
        if isinstance(failed, TopicNotExist):
            raise no_route(topic or "?", self._name_servers, failed)
        raise failed

    def _check_name_server(self, address: str) -> None:
        """Look at a name server that does not support a request.

        Raises:
            ConfigurationError: it is a broker.
        """
        try:
            self.ask(address, operations.route(DEFAULT_TOPIC))
        except RequestNotSupported as error:
            try:
                self.ask(address, operations.broker_state())
            except PymqError:
                raise not_a_name_server(address, is_broker=False) from error
            raise not_a_name_server(address, is_broker=True) from error
        except PymqError:
            return

    # --- one request

    def ask(
        self,
        address: str,
        operation: Operation[T],
        *,
        timeout_s: float | None = None,
        hint: str = "",
    ) -> T:
        """Send one request to an address and return its result; once, without a retry.

        Args:
            address: ``host:port`` of a broker or name server.
            operation: what to ask.
            timeout_s: for the answer; the client's own unless given.
            hint: where the address is from, for the error message when it cannot be reached.

        Raises:
            ClientMisplaced: another thread waits for an answer; nothing was sent.
            PymqError: whatever went wrong.
        """
        channel = self.channel(address, hint)
        wait_s = self.config.timeout_s if timeout_s is None else timeout_s
        asked_s = time.monotonic()
        try:
            with self.alone():  # Ctrl-C may come between an acquire() and the next statement.
                response = channel.request(operation.request, wait_s)
        except RequestTimeout as error:
            raise timed_out(address, operation, wait_s, asked_s) from error
        return operation.result(response, peer=address)

    def alone(self) -> threading.Lock:
        """Return what to hold while a request is written, and while its answer is awaited.

        Raises:
            ClientMisplaced: another thread does the one or the other.
        """
        if self._process.is_forked:
            self._leave_to_parent()
        if self._asking.locked():
            raise ClientMisplaced(
                "the client waits for an answer in another thread, or below a signal handler, and "
                "serves one at a time; make a client for each thread, or take pymq.blocking, which "
                "serves several"
            )
        return self._asking

    def channel(self, address: str, hint: str) -> BlockingChannel:
        """Return the connection to an address, opened if need be.

        Raises:
            ConnectionFailed: it cannot be reached.
            ClientClosed: we are closed.
        """
        found = self.channels({address: hint})[address]
        if isinstance(found, ConnectionFailed):
            raise found
        return found

    def channels(
        self, hints: Mapping[str, str], *, timeout_s: float = math.inf
    ) -> dict[str, BlockingChannel | ConnectionFailed]:
        """Return the connections to several addresses, those that are missing opened together.

        Args:
            hints: address -> where it is from, as for ``ask``.
            timeout_s: for connections to be made, if that is less than usual.

        Returns:
            For each address its connection, or why it cannot be reached.

        Raises:
            ClientClosed: we are closed.
        """
        if self._closed.is_set():
            raise ClientClosed("the client is closed; make another one")
        if self._process.is_forked:
            self._leave_to_parent()
        found: dict[str, BlockingChannel | ConnectionFailed] = {}
        missing: dict[str, Peer] = {}
        for address, hint in hints.items():
            channel = self._channels.get(address)
            if channel is not None and channel.check_alive():
                found[address] = channel
                continue
            try:
                missing[address] = split_address(self.config.network.reached(address))
            except ConfigurationError as error:
                if not hint:
                    raise
                found[address] = failed = ConnectionFailed(f"{error}; {hint}")
                failed.__cause__ = error
        if missing:
            opened = BlockingChannel.connect_all(
                {peer: self._hint(address, hints[address]) for address, peer in missing.items()},
                timeout_s=min(connect_s(self.config), timeout_s),
                frame_bytes_max=self.config.frame_bytes_max,
            )
            for address, peer in missing.items():
                found[address] = made = opened[peer]
                if isinstance(made, BlockingChannel):
                    self._channels[address] = made
        return found

    def _hint(self, address: str, hint: str) -> str:
        is_mapped = self.config.network.reached(address) != address
        return f"to which broker_address_map maps {address}; {hint}" if is_mapped else hint

    def _leave_to_parent(self) -> None:
        """Close our copies of the connections of another process, which still uses them."""
        self._process = Process()
        self._asking = threading.Lock()  # one that a thread of the parent holds is never released
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()

    def broker_kind(self, address: str, hint: str) -> BrokerKind:
        """Say whether a broker takes pre-encoded records, and its version.

        It is asked once per connection. So a connection on which this was answered reaches a
        broker that works.

        Raises:
            PymqError: it did not answer, or refused to.
        """
        known = self._offers.get(address)
        if known is None or self.channel(address, hint) is not known[0]:
            timeout_s = min(PROBE_S, self.config.timeout_s)
            kind = self.ask(address, RecordsOffer(), timeout_s=timeout_s, hint=hint)
            known = self._offers[address] = (self.channel(address, hint), kind)
        return known[1]

    def distrust(self, address: str) -> None:
        """Have a broker asked again before anything more is sent to it."""
        self._offers.pop(address, None)

    def pause(self, pause_s: float) -> None:
        """Wait before another try; ends at once when the client is closed."""
        self._closed.wait(pause_s)

    def deadline_s(self) -> float:
        """Return when a request that is sent now times out."""
        return time.monotonic() + self.config.timeout_s

    def backoff(self) -> Backoff:
        """Return the pauses and the deadline of one read's retries."""
        return Backoff(self.config, self.routes, self._closed)


def timed_out(
    peer: str, operation: Operation[T], timeout_s: float, asked_s: float
) -> RequestTimeout:
    """Return the error of a request that nobody answered since ``asked_s``."""
    waited_s = max(timeout_s, round(time.monotonic() - asked_s))  # more on a slow link
    return RequestTimeout(
        f"{peer} did not answer {operation.description} within {waited_s:g} s"
        f"{consequence_of(operation.request.code)}"
    )
