"""The driver's side of ``spark.read``."""

import logging
from collections.abc import Sequence

from pyspark.sql.datasource import DataSourceReader

from pymq.errors import OffsetOutOfRange
from pyspark_pymq.offsets import EARLIEST, QueueRange, missed_ends, told
from pyspark_pymq.source.source import QueuesPartition, Source
from pyspark_pymq.source.start_log import start_told

LOG = logging.getLogger(__name__)


class PymqBatchReader(Source, DataSourceReader):
    """Reads what the topics hold between two bounds, fixed when the job is planned."""

    _to_start_elsewhere = "set startingOffsets to what there is"

    def partitions(self) -> Sequence[QueuesPartition]:
        """Return the tasks of the job.

        Raises:
            ConfigurationError: a queue was named that does not exist.
            OffsetOutOfRange: what was asked for is not there.
            RouteNotFound: there is no such topic, or a broker of ``expectedBrokers`` is away.
            PymqError: brokers could not be asked.
        """
        options = self._options
        self._warn_of_options()
        if limits := options.trigger_limits():
            LOG.warning("a batch reads all there is, without triggers: %s does nothing", limits)
        first, last = options.start(EARLIEST), options.end()
        try:
            bounds = self._query_start.bounds([q for q, _ in (*first.named, *last.named)])
            start = self._positions.start(first, bounds)
            starts = start.offsets
            # A start by time was looked up after the bounds, so it may lie beyond their ends: then
            # they are asked for again.
            bounds = self._check_losses(starts, bounds)
            ends = self._positions.ends(last, {queue: bounds[queue] for queue in starts})
        finally:
            self._topics.close()
        LOG.info("batch of %s: %s", options.choice, start_told(starts, start.reasons, bounds))
        missed = missed_ends(starts, ends, bounds)
        if missed and options.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"endingOffsets: {told(missed)}; set failOnDataLoss to false to read what there is"
            )
        if missed:
            LOG.warning(
                "data loss accepted (failOnDataLoss=false), endingOffsets: %s", told(missed)
            )
        wanted = [
            QueueRange(queue, max(start, bounds[queue][0]), min(ends[queue], bounds[queue][1]))
            for queue, start in sorted(starts.items())
            if max(start, bounds[queue][0]) < min(ends[queue], bounds[queue][1])
        ]
        return self._partitions(wanted, self._topics.topic_ids)
