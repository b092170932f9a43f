"""Warnings that are said once per cause, however often what they are about is tried again."""

import logging
from collections.abc import Hashable


class SaidOnce:
    """Which causes have been logged, and are not over.

    Args:
        log: of the module that says it.
    """

    __slots__ = ("_log", "_said")

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: set[Hashable] = set()

    def warn(self, cause: Hashable, text: str, *arguments: object) -> None:
        """Log at WARNING, or at DEBUG when this cause was logged and is not over."""
        level = logging.DEBUG if cause in self._said else logging.WARNING
        self._said.add(cause)
        self._log.log(level, text, *arguments)

    def over(self, cause: Hashable, text: str = "", *arguments: object) -> None:
        """The cause is over: log that at INFO if it was logged, and warn again when it returns."""
        if cause in self._said:
            self._said.discard(cause)
            if text:
                self._log.info(text, *arguments)
