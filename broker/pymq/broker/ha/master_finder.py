"""Asks a master where its slaves connect, in a group with a controller: that knows only where
clients do.

Source: RocketMQ BrokerController.syncBrokerMemberGroup, BrokerOuterAPI.retrieveBrokerHaInfo.
"""

import logging

from pymq.broker.ha.slave import Slave
from pymq.errors import PymqError
from pymq.net.channel import AsyncChannel
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.codes import LanguageCode, RequestCode
from pymq.protocol.command import Command
from pymq.protocol.headers.replication import HaInfo

_log = logging.getLogger(__name__)

#: While the master is not followed.
ASK_INTERVAL_S = 0.1
CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S = 1.0, 2.0


class MasterFinder:
    """Has a slave follow its master.

    Args:
        master: ``host:port`` of the master, for clients.
        slave: told of the other address.
    """

    def __init__(self, master: str, slave: Slave) -> None:
        self._master = master
        self._slave = slave
        self._channel: AsyncChannel | None = None
        self._said = SaidOnce(_log)
        self._tasks = Tasks("master finder")

    def start(self) -> None:
        """Begin."""
        self._tasks.repeat("asking", self._ask, ASK_INTERVAL_S)

    async def _ask(self) -> None:
        if self._slave.is_following:
            return
        try:
            if self._channel is None or not self._channel.is_open:
                self._channel = await AsyncChannel.connect(self._master, CONNECT_TIMEOUT_S)
            answer = await self._channel.request(
                Command(RequestCode.EXCHANGE_BROKER_HA_INFO, language=LanguageCode.JAVA),
                REQUEST_TIMEOUT_S,
                description="where slaves connect",
            )
            found = HaInfo.from_fields(answer.fields)
        except PymqError as error:
            self._said.warn(
                "master",
                "master %s does not say where its slaves connect: %s; trying again",
                self._master,
                error,
            )
            self._close_channel()  # it may be dead
            return
        if found.ha_address:
            self._said.over("master")
            self._slave.follow(found.ha_address)

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()
        self._close_channel()

    def _close_channel(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
