"""``format("pymq")``: what Spark finds, and asks for readers and writers."""

from collections.abc import Mapping

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pymq.errors import ConfigurationError
from pyspark_pymq.options import check_options, sink_options, source_options
from pyspark_pymq.rows import check_schema, default_schema
from pyspark_pymq.source import PymqBatchReader, PymqStreamReader
from pyspark_pymq.writer import PymqBatchWriter, PymqStreamWriter, check_columns


class PymqSource(DataSource):
    """The data source "pymq": topics of RocketMQ and pymq brokers as tables and streams."""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Check the options as far as they tell what is wanted.

        Raises:
            ConfigurationError: one is unknown, missing or malformed.
        """
        super().__init__(options)  # type: ignore[arg-type]
        check_options(options)

    @classmethod
    def name(cls) -> str:
        """Return what stands in ``format(...)``."""
        return "pymq"

    def schema(self) -> StructType:
        """Return the columns read when the user names none."""
        options = source_options(self.options)
        return default_schema(properties=options.include_properties)

    def reader(self, schema: StructType) -> "PymqBatchReader":
        """Return the reader of ``spark.read``."""
        check_schema(schema)
        return PymqBatchReader(source_options(self.options), schema)

    def streamReader(self, schema: StructType) -> "PymqStreamReader":
        """Return the reader of ``spark.readStream``."""
        check_schema(schema)
        options = source_options(self.options)
        if options.ending is not None:
            raise ConfigurationError(
                "option endingOffsets is for batch reads (spark.read); to end a stream where "
                "its topics end now, use trigger(availableNow=True)"
            )
        return PymqStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> PymqBatchWriter:
        """Return the writer of ``df.write``."""
        if overwrite:
            raise ConfigurationError(
                'mode("overwrite") is refused: it would have to delete the messages of a topic, '
                'which may have other readers. Use mode("append")'
            )
        options = sink_options(self.options)
        return PymqBatchWriter(options, check_columns(schema, options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> PymqStreamWriter:
        """Return the writer of ``df.writeStream``.

        ``overwrite`` is output mode complete: each micro-batch writes the whole result again.
        """
        options = sink_options(self.options)
        return PymqStreamWriter(options, check_columns(schema, options))
