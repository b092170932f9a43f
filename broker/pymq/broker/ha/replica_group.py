"""What the parts of a broker ask of the group that it is in, while one term lasts."""

from dataclasses import dataclass
from typing import Protocol

from pymq.broker.ha.term import Term
from pymq.protocol.command import Command
from pymq.protocol.controller import SyncStateSet
from pymq.store import EpochFile


class GroupSteering(Protocol):
    """Whoever has the broker change its role, and speaks with the controllers."""

    def told(self, request: Command) -> None:
        """Take a notification of a controller.

        Raises:
            RemoteProtocolError: it is malformed.
        """

    async def alter(
        self, broker_ids: frozenset[int], epoch: int, *, term: int
    ) -> SyncStateSet | None:
        """Ask for another sync state set; see ``Membership.alter``."""

    def diverged(self, common_end: int) -> None:
        """The log has to be cut at a physical offset before it can follow its master's."""

    def members_listener(self, in_sync: "MembersListener | None", *, term: int) -> None:
        """Have a master's parts told of the set that the controller has in their term."""


class MembersListener(Protocol):
    """Who goes by the sync state set."""

    def told(self, members: SyncStateSet) -> None:
        """Take the set that the controller has."""

    @property
    def confirmed_end(self) -> int:
        """Physical offset up to which all members have the log."""


@dataclass(frozen=True, slots=True)
class ReplicaGroup:
    """The group, as a broker is built on it.

    Attributes:
        term: in which the parts live.
        epochs: of the log.
        steering: changes the role.
    """

    term: Term
    epochs: EpochFile
    steering: GroupSteering
