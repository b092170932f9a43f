"""Option text -> options; every error names the option, what was given, and what is right."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq import options as module
from pyspark_pymq.offsets import EARLIEST, LATEST, Bound
from pyspark_pymq.options import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    SinkOptions,
    SourceOptions,
    check_options,
    sink_options,
    source_options,
)

NAMES = {"nameserver": "127.0.0.1:9876"}
SOURCE = {**NAMES, "subscribe": "orders"}


def test_defaults_of_the_source() -> None:
    options = source_options(SOURCE)
    assert options.name_servers == ("127.0.0.1:9876",)
    assert options.topics == ("orders",)
    assert options.starting is None and options.ending is None
    assert options.offsets_max is None and options.fail_on_data_loss
    assert options.tags == () and not options.include_properties


def test_all_options_of_the_source() -> None:
    options = source_options(
        {
            "NAMESERVER": "a:1;b:2, [::1]:3",
            "subscribe": "orders, %RETRY%group ,orders",
            "startingOffsets": "Earliest",
            "endingoffsets": json.dumps({"orders": {"broker-a": {"0": 17, "1": -1}}}),
            "maxoffsetspertrigger": "100",
            "corruptBodies": "null",
            "expectedBrokers": "broker-a, broker-b,",
            "failOnDataLoss": "FALSE",
            "tags": "A || B||A",
            "includeProperties": "true",
            "consumerGroup": "reports",
            "minPartitions": "2",
            "maxPartitions": "4",
            "pullBytes": "65536",
            "requestTimeoutMs": "1500",
            "retryTimeoutMs": "100",
            "queryname": "ignored",
            "checkpointlocation": "/somewhere",
        }
    )
    assert options.name_servers == ("a:1", "b:2", "[::1]:3")
    assert options.topics == ("orders", "%RETRY%group")
    assert options.starting == Bound(EARLIEST)
    queues = [MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-a", 1)]
    assert options.ending == Bound(LATEST, tuple(zip(queues, (17, -1), strict=True)))
    assert (options.offsets_max, options.fail_on_data_loss) == (100, False)
    assert options.null_corrupt_bodies
    assert options.expected_brokers == ("broker-a", "broker-b")
    assert options.tags == ("A", "B")
    assert options.include_properties
    assert options.consumer_group == "reports"
    assert (options.partitions_min, options.partitions_max) == (2, 4)
    assert options.pull_bytes == 65536
    assert (options.request_timeout_s, options.retry_timeout_s) == (1.5, 0.1)


def test_offsets_of_a_progress_report_can_be_pasted() -> None:
    text = '{"%": {"v": 1}, "orders": {"broker-a": {"0": 5, "10": 7}}}'
    starting = source_options({**SOURCE, "startingoffsets": text}).starting
    assert starting is not None and starting.unnamed == EARLIEST
    assert [(q.queue_id, offset) for q, offset in starting.named] == [(0, 5), (10, 7)]


def test_a_star_among_tags_means_all() -> None:
    assert source_options({**SOURCE, "tags": " * "}).tags == ()


@pytest.mark.parametrize(
    ("changed", "pieces"),
    [
        ({"nameserver": None}, ["nameServer", "missing", "127.0.0.1:9876"]),
        ({"nameserver": "localhost"}, ["nameServer", "'localhost'", "host:port"]),
        ({"nameserver": "a:1;b:x"}, ["nameServer", "'b:x'", "host:port"]),
        ({"nameserver": "a:0"}, ["'a:0'"]),
        ({"nameserver": "http://a:1"}, ["'http://a:1'"]),
        ({"nameserver": " ; "}, ["host:port"]),
        ({"subscribe": None}, ["subscribe", "missing"]),
        ({"subscribe": " , "}, ["subscribe", "topics"]),
        ({"subscribe": "a/b"}, ["subscribe", "'a/b'", "letters"]),
        ({"subscribe": "x" * 128}, ["subscribe", "1..127"]),
        ({"startingoffsets": "yesterday"}, ["startingOffsets", "yesterday", "earliest, latest"]),
        ({"startingoffsets": "[1]"}, ["startingOffsets", "expected an object"]),
        ({"startingoffsets": '{"orders": {"b": {"x": 1}}}'}, ["'x'", "queue id"]),
        ({"startingoffsets": '{"orders": {"b": {"0": true}}}'}, ["True", "offset"]),
        ({"startingoffsets": '{"order": {"b": {"0": 1}}}'}, ["'order'", "subscribe=orders"]),
        ({"startingoffsets": '{"orders": {"b": {"0": -3}}}'}, ["queue 0 of orders on b: -3"]),
        # The last of them would win, and the others be forgotten.
        ({"startingoffsets": '{"orders": {"b": {"0": 1, "0": 2}}}'}, ["'0' is named twice"]),
        ({"startingoffsets": '{"orders": {}, "orders": {"b": {}}}'}, ["'orders' is named twice"]),
        ({"startingoffsets": '{"orders": {"b": {"00": 1}}}'}, ["'00'", "queue id"]),
        ({"endingoffsets": "earliest"}, ["endingOffsets", "latest"]),
        ({"endingoffsets": '{"orders": {"b": {"0": -2}}}'}, ["endingOffsets", "latest"]),
        (
            {
                "startingoffsets": '{"orders": {"b": {"0": 50, "1": 3}}}',
                "endingoffsets": '{"orders": {"b": {"1": 3, "0": 10}}}',
            },
            ["endingOffsets", "queue 0 of orders on b ends at 10", "startingOffsets", "50"],
        ),
        ({"maxoffsetspertrigger": "0"}, ["maxOffsetsPerTrigger", "at least 1"]),
        ({"maxoffsetspertrigger": "many"}, ["maxOffsetsPerTrigger", "'many'", "whole number"]),
        ({"corruptbodies": "skip"}, ["corruptBodies", "'skip'", "fail or null"]),
        ({"failondataloss": "no"}, ["failOnDataLoss", "'no'", "true or false"]),
        ({"includeproperties": "1"}, ["includeProperties", "true or false"]),
        ({"tags": " || "}, ["tags", "||"]),
        # What the client refuses is refused before a task has begun.
        ({"tags": "a > 5"}, ["option tags", "'a > 5'", "SQL"]),
        ({"requesttimeoutms": "86400000"}, ["requestTimeoutMs", "1..86399999"]),
        ({"retrytimeoutms": "604800000"}, ["retryTimeoutMs", "100..86399999"]),
        ({"retrytimeoutms": "99"}, ["retryTimeoutMs", "100.."]),
        ({"consumergroup": "a b"}, ["consumerGroup", "letters"]),
        ({"minpartitions": "3", "maxpartitions": "2"}, ["maxPartitions=2", "minPartitions=3"]),
        ({"pullbytes": "10"}, ["pullBytes", "1024.."]),
        ({"subscrib": "x"}, ["subscrib", "did you mean subscribe?", "startingOffsets"]),
        ({"topic": "x"}, ["topic", "belongs to the sink"]),
        ({"zzz": "1"}, ["zzz", "unknown", "no option has a name like it"]),
        # What is meant for Spark would do nothing here.
        ({"path": "orders"}, ["path='orders'", "the option subscribe"]),
        ({"paths": "[]"}, ["paths", "the option subscribe"]),
        ({"trigger": "availableNow"}, ["trigger", "a method of Spark", ".trigger(…)"]),
        ({"schema": "body binary"}, ["schema", ".schema(…)"]),
    ],
)
def test_errors_of_the_source(changed: dict[str, str | None], pieces: list[str]) -> None:
    options = {k: v for k, v in {**SOURCE, **changed}.items() if v is not None}
    with pytest.raises(ConfigurationError) as caught:
        source_options(options)
    for piece in pieces:
        assert piece in str(caught.value)


def test_options_of_the_sink() -> None:
    options = sink_options({**NAMES, "topic": "out", "maxMessageSize": "8388608"})
    assert (options.topic, options.message_bytes_max) == ("out", 8 << 20)
    assert sink_options(NAMES).topic is None


@pytest.mark.parametrize(
    ("changed", "pieces"),
    [
        ({"topic": "a b"}, ["topic", "'a b'"]),
        ({"maxmessagesize": "1"}, ["maxMessageSize", "1024.."]),
        # No RocketMQ peer takes a frame of more than 16 MiB.
        ({"maxmessagesize": str(16 << 20)}, ["maxMessageSize", "1024..16711680"]),
        ({"subscribe": "x"}, ["subscribe", "belongs to the source"]),
        ({"topics": "x"}, ["did you mean topic? It knows"]),
        ({"path": "out"}, ["path='out'", "the option topic"]),
        ({"outputmode": "complete"}, ["outputMode", ".outputMode(…)"]),
    ],
)
def test_errors_of_the_sink(changed: dict[str, str], pieces: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sink_options({**NAMES, **changed})
    for piece in pieces:
        assert piece in str(caught.value)


def test_options_of_a_table() -> None:
    """What Spark 4.3 hands over for CREATE TABLE."""
    table = {"provider": "pymq", "owner": "me", "foo": "bar", "comment": "ours"}
    given = {**SOURCE, "tags": "A"}
    options = {**table, **given, **{f"option.{name}": value for name, value in given.items()}}
    check_options(options)
    assert source_options(options) == source_options(given)
    with pytest.raises(ConfigurationError, match="option nameServer is missing"):
        check_options(table)
    with pytest.raises(ConfigurationError, match="did you mean tags"):
        check_options({**options, "option.tag": "B"})


def test_a_table_without_its_options() -> None:
    """Spark 4.3 forgets them when the table is used."""
    with pytest.raises(ConfigurationError, match="no options at all.*CREATE TEMPORARY VIEW"):
        check_options({})


def test_what_is_checked_before_the_direction_is_known() -> None:
    check_options(NAMES)
    check_options(SOURCE)
    check_options({**NAMES, "topic": "out"})
    # For one side too many: that side is not known yet.
    check_options({**SOURCE, "topic": "out"})
    for wrong in (
        {},
        {"nameserver": "x"},
        {**NAMES, "subsribe": "orders"},
        {**SOURCE, "startingoffsets": "soon"},
        {**NAMES, "topic": "a b"},
    ):
        with pytest.raises(ConfigurationError):
            check_options(wrong)


#: Defaults that depend on more than the option.
SPECIAL = {
    "README.md": {"startingOffsets": "latest; batch: earliest", "topic": "column topic"},
    "README.zh.md": {
        "startingOffsets": "流 latest，批 earliest",
        "topic": "topic 列",
        "maxOffsetsPerTrigger": "不限",
        "maxPartitions": "不限",
    },
}
WORDS = {"README.md": ("required", "none"), "README.zh.md": ("必填", "无")}


def default_of(option: str, field: dataclasses.Field[Any], required: str, none: str) -> str:
    """Return the default of an option as a README tells it."""
    value = field.default
    if value is dataclasses.MISSING:
        return required
    match option, value:
        case "endingOffsets", None:
            return "latest"
        case "corruptBodies", False:
            return "fail"
        case "tags", ():
            return "*"
        case _, (None | ()):
            return none
        case _, bool():
            return str(value).lower()
        case _, float():
            return f"{1000 * value:.0f}"
    return str(value)


@pytest.mark.parametrize("name", ["README.md", "README.zh.md"])
def test_the_readmes_tell_every_option_and_its_default(name: str) -> None:
    text = (Path(__file__).parents[3] / name).read_text(encoding="utf-8")
    for side, table, kind in (
        ("source", SOURCE_OPTIONS, SourceOptions),
        ("sink", SINK_OPTIONS, SinkOptions),
    ):
        _, _, after = text.partition(f"\n| {side} |")
        rows, _, _ = after.partition("\n\n")
        found = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", rows, re.MULTILINE))
        fields = {field.name: field for field in dataclasses.fields(kind)}
        required, none = WORDS[name]
        wanted = {
            option: SPECIAL[name].get(option) or default_of(option, fields[filled], required, none)
            for option, (filled, _) in table.items()
        }
        told = {option: default.replace("`", "") for option, default in found.items()}
        assert told == wanted


def test_the_table_of_options_is_complete() -> None:
    source, sink = (
        set(re.findall(r"^([a-z]\w+)  ", part, re.MULTILINE))
        for part in (module.__doc__ or "").split("\nSink ")
    )
    assert source == set(SOURCE_OPTIONS)
    assert sink == set(SINK_OPTIONS)
