"""What a controller needs of a store.

A store keeps one value per group, and says which process leads. Both are checked by the store
itself, at the moment of each read and write: a process that led a second ago, and does not know
yet that it does not, reads nothing and changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from pymq.controller.groups import GroupState
from pymq.errors import BrokerError, refusal
from pymq.protocol.codes import ResponseCode


@dataclass(frozen=True, slots=True)
class Stored:
    """A group as it was read.

    Attributes:
        state: None: there is no such group.
        revision: identifies what was read, for ``replace``; nothing else may be made of it.
    """

    state: GroupState | None
    revision: int


@dataclass(frozen=True, slots=True)
class Leader:
    """The controller that leads.

    Attributes:
        id: its name among the controllers.
        address: ``host:port`` for brokers.
    """

    id: str
    address: str


class ControllerStore(Protocol):
    """Keeps groups; any number of calls may be under way.

    Every call may raise the errors of ``not_leader`` and ``unavailable``. After the latter, of a
    change it is not known whether it was made: read again.
    """

    @property
    def leader(self) -> Leader | None:
        """Who leads, to this process's knowledge; None: nobody, or it does not know."""

    @property
    def is_leader(self) -> bool:
        """Does this process lead, to its knowledge? What that is worth, the calls below say."""

    @property
    def peers(self) -> Mapping[str, str]:
        """All controllers that run: id -> ``host:port``."""

    @property
    def durability(self) -> str:
        """What it takes to lose what is stored here; a sentence for operators."""

    async def start(self) -> None:
        """Begin; ``is_leader`` may change from now on.

        Raises:
            ConfigurationError: it cannot be used like this.
        """

    async def read(self, name: str) -> Stored:
        """Return one group."""

    async def read_all(self) -> Mapping[str, Stored]:
        """Return every group by its name."""

    async def replace(self, name: str, revision: int, state: GroupState | None) -> bool:
        """Replace a group, if it still is what was read.

        Args:
            revision: of what was read.
            state: the new one; None removes it.

        Returns:
            False: it was changed in the meantime, and nothing was done.
        """

    async def close(self) -> None:
        """Stop leading, and stop; idempotent."""


def not_leader(leader: Leader | None) -> BrokerError:
    """Return the error of a call of a process that does not lead."""
    return refusal(
        ResponseCode.CONTROLLER_NOT_LEADER,
        "The controller is not in leader state"
        + (f": {leader.address} is" if leader else "; nobody is, try again"),
    )


def unavailable(text: str) -> BrokerError:
    """Return the error of a call that could not reach what it needs."""
    return refusal(ResponseCode.SYSTEM_ERROR, text)
