"""A job for ``spark-submit --py-files``: copies a topic to another, exactly once, until it ends.

Usage: copy_topic.py NAME_SERVER FROM TO CHECKPOINT [OPTION=VALUE ...]

An option ``once=true`` ends the job when it has copied what there is; others are the source's.
"""

import sys

from pyspark.sql import SparkSession

from pymq import spark as pymq_spark


def main(name_server: str, source: str, target: str, checkpoint: str, *more: str) -> None:
    options = dict(one.split("=", 1) for one in more)
    once = options.pop("once", "") == "true"
    spark = SparkSession.builder.appName("copy").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    pymq_spark.register(spark)
    rows = spark.readStream.format("pymq").options(
        nameServer=name_server, subscribe=source, startingOffsets="earliest", **options
    )
    writer = rows.load().select("body", "tags").writeStream.format("pymq")
    writer = writer.options(nameServer=name_server, topic=target, checkpointLocation=checkpoint)
    query = (writer.trigger(availableNow=True) if once else writer).start()
    print("running", query.id, flush=True)
    query.awaitTermination()
    for progress in query.recentProgress:
        print("batch", progress.batchId, progress.numInputRows, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
