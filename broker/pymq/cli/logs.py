"""Logging to standard error: one line per event."""

import logging
import sys

#: From the quietest to the most verbose; ``-q`` and ``-v`` move along it.
LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


class OneLine(logging.Formatter):
    """Time, level, logger and message; a traceback stays on the line of its event."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the event as one line."""
        return " | ".join(super().format(record).splitlines())


def level_for(usual: int, *, verbose: int, quiet: int) -> int:
    """Return the level that a number of ``-v`` and ``-q`` asks for.

    Args:
        usual: the level without any; one of ``LEVELS``.
        verbose: how often ``-v`` was given.
        quiet: how often ``-q`` was given.
    """
    wanted = LEVELS.index(usual) + verbose - quiet
    return LEVELS[max(0, min(wanted, len(LEVELS) - 1))]


def set_up(level: int) -> None:
    """Send events of this level and above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # uvloop and asyncio announce at debug level which selector they use.
    logging.getLogger("asyncio").setLevel(max(level, logging.INFO))
