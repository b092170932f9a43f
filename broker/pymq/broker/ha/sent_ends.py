"""How much of the log each address can have: what a slave says about that is not taken on trust.

A slave that connects says where its log ends. Whoever knows where the master's log ends could say
that, without a byte of it, and would confirm what no slave has. So the first report of a slave that
has proven nothing counts as far as this master has sent the log to its address, or had it when it
started: what happened before is not known. Later reports are compared with what was sent.
"""

#: Addresses that are remembered; those that were there longest ago are forgotten first.
ADDRESS_COUNT_MAX = 1024


class SentEnds:
    """Up to where the log was sent, by address.

    Args:
        log_end: where the log ended when this master started.
    """

    def __init__(self, log_end: int) -> None:
        self._log_end = log_end
        self._ends: dict[str, int] = {}

    def sent(self, host: str, physical_end: int) -> None:
        """The log was sent to an address up to a physical offset."""
        end = max(self._ends.pop(host, self._log_end), physical_end)
        self._ends[host] = end
        if len(self._ends) > ADDRESS_COUNT_MAX:
            del self._ends[next(iter(self._ends))]

    def credible(self, host: str, physical_end: int) -> int:
        """Return how much of what somebody at an address says to have he can have."""
        return min(physical_end, self._ends.get(host, self._log_end))
