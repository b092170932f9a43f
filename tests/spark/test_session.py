"""Settings that make tasks start quickly, in a process and a JVM of their own."""

from pathlib import Path

import pyspark
import pytest
from tests.spark.test_environment import run_spark

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster

pytestmark = pytest.mark.spark
HAS_SOCKETS = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 1)

#: What Spark's processes log goes to standard error, which is made the same as standard output.
PROGRAM = """
import os, sys
os.dup2(1, 2)
from pyspark.sql import SparkSession
from pymq.spark import tune

name_server, folder = sys.argv[1:]
options = {"nameServer": name_server, "subscribe": "S", "startingOffsets": "earliest"}

def run(builder, name):
    builder = builder.master("local[1]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    writer = spark.readStream.format("pymq").options(**options).load().writeStream.format("noop")
    writer.option("checkpointLocation", folder + "/" + name)
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    rows = sum(batch.numInputRows for batch in query.recentProgress)
    conf = dict(spark.sparkContext.getConf().getAll())
    spark.stop()
    return rows, conf

rows, _ = run(SparkSession.builder, "plain")
print("plain rows:", rows, flush=True)
rows, conf = run(tune(SparkSession.builder.config("spark.buffer.size", "131072")), "tuned")
print("tuned rows:", rows, conf["spark.python.unix.domain.socket.enabled"])
print(conf["spark.buffer.size"], conf["spark.speculation"])
"""


@pytest.mark.by_turns(of="sessions of their own", turn="session")
@pytest.mark.skipif(not HAS_SOCKETS, reason="this Spark knows TCP only")
def test_tuned_and_not(cluster: Cluster, client: BlockingClient, tmp_path: Path) -> None:
    client.send_batch(client.write_queues("S")[0], [Message("S", b"x")] * 3)
    text = run_spark(PROGRAM, cluster, tmp_path)
    plain, _, tuned = text.partition("plain rows: 3\n")
    warning = "spark.python.unix.domain.socket.enabled=true before the session is made"
    assert plain.count(warning) == 1, text
    assert "tuned rows: 3 true\n131072 false\n" in tuned, text
    assert warning not in tuned


REGISTERED = """
import sys
from pyspark.sql import SparkSession
from pymq.spark import register

name_server, folder = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.local.dir", folder)
used = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
fresh = used.newSession()
options = {"nameServer": name_server, "subscribe": "S"}

def count(spark):
    return spark.read.format("pymq").options(**options).load().count()

before = count(used)
for session in (fresh, fresh, used, used, used.newSession()):
    register(session)
print("rows:", before, count(used), count(fresh))
"""


THREADS = """
import sys
from threading import Barrier
from concurrent.futures import ThreadPoolExecutor
from pyspark.sql import SparkSession
from pymq.spark import for_thread

name_server, folder = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.local.dir", folder)
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
rows = spark.range(3).selectExpr("cast(id as string) as body")
failures = iter([True])

def write(frame, topic, **options):
    writer = frame.write.format("pymq").mode("append").options(nameServer=name_server, topic=topic)
    writer.options(**options).save()
    return topic

both = Barrier(2)

def write_described(frame, topic, **options):
    context = frame.sparkSession.sparkContext
    context.setJobDescription(topic)
    both.wait(240)
    assert context.getLocalProperty("spark.job.description") == topic
    return write(frame, topic, **options)

def write_twice(frame, number):
    writes = for_thread(frame.sparkSession, write_described)
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(writes, frame, topic, txnAppId=topic) for topic in ("T2", "T3")]
        assert sorted(one.result() for one in done) == ["T2", "T3"]
    if next(failures, False):
        raise ValueError("as wanted")

def copy():
    options = {"nameServer": name_server, "subscribe": "T1", "startingOffsets": "earliest"}
    bodies = spark.readStream.format("pymq").options(**options).load().select("body")
    writer = bodies.writeStream.foreachBatch(write_twice).trigger(availableNow=True)
    query = writer.option("checkpointLocation", folder + "/checkpoint").start()
    query.awaitTermination()

with ThreadPoolExecutor(2) as pool:
    print("to", pool.submit(for_thread(spark, write), rows, topic="T1").result())
try:
    copy()
except Exception as error:
    print("failed", "as wanted" in str(error))
copy()
"""


@pytest.mark.by_turns(of="sessions of their own", turn="threads")
def test_writes_from_threads(cluster: Cluster, client: BlockingClient, tmp_path: Path) -> None:
    """In ``foreachBatch`` they know which micro-batch it is, and do not write it twice.

    What one of them sets for its jobs is not set for those of another one.
    """
    text = run_spark(THREADS, cluster, tmp_path)
    assert "to T1\nfailed True\n" in text
    for topic in ("T1", "T2", "T3"):
        bounds = client.bounds(client.read_queues(topic))
        assert sum(end for _, end in bounds.values()) == 3, topic


@pytest.mark.by_turns(of="sessions of their own", turn="session")
def test_registering_is_idempotent(
    cluster: Cluster, client: BlockingClient, tmp_path: Path
) -> None:
    """Before and after a session is used, again and again."""
    client.send_batch(client.write_queues("S")[0], [Message("S", b"x")] * 3)
    text = run_spark(REGISTERED, cluster, tmp_path)
    (line,) = (line for line in text.splitlines() if line.startswith("rows:"))
    counts = [int(text) for text in line.split()[1:]]
    assert len(counts) == 3 and len(set(counts)) == 1 and counts[0] >= 3
