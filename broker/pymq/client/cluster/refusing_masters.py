"""Masters that refuse what masters do: how often to look whether they still are masters, pure.

One that became a slave without a restart keeps its connections, and refuses with codes that a
master has, too, when it is only busy: for moments, or for hours.
"""

from dataclasses import dataclass

#: Name servers hear of a change within moments of it: at first we look this often, and later after
#: ``WAIT_SHARE`` of the time for which it has refused by then.
LOOK_FIRST_S = 0.2
WAIT_SHARE = 0.25
#: One that has been busy for hours may become a slave at last: it is looked at least this often,
#: which costs one route each time.
LOOK_MAX_S = 5.0
#: A master that has refused nothing for this long is looked at as if it had never refused.
OVER_S = 30.0


@dataclass(slots=True)
class _Refusals:
    first_s: float
    last_s: float
    looked_s: float


class RefusingMasters:
    """Since when which addresses refuse. Times are the caller's monotonic clock, in seconds.

    Args:
        age_s: routes are read this often in any case; it is never longer until a look.
    """

    def __init__(self, age_s: float) -> None:
        self._wait_max_s = min(age_s, LOOK_MAX_S)
        self._refusals: dict[str, _Refusals] = {}

    def refused(self, address: str, now_s: float) -> bool:
        """Note a refusal; return whether it is time to look who is the master."""
        known = self._refusals.get(address)
        if known is None or now_s - known.last_s >= OVER_S:
            self._refusals[address] = _Refusals(now_s, now_s, now_s)
            return True
        known.last_s = now_s
        wait_s = min(WAIT_SHARE * (known.looked_s - known.first_s), self._wait_max_s)
        if now_s - known.looked_s < max(wait_s, LOOK_FIRST_S):
            return False
        known.looked_s = now_s
        return True

    def changed(self) -> None:
        """There is another master: forget all refusals so far."""
        self._refusals.clear()
