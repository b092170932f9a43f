"""Fake brokers for the tests of readers."""

import pytest
from tests.unit.connector.fake import FakeBroker
from tests.unit.connector.reading import B0, Q0, Q1, Time

from pyspark_pymq.source.reader import PymqStreamReader
from pyspark_pymq.source.subscribed_topics import SubscribedTopics


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch, clock: Time) -> FakeBroker:
    fake = FakeBroker(first={Q0: 5})
    fake.add(Q0, *[(b"x", {})] * 10)
    fake.add(Q1, *[(b"x", {})] * 10)
    monkeypatch.setitem(SubscribedTopics.__init__.__kwdefaults__, "connect", fake.client)
    monkeypatch.setitem(SubscribedTopics.__init__.__kwdefaults__, "monotonic_s", clock)
    monkeypatch.setitem(SubscribedTopics.__init__.__kwdefaults__, "wait", clock.wait)
    monkeypatch.setitem(PymqStreamReader.__init__.__kwdefaults__, "wall_s", clock)
    monkeypatch.setitem(PymqStreamReader.__init__.__kwdefaults__, "monotonic_s", clock)
    return fake


@pytest.fixture
def two(broker: FakeBroker) -> FakeBroker:
    """One more broker, with ten messages."""
    broker.add(B0, *[(b"x", {})] * 10)
    return broker


@pytest.fixture(params=["away", "unrouted"])
def gone(request: pytest.FixtureRequest, two: FakeBroker) -> set[str]:
    """Brokers that do not answer; for one that no name server knows that is the same."""
    names: set[str] = getattr(two, request.param)
    if request.param == "unrouted":
        two.away = names
    return names
