"""Producers that nobody closes: what they had not sent is lost, and that is said."""

import logging
import weakref
from collections.abc import Callable

from pymq.client.cluster.home import Process
from pymq.client.sending.send_window import SendWindow

_log = logging.getLogger(__name__)


def watch_unclosed(producer: object, window: SendWindow) -> Callable[[], object]:
    """Have it logged when a producer, or its program, ends without ``close``; return a revocation.

    Args:
        producer: that was started.
        window: what it has in flight.
    """
    return weakref.finalize(producer, _say, window, Process()).detach


def _say(window: SendWindow, process: Process) -> None:
    if process.is_forked:
        return  # The parent has the producer.
    count, gathered = window.unanswered
    lost = "no send was under way"
    if count:
        lost = f"{count} sends had no answer; they are lost, or stored without anybody knowing"
    if gathered:
        lost = f"{gathered} messages of its Batcher had no receipt, and {lost}"
    _log.warning(
        "a producer was left without close(): %s; use it as `async with Producer(...)`, or await "
        "close(), which waits for what is in flight",
        lost,
    )
