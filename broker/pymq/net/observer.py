"""Whom a dispatcher tells of every completed request."""

from typing import Protocol


class Observer(Protocol):
    """Is told of every completed request."""

    def finished(
        self, code: int, response_code: int | None, elapsed_s: float, count: int = 1
    ) -> None:
        """Record completed requests.

        Args:
            code: of the requests.
            response_code: of their responses; None: there was none (``Request.abandon``).
            elapsed_s: from their arrival to their responses, the same for each.
            count: how many.
        """
