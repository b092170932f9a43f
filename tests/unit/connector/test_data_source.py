"""What Spark imports to find the data source, and what it asks it for."""

import subprocess
import sys
from textwrap import dedent
from types import SimpleNamespace

import pytest
from pyspark.sql import datasource
from pyspark.sql import types as spark

from pymq.errors import ConfigurationError
from pyspark_pymq import DefaultSource
from pyspark_pymq.data_source import PymqSource
from pyspark_pymq.source.columns import default_schema
from pyspark_pymq.source.metadata import QueueStatesReader

OPTIONS = {"nameserver": "a:1", "subscribe": "orders"}
SCHEMA = default_schema(properties=False)


def in_a_new_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", dedent(code)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_discovery_finds_it() -> None:
    assert DefaultSource is PymqSource
    assert DefaultSource.name() == "pymq"


@pytest.mark.parametrize("missing", ["numpy", "pyarrow", "pymq"])
def test_discovery_imports_nothing_that_can_fail(missing: str) -> None:
    """What fails there takes all Python data sources of the session down."""
    text = in_a_new_process(f"""
        import sys
        sys.modules[{missing!r}] = None
        from pyspark import cloudpickle as pickle
        import pyspark_pymq
        from pyspark.sql.datasource import DataSource
        found = pickle.loads(pickle.dumps(pyspark_pymq.DefaultSource))
        assert issubclass(found, DataSource) and found.name() == "pymq"
        assert not {{"numpy", "pyarrow", "pymq"}} & {{n for n, m in sys.modules.items() if m}}
        try:
            found({OPTIONS!r})
        except ImportError as error:
            print(error)
    """)
    assert f'format("pymq") needs {missing}, which {sys.executable} cannot import' in text
    assert f"{sys.executable} -m pip install 'pymq-rocketmq[spark]'" in text


def test_the_import_tells_spark_which_python_to_run() -> None:
    ask = "import os, pyspark_pymq; print(os.environ.get('PYSPARK_PYTHON'))"
    assert in_a_new_process(ask).strip() == sys.executable
    assert in_a_new_process(ask, PYSPARK_PYTHON="mine").strip() == "mine"
    # spark-submit has its own settings, and mostly a cluster whose files are others.
    assert in_a_new_process(ask, PYSPARK_GATEWAY_PORT="1").strip() == "None"


def test_errors_at_load_and_start() -> None:
    source = PymqSource(OPTIONS)
    assert source.schema() == default_schema(properties=False)
    assert "properties" in PymqSource({**OPTIONS, "includeproperties": "true"}).schema().names
    bad = spark.StructType().add("body", "string")
    for call in (
        lambda: PymqSource({}),
        lambda: PymqSource({**OPTIONS, "subscibe": "x"}),
        lambda: PymqSource({"nameserver": "a:1"}).schema(),
        lambda: source.reader(bad),
        lambda: PymqSource({**OPTIONS, "startingoffsets": "latest"}).reader(SCHEMA),
        lambda: source.writer(spark.StructType().add("body", "string"), False),
        lambda: PymqSource({"nameserver": "a:1"}).writer(bad, False),
        lambda: PymqSource({"nameserver": "a:1", "topic": "t"}).writer(bad, True),
    ):
        with pytest.raises(ConfigurationError):
            call()


def test_errors_of_streams_are_the_last_that_spark_shows() -> None:
    """One of streamReader itself would end in an UnboundLocalError of Spark's (4.0 to 4.3)."""
    bad = spark.StructType().add("body", "string")
    ending = PymqSource({**OPTIONS, "endingoffsets": "latest"})
    for reader, text in (
        (PymqSource(OPTIONS).streamReader(bad), "body is string"),
        (ending.streamReader(SCHEMA), "endingOffsets=latest is for batch reads"),
    ):
        for call in (
            reader.initialOffset,
            reader.latestOffset,
            lambda reader=reader: reader.partitions({}, {}),
        ):
            with pytest.raises(ConfigurationError, match=text):
                call()


def test_columns_that_are_asked_for() -> None:
    kafka = PymqSource({**OPTIONS, "columns": "kafka"})
    assert kafka.schema().names[:2] == ["key", "value"]
    kafka.reader(kafka.schema())
    mixed = spark.StructType().add("value", "binary").add("brokerName", "string")
    PymqSource(OPTIONS).reader(mixed)
    with pytest.raises(ConfigurationError, match="columns=kafka and a schema .*value, brokerName"):
        kafka.reader(mixed)


def test_a_table_of_queues() -> None:
    source = PymqSource({**OPTIONS, "metadata": "topics"})
    assert source.schema().names[:3] == ["topic", "brokerName", "queueId"]
    assert isinstance(source.reader(source.schema()), QueueStatesReader)
    with pytest.raises(ConfigurationError, match="no column 'body'. Columns.*committedOffset"):
        source.reader(spark.StructType().add("body", "binary"))
    with pytest.raises(ConfigurationError, match="metadata is for batch reads"):
        source.streamReader(source.schema()).initialOffset()


def test_a_batch_has_no_progress() -> None:
    group = {"consumergroup": "G", "commitoffsetstobroker": "true"}
    with pytest.raises(ConfigurationError, match="commitOffsetsToBroker=true is for streams"):
        PymqSource({**OPTIONS, **group}).reader(SCHEMA)


@pytest.mark.skipif(not hasattr(datasource, "Filter"), reason="Spark 4.0 hands over no filters")
def test_a_reader_takes_filters_only_where_spark_hands_them_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Elsewhere Spark refuses readers that do, as long as filterPushdown is off."""
    from pyspark_pymq.source.pushdown import FilteringBatchReader

    source = PymqSource(OPTIONS)
    plain = datasource.DataSourceReader.pushFilters
    assert type(source.reader(SCHEMA)).pushFilters is plain
    worker = "pyspark.sql.worker.data_source_pushdown_filters"
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=worker))
    assert isinstance(source.reader(SCHEMA), FilteringBatchReader)
    table = PymqSource({**OPTIONS, "metadata": "topics"})
    assert isinstance(table.reader(table.schema()), QueueStatesReader)


def test_complete_mode_appends() -> None:
    source = PymqSource({"nameserver": "a:1", "topic": "t"})
    source.streamWriter(schema=spark.StructType().add("body", "string"), overwrite=True)
