"""Which broker each connection says to be, and which of them are copies of another one.

Two brokers have one id when a store was copied with its ``brokerIdentity``. The id belongs to the
one at the address that the group has on record:

* Who beats from another address is not that broker. What it asks is refused, so that it cannot
  take the next term of that id for its own.
* Who asks for an id while its holder goes on beating is a copy. It does not get the id when the
  holder stands still or is gone: it lacks what was written since it was copied. It has to be
  started again, by somebody who knows. A broker that has moved does not meet the old one alive.

Nothing here is kept anywhere: it ends with the connection.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from pymq.controller.groups import GroupState

#: The holder of an id that is heard this long after another broker was refused it is alive: what
#: it sent before it died has arrived by then.
OVERLAP_S = 3.0
#: Most brokers that are looked after on one connection (RocketMQ can have several in a process).
CLAIM_COUNT_MAX = 100


@dataclass(slots=True)
class _Claims:
    #: Group and id -> the address that beats.
    beating: dict[tuple[str, int], str] = field(default_factory=dict)
    #: Group and id -> when it was refused first.
    refused_s: dict[tuple[str, int], float] = field(default_factory=dict)
    #: Group and id -> the address of the broker that was alive at the same time.
    copies: dict[tuple[str, int], str] = field(default_factory=dict)


class Claims:
    """What is known of all connections."""

    def __init__(self) -> None:
        self._connections: WeakKeyDictionary[Hashable, _Claims] = WeakKeyDictionary()

    def _of(self, connection: Hashable) -> _Claims:
        claims = self._connections.get(connection)
        if claims is None:
            claims = self._connections[connection] = _Claims()
        return claims

    def beats(self, connection: Hashable, name: str, broker_id: int, address: str) -> None:
        """A heartbeat has come."""
        beating = self._of(connection).beating
        if len(beating) < CLAIM_COUNT_MAX or (name, broker_id) in beating:
            beating[name, broker_id] = address

    def refused(
        self,
        connection: Hashable,
        name: str,
        broker_id: int,
        *,
        holder: str,
        heard_s: float,
        now_s: float,
    ) -> None:
        """An id was refused because its holder is alive.

        Args:
            holder: the address of the one that has it.
            heard_s: when that was heard last.
        """
        claims, key = self._of(connection), (name, broker_id)
        if len(claims.refused_s) >= CLAIM_COUNT_MAX and key not in claims.refused_s:
            return
        if heard_s > claims.refused_s.setdefault(key, now_s) + OVERLAP_S:
            claims.copies[key] = holder

    def original_of(self, connection: Hashable, name: str, broker_id: int) -> str | None:
        """Return the address of the broker whose copy this one is; None: it is none."""
        claims = self._connections.get(connection)
        return None if claims is None else claims.copies.get((name, broker_id))

    def why_not_member(self, connection: Hashable, state: GroupState) -> str | None:
        """Return why the broker of a connection is none of a group; None: it may be one."""
        claims = self._connections.get(connection)
        if claims is None:
            return None
        reason = None
        for (name, broker_id), address in claims.beating.items():
            if name != state.name or not address:
                continue
            known = state.address_of(broker_id)
            if known in (None, address):
                return None
            reason = (
                f"brokerId {broker_id} of {name} is that of the broker at {known}, not of the one "
                f"at {address}: stop one of them, or give it another id"
            )
        return reason
