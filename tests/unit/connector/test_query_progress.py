"""Lag and starting offsets from what Spark says of a query."""

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.unit.connector.fake import FakeBroker
from tests.unit.connector.reading import B0, B1, Q0, Q1, stream

from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue
from pymq.spark import LagListener, StreamLag, lag, starting_offsets
from pyspark_pymq.source.option_checks import source_options

NEW = MessageQueue("orders-eu", "broker-a", 0)
MARK = {"v": 1, "since": 17}
#: A file of a checkpoint's directory "offsets", of a query with three sources.
CHECKPOINT = """v1
{"batchWatermarkMs":0,"batchTimestampMs":1795466360914,"conf":{"spark.sql.shuffle.partitions":"2"}}
{"%": {"v": 1}, "orders": {"broker-a": {"0": 20, "1": 7}}}
{"logOffset":3}
-"""


def offsets(*, a: dict[str, int], b: dict[str, int] | None = None) -> dict[str, Any]:
    brokers = {"broker-a": a} | ({} if b is None else {"broker-b": b})
    return {"%": MARK, "orders": brokers}


def report(*sources: tuple[Any, Any]) -> dict[str, Any]:
    found = [{"description": "d", "endOffset": end, "latestOffset": late} for end, late in sources]
    return {"id": "some-id", "name": None, "batchId": 7, "sources": found}


ENDS = offsets(a={"0": 20, "1": 7}, b={"0": 3})
LATEST = offsets(a={"0": 25, "1": 7}, b={"1": 9})


class Progress(dict):  # type: ignore[type-arg]
    """As Spark's: a dict whose members are objects of its own, and its JSON."""

    json = json.dumps(report((ENDS, LATEST)))


@pytest.mark.parametrize(
    "progress", [report((ENDS, LATEST)), Progress.json, Progress()], ids=["dict", "text", "object"]
)
def test_lag(progress: Any) -> None:
    found = lag(progress)
    assert (found.query_id, found.name, found.batch_id) == ("some-id", None, 7)
    assert {q.queue: (q.consumer_offset, q.broker_offset, q.lag) for q in found.queues} == {
        Q0: (20, 25, 5),
        Q1: (7, 7, 0),
    }
    assert found.total == 5
    assert found.unknown == (B0, B1)  # of one the end is not known, of the other the start


def test_offsets_that_are_texts() -> None:
    assert lag(report((json.dumps(ENDS), json.dumps(LATEST)))).total == 5


def test_several_sources() -> None:
    others = ({"logOffset": 3}, None)
    assert lag(report(others, (ENDS, LATEST), (ENDS, LATEST))).total == 10
    with pytest.raises(ConfigurationError, match="no source of the query is pymq"):
        lag(report(others, (None, None)))


def test_a_spark_that_asks_for_no_latest_offset() -> None:
    found = lag(report((ENDS, None)))
    assert found.queues == () and found.unknown == (Q0, Q1, B0) and found.total == 0


def test_queues_that_are_no_longer_chosen_do_not_count(broker: FakeBroker) -> None:
    """The checkpoint keeps them, and nobody asks where they end: for ever, so nothing is amiss."""
    broker.add(NEW, *[(b"x", {})] * 3)
    start = offsets(a={"0": 12, "1": 8}, b={"0": 4}) | {NEW.topic: {"broker-a": {"0": 1}}}
    reader = stream(subscribe=NEW.topic, maxoffsetspertrigger="1")
    end = reader.latestOffset(start)
    latest = json.dumps(reader.reportLatestOffset())
    found = lag(report((json.dumps(end), latest)))
    assert [(one.queue, one.lag) for one in found.queues] == [(NEW, 1)]
    assert found.unknown == ()
    # A broker that is away is another matter.
    end["orders-eu"]["broker-b"] = {"0": 7}
    assert lag(report((end, latest))).unknown == (MessageQueue(NEW.topic, "broker-b", 0),)


@pytest.mark.parametrize("wrong", ["", "[]", "{}", None, 17, "v1"])
def test_what_is_not_a_progress(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="expected the progress of a streaming query"):
        lag(wrong)


def test_starting_offsets_continue_where_a_query_stood() -> None:
    text = starting_offsets(report(({"logOffset": 3}, None), (ENDS, LATEST)))
    assert json.loads(text) == {"orders": {"broker-a": {"0": 20, "1": 7}, "broker-b": {"0": 3}}}
    options = {"nameserver": "a:1", "subscribe": "orders", "startingoffsets": text}
    starting = source_options(options).starting
    assert starting is not None and dict(starting.named) == {Q0: 20, Q1: 7, B0: 3}


def test_starting_offsets_of_a_checkpoint() -> None:
    wanted = {"orders": {"broker-a": {"0": 20, "1": 7}}}
    assert json.loads(starting_offsets(CHECKPOINT)) == wanted
    assert json.loads(starting_offsets(CHECKPOINT, source=0)) == wanted
    for source, text in ((1, "no offset of a pymq source"), (3, "expected 0..2")):
        with pytest.raises(ConfigurationError, match=text):
            starting_offsets(CHECKPOINT, source=source)


def test_two_sources_of_the_same_queue() -> None:
    other = offsets(a={"0": 20, "1": 8})
    both = report((ENDS, LATEST), (other, LATEST))
    with pytest.raises(ConfigurationError, match="queue 1 of orders .* at 7 and 8: .*source="):
        starting_offsets(both)
    assert json.loads(starting_offsets(both, source=1))["orders"] == other["orders"]
    assert json.loads(starting_offsets(report((ENDS, None), (ENDS, None))))


def test_a_listener_reports_queries_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    class Event:
        progress = Progress()

    class Foreign:
        progress = json.dumps(report(({"logOffset": 3}, None)))

    found: list[StreamLag] = []
    listener = LagListener(found.append)
    listener.onQueryProgress(Foreign())  # type: ignore[arg-type]
    listener.onQueryProgress(Event())  # type: ignore[arg-type]
    assert [one.total for one in found] == [5]
    with caplog.at_level("INFO"):
        LagListener().onQueryProgress(Event())  # type: ignore[arg-type]
    assert "query some-id, batch 7: 5 messages behind, most of them, 5, in " in caplog.text
    assert "nothing is known of 2 queues" in caplog.text


def test_a_listener_that_nobody_would_hear_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Event:
        progress = Progress()

    listener = LagListener()
    with caplog.at_level("WARNING"):
        for _ in range(2):
            listener.onQueryProgress(Event())  # type: ignore[arg-type]
    (record,) = caplog.records
    text = record.getMessage()
    assert "call logging.basicConfig(level=logging.INFO), or give it a function" in text


def test_without_spark() -> None:
    """The wheel without extras has neither pyspark nor numpy."""
    code = f"""
import sys
for name in ("pyspark", "numpy", "pyarrow"):
    sys.modules[name] = None
import pymq.spark
assert pymq.spark.lag({Progress.json!r}).total == 5
assert "orders" in pymq.spark.starting_offsets({CHECKPOINT!r})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
