"""A slave that acts for its master in a classic group, while that is away.

The alive broker with the lowest id does what needs no writing to the log: it is read from, keeps
what consumers commit, and gives out the locks of queues. Name servers show it to clients as the
master, without the permission to write. Whatever writes waits for the master: delayed messages,
timers, checks of transactions, POP. With ``enableRemoteEscape`` other groups store it (``escape``).

The master takes over what was committed here before it is online again (``PreOnline``), and this
slave follows it from then on.

Source: RocketMQ BrokerController.updateMinBroker, onMasterOffline, onMasterOnline.
"""

import logging
from collections.abc import Callable, Mapping

from pymq.broker.ha.asking import ask_ha_info
from pymq.broker.ha.slave import Slave
from pymq.errors import PymqError
from pymq.net.tasks import Tasks
from pymq.protocol.headers.replication import HaInfo

_log = logging.getLogger(__name__)

MASTER_ID = 0


class Acting:
    """Has a slave follow its master while there is one, and act for it otherwise.

    Args:
        own_id: of the slave.
        name: of the group.
        slave: told whether it acts.
        follow: has it follow a master, given by its address for clients, and that of its HA port;
            None: nobody.
        on_master: called when the master is back: pulls that wait here are to go there.
    """

    def __init__(
        self,
        own_id: int,
        name: str,
        slave: Slave,
        follow: Callable[[str | None, str | None], None],
        on_master: Callable[[], object],
    ) -> None:
        self._own_id = own_id
        self._name = name
        self._slave = slave
        self._follow = follow
        self._on_master = on_master
        #: The lowest id of a broker that is alive, and its address; None: not known yet.
        self._lowest: tuple[int, str] | None = None
        self._tasks = Tasks("acting")

    def start(self) -> None:
        """Nothing to begin: the group is told."""

    def group(self, members: Mapping[int, str]) -> None:
        """Take who is alive, by id."""
        if members:
            lowest = min(members)
            self.lowest(lowest, members[lowest])

    def lowest(self, broker_id: int, address: str, ha_address: str | None = None) -> None:
        """Take the lowest id of a broker that is alive, and its addresses."""
        if self._lowest == (broker_id, address):
            return
        before, self._lowest = self._lowest, (broker_id, address)
        slave = self._slave
        was_acting, slave.is_acting = slave.is_acting, broker_id == self._own_id
        if slave.is_acting and not was_acting:
            _log.warning(
                "slave %d of group %s acts for its master, which is away: it is read from, and "
                "keeps commits and locks; nothing can be sent to this group",
                self._own_id,
                self._name,
            )
        elif was_acting:
            _log.info("slave %d of group %s does not act any more", self._own_id, self._name)
        if broker_id == MASTER_ID:
            self._tasks.start("master", self._follow_master(address, ha_address))
        elif before is None or before[0] == MASTER_ID:
            self._follow(None, None)

    async def _follow_master(self, address: str, ha_address: str | None) -> None:
        if not ha_address:
            try:
                ha_address = (await ask_ha_info(address)).ha_address
            except PymqError as error:
                _log.warning("master %s does not say where its slaves connect: %s", address, error)
        if self._lowest == (MASTER_ID, address):
            if ha_address:
                self._follow(address, ha_address)
                self._on_master()
            else:
                self._lowest = None  # try again when the group is told next

    def registered(self, address: str | None, ha_address: str) -> None:
        """Take what a name server says of the master when this slave is registered."""
        if self._lowest is None or self._lowest[0] == MASTER_ID:
            self._follow(address, ha_address)

    def told(self, info: HaInfo) -> None:
        """A master that is about to be online says where its slaves connect."""
        if info.ha_address:
            # Its log alone: it takes over what we know of offsets before we ask for its own.
            self._slave.follow(info.ha_address)

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()
