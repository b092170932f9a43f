"""RocketMQ for PySpark: ``spark.readStream.format("pymq")`` and ``writeStream.format("pymq")``.

Spark imports every installed package named ``pyspark_*`` and asks it for ``DefaultSource``; one
that raises while being imported disables all Python data sources of the session. So nothing is
imported here until it is used, and nothing here can fail.

Imported before the session is made, it also settles which Python Spark runs. Without
``PYSPARK_PYTHON`` that is the first ``python3`` on the ``PATH``, which in a notebook, an IDE or
a cron job is mostly not the interpreter of the environment that has pymq: Spark then finds no
data source of this name.
"""

import os
import sys
from typing import TYPE_CHECKING

__all__ = ["DefaultSource"]

# spark-submit has started its JVM already, and has its own settings for the cluster's Python.
if sys.executable and "PYSPARK_GATEWAY_PORT" not in os.environ:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

if TYPE_CHECKING:
    from pyspark_pymq.data_source import PymqSource as DefaultSource
else:

    def __getattr__(name: str) -> object:
        if name != "DefaultSource":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pyspark_pymq.data_source import PymqSource

        return PymqSource
