"""Announces this broker to its name servers: at start, every 30 s, and after topic changes.

A name server that was restarted knows no broker. It is told again soon after its connection was
lost, not only when the 30 s are over: until then nobody could look up a route there. A slave learns
from the answers who its master is: while a name server knows none, it is asked again sooner, too.

Source: RocketMQ BrokerOuterAPI.registerBrokerAll.
"""

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from pymq.broker.config import BrokerConfig
from pymq.errors import PymqError, RequestTimeout
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol import fastjson
from pymq.protocol.bodies import BrokerData, DataVersion, KVTable, TopicTable
from pymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.hashes import crc31
from pymq.protocol.headers.routes import (
    BrokerMemberGroupRequest,
    RegisterBrokerRequest,
    RegisterBrokerResponse,
    UnregisterBrokerRequest,
)
from pymq.protocol.registration_body import RegisterBrokerBody

_log = logging.getLogger(__name__)

#: A name server that could not be reached, or closed the connection, is tried again after this.
RETRY_S = 2.0
CONNECT_TIMEOUT_S = 3.0
_MASTER_ID = 0
UNREGISTER_TIMEOUT_S = 1.0
#: Another broker in our place is gone when it was not seen for this long: some register every 60 s.
OTHER_GONE_S = 130.0


#: Gets ``host:port`` of a master for clients, None if it is unknown, and for slaves.
OnMaster: TypeAlias = Callable[[str | None, str], None]


class Registration:
    """Keeps every name server informed, independently of the others.

    Args:
        address: ``host:port`` at which clients reach this broker.
        ha_address: ``host:port`` at which slaves do; None: it has no HA port.
        topics: returns the table to announce.
        on_order_topics: called with the names of the topics that a name server knows as order
            topics.
        acting_expiry_ms: after how long a silence name servers forget this broker, if slaves of
            its group act for their master; None: they do not.
        is_alone: whether nobody else may be registered with the same name and id.

    Attributes:
        on_master: called with the addresses of this slave's master when a name server told them;
            to be set by whoever follows it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        address: str,
        ha_address: str | None,
        topics: Callable[[], TopicTable],
        on_order_topics: Callable[[Iterable[str]], None],
        acting_expiry_ms: int | None = None,
        is_alone: bool = True,
    ) -> None:
        self._config = config
        self._acting_expiry_ms = acting_expiry_ms
        self._address = address
        self._ha_address = ha_address
        self.on_master: OnMaster = lambda address, ha_address: None
        self._topics = topics
        #: The body for a version of the topics and a permission: most are as the one before.
        self._encoded: tuple[tuple[DataVersion, int], bytes] | None = None
        self._said = SaidOnce(_log)
        #: The addresses of others that are registered as this broker -> when they were last.
        self._others_seen_s: dict[str, float] = {}
        self._tasks = Tasks("registration")
        self._announcers = [
            _NameServer(
                name_server,
                self._request,
                on_order_topics,
                self._master_found,
                config.register_timeout_ms / 1000,
                self._others if is_alone else None,
                slave_of=None if config.broker_id == _MASTER_ID else config.name,
            )
            for name_server in config.name_servers
        ]

    async def start(self, wait_s: float) -> None:
        """Register, waiting at most ``wait_s`` for the answers, and continue in the background."""
        for announcer in self._announcers:
            self._tasks.start(
                f"to {announcer.address}", announcer.run(self._config.register_interval_ms / 1000)
            )
        await self.wait_announced(wait_s)

    def announce(self) -> None:
        """Inform the name servers of a change, soon."""
        for announcer in self._announcers:
            announcer.want()

    async def wait_announced(self, timeout_s: float) -> bool:
        """Announce, and wait until every name server has answered or the time is up.

        Returns:
            Whether all of them accepted the current state.
        """
        outcomes = [announcer.expect() for announcer in self._announcers]
        if not outcomes:
            return True
        done, late = await asyncio.wait(outcomes, timeout=timeout_s)
        return not late and all(outcome.result() for outcome in done)

    def _body(self) -> bytes:
        topics, permission = self._topics(), self._config.permission
        state = (topics.version, permission)
        if self._encoded is None or self._encoded[0] != state:
            if not (self._config.is_readable and self._config.is_writable):
                topics = _restricted(topics, permission)
            self._encoded = (state, RegisterBrokerBody(topics=topics).encode())
        return self._encoded[1]

    def _request(self) -> Command:
        config, body = self._config, self._body()
        request = RegisterBrokerRequest(
            broker_name=config.name,
            broker_address=self._address,
            cluster_name=config.cluster,
            broker_id=config.broker_id,
            ha_server_address=self._ha_address,
            enable_acting_master=self._acting_expiry_ms is not None,
            heartbeat_timeout_ms=self._acting_expiry_ms,
            compressed=False,
            body_crc32=crc31(body),
        )
        return Command(
            RequestCode.REGISTER_BROKER, request.to_fields(), body, language=LanguageCode.JAVA
        )

    async def _others(self, channel: AsyncChannel) -> None:
        """Say so if another broker is registered with our name and id.

        Raises:
            PymqError: the name server does not answer.
        """
        config = self._config
        request = BrokerMemberGroupRequest(cluster_name=config.cluster, broker_name=config.name)
        code = RequestCode.GET_BROKER_MEMBER_GROUP
        answer = await channel.request(
            Command(code, request.to_fields(), language=LanguageCode.JAVA),
            config.register_timeout_ms / 1000,
            description="members",
        )
        if answer.code != ResponseCode.SUCCESS:
            return  # RocketMQ 4.x does not tell
        body = fastjson.parse(answer.body)
        group = (body.get("brokerMemberGroup") if isinstance(body, dict) else None) or {
            "brokerName": config.name
        }
        other = BrokerData.from_json(group).addresses.get(config.broker_id, self._address)
        now_s = asyncio.get_running_loop().time()
        if other != self._address:
            self._others_seen_s[other] = now_s
            self._said.warn(
                other,
                "another broker is registered as broker %d of group %s: %s, and this one is %s. "
                "Clients find now one of them, now the other, and their logs are not the same: "
                "stop one, or give it another brokerName (or, to a slave, another brokerId)",
                config.broker_id,
                config.name,
                other,
                self._address,
            )
        for gone in [one for one, at in self._others_seen_s.items() if now_s - at > OTHER_GONE_S]:
            del self._others_seen_s[gone]
            self._said.over(gone, "%s is not registered as this broker any more", gone)

    def _master_found(self, address: str | None, ha_address: str) -> None:
        self.on_master(address, ha_address)

    async def release(self) -> list[AsyncChannel]:
        """Stop, and return the connections, for a broker that goes on in another role.

        Name servers forget a broker whose connection ends, so these are to be closed when it is
        registered again.
        """
        await self._tasks.close()
        return [found for one in self._announcers if (found := one.release()) is not None]

    async def close(self) -> None:
        """Unregister from all name servers that answer, and stop."""
        await self._tasks.close()
        request = UnregisterBrokerRequest(
            broker_name=self._config.name,
            broker_address=self._address,
            cluster_name=self._config.cluster,
            broker_id=self._config.broker_id,
        )
        await asyncio.gather(
            *(announcer.unregister(request) for announcer in self._announcers)
        )


def _restricted(topics: TopicTable, permission: int) -> TopicTable:
    """Return a table with no more permissions than the broker has."""
    return TopicTable(
        version=topics.version,
        topics={
            name: replace(config, perm=config.perm & permission)
            for name, config in topics.topics.items()
        },
    )


class _NameServer:
    """One name server: its connection, and whether it knows this broker."""

    def __init__(
        self,
        address: str,
        request: Callable[[], Command],
        on_order_topics: Callable[[Iterable[str]], None],
        on_master: "OnMaster",
        timeout_s: float,
        others: Callable[[AsyncChannel], Awaitable[None]] | None,
        *,
        slave_of: str | None,
    ) -> None:
        self.address = address
        self._slave_of = slave_of
        #: How many answers in a row told this slave no master.
        self._masterless = 0
        self._others = others
        self._request = request
        self._on_order_topics = on_order_topics
        self._on_master = on_master
        self._timeout_s = timeout_s
        self._channel: AsyncChannel | None = None
        self._wanted = asyncio.Event()
        self._waiters: list[asyncio.Future[bool]] = []
        self._is_reachable: bool | None = None
        self._is_periodic = False

    def want(self) -> None:
        self._wanted.set()

    def expect(self) -> asyncio.Future[bool]:
        """Announce again; the future tells whether the name server accepted it."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._wanted.set()
        return waiter

    async def run(self, interval_s: float) -> None:
        """Announce now, on demand, and every ``interval_s``."""
        loop = asyncio.get_running_loop()
        while True:
            self._wanted.clear()
            waiters, self._waiters = self._waiters, []
            succeeded = await self._announce()
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(succeeded)
            self._is_periodic = False
            pause_s = interval_s if succeeded else RETRY_S
            if self._masterless:
                # The two may just have been started. A master that is away for long is no reason to
                # send all topics every 2 s.
                pause_s = min(pause_s, RETRY_S * 2.0 ** min(self._masterless - 1, 10))
            timer = loop.call_later(pause_s, self._time_is_up)
            await self._wanted.wait()
            timer.cancel()

    def _time_is_up(self) -> None:
        self._is_periodic = True
        self._wanted.set()

    async def _announce(self) -> bool:
        try:
            channel = await self._connect()
            # Before we are in its place; not when clients wait for a topic to be known.
            if self._others is not None and self._is_reachable and self._is_periodic:
                await self._others(channel)
            response = await channel.request(
                self._request(), self._timeout_s, description="registration"
            )
            if response.code != ResponseCode.SUCCESS:
                raise PymqError(f"code {response.code}, {response.remark or 'no remark'}")
            master = RegisterBrokerResponse.from_fields(response.fields)
            if master.ha_server_address:
                self._on_master(master.master_address, master.ha_server_address)
                self._masterless = 0
            elif self._slave_of is not None:
                self._masterless += 1
                if self._masterless == 1:
                    _log.warning(
                        "name server %s knows no master of group %s yet: this slave can follow it "
                        "when it is registered there",
                        self.address,
                        self._slave_of,
                    )
            if response.body:
                self._on_order_topics(KVTable.decode(response.body).table)
        except PymqError as error:
            if isinstance(error, RequestTimeout):
                self._give_up_connection()
            if self._is_reachable is not False:
                _log.warning(
                    "name server %s does not know this broker (clients that ask it find no "
                    "route); trying again every %g s: %s",
                    self.address,
                    RETRY_S,
                    error,
                )
            self._is_reachable = False
            return False
        if self._is_reachable is not True:
            _log.info("registered with name server %s", self.address)
        self._is_reachable = True
        return True

    async def _connect(self) -> AsyncChannel:
        if self._channel is None or not self._channel.is_open:
            self._channel = await AsyncChannel.connect(
                self.address, CONNECT_TIMEOUT_S, on_ended=self._ended
            )
        return self._channel

    def _give_up_connection(self) -> None:
        """Have the next announcement make another one.

        A firewall that forgot it, or a machine that lost power, does not say so, and TCP would try
        for a quarter of an hour.
        """
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.abort()

    def _ended(self, channel: AsyncChannel) -> None:
        """Announce again soon: the name server may have been restarted."""
        if channel is self._channel:
            asyncio.get_running_loop().call_later(RETRY_S, self._wanted.set)

    async def unregister(self, request: UnregisterBrokerRequest) -> None:
        channel, self._channel = self._channel, None
        if channel is None or not channel.is_open:
            return
        command = Command(
            RequestCode.UNREGISTER_BROKER, request.to_fields(), language=LanguageCode.JAVA
        )
        try:
            await channel.request(command, UNREGISTER_TIMEOUT_S, description="unregistration")
        except PymqError as error:
            _log.debug("could not unregister from name server %s: %s", self.address, error)
        channel.close()

    def release(self) -> AsyncChannel | None:
        channel, self._channel = self._channel, None
        return channel


def reachable_address(bind_address: str) -> str:
    """Return the IP address to advertise when none is configured.

    A broker that listens on one address advertises it; one that listens on all of them
    advertises the one that this machine would use to reach others. Nothing is sent to find out.
    """
    try:
        ip = ipaddress.ip_address(bind_address)
    except ValueError:
        return socket.gethostbyname(bind_address)
    if not ip.is_unspecified:
        return str(ip)
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    elsewhere = "192.0.2.1" if ip.version == 4 else "2001:db8::1"  # documentation addresses
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1" if ip.version == 4 else "::1"
