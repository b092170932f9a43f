"""For programs that use ``format("pymq")`` of PySpark: settings, threads, lag, offsets.

::

    from pyspark.sql import SparkSession
    from pymq import spark as pymq_spark

    spark = pymq_spark.tune(SparkSession.builder).getOrCreate()
    query = spark.readStream.format("pymq")...start()
    pymq_spark.lag(query.lastProgress).total
    pymq_spark.starting_offsets(query.lastProgress)     # for option("startingOffsets", ...)
    spark.streams.addListener(pymq_spark.LagListener(lambda lag: print(lag.total)))

Nothing of Spark is imported before it is needed: ``lag`` and ``starting_offsets`` do without.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark_pymq.lag_listener import LagListener
    from pyspark_pymq.query_progress import StreamLag, lag, starting_offsets
    from pyspark_pymq.session import for_thread, register, tune
else:
    _HOME_OF = {
        "LagListener": "pyspark_pymq.lag_listener",
        "StreamLag": "pyspark_pymq.query_progress",
        "for_thread": "pyspark_pymq.session",
        "lag": "pyspark_pymq.query_progress",
        "register": "pyspark_pymq.session",
        "starting_offsets": "pyspark_pymq.query_progress",
        "tune": "pyspark_pymq.session",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from pymq.extras import imported

        return getattr(imported(_HOME_OF[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__all__ = [
    "LagListener",
    "StreamLag",
    "for_thread",
    "lag",
    "register",
    "starting_offsets",
    "tune",
]
