"""Spark Connect: a client and a local server, in a process and a JVM of their own."""

from pathlib import Path

import pytest
from tests.spark.test_environment import run_spark

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pyspark.sql import SparkSession
from pymq.spark import LagListener, for_thread, lag, register, starting_offsets

name_server, folder = sys.argv[1:]
builder = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.local.dir", folder).getOrCreate()
register(spark)
options = {"nameServer": name_server, "subscribe": "C"}
print("rows:", spark.read.format("pymq").options(**options).load().count())
found = []
spark.streams.addListener(LagListener(lambda one: found.append(one.total)))
rows = spark.readStream.format("pymq").options(**options, startingOffsets="earliest").load()
writer = rows.writeStream.format("noop").option("checkpointLocation", folder + "/checkpoint")
query = writer.start()
query.processAllAvailable()
print("lag:", lag(query.lastProgress).total, "offsets:", starting_offsets(query.lastProgress))
query.stop()
print("heard:", found[-1:])

def write(frame, topic, **options):
    writer = frame.write.format("pymq").mode("append").options(nameServer=name_server, topic=topic)
    writer.options(**options).save()

def write_in_threads(frame, number):
    # Imported here: the server gets this function without what is around it.
    from concurrent.futures import ThreadPoolExecutor
    from pymq.spark import for_thread
    options = {"txnAppId": "connected", "txnVersion": str(number)}
    with ThreadPoolExecutor(1) as pool:
        write_it = for_thread(frame.sparkSession, write)
        pool.submit(write_it, frame.select("body"), "D", **options).result()

writer = rows.writeStream.foreachBatch(write_in_threads).trigger(availableNow=True)
query = writer.option("checkpointLocation", folder + "/writes").start()
query.awaitTermination()
with ThreadPoolExecutor(1) as pool:
    pool.submit(for_thread(spark, write), spark.range(2).selectExpr("'x' as body"), "D").result()
spark.stop()
"""


@pytest.mark.by_turns(of="sessions of their own", turn="threads")
def test_registration_lag_and_threads(
    cluster: Cluster, client: BlockingClient, tmp_path: Path
) -> None:
    pytest.importorskip("grpc")
    queue = client.write_queues("C")[0]
    client.send_batch(queue, [Message("C", b"x")] * 3)
    text = run_spark(PROGRAM, cluster, tmp_path)
    assert "rows: 3\n" in text
    assert 'lag: 0 offsets: {"C": {"broker-a": {"0": 3, ' in text
    assert "heard: [" in text
    assert sum(end for _, end in client.bounds(client.read_queues("D")).values()) == 3 + 2
