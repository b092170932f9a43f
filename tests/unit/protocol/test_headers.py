"""Typed headers: the exact wire names of each, both ways, and what may be missing."""

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import RemoteProtocolError
from pymq.protocol import headers
from pymq.protocol.headers import clients, groups, offsets, pull, routes, send, topics
from pymq.protocol.headers.codec import Header, camel, parse_bool, parse_int, wire

# (header, its string map): all fields that an official peer can send.
BOTH_WAYS: list[tuple[Header, dict[str, str]]] = [
    (
        routes.RegisterBrokerRequest(
            broker_name="b",
            broker_address="h:1",
            cluster_name="c",
            broker_id=0,
            ha_server_address="h:2",
            heartbeat_timeout_ms=10,
            enable_acting_master=False,
            compressed=True,
            body_crc32=7,
        ),
        {
            "brokerName": "b",
            "brokerAddr": "h:1",
            "clusterName": "c",
            "brokerId": "0",
            "haServerAddr": "h:2",
            "heartbeatTimeoutMillis": "10",
            "enableActingMaster": "false",
            "compressed": "true",
            "bodyCrc32": "7",
        },
    ),
    (
        routes.RegisterBrokerResponse(ha_server_address="a", master_address="b"),
        {"haServerAddr": "a", "masterAddr": "b"},
    ),
    (
        routes.UnregisterBrokerRequest(
            broker_name="b", broker_address="h:1", cluster_name="c", broker_id=1
        ),
        {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "1"},
    ),
    (
        routes.RouteRequest(topic="T", accept_standard_json_only=True),
        {"topic": "T", "acceptStandardJsonOnly": "true"},
    ),
    (
        routes.PutKVRequest(namespace="n", key="k", value="v"),
        {"namespace": "n", "key": "k", "value": "v"},
    ),
    (routes.KVKeyRequest(namespace="n", key="k"), {"namespace": "n", "key": "k"}),
    (routes.KVValueResponse(value="v"), {"value": "v"}),
    (routes.KVNamespaceRequest(namespace="n"), {"namespace": "n"}),
    (routes.BrokerNameRequest(broker_name="b"), {"brokerName": "b"}),
    (routes.WipeWritePermResponse(wipe_topic_count=3), {"wipeTopicCount": "3"}),
    (routes.AddWritePermResponse(add_topic_count=3), {"addTopicCount": "3"}),
    (
        routes.DataVersionRequest(
            broker_name="b", broker_address="h:1", cluster_name="c", broker_id=1
        ),
        {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "1"},
    ),
    (routes.DataVersionResponse(changed=True), {"changed": "true"}),
    (
        routes.DeleteTopicRoutesRequest(topic="T", cluster_name="c"),
        {"topic": "T", "clusterName": "c"},
    ),
    (
        routes.BrokerHeartbeatRequest(
            cluster_name="c",
            broker_address="h:1",
            broker_name="b",
            broker_id=0,
            epoch=1,
            max_offset=2,
            confirm_offset=3,
            heartbeat_timeout_ms=4,
            election_priority=5,
        ),
        {
            "clusterName": "c",
            "brokerAddr": "h:1",
            "brokerName": "b",
            "brokerId": "0",
            "epoch": "1",
            "maxOffset": "2",
            "confirmOffset": "3",
            "heartbeatTimeoutMills": "4",
            "electionPriority": "5",
        },
    ),
    (routes.TopicsOfClusterRequest(cluster="c"), {"cluster": "c"}),
    (
        topics.UpdateTopicRequest(
            topic="T",
            default_topic="TBW102",
            read_queue_count=4,
            write_queue_count=5,
            perm=6,
            filter_type="MULTI_TAG",
            topic_sys_flag=0,
            order=True,
            attributes="+a=b",
            force=False,
        ),
        {
            "topic": "T",
            "defaultTopic": "TBW102",
            "readQueueNums": "4",
            "writeQueueNums": "5",
            "perm": "6",
            "topicFilterType": "MULTI_TAG",
            "topicSysFlag": "0",
            "order": "true",
            "attributes": "+a=b",
            "force": "false",
        },
    ),
    (topics.TopicRequest(topic="T"), {"topic": "T"}),
    (topics.TopicConfigRequest(topic="T", logical=True), {"topic": "T", "lo": "true"}),
    (
        topics.TopicPageRequest(first=0, data_version="", count_max=2000),
        {"topicSeq": "0", "dataVersion": "", "maxTopicNum": "2000"},
    ),
    (topics.TopicPageResponse(total_count=9), {"totalTopicNum": "9"}),
    (
        groups.DeleteGroupRequest(group="g", clean_offset=True, remove_offset=False),
        {"groupName": "g", "cleanOffset": "true", "removeOffset": "false"},
    ),
    (
        groups.GroupPageRequest(first=0, data_version="", count_max=2000),
        {"groupSeq": "0", "dataVersion": "", "maxGroupNum": "2000"},
    ),
    (groups.GroupPageResponse(total_count=9), {"totalGroupNum": "9"}),
    (groups.GroupRequest(group="g"), {"group": "g"}),
    (groups.ConsumerGroupRequest(consumer_group="g"), {"consumerGroup": "g"}),
    (
        groups.ConsumeStatsRequest(consumer_group="g", topic="T", topic_list="a;b"),
        {"consumerGroup": "g", "topic": "T", "topicList": "a;b"},
    ),
    (
        offsets.QueryOffsetRequest(
            consumer_group="g", topic="T", queue_id=1, set_zero_if_not_found=False, broker_name="b"
        ),
        {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": "1",
            "setZeroIfNotFound": "false",
            "bname": "b",
        },
    ),
    (offsets.OffsetResponse(offset=5), {"offset": "5"}),
    (offsets.MaxOffsetResponse(offset=5), {"offset": "5"}),
    (
        offsets.MaxOffsetResponse(offset=5, topic_id="f0"),
        {"offset": "5", "pymqTopicId": "f0"},
    ),
    (
        offsets.UpdateOffsetRequest(
            consumer_group="g", topic="T", queue_id=1, commit_offset=9, broker_name="b"
        ),
        {"consumerGroup": "g", "topic": "T", "queueId": "1", "commitOffset": "9", "bname": "b"},
    ),
    (
        offsets.SearchOffsetRequest(
            topic="T", queue_id=1, timestamp_ms=2, boundary_type="UPPER", broker_name="b"
        ),
        {"topic": "T", "queueId": "1", "timestamp": "2", "boundaryType": "UPPER", "bname": "b"},
    ),
    (
        offsets.MaxOffsetRequest(topic="T", queue_id=1, committed=True, broker_name="b"),
        {"topic": "T", "queueId": "1", "committed": "true", "bname": "b"},
    ),
    (
        offsets.QueueRequest(topic="T", queue_id=1, broker_name="b"),
        {"topic": "T", "queueId": "1", "bname": "b"},
    ),
    (offsets.TimestampResponse(timestamp_ms=-1), {"timestamp": "-1"}),
    (
        clients.UnregisterClientRequest(client_id="c", producer_group="p", consumer_group="g"),
        {"clientID": "c", "producerGroup": "p", "consumerGroup": "g"},
    ),
    (
        clients.HeartbeatResponse(supports_v2=True, subscription_changed=False),
        {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"},
    ),
    (
        pull.PullRequest(
            consumer_group="g",
            topic="T",
            queue_id=1,
            queue_offset=2,
            message_count_max=32,
            sys_flag=6,
            commit_offset=3,
            suspend_timeout_ms=15000,
            subscription="*",
            sub_version=4,
            expression_type="TAG",
            message_bytes_max=262144,
            broker_name="b",
            extended_bytes_max=1 << 20,
        ),
        {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": "1",
            "queueOffset": "2",
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "3",
            "suspendTimeoutMillis": "15000",
            "subscription": "*",
            "subVersion": "4",
            "expressionType": "TAG",
            "maxMsgBytes": "262144",
            "bname": "b",
            "pymqMaxBytes": "1048576",
        },
    ),
    (
        pull.PullResponse(
            suggest_which_broker_id=0, next_begin_offset=1, min_offset=2, max_offset=3
        ),
        {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "1",
            "minOffset": "2",
            "maxOffset": "3",
        },
    ),
    (
        send.SendResponse(
            message_id="id",
            queue_id=1,
            queue_offset=2,
            transaction_id="t",
            region="r",
            trace_on=True,
        ),
        {
            "msgId": "id",
            "queueId": "1",
            "queueOffset": "2",
            "transactionId": "t",
            "MSG_REGION": "r",
            "TRACE_ON": "true",
        },
    ),
]
# What the oldest supported peer sends is enough.
REQUIRED: dict[type[Header], set[str]] = {
    routes.RegisterBrokerRequest: {"brokerName", "brokerAddr", "clusterName", "brokerId"},
    routes.RegisterBrokerResponse: set(),
    routes.RouteRequest: set(),
    routes.KVKeyRequest: set(),
    routes.KVNamespaceRequest: set(),
    routes.DataVersionRequest: {"brokerName", "brokerAddr", "clusterName"},
    routes.DeleteTopicRoutesRequest: {"topic"},
    routes.BrokerHeartbeatRequest: {"brokerName", "brokerAddr", "clusterName"},
    offsets.MaxOffsetResponse: {"offset"},
    topics.UpdateTopicRequest: {
        "topic",
        "readQueueNums",
        "writeQueueNums",
        "perm",
        "topicFilterType",
    },
    topics.TopicConfigRequest: {"topic"},
    topics.TopicPageRequest: set(),
    topics.TopicPageResponse: set(),
    groups.DeleteGroupRequest: {"groupName"},
    groups.GroupPageRequest: set(),
    groups.GroupPageResponse: set(),
    groups.ConsumeStatsRequest: {"consumerGroup"},
    offsets.QueryOffsetRequest: {"consumerGroup", "topic", "queueId"},
    offsets.UpdateOffsetRequest: {"topic"},
    offsets.SearchOffsetRequest: {"topic", "queueId", "timestamp"},
    offsets.MaxOffsetRequest: {"topic", "queueId"},
    offsets.QueueRequest: {"topic", "queueId"},
    clients.UnregisterClientRequest: set(),
    clients.HeartbeatResponse: set(),
    routes.KVValueResponse: set(),
    send.SendResponse: {"msgId", "queueId", "queueOffset"},
    pull.PullRequest: {
        "consumerGroup",
        "topic",
        "queueId",
        "queueOffset",
        "maxMsgNums",
        "sysFlag",
    },
}


@pytest.mark.parametrize(("header", "fields"), BOTH_WAYS, ids=lambda v: type(v).__name__)
class TestBothWays:
    def test_to_fields(self, header: Header, fields: dict[str, str]) -> None:
        assert header.to_fields() == fields

    def test_from_fields(self, header: Header, fields: dict[str, str]) -> None:
        assert type(header).from_fields(fields) == header
        assert type(header).from_fields({**fields, "AccessKey": "x", "ns": "y"}) == header

    def test_what_may_be_missing(self, header: Header, fields: dict[str, str]) -> None:
        required = REQUIRED.get(type(header), set(fields))
        for name in fields:
            fewer = {key: value for key, value in fields.items() if key != name}
            if name in required:
                with pytest.raises(RemoteProtocolError, match=f"'{name}' is missing"):
                    type(header).from_fields(fewer)
            else:
                type(header).from_fields(fewer)
        least = type(header).from_fields({name: fields[name] for name in required})
        assert set(least.to_fields()) >= required


def declared() -> list[type[Header]]:
    """Every header of every family."""
    found = set()
    for module in pkgutil.iter_modules(headers.__path__):
        members = vars(importlib.import_module(f"pymq.protocol.headers.{module.name}"))
        found |= {
            value
            for value in members.values()
            if isinstance(value, type) and issubclass(value, Header) and value is not Header
        }
    return sorted(found, key=lambda kind: kind.__qualname__)


VALUES: dict[type, st.SearchStrategy[Any]] = {
    int: st.integers(-(1 << 63), (1 << 63) - 1),
    bool: st.booleans(),
    str: st.text(max_size=9),
}


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    options = get_args(annotation) or (annotation,)
    return st.one_of(*(VALUES[kind] for kind in options if kind is not type(None)))


@pytest.mark.parametrize("kind", declared(), ids=lambda kind: kind.__qualname__)
@given(data=st.data())
def test_every_header_round_trips(kind: type[Header], data: st.DataObject) -> None:
    members = {
        name: data.draw(values_of(annotation), label=name)
        for name, annotation in get_type_hints(kind).items()
        if name in kind.__dataclass_fields__
    }
    header = kind(**members)
    fields = header.to_fields()
    assert len(fields) == len(members)  # no two share a wire name
    assert kind.from_fields(fields) == header


@pytest.mark.parametrize("text", ["", "x", "1.5", "9223372036854775808", "0x10", "1" * 5_000])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(RemoteProtocolError, match="'offset'"):
        offsets.OffsetResponse.from_fields({"offset": text})
    with pytest.raises(ValueError):
        parse_int(text)


def test_numbers() -> None:
    for number in (0, -1, (1 << 63) - 1, -(1 << 63)):
        assert offsets.OffsetResponse.from_fields({"offset": str(number)}).offset == number


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("TRUE", True), ("false", False), ("1", False), ("", False), ("yes", False)],
)
def test_booleans_are_javas(text: str, value: bool) -> None:
    assert parse_bool(text) is value
    assert routes.DataVersionResponse.from_fields({"changed": text}).changed is value


def test_no_fields_at_all() -> None:
    assert clients.HeartbeatResponse.from_fields(None) == clients.HeartbeatResponse()
    assert clients.HeartbeatResponse().to_fields() == {}
    with pytest.raises(RemoteProtocolError, match="'topic' is missing, found"):
        topics.TopicRequest.from_fields(None)


def test_wire_names() -> None:
    assert camel("queue_id") == "queueId"
    assert camel("body_crc32") == "bodyCrc32"

    @dataclass(slots=True, kw_only=True)
    class Odd(Header):
        some_number: int = wire("x-y", default=7)

    assert Odd.from_fields({}).some_number == 7
    assert Odd.from_fields({"x-y": "8"}).to_fields() == {"x-y": "8"}


def test_either_spelling_forgets_offsets() -> None:
    for fields, forget in (
        ({}, False),
        ({"cleanOffset": "true"}, True),
        ({"removeOffset": "true"}, True),
        ({"removeOffset": "false"}, False),
    ):
        header = groups.DeleteGroupRequest.from_fields({"groupName": "g", **fields})
        assert header.forget_offsets is forget


def test_topics_of_consume_stats() -> None:
    read = groups.ConsumeStatsRequest.from_fields
    assert read({"consumerGroup": "g", "topic": "a"}).several == []
    assert read({"consumerGroup": "g", "topicList": "a;b;"}).several == ["a", "b"]


def outcome(read: Callable[[dict[str, str]], Header], fields: dict[str, str]) -> object:
    try:
        return read(fields)
    except RemoteProtocolError as error:
        return str(error)


@given(st.data())
def test_the_spelled_out_header_of_pulls_reads_as_the_generic_one(data: st.DataObject) -> None:
    whole = next(fields for header, fields in BOTH_WAYS if isinstance(header, pull.PullRequest))
    fields = {
        name: data.draw(st.sampled_from([value, "-1", "x", "", str(1 << 70)]), name)
        for name, value in whole.items()
        if data.draw(st.booleans(), f"{name}?")
    }

    def generic(fields: dict[str, str]) -> Header:
        return Header.from_fields.__func__(pull.PullRequest, fields)  # type: ignore[attr-defined]

    assert outcome(pull.PullRequest.from_fields, fields) == outcome(generic, fields)


def test_the_spelled_out_answer_to_pulls_is_the_generic_one() -> None:
    header = pull.PullResponse(
        suggest_which_broker_id=1,
        next_begin_offset=2,
        min_offset=3,
        max_offset=4,
        topic_sys_flag=5,
        group_sys_flag=6,
    )
    assert header.to_fields() == Header.to_fields(header)


# -------------------------------------------------------------------------------------- send

SEND = send.SendRequest(
    producer_group="PG",
    topic="T",
    default_topic="TBW102",
    default_topic_queue_count=4,
    queue_id=-1,
    sys_flag=0,
    born_timestamp=1700000000000,
    flag=7,
    properties="a\x011\x02",
    reconsume_times=1,
    unit_mode=True,
    max_reconsume_times=16,
    batch=True,
    broker_name="b",
)
SEND_V2 = {
    "a": "PG",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "-1",
    "f": "0",
    "g": "1700000000000",
    "h": "7",
    "i": "a\x011\x02",
    "j": "1",
    "k": "true",
    "l": "16",
    "m": "true",
    "n": "b",
}


def test_send_both_ways() -> None:
    assert SEND.to_v2() == SEND_V2
    assert send.SendRequest.from_v2(SEND_V2) == SEND
    names = {letter: name for name, letter in send.LETTERS.items()}
    assert send.SendRequest.from_v1({names[k]: v for k, v in SEND_V2.items()}) == SEND


def test_send_defaults() -> None:
    least = {letter: SEND_V2[letter] for letter in "abcdefgh"}
    expected = dataclasses.replace(
        SEND,
        properties="",
        reconsume_times=0,
        unit_mode=False,
        max_reconsume_times=None,
        batch=False,
        broker_name=None,
    )
    assert send.SendRequest.from_v2(least) == expected
    assert set(expected.to_v2()) == set("abcdefghijkm")
    for letter in "befgh":
        fewer = {name: value for name, value in least.items() if name != letter}
        with pytest.raises(RemoteProtocolError, match=f"'{letter}' is missing"):
            send.SendRequest.from_v2(fewer)
    for letter in "defghjl":
        with pytest.raises(RemoteProtocolError, match=f"'{letter}' is 'x'"):
            send.SendRequest.from_v2({**SEND_V2, letter: "x"})
    fewest = send.SendRequest.from_v2({letter: SEND_V2[letter] for letter in "befgh"})
    assert (fewest.producer_group, fewest.default_topic) == ("", "")
    assert fewest.default_topic_queue_count == 4


@given(st.dictionaries(st.sampled_from("abcdefghijklmn"), st.text(max_size=4)))
def test_random_send_fields_raise_only_our_error(fields: dict[str, str]) -> None:
    for source in (fields, {**SEND_V2, **fields}):
        try:
            send.SendRequest.from_v2(source)
        except RemoteProtocolError:
            pass


@given(st.sampled_from(BOTH_WAYS), st.data())
def test_random_fields_raise_only_our_error(
    pair: tuple[Header, dict[str, str]], data: st.DataObject
) -> None:
    header, fields = pair
    changed: dict[str, Any] = dict(fields)
    for name in fields:
        if data.draw(st.booleans()):
            changed[name] = data.draw(st.text(max_size=6))
    try:
        type(header).from_fields(changed)
    except RemoteProtocolError:
        pass
