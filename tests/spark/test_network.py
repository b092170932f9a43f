"""Brokers that are not reached where they say."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from tests.spark.two_brokers import ANSWER_S, wait_until

from pymq import Network, blocking
from pymq.testing import Cluster

pytestmark = pytest.mark.spark

#: Nobody is there: an address of documentation (RFC 5737).
NOWHERE = "192.0.2.1"
DEADLINE_S = 300.0


@pytest.fixture(scope="module")
def hidden() -> Iterator[Cluster]:
    with Cluster(brokers=2, broker={"advertised_address": NOWHERE}) as running:
        yield running


def create_topic(hidden: Cluster, topic: str) -> None:
    network = Network(broker_address_map={NOWHERE: "127.0.0.1"})
    with blocking.Admin(hidden.name_server, timeout_s=ANSWER_S, network=network) as admin:
        admin.topics.create(topic)


def test_rows_go_through_brokers_that_are_reached_elsewhere(
    spark: SparkSession, hidden: Cluster, tmp_path: Path
) -> None:
    """Batch and stream, in both deliveries, with the progress of a group."""
    options = {"nameServer": hidden.name_server, "brokerAddressMap": f"{NOWHERE}=127.0.0.1"}
    rows = spark.range(200).selectExpr("cast(id as string) as body")
    for topic, delivery in (("loose", "atLeastOnce"), ("exact", "exactlyOnce")):
        create_topic(hidden, topic)
        writer = rows.write.format("pymq").options(**options, topic=topic, delivery=delivery)
        writer.mode("append").save()
        assert {one.body for one in hidden.messages(topic)} == {b"%d" % n for n in range(200)}
    source = spark.readStream.format("pymq").options(**options, subscribe="loose,exact")
    source = source.options(startingOffsets="earliest", valueFormat="string")
    source = source.options(consumerGroup="readers", commitOffsetsToBroker="true")
    sink = source.load().select("body").writeStream.format("pymq").options(**options, topic="both")
    create_topic(hidden, "both")
    writer = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)

    def read_and_commit() -> bool:
        query = writer.start()
        assert query.awaitTermination(DEADLINE_S) and query.exception() is None
        return hidden.lag("readers") == 0

    # A broker that is late takes no progress; the next run, which finds nothing new, tells it.
    wait_until(read_and_commit, "all is committed")
    found = sorted(int(one.body) for one in hidden.messages("both"))
    assert found == sorted([*range(200), *range(200)])


def test_the_error_without_the_map_says_what_is_wrong(spark: SparkSession, hidden: Cluster) -> None:
    create_topic(hidden, "lost")
    source = spark.read.format("pymq").options(nameServer=hidden.name_server, subscribe="lost")
    with pytest.raises(PySparkException, match=rf"{NOWHERE}.*brokerAddressMap"):
        source.options(requestTimeoutMs="2000", retryTimeoutMs="2000").load().collect()
