"""Masters that refuse what masters do: when to ask name servers who is the master, pure.

A master that became a slave without a restart keeps its connections. The codes with which it
refuses are those of a master that is only busy, for moments or for hours. So each refusal may be
a reason to look, and most are none.
"""

from dataclasses import dataclass

#: Name servers hear of a change within moments of it: at first we look this often, and later after
#: ``WAIT_SHARE`` of the time for which it has refused by then.
LOOK_FIRST_S = 0.2
WAIT_SHARE = 0.25
#: A master that has been busy for hours may become a slave at last: we look at least this often,
#: which costs one route each time.
LOOK_MAX_S = 5.0
#: One that has refused nothing for this long counts as one that never did.
OVER_S = 30.0


@dataclass(slots=True)
class _Refusals:
    first_s: float
    last_s: float
    looked_s: float


class RefusingMasters:
    """Which masters refuse, by address, and when it was looked for others in their place.

    Times are the caller's monotonic clock, in seconds.

    Args:
        route_age_s: routes are read this often without any refusal: the longest time between two
            looks, if it is shorter than ``LOOK_MAX_S``.
    """

    def __init__(self, route_age_s: float) -> None:
        self._look_max_s = min(route_age_s, LOOK_MAX_S)
        self._refusals: dict[str, _Refusals] = {}

    def refused(self, address: str, now_s: float) -> bool:
        """Note a refusal; return whether it is time to look who is the master."""
        known = self._refusals.get(address)
        if known is None or now_s - known.last_s >= OVER_S:
            self._refusals[address] = _Refusals(now_s, now_s, now_s)
            return True
        known.last_s = now_s
        wait_s = min(WAIT_SHARE * (known.looked_s - known.first_s), self._look_max_s)
        if now_s - known.looked_s < max(wait_s, LOOK_FIRST_S):
            return False
        known.looked_s = now_s
        return True

    def changed(self) -> None:
        """There is another master: forget all refusals so far."""
        self._refusals.clear()
