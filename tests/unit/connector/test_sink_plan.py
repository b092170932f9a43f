"""What is missing for good when a sink is planned, and what only waits for its broker."""

from collections.abc import Iterator

import pytest
from tests.unit.connector.fake import FakeBroker, FakeClient

from pymq.errors import RouteNotFound
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.sink import plan
from pyspark_pymq.sink.options import SinkOptions
from pyspark_pymq.sink.plan import NO_PLAN, plan_sink

OPTIONS = SinkOptions(name_servers=("ns:9876",), topic="orders")


class Client(FakeClient):
    """Whose topic may be one that cannot be written to."""

    read_only = False

    def write_queues(self, topic: str) -> list[MessageQueue]:
        away = self._broker.only_slaves | self._broker.acting
        found = [one for one in super().write_queues(topic) if one.broker_name not in away]
        if not found or self.read_only:
            raise RouteNotFound(f"topic {topic}: no queue can be written to")
        return found


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBroker]:
    fake = FakeBroker({MessageQueue("orders", "a", 0): []})
    monkeypatch.setattr(plan, "BulkClient", lambda *_, **__: Client(fake))
    plan._plans_of_this_process.cache_clear()
    yield fake
    plan._plans_of_this_process.cache_clear()


@pytest.mark.parametrize("acts", [False, True])
def test_a_topic_whose_master_is_away_is_not_missing(
    broker: FakeBroker, acts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A slave of it is there, in its master's place in the route or not."""
    (broker.acting if acts else broker.only_slaves).add("a")
    assert plan_sink(OPTIONS) == NO_PLAN
    assert "tasks look for one themselves: topic orders: no queue can be written" in caplog.text
    broker.acting.clear()
    broker.only_slaves.clear()
    assert plan_sink(OPTIONS).routes


def test_a_topic_that_is_missing(broker: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that nobody may write to, although all masters are there."""
    monkeypatch.setattr(Client, "read_only", True)
    assert plan_sink(OPTIONS).missing == "topic orders: no queue can be written to"
    broker.deleted.add("orders")
    assert plan_sink(OPTIONS).missing == "no name server knows topic orders"
