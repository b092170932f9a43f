"""What the source logs while a query starts appears where Spark's driver writes its own log."""

import re
from pathlib import Path

import pytest
from tests.spark.test_environment import run_spark

from pymq.client.blocking import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster

pytestmark = pytest.mark.spark

#: What Spark's processes log goes to standard error, which is made the same as standard output.
PROGRAM = """
import logging, os, sys
os.dup2(1, 2)
import pyspark_pymq  # settles which Python Spark runs
from pyspark.sql import SparkSession

name_server, folder = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.python.filterPushdown.enabled", "true")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
options = {"nameServer": name_server, "subscribe": "L", "startingOffsets": "earliest"}

def read():
    return spark.read.format("pymq").options(**options).load()

print("rows:", read().count(), flush=True)
print("filtered:", read().where("queueId = 0").count(), flush=True)
spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
print("plain:", read().count(), flush=True)
stream = spark.readStream.format("pymq").options(**options).load()
for name in ("new query", "again"):
    writer = stream.writeStream.format("noop").option("checkpointLocation", folder + "/checkpoint")
    assert writer.trigger(availableNow=True).start().awaitTermination(100)
    print(name, "done", flush=True)
assert not logging.getLogger("pyspark_pymq").hasHandlers()  # of the user's own process
"""


def test_where_queues_begin_is_told(
    cluster: Cluster, client: BlockingClient, tmp_path: Path
) -> None:
    queue = client.write_queues("L")[0]
    client.send_batch(queue, [Message("L", b"x")] * 3)
    text = run_spark(PROGRAM, cluster, tmp_path)
    line = r"\d{4}-\d\d-\d\d [\d:,]+ INFO pyspark_pymq\.source\.\w+: "
    places = rf".*L/broker-a/{queue.queue_id} at {{}} \({{}}"
    batch = re.compile(line + "batch of subscribe=L: " + places.format(0, "earliest, 3 messages"))
    new = re.compile(line + "stream of subscribe=L: " + places.format(0, "earliest, 3 messages"))
    again = re.compile(line + "stream of subscribe=L: " + places.format(3, "checkpoint, 0 mess"))
    *batches, first, second, _ = re.split(
        "rows: 3|filtered: 3|plain: 3|new query done|again d", text
    )
    for part, pattern in [*((part, batch) for part in batches), (first, new), (second, again)]:
        assert len(pattern.findall(part)) == 1, text
