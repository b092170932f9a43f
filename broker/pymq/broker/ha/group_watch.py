"""Who is alive in a classic group, as the name servers see it, and that this broker is.

With ``enableSlaveActingMaster``, name servers forget a broker that has been silent for
``brokerNotActiveTimeoutMillis``, so it tells them more often than it registers.

Source: RocketMQ BrokerController.sendHeartbeat, syncBrokerMemberGroup.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from pymq.broker.config import BrokerConfig
from pymq.errors import PymqError, RequestTimeout
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol import fastjson
from pymq.protocol.bodies import BrokerData
from pymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.routes import BrokerHeartbeatRequest, BrokerMemberGroupRequest

_log = logging.getLogger(__name__)

OnGroup: TypeAlias = Callable[[Mapping[int, str]], None]

CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S = 1.0, 2.0


class GroupWatch:
    """Asks the name servers for the members of the group, and tells them of this one.

    Args:
        config: of the broker.
        address: ``host:port`` at which clients reach it.
        on_group: called with the members, by id, whenever they were asked for; None: they are
            asked for when ``members`` is called, and otherwise not.
        heartbeat_s, interval_s: how often name servers are told, and asked.
        expiry_s: after how long a silence they forget this broker.
    """

    def __init__(
        self,
        config: BrokerConfig,
        address: str,
        on_group: OnGroup | None,
        *,
        heartbeat_s: float,
        interval_s: float,
        expiry_s: float,
    ) -> None:
        self._config = config
        self._address = address
        self._on_group = on_group
        self._heartbeat_s = heartbeat_s
        self._interval_s = interval_s
        self._expiry_s = expiry_s
        self._channels: dict[str, AsyncChannel] = {}
        self._said = SaidOnce(_log)
        self._tasks = Tasks("group")

    def start(self) -> None:
        """Begin."""
        if self._on_group is not None:
            look = functools.partial(self._look, self._on_group)
            self._tasks.repeat("members", look, self._interval_s)
        for server in self._config.name_servers:
            beat = functools.partial(self._beat, server)
            self._tasks.repeat(f"heartbeat to {server}", beat, self._heartbeat_s)

    async def members(self) -> dict[int, str] | None:
        """Return the addresses of the brokers of the group, by id; None: no name server says it.

        Who is known to any name server is alive: one that was just started does not know all yet.
        """
        servers = self._config.name_servers
        answers = await asyncio.gather(*map(self._members_at, servers))
        found = [one for one in answers if isinstance(one, dict)]
        if found:
            self._said.over("members")
            return {number: address for one in found for number, address in one.items()}
        self._said.warn(
            "members",
            "no name server says who is alive in group %s, so no slave acts for a master "
            "(enableSlaveActingMaster): %s",
            self._config.name,
            "; ".join(map(str, answers)) or "there is none (namesrvAddr)",
        )
        return None

    async def _members_at(self, server: str) -> dict[int, str] | str:
        """Return who is known to one name server, or why it does not say that."""
        request = BrokerMemberGroupRequest(
            cluster_name=self._config.cluster, broker_name=self._config.name
        )
        command = Command(
            RequestCode.GET_BROKER_MEMBER_GROUP, request.to_fields(), language=LanguageCode.JAVA
        )
        try:
            channel = await self._connected(server)
            answer = await channel.request(command, REQUEST_TIMEOUT_S, description="members")
            if answer.code != ResponseCode.SUCCESS:
                return f"{server}: code {answer.code}, it has to be 5.x or pymq's"
            body = fastjson.parse(answer.body)
            group = body.get("brokerMemberGroup") if isinstance(body, dict) else None
            return BrokerData.from_json(group or {"brokerName": self._config.name}).addresses
        except PymqError as error:
            return f"{server}: {error}"

    async def _look(self, on_group: OnGroup) -> None:
        members = await self.members()
        if members is not None:
            on_group(members)

    async def _beat(self, server: str) -> None:
        header = BrokerHeartbeatRequest(
            cluster_name=self._config.cluster,
            broker_address=self._address,
            broker_name=self._config.name,
            broker_id=self._config.broker_id,
            heartbeat_timeout_ms=int(self._expiry_s * 1000),
        )
        command = Command(
            RequestCode.BROKER_HEARTBEAT, header.to_fields(), language=LanguageCode.JAVA
        )
        channel: AsyncChannel | None = None
        try:
            channel = await self._connected(server)
            # Answered, although Java's is not: over a dead connection nobody would hear of it.
            await channel.request(command, REQUEST_TIMEOUT_S, description="heartbeat")
        except PymqError as error:
            _log.debug("no heartbeat to %s: %s", server, error)  # whoever registers says it
            if channel is not None and isinstance(error, RequestTimeout):
                channel.abort()

    async def _connected(self, server: str) -> AsyncChannel:
        channel = self._channels.get(server)
        if channel is None or not channel.is_open:
            channel = await AsyncChannel.connect(server, CONNECT_TIMEOUT_S)
            known = self._channels.get(server)
            if known is not None and known.is_open:  # made meanwhile
                channel.close()
                return known
            self._channels[server] = channel
        return channel

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()
        for channel in self._channels.values():
            channel.close()
