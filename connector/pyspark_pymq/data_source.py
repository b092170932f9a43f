"""``format("pymq")``: what Spark finds, and asks for readers and writers.

Spark imports this module in a process that looks for the data sources of all packages, and an
error there would disable all of them. So this module imports only what Spark itself has imported
by then; the rest is imported when the source is used.
"""

import importlib
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_pymq.sink.writer import PymqBatchWriter, PymqStreamWriter
    from pyspark_pymq.source.batch_reader import PymqBatchReader
    from pyspark_pymq.source.metadata import QueueStatesReader
    from pyspark_pymq.source.reader import PymqStreamReader
    from pyspark_pymq.source.refused_reader import RefusedStreamReader

#: Spark needs the first as well, but not in every process.
_PACKAGES = ("pyarrow", "numpy", "pymq")


class PymqSource(DataSource):
    """The data source "pymq": topics of RocketMQ and pymq brokers as tables and streams."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options, as far as that is possible without knowing whether to read or write.

        Raises:
            ImportError: a package that we need is not there.
            ConfigurationError: an option is unknown, missing or malformed.
        """
        check_packages()
        from pyspark_pymq.format_options import with_schema_text
        from pyspark_pymq.options import check_options

        super().__init__(with_schema_text(options))
        check_options(self.options)

    @classmethod
    def name(cls) -> str:
        """Return the name used in ``format(...)``."""
        return "pymq"

    def schema(self) -> "StructType":
        """Return the columns that are read when the user gives no schema."""
        from pyspark_pymq.source.metadata import queue_schema
        from pyspark_pymq.source.option_checks import source_options

        options = source_options(self.options)
        return queue_schema() if options.metadata is not None else options.default_schema()

    def reader(self, schema: "StructType") -> "PymqBatchReader | QueueStatesReader":
        """Return the reader of ``spark.read``."""
        from pymq.errors import ConfigurationError
        from pyspark_pymq.source.batch_reader import PymqBatchReader
        from pyspark_pymq.source.columns import check_schema
        from pyspark_pymq.source.metadata import QUEUE_COLUMNS, QueueStatesReader
        from pyspark_pymq.source.option_checks import source_options
        from pyspark_pymq.spark_processes import show_log, takes_filters

        show_log()
        options = source_options(self.options)
        if options.commits_offsets:
            raise ConfigurationError(
                "option commitOffsetsToBroker=true is for streams (spark.readStream): a batch does "
                "not learn when it is done. Remove it"
            )
        if options.metadata is not None:
            check_schema(schema, known=QUEUE_COLUMNS)
            return QueueStatesReader(options, schema)
        options.check_schema(schema)
        options.check_for_batch()
        if takes_filters():
            from pyspark_pymq.source.pushdown import FilteringBatchReader

            return FilteringBatchReader(options, schema)
        return PymqBatchReader(options, schema)

    def streamReader(self, schema: "StructType") -> "PymqStreamReader | RefusedStreamReader":
        """Return the reader of ``spark.readStream``, or one that raises what is wrong."""
        from pymq.errors import ConfigurationError
        from pyspark_pymq.source.option_checks import source_options
        from pyspark_pymq.source.reader import PymqStreamReader
        from pyspark_pymq.source.refused_reader import RefusedStreamReader
        from pyspark_pymq.spark_processes import show_log, warn_of_tcp

        show_log()
        warn_of_tcp()
        try:
            options = source_options(self.options)
            if options.metadata is not None:
                raise ConfigurationError("option metadata is for batch reads (spark.read)")
            options.check_schema(schema)
            options.check_for_stream()
        except ConfigurationError as error:
            return RefusedStreamReader(error)
        return PymqStreamReader(options, schema)

    def writer(self, schema: "StructType", overwrite: bool) -> "PymqBatchWriter":
        """Return the writer of ``df.write``."""
        from pymq.errors import ConfigurationError
        from pyspark_pymq.sink.columns import check_columns
        from pyspark_pymq.sink.options import sink_options
        from pyspark_pymq.sink.plan import plan_sink
        from pyspark_pymq.sink.writer import PymqBatchWriter

        if overwrite:
            raise ConfigurationError(
                'mode("overwrite") is refused: it would have to delete the messages of a topic, '
                'which may have other readers. Use mode("append")'
            )
        options = sink_options(self.options)
        writer = PymqBatchWriter(options, check_columns(schema, options), plan_sink(options))
        writer.choose_home()
        return writer

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "PymqStreamWriter":
        """Return the writer of ``df.writeStream``.

        ``overwrite`` is output mode complete: each micro-batch writes the whole result again.
        """
        from pyspark_pymq.sink.columns import check_columns
        from pyspark_pymq.sink.options import sink_options
        from pyspark_pymq.sink.plan import plan_sink
        from pyspark_pymq.sink.writer import PymqStreamWriter

        options = sink_options(self.options)
        return PymqStreamWriter(options, check_columns(schema, options), plan_sink(options))


def check_packages() -> None:
    """Check that the packages the connector needs can be imported.

    Raises:
        ImportError: something is missing, or built for something else; the text says what to do.
    """
    for name in _PACKAGES:
        try:
            importlib.import_module(name)
        except Exception as error:  # one that was built for another numpy raises what it likes
            raise ImportError(
                f'format("pymq") needs {name}, which {sys.executable} cannot import '
                f"({type(error).__name__}: {error}): run {sys.executable} -m pip install "
                "'pymq-rocketmq[spark]' here and on every executor, or let PYSPARK_PYTHON name a "
                "Python that has it"
            ) from error
