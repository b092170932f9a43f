"""What the source logs while a query starts appears where Spark's driver writes its own log."""

import re
from pathlib import Path

import pytest
from tests.spark.test_environment import run_spark

from pymq.client.sockets.blocking_client import BlockingClient
from pymq.protocol.message import Message
from pymq.testing import Cluster

pytestmark = pytest.mark.spark

#: What Spark's processes log goes to standard error, here a file. Spark copies it from them in
#: threads that nobody waits for, so that the program does.
PROGRAM = """
import logging, os, pathlib, sys, time
log = pathlib.Path(sys.argv[2], "log")
os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
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
    assert writer.trigger(availableNow=True).start().awaitTermination(240)
    print(name, "done", flush=True)
deadline = time.monotonic() + 240
while log.read_text().count(" of subscribe=L: ") < 5 and time.monotonic() < deadline:
    time.sleep(0.05)
assert not logging.getLogger("pyspark_pymq").hasHandlers()  # of the user's own process
"""


def test_where_queues_begin_is_told(
    cluster: Cluster, client: BlockingClient, tmp_path: Path
) -> None:
    queue = client.write_queues("L")[0]
    client.send_batch(queue, [Message("L", b"x")] * 3)
    run_spark(PROGRAM, cluster, tmp_path)
    line = r"\d{4}-\d\d-\d\d [\d:,]+ INFO pyspark_pymq\.source\.\w+: "
    place = rf".*L/broker-a/{queue.queue_id} at "
    told = [
        *[r"batch of subscribe=L: " + place + r"0 \(earliest, 3 messages"] * 3,
        r"stream of subscribe=L: " + place + r"0 \(earliest, 3 messages",
        r"stream of subscribe=L: " + place + r"3 \(checkpoint, 0 mess",
    ]
    text = (tmp_path / "log").read_text()
    found = [one for one in text.splitlines() if " of subscribe=L: " in one]
    assert len(found) == len(told), text
    for pattern in told:  # in any order: each process has a thread of its own that copies them
        one = next((one for one in found if re.match(line + pattern, one)), None)
        assert one is not None, (pattern, text)
        found.remove(one)
