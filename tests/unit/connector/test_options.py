"""Option text -> options; every error names the option, what was given, and what is right."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pymq.client.cluster.network import Network
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue
from pyspark_pymq import option_tables
from pyspark_pymq.format_options import with_schema_text
from pyspark_pymq.offsets import EARLIEST, LATEST, Bound
from pyspark_pymq.option_tables import SINK_OPTIONS, SOURCE_OPTIONS
from pyspark_pymq.options import check_options
from pyspark_pymq.sink.options import SinkOptions, sink_options
from pyspark_pymq.source.option_checks import source_options
from pyspark_pymq.source.options import SourceOptions
from pyspark_pymq.values.ddl import struct_of_ddl

RECORD = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
NAMES = {"nameserver": "127.0.0.1:9876"}
SOURCE = {**NAMES, "subscribe": "orders"}


def test_defaults_of_the_source() -> None:
    options = source_options(SOURCE)
    assert options.name_servers == ("127.0.0.1:9876",)
    assert options.topics == ("orders",)
    assert options.starting is None and options.ending is None
    assert options.offsets_max is None and options.fail_on_data_loss
    assert options.tags == () and not options.include_properties
    assert options.sql is None and options.columns == ("pymq",) and options.metadata is None
    assert not options.is_filtered and not options.commits_offsets and not options.has_group


def test_all_options_of_the_source() -> None:
    options = source_options(
        {
            "NAMESERVER": "a:1;b:2, [::1]:3",
            "subscribe": "orders, %RETRY%group ,orders",
            "startingOffsets": "Earliest",
            "endingoffsets": json.dumps({"orders": {"broker-a": {"0": 17, "1": -1}}}),
            "maxoffsetspertrigger": "100",
            "valueFormat": "JSON",
            "valueSchema": "id bigint, name string",
            "badRecords": "sidetopic",
            "badRecordsTopic": " aside ",
            "expectedBrokers": "broker-a, broker-b,",
            "failOnDataLoss": "FALSE",
            "tags": "A || B||A",
            "includeProperties": "true",
            "columns": "pymq, msgId,",
            "consumerGroup": "reports",
            "commitOffsetsToBroker": "true",
            "minPartitions": "2",
            "maxPartitions": "4",
            "pullBytes": "65536",
            "readFromReplica": "false",
            "brokerAddressMap": "10.0.0.3:10911 = a:1, 10.0.0.4=[::1],",
            "requestTimeoutMs": "1500",
            "retryTimeoutMs": "2000",
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
    assert options.values.name == "json"
    assert options.values.value_type == struct_of_ddl("id bigint, name string")
    assert (options.bad_records, options.bad_records_topic) == ("sideTopic", "aside")
    assert not options.null_corrupt_bodies
    assert options.expected_brokers == ("broker-a", "broker-b")
    assert options.tags == ("A", "B")
    assert options.include_properties
    assert options.columns == ("pymq", "msgId")
    assert options.consumer_group == "reports" and options.has_group and options.commits_offsets
    assert (options.partitions_min, options.partitions_max) == (2, 4)
    assert options.pull_bytes == 65536 and not options.reads_replicas
    assert (options.request_timeout_s, options.retry_timeout_s) == (1.5, 2.0)
    reached = ("a:1", "[::1]:10911", "10.0.0.3:1")
    advertised = ("10.0.0.3:10911", "10.0.0.4:10911", "10.0.0.3:1")
    assert tuple(map(options.network.reached, advertised)) == reached


def test_offsets_of_a_progress_report_can_be_pasted() -> None:
    text = '{"%": {"v": 1}, "orders": {"broker-a": {"0": 5, "10": 7}}}'
    starting = source_options({**SOURCE, "startingoffsets": text}).starting
    assert starting is not None and starting.unnamed == EARLIEST
    assert [(q.queue_id, offset) for q, offset in starting.named] == [(0, 5), (10, 7)]


def test_a_star_among_tags_means_all() -> None:
    assert source_options({**SOURCE, "tags": " * "}).tags == ()
    assert source_options({**SOURCE, "tags": "*", "sql": "a = 1"}).is_filtered


def test_a_filter_in_sql() -> None:
    options = source_options({**SOURCE, "sql": "amount > 100 AND region IN ('EU', 'UK')"})
    assert options.sql == "amount > 100 AND region IN ('EU', 'UK')" and options.is_filtered
    assert options.tag_expression == "*"


def test_a_table_of_queues() -> None:
    given = {"expectedBrokers": "a", "consumerGroup": "G", "requestTimeoutMs": "1000"}
    assert source_options({**SOURCE, **given, "metadata": "Topics"}).metadata == "topics"


def test_options_that_agree() -> None:
    for given in (
        {"corruptBodies": "null", "badRecords": "null"},
        {"corruptBodies": "null", "badRecords": "fail"},
        {"corruptBodies": "fail"},
        {"retryTimeoutMs": "500"},
        {"subscribe": "", "assign": '{"orders": [0]}', "expectedBrokers": "c"},
        {"subscribe": "", "assign": '{"o": {"b": [0], "c": [1]}}', "expectedBrokers": "c"},
    ):
        source_options({name: text for name, text in {**SOURCE, **given}.items() if text})


@pytest.mark.parametrize(
    ("changed", "pieces"),
    [
        ({"nameserver": None}, ["nameServer", "missing", "127.0.0.1:9876"]),
        ({"nameserver": "localhost"}, ["nameServer", "'localhost'", "host:port"]),
        ({"nameserver": "a:1;b:x"}, ["nameServer", "'b:x'", "host:port"]),
        ({"nameserver": "a:0"}, ["'a:0'"]),
        ({"nameserver": "tcp://a:1"}, ["'tcp://a:1'"]),
        ({"nameserver": " ; "}, ["host:port"]),
        ({"subscribe": None}, ["subscribe", "missing"]),
        ({"subscribe": " , "}, ["subscribe", "topics"]),
        ({"subscribe": "a/b"}, ["subscribe", "'a/b'", "letters"]),
        ({"subscribe": "x" * 128}, ["subscribe", "1..127"]),
        ({"subscribe": "orders,%LMQ%a"}, ["subscribe", "%LMQ%a is a light queue", "topics that"]),
        (
            {"subscribe": None, "subscribepattern": "\\%LMQ%.*"},
            ["subscribePattern", "%LMQ%.* is a light queue"],
        ),
        (
            {"subscribe": None, "assign": '{"orders": [0], "%LMQ%a": [0]}'},
            ["assign", "%LMQ%a is a light queue"],
        ),
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
        ({"valueformat": "xml"}, ["valueFormat", "'xml'", "binary, string, json or avro"]),
        ({"valueschema": "id int"}, ["valueSchema is for valueFormat=json", "is binary"]),
        ({"valueformat": "json", "valueschema": "id in"}, ["valueSchema", "'in'", "bigint"]),
        ({"valueformat": "json", "avroschema": RECORD}, ["avroSchema is for valueFormat=avro"]),
        ({"valueformat": "avro"}, ["avroSchema", "avroSchemaFile"]),
        ({"valueformat": "avro", "avroschema": "[]"}, ["avroSchema", "expected a record"]),
        ({"valueformat": "avro", "avroschemafile": "/no/file"}, ["avroSchemaFile", "No such file"]),
        ({"badrecords": "skip"}, ["badRecords", "'skip'", "fail, null or sideTopic"]),
        ({"badrecords": "sideTopic"}, ["badRecords=sideTopic", "badRecordsTopic"]),
        ({"badrecordstopic": "aside"}, ["badRecordsTopic=aside", "badRecords=sideTopic"]),
        (
            {"badrecords": "sideTopic", "badrecordstopic": "orders"},
            ["badRecordsTopic='orders'", "again and again"],
        ),
        (
            {"badrecords": "sideTopic", "badrecordstopic": "%RETRY%g"},
            ["badRecordsTopic", "broker's own"],
        ),
        ({"corruptbodies": "skip"}, ["corruptBodies", "'skip'", "fail or null"]),
        ({"failondataloss": "no"}, ["failOnDataLoss", "'no'", "true or false"]),
        ({"includeproperties": "1"}, ["includeProperties", "true or false"]),
        ({"tags": " || "}, ["tags", "||"]),
        # What the client refuses is refused before a task has begun.
        ({"tags": "a > 5"}, ["option tags", "'a > 5'", "SQL"]),
        ({"sql": "amount >"}, ["option sql='amount >'"]),
        ({"sql": "a = 1", "tags": "A || B"}, ["sql and tags", "TAGS IN ('A', 'B') AND (a = 1)"]),
        ({"columns": "pymq, brokername"}, ["columns", "'brokername'", "did you mean brokerName?"]),
        ({"columns": ","}, ["columns", "pymq, kafka"]),
        ({"metadata": "offsets"}, ["metadata='offsets'", "expected topics"]),
        ({"metadata": "topics", "sql": "a = 1"}, ["option sql", "metadata=topics"]),
        *(
            ({"metadata": "topics", name: text}, [f"option {shown} is about messages"])
            for name, text, shown in (
                ("startingoffsets", "earliest", "startingOffsets"),
                ("endingoffsets", "latest", "endingOffsets"),
                ("maxoffsetspertrigger", "5", "maxOffsetsPerTrigger"),
                ("valueformat", "json", "valueFormat"),
                ("badrecords", "null", "badRecords"),
                ("minpartitions", "1", "minPartitions"),
                ("pullbytes", "2000", "pullBytes"),
                ("includeproperties", "false", "includeProperties"),
                ("tags", "A", "tags"),
            )
        ),
        ({"metadata": "topics", "columns": "kafka"}, ["option columns", "metadata=topics"]),
        ({"commitoffsetstobroker": "true"}, ["commitOffsetsToBroker", "needs", "consumerGroup"]),
        ({"requesttimeoutms": "86400000"}, ["requestTimeoutMs", "1..86399999"]),
        ({"retrytimeoutms": "604800000"}, ["retryTimeoutMs", "100..86399999"]),
        (
            {"retrytimeoutms": "100", "requesttimeoutms": "10000"},
            ["requestTimeoutMs=10000 is above", "retryTimeoutMs=100"],
        ),
        ({"requesttimeoutms": "200000"}, ["requestTimeoutMs=200000", "retryTimeoutMs=180000"]),
        (
            {"corruptbodies": "fail", "badrecords": "null"},
            ["corruptBodies=fail contradicts badRecords=null", "remove corruptBodies"],
        ),
        (
            {"corruptbodies": "null", "badrecords": "sideTopic", "badrecordstopic": "aside"},
            ["corruptBodies=null contradicts badRecords=sideTopic"],
        ),
        (
            {
                "subscribe": None,
                "assign": '{"orders": {"b": [0]}}',
                "expectedbrokers": "c,b",
            },
            ["expectedBrokers names c, of which assign names no queue", "some of b"],
        ),
        ({"tags": "A|B"}, ["tags", "'A|B' would be one tag", "'||'", "TAGS = 'A|B'"]),
        ({"retrytimeoutms": "99"}, ["retryTimeoutMs", "100.."]),
        ({"consumergroup": "a b"}, ["consumerGroup", "letters"]),
        ({"minpartitions": "3", "maxpartitions": "2"}, ["maxPartitions=2", "minPartitions=3"]),
        ({"pullbytes": "10"}, ["pullBytes", "1024.."]),
        ({"brokeraddressmap": "a:1"}, ["brokerAddressMap", "'a:1'", "ADVERTISED=REACHED"]),
        ({"brokeraddressmap": "a:1=b:1,a:1=c:1"}, ["brokerAddressMap", "once for each"]),
        ({"brokeraddressmap": "a:1=b"}, ["brokerAddressMap", "'a:1'", "'b'"]),
        ({"brokeraddressmap": " , "}, ["brokerAddressMap", "ADVERTISED=REACHED"]),
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


@pytest.mark.parametrize(
    "name",
    ["password", "secretKey", "accessKeyId", "sslTruststorePassword", "authToken",
     "kafka.sasl.jaas.config", "db_passwd", "credentials", "db_pwd", "sslPwd", "pasword",
     "pswd", "passphrase", "basic.auth.user.info"],
)  # fmt: skip
def test_what_may_be_a_secret_is_not_told(name: str) -> None:
    """Options that were meant for another connector; errors end up in the driver's log."""
    sink = {**NAMES, "topic": "orders"}
    for read, given in ((source_options, SOURCE), (sink_options, sink)):
        with pytest.raises(ConfigurationError) as caught:
            read({**given, name: "hunter2"})
        assert f"option {name.lower()} is unknown to the pymq" in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_a_schema_in_a_file_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "record.avsc"
    path.write_text(RECORD)
    given = {**SOURCE, "valueformat": "avro", "avroSchemaFile": str(path)}
    options = with_schema_text(given)
    path.unlink()
    assert "avroSchemaFile" not in options
    values = source_options(options).values
    assert values.value_type is not None and values.value_type.simpleString() == "struct<id:bigint>"
    with pytest.raises(ConfigurationError, match="avroSchemaFile=.*No such file.*on the driver"):
        with_schema_text(given)
    path.write_text(RECORD)
    with pytest.raises(ConfigurationError, match="both set"):
        source_options(with_schema_text({**given, "avroSchema": RECORD}))
    table = {"provider": "pymq", **given, "option.avroSchemaFile": str(path)}
    assert with_schema_text(table)["option.avroschema"] == RECORD


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
        ({"valueschema": "id int"}, ["valueSchema", "belongs to the source"]),
        ({"badrecords": "null"}, ["badRecords", "belongs to the source"]),
        ({"avroschema": RECORD}, ["avroSchema is for valueFormat=avro", "valueFormat is binary"]),
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
    **dict.fromkeys(("subscribe", "subscribePattern", "assign"), "one of these three"),
    "startingOffsets": "latest; batch: earliest",
    "topic": "column topic",
    "delivery": "exactlyOnce; atLeastOnce without a pymq broker",
    "sinkBroker": "the one it was at, else any",
    "txnAppId": "the query's id; a random one",
    "txnVersion": "in foreachBatch: its number",
}


def default_of(option: str, field: dataclasses.Field[Any]) -> str:
    """Return the default of an option as the documentation tells it."""
    value = field.default
    if value is dataclasses.MISSING:
        return "required"
    match option, value:
        case "endingOffsets", None:
            return "latest"
        case "corruptBodies", False:
            return "fail"
        case "tags", ():
            return "*"
        case "startingOffsetsByTimestampStrategy", True:
            return "error"
        case "groupOffsetFallback", -2:
            return "earliest"
        case "brokerAddressMap", Network(broker_address_map={}):
            return "as advertised"
        case "maxTriggerDelay", 900.0:
            return "15m"
        case _, (None | ()):
            return "none"
        case _, tuple():
            return ",".join(value)
        case _, bool():
            return str(value).lower()
        case _, float():
            return f"{1000 * value:.0f}"
    return str(value)


def test_the_documentation_tells_every_option_and_its_default() -> None:
    text = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    for side, table, kind in (
        ("source", SOURCE_OPTIONS, SourceOptions),
        ("sink", SINK_OPTIONS, SinkOptions),
    ):
        _, _, after = text.partition(f"\n| {side} |")
        rows, _, _ = after.partition("\n\n")
        found = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", rows, re.MULTILINE))
        fields = {field.name: field for field in dataclasses.fields(kind)}
        wanted = {
            option: SPECIAL.get(option) or default_of(option, fields[filled])
            for option, (filled, _) in table.items()
        }
        told = {option: default.replace("`", "") for option, default in found.items()}
        assert told == wanted


def test_the_table_of_options_is_complete() -> None:
    source, sink = (
        set(re.findall(r"^([a-z]\w+)  ", part, re.MULTILINE))
        for part in (option_tables.__doc__ or "").split("\nSink ")
    )
    assert source == set(SOURCE_OPTIONS)
    assert sink == set(SINK_OPTIONS)


def test_delivery() -> None:
    options = sink_options({**NAMES, "delivery": "exactlyonce", "txnAppId": "a", "txnVersion": "7"})
    assert options.must_be_exact and (options.txn_app_id, options.txn_version) == ("a", 7)
    assert not sink_options(NAMES).must_be_exact
    for given, text in (
        ({"delivery": "once"}, "expected exactlyOnce or atLeastOnce"),
        ({"delivery": "atLeastOnce", "txnAppId": "a"}, "txnAppId=a is for delivery=exactlyOnce"),
        ({"delivery": "atLeastOnce", "sinkBroker": "b"}, "sinkBroker=b is for"),
        ({"txnVersion": "7"}, "name that with txnAppId"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "expected a whole number"),
        ({"txnAppId": "a\nb"}, "printable"),
        ({"txnAppId": "a" * 256}, "1..255 printable"),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(text)):
            sink_options({**NAMES, **given})
