"""Tells the brokers of a group at once who has the lowest id now.

A slave that may act for its master learns that it has to, or must not any more, when it next asks
for its group; with ``notifyMinBrokerIdChanged`` it is told as soon as this name server knows, by a
request without an answer, as in RocketMQ: one that misses it asks within a second. Of changes that
follow one another faster than a broker can be told, it hears the last.

Source: RocketMQ RouteInfoManager.notifyMinBrokerIdChanged.
"""

import logging
from collections.abc import Iterable

from pymq.errors import PymqError
from pymq.namesrv.config import NamesrvConfig
from pymq.namesrv.registrations import Registration
from pymq.namesrv.routes import RouteTable
from pymq.net.channel import AsyncChannel
from pymq.net.tasks import Tasks
from pymq.protocol.bodies import BrokerData
from pymq.protocol.codes import LanguageCode, RequestCode
from pymq.protocol.command import Command
from pymq.protocol.headers.replication import LowestIdChange

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 1.0


class LowestIds:
    """Whom one name server tells of changes in the route table; for one event loop.

    Args:
        config: says whether anybody is told; it may change.
        routes: which brokers there are, after the change.
    """

    def __init__(self, config: NamesrvConfig, routes: RouteTable) -> None:
        self._config = config
        self._routes = routes
        #: ``host:port`` -> what its broker has to hear.
        self._pending: dict[str, LowestIdChange] = {}
        self._tasks = Tasks("name server: lowest ids")

    def came(self, broker: Registration, before: BrokerData | None) -> None:
        """A broker has registered; tell the others of its group if its id is the lowest now.

        Args:
            broker: what it announced.
            before: its group before that.
        """
        group = self._routes.broker(broker.broker_name)
        if before is None or group is None or broker.broker_id >= min(before.addresses):
            return
        others = [address for id_, address in group.addresses.items() if id_ != broker.broker_id]
        self._tell(group, others or [broker.address], ha_address=broker.ha_address)

    def left(self, brokers: Iterable[Registration]) -> None:
        """Brokers are gone; tell those that are left of groups whose lowest id that was."""
        for broker in brokers:
            group = self._routes.broker(broker.broker_name)
            if group is None or not group.enable_acting_master:
                continue
            if broker.broker_id < min(group.addresses):
                self._tell(group, group.addresses.values(), offline_address=broker.address)

    async def close(self) -> None:
        """Tell nobody any more; idempotent."""
        await self._tasks.close()

    def _tell(
        self,
        group: BrokerData,
        addresses: Iterable[str],
        *,
        offline_address: str | None = None,
        ha_address: str | None = None,
    ) -> None:
        if not self._config.notify_lowest_id or self._tasks.is_closed:
            return
        lowest = min(group.addresses)
        header = LowestIdChange(
            broker_id=lowest,
            broker_name=group.broker_name,
            address=group.addresses[lowest],
            offline_address=offline_address,
            ha_address=ha_address,
        )
        _log.info("group %s: the lowest id is %d now", group.broker_name, lowest)
        for address in addresses:
            is_told = address in self._pending
            self._pending[address] = header
            if not is_told:
                self._tasks.start(f"to {address}", self._send_last(address))

    async def _send_last(self, address: str) -> None:
        sent = None
        while (header := self._pending[address]) is not sent:
            await _send(address, header)
            sent = header
        del self._pending[address]


async def _send(address: str, header: LowestIdChange) -> None:
    command = Command(
        RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
        header.to_fields(),
        language=LanguageCode.JAVA,
    )
    try:
        channel = await AsyncChannel.connect(address, CONNECT_TIMEOUT_S)
        try:
            channel.send_one_way(command)
        finally:
            channel.close()
    except PymqError as error:
        _log.warning("%s was not told of its group's lowest id: %s", address, error)
