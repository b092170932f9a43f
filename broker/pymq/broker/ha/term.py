"""Who is the master of a group of brokers, for how long: what a controller has decided."""

from dataclasses import dataclass

from pymq.protocol.controller import SyncStateSet


@dataclass(frozen=True, slots=True)
class Term:
    """One master's time, as one broker of its group sees it.

    Attributes:
        number: the master's epoch; each election begins a later one.
        own_id: the id that the controller gave to this broker.
        master_id: that of the master.
        master_address: ``host:port`` of the master, for clients.
        members: who has everything that is acknowledged, when the term began here.
    """

    number: int
    own_id: int
    master_id: int
    master_address: str
    members: SyncStateSet

    @property
    def is_master(self) -> bool:
        """Whether this broker is the master."""
        return self.own_id == self.master_id
