"""The Python processes that Spark starts: which one this is, what it logs, and how it is connected.

===================================  ==========================================================
process                              what of ours lives there
===================================  ==========================================================
``python_streaming_source_runner``   the source of a stream, for one run of a query
``plan_data_source_read``            the source of a batch, while the batch is planned
``data_source_pushdown_filters``     the same where Spark hands filters over
others                               tasks, sinks, and what is asked before a query runs
===================================  ==========================================================

Spark configures no logging in any of them: of what is logged only warnings and errors appear, as
bare texts, in the standard error of the driver or the executor.
"""

import logging
import os
import sys

LOG = logging.getLogger(__name__)

_STREAM_SOURCE = "pyspark.sql.streaming.python_streaming_source_runner"
_BATCH_SOURCE = "pyspark.sql.worker.plan_data_source_read"
_FILTERED_SOURCE = "pyspark.sql.worker.data_source_pushdown_filters"
#: What forks processes, and is told which.
_DAEMON = "pyspark.daemon"
#: Where Spark says which socket is to be connected to, if it is in the file system.
_SOCKET_PATH = "PYTHON_WORKER_FACTORY_SOCK_PATH"
_SINCE = (4, 1)
#: As of the command ``pymq``.
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def process_name() -> str | None:
    """Return the module that Spark started this process for; None: it is none of Spark's."""
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    name = None if main is None else str(main.name)
    if name == _DAEMON and len(sys.argv) > 1:
        return sys.argv[1]
    return name if name is not None and name.startswith("pyspark.") else None


def takes_filters() -> bool:
    """Say whether this is the process in which Spark hands over filters.

    In any other one it refuses readers that take filters.
    """
    return process_name() == _FILTERED_SOURCE


def show_log() -> None:
    """Have what the source logs appear in the driver's standard error, from level INFO on.

    Only in those of Spark's processes that a source lives in, and where nobody has configured
    logging: the user's own process, and whoever did, is left alone. Idempotent.
    """
    log = logging.getLogger(__package__)
    if process_name() not in (_STREAM_SOURCE, _BATCH_SOURCE, _FILTERED_SOURCE):
        return
    if log.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(_FORMAT))
    log.addHandler(handler)
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO)


def warn_of_tcp() -> None:
    """Warn of slow tasks if the source of a stream, and so every task, is connected by TCP."""
    import pyspark

    version = tuple(map(int, pyspark.__version__.split(".")[:2]))
    is_source = process_name() == _STREAM_SOURCE
    if is_source and version >= _SINCE and _SOCKET_PATH not in os.environ:
        LOG.warning(
            "Spark talks to its Python processes over TCP, so that each task waits some 40 ms for "
            "its first bytes: set spark.python.unix.domain.socket.enabled=true before the session "
            "is made, as pymq.spark.tune(SparkSession.builder) does"
        )
