"""The bed itself: what it says about outages is so."""

import pytest
from tests.spark.two_brokers import TwoBrokers, numbers, wait_until

from pymq.errors import RequestTimeout


def test_outages_are_what_they_are_called(two_brokers: TwoBrokers) -> None:
    bed = two_brokers
    bed.create_topic("T", queue_count=2)
    bed.send("T", numbers(40))
    assert bed.stored("T") == bed.acknowledged("T") and len(bed.stored("T")) == 40

    for end in (bed.stop, bed.kill):
        end("broker-b")
        assert {queue.broker_name for queue in bed.queues("T")} == {"broker-a"}
        bed.start("broker-b")
        assert bed.stored("T") == bed.acknowledged("T")
    with bed.client() as client:
        queues, routes = client.read_queues("T"), client.known_routes()
    bed.freeze("broker-a")
    impatient = {"timeout_s": 1.0, "read_deadline_s": 0.1, "routes": routes}
    with bed.client(**impatient) as client, pytest.raises(RequestTimeout):
        client.bounds(queues)
    bed.thaw("broker-a")
    assert bed.stored("T") == bed.acknowledged("T")


def test_load_knows_what_was_stored(two_brokers: TwoBrokers) -> None:
    bed = two_brokers
    bed.create_topic("T")
    with bed.load("T") as load:
        load.wait_acknowledged(20)
        bed.kill("broker-a")
        load.wait_acknowledged(20)
        bed.start("broker-a")
        wait_until(
            lambda: bed.acknowledged("T")[-1].broker == "broker-b", "messages on both brokers"
        )
        load.wait_acknowledged(20)
    stored = bed.stored("T")
    bodies = [one.body for one in stored]
    assert set(bed.acknowledged("T")) <= set(stored)
    assert len(set(bodies)) == len(bodies) and set(bodies) <= set(bed.attempted("T"))
