"""The Spark of the tests: a real one, in local mode."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession


@contextmanager
def local_spark(name: str, folder: Path, **more: str) -> Iterator[SparkSession]:
    """Run a session that nobody told of pymq: Spark finds the installed package by itself.

    Args:
        name: of the application.
        folder: where Spark keeps its files.
        more: further settings, ``_`` for the dots in their names.
    """
    settings = {
        "spark.ui.enabled": "false",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder),
    } | {setting.replace("_", "."): value for setting, value in more.items()}
    builder = SparkSession.builder.master("local[2]").appName(name)
    session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()
