"""How Spark's JVM talks to the Python processes that it starts."""

import logging
import os
import sys

LOG = logging.getLogger(__name__)

#: The process that a stream's source lives in, one for each run of a query.
_SOURCE_RUNNER = "python_streaming_source_runner"
#: Where Spark says which socket is to be connected to, if it is in the file system.
_SOCKET_PATH = "PYTHON_WORKER_FACTORY_SOCK_PATH"
_SINCE = (4, 1)


def warn_of_tcp() -> None:
    """Warn of slow tasks if the source of a stream, and so every task, is connected by TCP."""
    import pyspark

    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    version = tuple(map(int, pyspark.__version__.split(".")[:2]))
    is_runner = main is not None and main.name.endswith(_SOURCE_RUNNER)
    if is_runner and version >= _SINCE and _SOCKET_PATH not in os.environ:
        LOG.warning(
            "Spark talks to its Python processes over TCP, so that each task waits some 40 ms for "
            "its first bytes: set spark.python.unix.domain.socket.enabled=true before the session "
            "is made, as pymq.spark.tune(SparkSession.builder) does"
        )
