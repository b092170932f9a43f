"""Settings of a session that the connector runs best with, its registration, other threads."""

import functools
import logging
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pyspark_pymq import DefaultSource
from pyspark_pymq.travelling import travelling_source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOG = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Builder = TypeVar("_Builder", bound="SparkSession.Builder")

#: What ``tune`` sets. Spark looks at them when its context starts, and never again.
SETTINGS: Mapping[str, str] = {
    # From 4.1 on: over TCP each task waits 40 ms for its first bytes.
    "spark.python.unix.domain.socket.enabled": "true",
    # 10 to 25 % more rows of 1 KiB, together with the above. (4.3 wants a number, not "1m".)
    "spark.buffer.size": str(1 << 20),
    # Copies of slow tasks would read, or write, everything twice; and the one that comes second
    # counts as a failure (SPARK-56564).
    "spark.speculation": "false",
    # Its default; without it every task starts a Python, and imports all it needs.
    "spark.python.worker.reuse": "true",
}


def tune(builder: _Builder) -> _Builder:
    """Set what makes the connector several times faster in small batches; return the builder.

    ::

        spark = tune(SparkSession.builder.appName("orders")).getOrCreate()

    ``spark.task.maxFailures`` keeps its default of 4; in local mode, where no task is tried again
    by default, it is part of the master: ``local[2,4]``.

    What the builder has is kept, and so is what was given to spark-submit or is in
    PYSPARK_SUBMIT_ARGS. A ``spark-defaults.conf`` that is read only when the session starts is
    overridden. With Spark Connect these are settings of the server: nothing is set, and a warning
    names them.

    Args:
        builder: ``SparkSession.builder``, before ``getOrCreate``.
    """
    chosen: Mapping[str, object] = getattr(builder, "_options", {})
    if "spark.remote" in chosen or "SPARK_REMOTE" in os.environ:
        LOG.warning(
            "with Spark Connect the server has to be started with %s",
            " ".join(f"--conf {name}={value}" for name, value in SETTINGS.items()),
        )
        return builder
    chosen = {**_submitted(), **chosen}
    if _is_running():
        LOG.warning(
            "pymq.spark.tune comes too late: a Spark context runs already, and keeps its settings "
            "until it is stopped"
        )
    for name, value in SETTINGS.items():
        if name not in chosen:
            builder.config(name, value)
    return builder


def register(spark: "SparkSession") -> None:
    """Register ``format("pymq")`` explicitly; with Spark Connect as well. Idempotent.

    Spark finds an installed package by itself. It does not when pymq comes with ``--py-files`` or
    ``addPyFile``, or another package named ``pyspark_...`` fails to be imported. That it finds none
    in a thread of the program's own is another matter: see ``for_thread``.

    Args:
        spark: the session.
    """
    from pyspark.errors import PySparkException

    root = Path(__file__).parents[1]
    source = travelling_source(str(root)) if root.is_file() else DefaultSource
    try:
        spark.dataSource.register(source)
    except PySparkException as error:
        # Of a source that it has found by itself, Spark 4.0 says that its name is taken.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
        LOG.info('format("pymq") is registered already, since Spark found it by itself')


def for_thread(spark: "SparkSession", function: Callable[_P, _T]) -> Callable[_P, _T]:
    """Return a function that can write with ``format("pymq")`` in a thread of the program's own.

    ::

        with ThreadPoolExecutor() as pool:
            pool.submit(for_thread(spark, write), frame)

    Spark looks for the sinks of Python in the active session, which new threads have not: what is
    written there fails with DATA_SOURCE_NOT_FOUND. The function also takes along what is set in the
    thread that calls this, such as the micro-batch that a function of ``foreachBatch`` is called
    for: so call it there, once for each micro-batch. It may be called by several threads at a time;
    what one call sets for its jobs, such as their description, no other one has.

    Args:
        spark: the session; in ``foreachBatch`` that of the rows, ``frame.sparkSession``.
        function: what is to be called in threads.
    """
    from pyspark import inheritable_thread_target
    from pyspark.sql import is_remote

    @functools.wraps(function)
    def with_session(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        if not is_remote():  # a client of Spark Connect names the session with all it asks
            jvm_sessions = spark._get_j_spark_session_class(spark._jvm)
            jvm_sessions.setActiveSession(spark._jsparkSession)
        # PySpark gives all calls the same properties; once more, and each has its own.
        return inheritable_thread_target(spark)(function)(*args, **kwargs)

    found: Callable[_P, _T] = inheritable_thread_target(spark)(with_session)
    return found


def _is_running() -> bool:
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


def _submitted() -> dict[str, str]:
    """Return what spark-submit was told, as far as that can be known."""
    found = {}
    for word in shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "")):
        name, equals, value = word.removeprefix("--conf=").partition("=")
        if equals and name.startswith("spark."):
            found[name] = value
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit started us, and its JVM is there
        from pyspark import SparkConf, SparkContext

        SparkContext._ensure_initialized()
        found |= dict(SparkConf().getAll())
    return found
