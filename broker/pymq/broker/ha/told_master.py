"""Which master a slave follows: the log of one broker, and the tables of the same one."""

import logging

from pymq.broker.ha.metadata import MetadataSync
from pymq.broker.ha.offset_sync import OffsetSync
from pymq.broker.ha.slave import Slave
from pymq.net.said_once import SaidOnce

_log = logging.getLogger(__name__)


class ToldMaster:
    """Has a slave follow the master that it is told of.

    Args:
        pinned: the HA port to follow, whatever is told (``haMasterAddress``); None: that is told.
        slave: follows the log.
        metadata, offset_sync: follow the tables, when the log is followed.
    """

    def __init__(
        self,
        pinned: str | None,
        slave: Slave,
        metadata: MetadataSync,
        offset_sync: OffsetSync,
    ) -> None:
        self._pinned = pinned
        self._slave = slave
        self._metadata = metadata
        self._offset_sync = offset_sync
        #: The master that only the log may follow yet, by both of its addresses.
        self._pending: tuple[str | None, str] | None = None
        self._said = SaidOnce(_log)
        slave.on_begun = self._begun

    def follow(self, address: str | None, ha_address: str | None) -> None:
        """Follow a master, by its address for clients, and that of its HA port; None: nobody."""
        self._slave.follow(ha_address and (self._pinned or ha_address))
        self._pending = None
        if ha_address and self._pinned and self._slave.wants_proof:
            self._pending = address, ha_address
            self._look()
        else:
            self.follow_tables(address)

    def follow_tables(self, address: str | None) -> None:
        """Follow the tables of a master, by its address for clients; None: nobody's."""
        self._metadata.follow(address)
        self._offset_sync.follow(address)

    def _look(self) -> None:
        """Follow the tables of the master that is told if its log is the one that is followed."""
        if self._pending is None:
            return
        address, ha_address = self._pending
        peer = self._slave.peer  # what is pinned may be a name
        if ha_address in (self._pinned, peer):
            self.follow_tables(address)
        elif peer is not None:
            self._said.warn(
                ha_address,  # where two are registered, now one is told, now the other
                "the name server says that broker %s is the master, and that slaves connect at %s; "
                "this slave follows the log of %s (haMasterAddress), which has proven the secret. "
                "If that is another broker, stop one of them; its topics, groups and offsets are "
                "not taken over. If it is the same one, set haMasterAddress to what it tells "
                "(brokerIP2 and haListenPort there), or leave it out",
                address,
                ha_address,
                self._pinned,
            )

    def _begun(self) -> None:
        self._look()
        self._metadata.begin()
        self._offset_sync.begin()
