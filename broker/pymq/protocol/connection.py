"""Matches responses to requests, for both the asyncio and the blocking channel.

A request carries a number, ``opaque``, that its response repeats; responses come in any order.
Numbers wrap around as Java's ``int`` does, from the largest to the smallest. Requests of the peer,
over the same connection, have numbers of their own, unrelated to these.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from pymq.errors import TooManyPending
from pymq.protocol.command import Command

T = TypeVar("T")

#: Most requests in flight on one connection.
PENDING_MAX = 65536

_NEVER = float("inf")


class RequestTable(Generic[T]):
    """The requests in flight on one connection; for one thread.

    A *token* is whatever the owner wants back when a request is over.

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
        """No pending request expires before this time; infinity if there is none."""
        return self._earliest_s

    def register(self, deadline_s: float, token: T) -> int:
        """Return the ``opaque`` of a new request.

        Args:
            deadline_s: when to give up, on the caller's monotonic clock.
            token: returned once, by ``resolve``, ``forget``, ``expired`` or ``fail_all``.

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
        """Return the token of the request that a response belongs to.

        ``None`` if there is none: it has expired, was given up, or never existed. RocketMQ drops
        such responses, and so should the caller.
        """
        return self.forget(response.opaque)

    def forget(self, opaque: int) -> T | None:
        """Give up a request and return its token, ``None`` if it is not pending."""
        entry = self._pending.pop(opaque, None)
        if not self._pending:
            self._earliest_s = _NEVER
        return None if entry is None else entry[1]

    def expired(self, now_s: float, extend: Callable[[int, T], float] | None = None) -> list[T]:
        """Remove the requests whose deadline has passed; return their tokens, oldest first.

        Args:
            now_s: on the caller's clock.
            extend: returns another deadline for such a request, of which it gets ``opaque`` and
                token; one that has passed: none.
        """
        if now_s < self._earliest_s:
            return []
        pending = self._pending
        tokens: list[T] = []
        for opaque in [one for one, (deadline_s, _) in pending.items() if deadline_s <= now_s]:
            token = pending[opaque][1]
            deadline_s = now_s if extend is None else extend(opaque, token)
            if deadline_s > now_s:
                pending[opaque] = (deadline_s, token)
            else:
                del pending[opaque]
                tokens.append(token)
        self._earliest_s = min((deadline_s for deadline_s, _ in pending.values()), default=_NEVER)
        return tokens

    def fail_all(self) -> list[T]:
        """Remove all requests because the connection is gone; return their tokens."""
        tokens = [token for _, token in self._pending.values()]
        self._pending.clear()
        self._earliest_s = _NEVER
        return tokens


def _following(opaque: int) -> int:
    return opaque + 1 if opaque < 0x7FFFFFFF else -0x80000000
