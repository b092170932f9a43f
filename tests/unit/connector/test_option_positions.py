"""Text of the options about topics, positions and limits -> values; every error says what to do."""

import json

import pytest

from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq.offsets import COMMITTED, EARLIEST, LATEST, At, Bound
from pyspark_pymq.options import check_options
from pyspark_pymq.source.option_checks import source_options
from pyspark_pymq.source.topic_choice import AssignedQueue

NAMES = {"nameserver": "127.0.0.1:9876"}
SOURCE = {**NAMES, "subscribe": "orders"}
Q0 = MessageQueue("orders", "b", 0)
EARLY = 200_000_000_000  # ms: 1976-05-03T19:33:20Z


def by_queue(value: object, queue_id: str = "0", topic: str = "orders") -> str:
    return json.dumps({topic: {"b": {queue_id: value}}})


def test_topics_by_pattern_and_by_queue() -> None:
    options = source_options({**NAMES, "subscribePattern": "orders.*", "topicRefreshMs": "1500"})
    assert options.choice.pattern == "orders.*" and options.topics == ()
    assert options.topic_refresh_s == 1.5
    text = '{"orders": {"b": [0, 1]}, "%RETRY%g": [0]}'
    assert source_options({**NAMES, "assign": text}).choice.assigned == {
        AssignedQueue("orders", "b", 0),
        AssignedQueue("orders", "b", 1),
        AssignedQueue("%RETRY%g", "", 0),
    }
    check_options({**NAMES, "assign": text})


@pytest.mark.parametrize(
    ("text", "moment_ms"),
    [
        ("1767225600000", 1767225600000),
        (" 0 ", 0),
        ("100000000000", 100_000_000_000),
        ("1970-01-01T00:00:00.007Z", 7),
        ("2026-01-01T00:00:00Z", 1767225600000),
        ("2026-01-01T01:00:00.250+01:00", 1767225600250),
        ("2026-01-01 00:00+00:00", 1767225600000),
    ],
)
def test_times(text: str, moment_ms: int) -> None:
    for option in ("startingTimestamp", "endingTimestamp"):
        options = source_options({**SOURCE, option: text})
        assert At(moment_ms) in (options.start(EARLIEST).unnamed, options.end().unnamed)


def test_a_moment_as_text() -> None:
    assert str(At(1767225600250)) == "2026-01-01T00:00:00.250Z"


def test_which_start_and_end_count() -> None:
    times = {
        "startingoffsetsbytimestamp": by_queue(EARLY + 5),
        "endingoffsetsbytimestamp": by_queue("1976-05-03T19:33:20.007Z"),
    }
    offsets = {"startingoffsets": by_queue(50), "endingoffsets": by_queue(70)}
    moments = {"startingtimestamp": str(EARLY + 2), "endingtimestamp": str(EARLY + 3)}
    assert source_options(SOURCE).start(LATEST) == Bound(LATEST)
    assert source_options(SOURCE).end() == Bound(LATEST)
    options = source_options({**SOURCE, **offsets})
    assert options.start(LATEST) == Bound(EARLIEST, ((Q0, 50),))
    assert options.end() == Bound(LATEST, ((Q0, 70),)) and not list(options.overridden())
    options = source_options({**SOURCE, **offsets, **times})
    assert options.start(LATEST) == Bound(EARLIEST, ((Q0, At(EARLY + 5)),))
    assert options.end() == Bound(LATEST, ((Q0, At(EARLY + 7)),))
    options = source_options({**SOURCE, **offsets, **times, **moments})
    assert (options.start(LATEST), options.end()) == (Bound(At(EARLY + 2)), Bound(At(EARLY + 3)))
    assert list(options.overridden()) == [
        "startingTimestamp takes precedence over startingOffsetsByTimestamp and startingOffsets, "
        "which does nothing",
        "endingTimestamp takes precedence over endingOffsetsByTimestamp and endingOffsets, "
        "which does nothing",
    ]


def test_a_start_by_group() -> None:
    given = {**SOURCE, "startingOffsets": " Group", "consumerGroup": "g"}
    options = source_options(given)
    assert options.start(LATEST) == Bound(COMMITTED) and options.group_fallback == EARLIEST
    for text, place in (("earliest", EARLIEST), ("Latest", LATEST), ("fail", None)):
        assert source_options({**given, "groupOffsetFallback": text}).group_fallback == place


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("90s", 90), ("1500", 1.5), ("20 MS", 0.02), ("2h", 7200)]
)
def test_durations(text: str, seconds: float) -> None:
    given = {**SOURCE, "minOffsetsPerTrigger": "5", "maxTriggerDelay": text}
    assert source_options(given).trigger_delay_s == seconds


def test_limits() -> None:
    given = {"maxBytesPerTrigger": "1000000", "maxRecordsPerPartition": "5000"}
    options = source_options({**SOURCE, **given, "minOffsetsPerTrigger": "7"})
    assert (options.bytes_max, options.task_rows_max, options.offsets_min) == (1_000_000, 5000, 7)
    assert options.trigger_delay_s == 900
    assert options.trigger_limits() == "maxBytesPerTrigger, minOffsetsPerTrigger"


GROUP = {"startingoffsets": "group", "consumergroup": "g"}
MINUTE = {"minoffsetspertrigger": "5", "maxtriggerdelay": "1m"}
NO_TOPICS = {"subscribe": None}


@pytest.mark.parametrize(
    ("changed", "pieces"),
    [
        # --- topics
        (NO_TOPICS, ["subscribe is missing", "subscribePattern", "assign"]),
        ({"subscribepattern": "o.*"}, ["subscribe and subscribePattern are given", "exactly one"]),
        ({"assign": '{"o": [0]}'}, ["subscribe and assign are given", "remove the others"]),
        ({**NO_TOPICS, "subscribepattern": "o(rders"}, ["subscribePattern", "regular expression"]),
        ({**NO_TOPICS, "subscribepattern": ""}, ["subscribePattern", "orders.*"]),
        ({**NO_TOPICS, "assign": "orders"}, ["assign", '{"topic": [0, 1]}']),
        ({**NO_TOPICS, "assign": "{}"}, ["assign", "expected JSON"]),
        ({**NO_TOPICS, "assign": "[0]"}, ["assign", "expected JSON"]),
        ({**NO_TOPICS, "assign": '{"a/b": [0]}'}, ["assign", "'a/b'", "letters"]),
        ({**NO_TOPICS, "assign": '{"o": []}'}, ["topic o: []", "queue ids like [0, 1]"]),
        ({**NO_TOPICS, "assign": '{"o": {}}'}, ["topic o: {}", "queue ids"]),
        ({**NO_TOPICS, "assign": '{"o": {"": [0]}}'}, ["topic o", "queue ids"]),
        ({**NO_TOPICS, "assign": '{"o": {"b": 0}}'}, ["topic o: 0 found", "queue ids"]),
        ({**NO_TOPICS, "assign": '{"o": {"b": ["0"]}}'}, ["'0' found", "queue ids"]),
        ({**NO_TOPICS, "assign": '{"o": [-1]}'}, ["-1 found", "queue ids"]),
        ({**NO_TOPICS, "assign": '{"o": [true]}'}, ["True found", "queue ids"]),
        ({**NO_TOPICS, "assign": '{"o": [0], "o": [1]}'}, ["assign", "'o' is named twice"]),
        ({"topicrefreshms": "5000"}, ["topicRefreshMs does nothing without subscribePattern"]),
        # --- starts
        ({"startingtimestamp": "yesterday"}, ["startingTimestamp", "'yesterday'", "milliseconds"]),
        ({"startingtimestamp": "-5"}, ["startingTimestamp", "'-5' found", "milliseconds"]),
        ({"startingtimestamp": "2026-01-01T00:00:00"}, ["no offset from UTC", "Z or +01:00"]),
        (
            {"startingtimestamp": "1767225600"},
            ["1767225600 found, which looks like seconds", "milliseconds since", "1970-01-21T10:"],
        ),
        ({"endingtimestamp": "99999999999"}, ["endingTimestamp", "looks like seconds"]),
        ({"startingoffsetsbytimestamp": by_queue(1)}, ["ByTimestamp", "1 found", "seconds"]),
        ({"endingoffsetsbytimestamp": by_queue(1767225600)}, ["ByTimestamp", "seconds"]),
        ({"startingtimestamp": "1767225600000000"}, ["startingTimestamp", "milliseconds"]),
        ({"endingtimestamp": "1960-01-01T00:00:00Z"}, ["endingTimestamp", "1970"]),
        ({"startingoffsetsbytimestamp": "5"}, ["startingOffsetsByTimestamp", "object"]),
        ({"startingoffsetsbytimestamp": "x"}, ["startingOffsetsByTimestamp", "expected JSON like"]),
        ({"startingoffsetsbytimestamp": "{}"}, ["no queue is named"]),
        ({"startingoffsetsbytimestamp": by_queue([])}, ["[] found", "expected JSON like"]),
        ({"startingoffsetsbytimestamp": by_queue(True)}, ["True found"]),
        ({"startingoffsetsbytimestamp": by_queue(-1)}, ["-1 found", "milliseconds since 1970"]),
        ({"startingoffsetsbytimestamp": by_queue(EARLY, "x")}, ["'x'", "queue id"]),
        ({"startingoffsetsbytimestamp": by_queue(EARLY, topic="t")}, ["'t'", "subscribe=orders"]),
        ({"startingoffsetsbytimestampstrategy": "latest"}, ["does nothing without startingTimes"]),
        (
            {"startingtimestamp": "0", "startingoffsetsbytimestampstrategy": "earliest"},
            ["startingOffsetsByTimestampStrategy", "error or latest"],
        ),
        ({"startingoffsets": "group"}, ["startingOffsets=group", "expected the option consumerGr"]),
        ({**GROUP, "groupoffsetfallback": "never"}, ["earliest or latest or fail"]),
        ({"groupoffsetfallback": "latest"}, ["groupOffsetFallback does nothing", "group"]),
        (
            {**NO_TOPICS, "subscribepattern": "o.*", "startingoffsets": by_queue(EARLY, topic="t")},
            ["startingOffsets", "'t'", "subscribePattern=o.*"],
        ),
        (
            {**NO_TOPICS, "assign": '{"orders": {"b": [1]}}', "startingoffsets": by_queue(1)},
            ["startingOffsets", "queue 0 of orders on b is not among assign=queue 1 of"],
        ),
        (
            {**NO_TOPICS, "assign": '{"orders": {"b": [0]}}', "endingoffsets": by_queue(1, "3")},
            ["endingOffsets", "queue 3 of orders on b"],
        ),
        # --- ends
        ({"endingoffsets": "group"}, ["endingOffsets", "expected latest or JSON"]),
        (
            {"startingtimestamp": "2026-01-02T00:00:00Z", "endingtimestamp": "1767225600000"},
            ["start at 2026-01-02T00:00:00.000Z", "end at 2026-01-01T00:00:00.000Z", "before"],
        ),
        (
            {"startingtimestamp": str(EARLY), "endingoffsetsbytimestamp": by_queue(EARLY - 1)},
            ["queue 0 of orders on b", "is before"],
        ),
        # --- limits
        ({"minoffsetspertrigger": "9", "maxoffsetspertrigger": "8"}, ["9 is above", "Trigger=8"]),
        # Python's int would take these.
        *(
            ({**MINUTE, option: text}, [wanted, "expected"])
            for option, wanted in (
                ("maxoffsetspertrigger", "maxOffsetsPerTrigger"),
                ("maxtriggerdelay", "maxTriggerDelay"),
                ("startingtimestamp", "startingTimestamp"),
                ("requesttimeoutms", "requestTimeoutMs"),
            )
            for text in ("1_767_225_600", "１７６７２２５６０００００", "١٢", "1" + 5000 * "0")
        ),
        ({"startingoffsets": by_queue(1 << 63)}, ["startingOffsets", "0..9223372036854775807"]),
        ({"endingoffsets": by_queue(1 << 64)}, ["queue 0 of orders on b: 1844674407370955161"]),
        ({"maxtriggerdelay": "1m"}, ["maxTriggerDelay does nothing without minOffsetsPerTrigger"]),
        ({**MINUTE, "maxtriggerdelay": "soon"}, ["maxTriggerDelay", "15m, 90s or 1500"]),
        ({**MINUTE, "maxtriggerdelay": "1d"}, ["maxTriggerDelay", "15m"]),
        ({**MINUTE, "maxtriggerdelay": "24h"}, ["less than 24h"]),
        ({**MINUTE, "maxtriggerdelay": "0s"}, ["at least 1 ms"]),
        ({"maxbytespertrigger": "1m"}, ["maxBytesPerTrigger", "whole number"]),
        ({"maxoffsetspertrigger": str(1 << 63)}, ["OffsetsPerTrigger", "1..9223372036854775807"]),
        ({"maxrecordsperpartition": "0"}, ["maxRecordsPerPartition", "at least 1"]),
    ],
)
def test_errors(changed: dict[str, str | None], pieces: list[str]) -> None:
    options = {k: v for k, v in {**SOURCE, **changed}.items() if v is not None}
    with pytest.raises(ConfigurationError) as caught:
        source_options(options)
    for piece in pieces:
        assert piece in str(caught.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"endingoffsets": "latest"}, r"latest is for batch reads.*availableNow"),
        ({"endingoffsets": by_queue(-1)}, r"queue 0 of orders on b .*only batch reads can do"),
    ],
)
def test_ends_that_a_stream_cannot_have(given: dict[str, str], text: str) -> None:
    options = source_options({**SOURCE, **given})
    with pytest.raises(ConfigurationError, match=text):
        options.check_for_stream()
    for fine in ({}, {"endingoffsets": by_queue(7)}, {**given, "endingtimestamp": "0"}):
        source_options({**SOURCE, **fine}).check_for_stream()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"startingoffsets": "latest"}, "latest is for streams.*a batch would read nothing"),
        ({"startingoffsets": by_queue(-1)}, "queue 0 of orders on b .*only streams can do"),
    ],
)
def test_starts_that_a_batch_cannot_have(given: dict[str, str], text: str) -> None:
    options = source_options({**SOURCE, **given})
    options.check_for_stream()
    with pytest.raises(ConfigurationError, match=text):
        options.check_for_batch()
    overridden = {**given, "startingtimestamp": "2026-01-31T09:30:00Z"}
    for fine in ({}, {"startingoffsets": by_queue(-2)}, overridden):
        source_options({**SOURCE, **fine}).check_for_batch()
