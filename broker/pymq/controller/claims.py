"""Which broker each connection says to be, and which of them are copies of another one.

Two brokers have one id when a store was copied with its ``brokerIdentity``. The id belongs to the
one at the address that the group has on record:

* Who beats from another address is not that broker. What it asks is refused, so that it cannot
  take the next term of that id for its own.
* Who asks for an id while its holder goes on beating, and has not had it itself, is a copy. It does
  not get the id when the holder stands still or is gone: it lacks what was written since it was
  copied. It has to be started again, by somebody who knows. A broker that has moved does not meet
  the old one alive.
* Who had the id before, and was put out by the one that has it now, is no copy: it asks again
  until the other one is gone. What it may become then, its log says (``elections``).

Nothing here is kept anywhere: it ends with the connection, or with this process. Brokers of ours
keep both themselves: one that is told that it is a copy does not ask again, and one that had the id
says so when it asks.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeAlias
from weakref import WeakKeyDictionary

from pymq.controller.groups import GroupState

#: What the holder of an id has sent before it died has arrived this long after another broker was
#: refused it, as a rule. But a cut network delivers later, all at once, what was sent before it was
#: cut: so the holder is alive if it is heard after that, and once more as much later.
OVERLAP_S = 3.0
#: Most brokers that are looked after on one connection (RocketMQ can have several in a process).
CLAIM_COUNT_MAX = 100
#: Ids of which it is known who had them before.
HOLDER_COUNT_MAX = 10_000
#: Refusals of one id that are said, and ids of which refusals are kept.
REFUSAL_COUNT_MAX, REFUSED_COUNT_MAX = 20, 1_000

#: A group, and an id in it.
_Key: TypeAlias = tuple[str, int]


@dataclass(slots=True)
class _Claims:
    #: Group and id -> the address that beats.
    beating: dict[_Key, str] = field(default_factory=dict)
    #: Those that it has had, at the address on record.
    held: set[_Key] = field(default_factory=set)
    #: Group and id -> when it was refused first.
    refused_s: dict[_Key, float] = field(default_factory=dict)
    #: Group and id -> when the holder was heard afterwards, for the first time that counts.
    overlap_s: dict[_Key, float] = field(default_factory=dict)
    #: Group and id -> the address of the broker that was alive at the same time.
    copies: dict[_Key, str] = field(default_factory=dict)


class Claims:
    """What is known of all connections."""

    def __init__(self) -> None:
        self._connections: WeakKeyDictionary[Hashable, _Claims] = WeakKeyDictionary()
        #: Group and id -> the address of the one that has it, and of the one before.
        self._holders: dict[_Key, tuple[str, str | None]] = {}
        #: Group and id -> refusals that were said since the id was held: to which address, and of
        #: which kind.
        self._said: dict[_Key, set[tuple[str, str]]] = {}

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

    def holds(self, connection: Hashable, name: str, broker_id: int, address: str) -> None:
        """The broker of a connection has an id, and is at the address on record."""
        claims, key = self._of(connection), (name, broker_id)
        if len(claims.held) < CLAIM_COUNT_MAX:
            claims.held.add(key)
        for refusals in (claims.refused_s, claims.overlap_s, claims.copies):
            refusals.pop(key, None)
        known, before = self._holders.get(key, (address, None))
        if len(self._holders) >= HOLDER_COUNT_MAX and key not in self._holders:
            self._holders.clear()
        if known != address or key not in self._holders:
            self._said.pop(key, None)
        self._holders[key] = address, before if known == address else known

    def _was_put_out(self, claims: _Claims, key: _Key) -> bool:
        """Has the broker had the id before the one that has it now?

        A broker of ours says so itself. One of RocketMQ goes on beating, also over another
        connection, which tells it from one that was only started: that does not beat yet.
        """
        _, before = self._holders.get(key, (None, None))
        return key in claims.held or (before is not None and claims.beating.get(key) == before)

    def is_news(self, name: str, broker_id: int, address: str, kind: str) -> bool:
        """Is it the first refusal of its kind to an address, since the id was given to anybody?

        However often the broker there connects again. Only so many are, whatever addresses are
        told.
        """
        if len(self._said) >= REFUSED_COUNT_MAX and (name, broker_id) not in self._said:
            self._said.clear()
        said = self._said.setdefault((name, broker_id), set())
        if (address, kind) in said or len(said) >= REFUSAL_COUNT_MAX:
            return False
        said.add((address, kind))
        return True

    def refused(
        self,
        connection: Hashable,
        name: str,
        broker_id: int,
        *,
        holder: str,
        heard_s: float,
        awake_s: float,
        now_s: float,
    ) -> None:
        """An id was refused because its holder is alive.

        Args:
            holder: the address of the one that has it.
            heard_s: when that was heard last.
            awake_s: since when this process did not stand still: what arrived meanwhile was sent
                nobody knows when.
        """
        claims, key = self._of(connection), (name, broker_id)
        if self._was_put_out(claims, key):
            return
        if len(claims.refused_s) >= CLAIM_COUNT_MAX and key not in claims.refused_s:
            return
        if claims.refused_s.setdefault(key, now_s) < awake_s:
            claims.refused_s[key] = now_s
            claims.overlap_s.pop(key, None)
        if heard_s <= claims.refused_s[key] + OVERLAP_S:
            return
        if heard_s > claims.overlap_s.setdefault(key, heard_s) + OVERLAP_S:
            claims.copies[key] = holder

    def original_of(self, connection: Hashable, name: str, broker_id: int) -> str | None:
        """Return the address of the broker whose copy this one is; None: it is none."""
        claims = self._connections.get(connection)
        return None if claims is None else claims.copies.get((name, broker_id))

    def note_held(self, connection: Hashable, state: GroupState) -> None:
        """Record the ids that the brokers of a connection have in a group, as they beat."""
        claims = self._connections.get(connection)
        for (name, broker_id), address in list(claims.beating.items()) if claims else ():
            if name == state.name and address and state.address_of(broker_id) == address:
                self.holds(connection, name, broker_id, address)

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
