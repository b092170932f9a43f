"""Matches responses to requests: what both the asyncio and the blocking channel lean on.

A request carries a number, ``opaque``, that its response repeats; responses come in any
order. Numbers run as Java's ``int`` does, from the largest on to the smallest. Requests of the
peer, over the same connection, have numbers of their own that have nothing to do with these.
"""

from typing import Generic, TypeVar

from pymq.errors import TooManyPending
from pymq.protocol.command import Command

T = TypeVar("T")

#: Requests of one connection that may be unanswered at a time.
PENDING_MAX = 65536

_NEVER = float("inf")


class RequestTable(Generic[T]):
    """The unanswered requests of one connection; for one thread.

    A *token* is whatever the owner wants back when the answer, or none, has come.

    Invariant: ``_earliest_s`` is not later than any pending request's deadline.
    """

    __slots__ = ("_earliest_s", "_next", "_pending", "pending_max")

    def __init__(self, *, pending_max: int = PENDING_MAX, first_opaque: int = 0) -> None:
        self.pending_max = pending_max
        self._next = first_opaque
        self._pending: dict[int, tuple[float, T]] = {}
        self._earliest_s = _NEVER

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def earliest_s(self) -> float:
        """No pending request expires before this moment; infinity when there is none."""
        return self._earliest_s

    def register(self, deadline_s: float, token: T) -> int:
        """Return the ``opaque`` of a new request.

        Args:
            deadline_s: when to give up, on the caller's monotonic clock.
            token: given back by ``resolve``, ``expired`` or ``fail_all``, once.

        Raises:
            TooManyPending: ``pending_max`` requests are unanswered.
        """
        pending = self._pending
        if len(pending) >= self.pending_max:
            raise TooManyPending(
                f"{len(pending)} requests are unanswered, expected at most {self.pending_max} "
                "(pending_max); wait for answers before sending more"
            )
        opaque = self._next
        while opaque in pending:
            opaque = _following(opaque)
        self._next = _following(opaque)
        pending[opaque] = (deadline_s, token)
        if deadline_s < self._earliest_s:
            self._earliest_s = deadline_s
        return opaque

    def resolve(self, response: Command) -> T | None:
        """Return the token of the request a response belongs to.

        ``None`` when there is none: it expired, was given up, or never was. Peers drop such
        responses, and so should the caller.
        """
        return self.forget(response.opaque)

    def forget(self, opaque: int) -> T | None:
        """Give a request up and return its token, ``None`` when it is not pending."""
        entry = self._pending.pop(opaque, None)
        if not self._pending:
            self._earliest_s = _NEVER
        return None if entry is None else entry[1]

    def expired(self, now_s: float) -> list[T]:
        """Remove the requests whose deadline is reached; return their tokens, oldest first."""
        if now_s < self._earliest_s:
            return []
        late = [opaque for opaque, (deadline_s, _) in self._pending.items() if deadline_s <= now_s]
        tokens = [self._pending.pop(opaque)[1] for opaque in late]
        self._earliest_s = min(
            (deadline_s for deadline_s, _ in self._pending.values()), default=_NEVER
        )
        return tokens

    def fail_all(self) -> list[T]:
        """Remove all requests, because the connection is gone; return their tokens."""
        tokens = [token for _, token in self._pending.values()]
        self._pending.clear()
        self._earliest_s = _NEVER
        return tokens


def _following(opaque: int) -> int:
    return opaque + 1 if opaque < 0x7FFFFFFF else -0x80000000
