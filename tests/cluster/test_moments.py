"""Moments that users give: datetimes without a zone are local, columns are UTC."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from pymq import ConfigurationError, Message, MessageQueue, blocking
from pymq.client.group.start_policy import StartPolicy
from pymq.testing.cluster import Cluster

COUNT = 4


@pytest.fixture(autouse=True)
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_a_time_of_a_column_means_the_same_everywhere() -> None:
    queue = MessageQueue("T", "broker-a", 0)
    with Cluster() as cluster:
        server = cluster.name_server
        with blocking.Admin(server) as admin, blocking.Producer(server) as producer:
            admin.topics.create("T", queue_count=1)
            for number in range(COUNT):
                producer.send(Message("T", b"%d" % number))
                cluster.clock.advance(1)  # each has a time of its own
            with blocking.Reader(server) as reader:
                times = [one for batch in reader.read("T") for one in batch["store_timestamp"]]
                second: np.datetime64 = times[1]
                naive = second.astype(datetime)
                aware = naive.replace(tzinfo=UTC)
                local = aware.astimezone().replace(tzinfo=None)
                assert local != naive
                for moment in (second, aware, local, second.astype("datetime64[ns]")):
                    rows = sum(len(one) for one in reader.read("T", start=moment))
                    assert rows == COUNT - 1, moment
                    assert sum(len(one) for one in reader.read("T", end=moment)) == 1, moment
            found = admin.messages.by_time("T", second, times[3])
            assert [one.body for one in found] == [b"1", b"2"]
            admin.groups.create("reset")
            (change,) = admin.offsets.reset("reset", "T", second)
            assert change.after == 1
            puller = blocking.PullConsumer(server, "pulls", from_where="earliest").subscribe("T")
            with puller:
                assert puller.poll(1, timeout_s=60)
                assert puller.offsets_for_time(second, [queue]) == {queue: 1}
                assert puller.seek(queue, second) == 1

    policies = {StartPolicy.of(moment) for moment in (second, aware, local)}
    assert [one.timestamp_ms for one in policies] == [second.astype(int)]


@pytest.mark.parametrize(
    "moment", [datetime.min, np.datetime64("NaT", "ms"), np.datetime64("20000-01-01")]
)
def test_moments_that_no_message_can_have(moment: Any) -> None:
    with Cluster() as cluster:
        server = cluster.name_server
        with pytest.raises(ConfigurationError, match="from_where="):
            blocking.Consumer(server, "g", from_where=moment)
        with blocking.Admin(server) as admin, blocking.Producer(server) as producer:
            producer.send(Message("T", b"x"))
            with pytest.raises(ConfigurationError, match="begin="):
                admin.messages.by_time("T", moment)
            with pytest.raises(ConfigurationError, match="to="):
                admin.offsets.reset("g", "T", moment)
        with (
            blocking.Reader(server) as reader,
            pytest.raises(ConfigurationError, match="where="),
        ):
            list(reader.read("T", moment))
