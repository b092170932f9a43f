"""RocketMQ for PySpark: ``spark.readStream.format("pymq")`` and ``writeStream.format("pymq")``.

Spark imports every installed package named ``pyspark_*`` and asks it for ``DefaultSource``; one
that raises while being imported disables all Python data sources of the session. So nothing is
imported here before somebody asks, and nothing here can fail.
"""

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pyspark_pymq.data_source import PymqSource

    return PymqSource
