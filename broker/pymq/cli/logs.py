"""Logging to standard error: one line per event."""

import logging
import sys

#: From the quietest to the most verbose; ``-q`` and ``-v`` move along it.
LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


#: Most characters of a line: a peer may send a name or a reason as long as a frame.
LINE_CHARACTERS_MAX = 8192
#: Characters that a terminal obeys, and how they are written instead.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}


class OneLine(logging.Formatter):
    """Time, level, logger and message; a traceback stays on the line of its event.

    Of a long line the middle is left out; control characters are escaped.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the event as one line."""
        text = " | ".join(_shortened(super().format(record)).splitlines())
        return _shortened(text.translate(_CONTROLS))


def _shortened(text: str) -> str:
    left_out = len(text) - LINE_CHARACTERS_MAX
    if left_out <= 0:
        return text
    half = LINE_CHARACTERS_MAX // 2
    return f"{text[:half]}... {left_out} characters ...{text[-half:]}"


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
