"""What a dispatcher asks before it hands requests to their handlers: may they be handled at all?"""

from typing import Protocol


class Admission(Protocol):
    """Refuses requests while there are too many."""

    #: Whether each request is to be checked, also those that did not wait.
    is_strained: bool

    def check(self, code: int, waited_s: float, behind_count: int) -> None:
        """Refuse a request, or do nothing.

        Args:
            code: of the request.
            waited_s: since it was read.
            behind_count: requests that were read with it, and follow it.

        Raises:
            BrokerError: it is refused.
        """

    def begin_wait(self, code: int) -> None:
        """A handler is about to wait.

        Raises:
            BrokerError: too many do.
        """

    def end_wait(self, code: int) -> None:
        """A handler has waited."""
