"""A listener of Spark that tells how far queries are behind."""

import logging
from collections.abc import Callable

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from pymq.errors import ConfigurationError
from pyspark_pymq.query_progress import StreamLag, lag

LOG = logging.getLogger(__name__)


class LagListener(StreamingQueryListener):
    """Tells, after every batch of a query with a pymq source, how far the query is behind.

    ::

        spark.streams.addListener(LagListener(lambda lag: gauge.set(lag.total)))

    Args:
        report: called with the lag. By default it is logged at level INFO, which a program shows
            that has called ``logging.basicConfig(level=logging.INFO)``, or the like; one that
            does not is told so once.
    """

    def __init__(self, report: Callable[[StreamLag], None] | None = None) -> None:
        self._report = report or self._log
        self._has_warned = False

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: there is no progress yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Report the lag; queries without a pymq source are passed over."""
        try:
            found = lag(event.progress)
        except ConfigurationError as error:
            LOG.debug("no lag: %s", error)
            return
        self._report(found)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: the last progress has been reported."""

    def _log(self, found: StreamLag) -> None:
        is_shown = LOG.isEnabledFor(logging.INFO) and LOG.hasHandlers()
        if not is_shown and not self._has_warned:
            self._has_warned = True
            LOG.warning(
                "LagListener logs at level INFO, which this program does not show: call "
                "logging.basicConfig(level=logging.INFO), or give it a function to call"
            )
        worst = max(found.queues, key=lambda queue: queue.lag, default=None)
        most = ""
        if worst is not None and worst.lag:
            most = f", most of them, {worst.lag}, in {worst.queue}"
        LOG.info(
            "query %s, batch %d: %d messages behind%s%s",
            found.name or found.query_id,
            found.batch_id,
            found.total,
            most,
            f"; nothing is known of {len(found.unknown)} queues" if found.unknown else "",
        )
