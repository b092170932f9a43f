"""Requests as the official client makes them, and what becomes of the answers."""

import pytest

from pymq.client import operations
from pymq.client.operations import (
    Operation,
    PreparedMessage,
    Pull,
    PullStatus,
    Send,
    SendStatus,
)
from pymq.errors import (
    BrokerError,
    ConnectionFailed,
    ConsumerNotOnline,
    LocalProtocolError,
    MessageIllegal,
    PymqError,
    RemoteProtocolError,
    RequestTimeout,
    RouteNotFound,
    TopicNotExist,
)
from pymq.protocol import fastjson
from pymq.protocol.bodies import (
    GroupConfig,
    Heartbeat,
    MessageQueue,
    ProducerData,
    Subscription,
    TopicConfig,
)
from pymq.protocol.codes import PULL_BYTES_FIELD, RequestCode
from pymq.protocol.command import Command
from pymq.protocol.message import ReceivedMessage
from pymq.protocol.record import NewRecord, decode_record, encode_record, topic_field

QUEUE = MessageQueue("TopicA", "broker-a", 3)
RECEIVED = ReceivedMessage(
    "TopicA", b"x", {"UNIQ_KEY": "ID"}, "broker-a", 3, 7, 4096, 0, 0, b"", b""
)
PEER = "10.0.0.1:10911"
STORED = {"msgId": "AB,CD", "queueId": "3", "queueOffset": "17", "MSG_REGION": "r"}
PULLED = {
    "suggestWhichBrokerId": "0",
    "nextBeginOffset": "9",
    "minOffset": "2",
    "maxOffset": "12",
}

HELLO = b"".join(
    encode_record(
        NewRecord("T", 0, b"hello", b"KEYS\x01k", bytes(8), 5),
        topic_field(b"T"),
        size=91 + 5 + 1 + 6,
        queue_offset=1,
        physical_offset=9,
        store_timestamp=6,
        store_host=bytes(8),
    )
)


def answer(
    code: int = 0,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
    remark: str | None = None,
) -> Command:
    return Command(code, fields, body, remark, flag=1)


def send(prepared: PreparedMessage | None = None) -> Send:
    prepared = prepared or PreparedMessage("TopicA", b"body", "TAGS\x01a\x02", "ID", 5, 0x101)
    return Send(prepared, QUEUE, group="G", now_ms=1234)


def pull(**more: object) -> Pull:
    return Pull(QUEUE, 7, group="G", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "code", "fields"),
    [
        (operations.route("T"), 105, {"topic": "T"}),
        (operations.cluster_info(), 106, None),
        (operations.topic_list(), 206, None),
        (operations.delete_topic_routes("T"), 216, {"topic": "T"}),
        (operations.delete_topic_routes("T", "C"), 216, {"topic": "T", "clusterName": "C"}),
        (operations.delete_topic("T"), 215, {"topic": "T"}),
        (operations.topic_stats("T"), 202, {"topic": "T"}),
        (operations.topic_config("T"), 351, {"topic": "T"}),
        (operations.topic_table(), 21, None),
        (operations.group_table(), 201, None),
        (operations.groups_of_topic("T"), 300, {"topic": "T"}),
        (operations.topics_of_group("G"), 343, {"group": "G"}),
        (operations.consume_stats("G"), 208, {"consumerGroup": "G"}),
        (operations.consume_stats("G", "T"), 208, {"consumerGroup": "G", "topic": "T"}),
        (operations.consumer_connections("G"), 203, {"consumerGroup": "G"}),
        (operations.consumer_ids("G"), 38, {"consumerGroup": "G"}),
        (operations.broker_state(), 28, None),
        (operations.view_message(7), 33, {"offset": "7"}),
        (operations.view_message(7, "T"), 33, {"offset": "7", "topic": "T"}),
        (
            operations.query_messages("T", "k", count_max=3, begin_ms=4, end_ms=5),
            12,
            {
                "topic": "T",
                "key": "k",
                "maxNum": "3",
                "beginTimestamp": "4",
                "endTimestamp": "5",
                "_UNIQUE_KEY_QUERY": "false",
            },
        ),
        (
            operations.delete_group("G", forget_offsets=True),
            207,
            {"groupName": "G", "cleanOffset": "true", "removeOffset": "true"},
        ),
        (
            operations.min_offset(QUEUE),
            31,
            {"topic": "TopicA", "queueId": "3", "bname": "broker-a"},
        ),
        (
            operations.max_offset(QUEUE),
            30,
            {"topic": "TopicA", "queueId": "3", "bname": "broker-a"},
        ),
        (
            operations.offset_by_time(QUEUE, 99),
            29,
            {"topic": "TopicA", "queueId": "3", "timestamp": "99", "bname": "broker-a"},
        ),
        (
            operations.query_offset("G", QUEUE),
            14,
            {"consumerGroup": "G", "topic": "TopicA", "queueId": "3", "bname": "broker-a"},
        ),
        (
            operations.update_offset("G", QUEUE, 8),
            15,
            {
                "consumerGroup": "G",
                "topic": "TopicA",
                "queueId": "3",
                "commitOffset": "8",
                "bname": "broker-a",
            },
        ),
        (
            operations.unregister("C", consumer_group="G"),
            35,
            {"clientID": "C", "consumerGroup": "G"},
        ),
        (
            operations.update_topic(
                TopicConfig(topic="T", read_queue_count=4, write_queue_count=2, perm=6)
            ),
            17,
            {
                "topic": "T",
                "defaultTopic": "TBW102",
                "readQueueNums": "4",
                "writeQueueNums": "2",
                "perm": "6",
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            },
        ),
        (
            send(),
            310,
            {
                "a": "G",
                "b": "TopicA",
                "c": "TBW102",
                "d": "4",
                "e": "3",
                "f": "257",
                "g": "1234",
                "h": "5",
                "i": "TAGS\x01a\x02",
                "j": "0",
                "k": "false",
                "m": "false",
                "n": "broker-a",
            },
        ),
        (
            pull(count_max=32, suspend_ms=15_000, subscription_version=4),
            11,
            {
                "consumerGroup": "G",
                "topic": "TopicA",
                "queueId": "3",
                "queueOffset": "7",
                "maxMsgNums": "32",
                "sysFlag": "2",
                "commitOffset": "0",
                "suspendTimeoutMillis": "15000",
                "subVersion": "4",
                "expressionType": "TAG",
                "bname": "broker-a",
            },
        ),
        (
            pull(subscription=Subscription.of_tags("TopicA", "a || b", 9), bytes_max=1 << 20),
            11,
            {
                "consumerGroup": "G",
                "topic": "TopicA",
                "queueId": "3",
                "queueOffset": "7",
                "maxMsgNums": "32",
                "sysFlag": "4",
                "commitOffset": "0",
                "suspendTimeoutMillis": "0",
                "subscription": "a || b",
                "subVersion": "9",
                "expressionType": "TAG",
                "bname": "broker-a",
                PULL_BYTES_FIELD: "1048576",
            },
        ),
        (
            operations.send_back(RECEIVED, group="G", max_reconsume_times=16),
            36,
            {
                "offset": "4096",
                "group": "G",
                "delayLevel": "0",
                "originMsgId": "ID",
                "originTopic": "TopicA",
                "unitMode": "false",
                "maxReconsumeTimes": "16",
                "bname": "broker-a",
            },
        ),
    ],
    ids=lambda value: RequestCode(value).name if isinstance(value, int) else "",
)
def test_requests(operation: Operation[object], code: int, fields: dict[str, str] | None) -> None:
    request = operation.request
    assert (request.code, request.fields, request.flag) == (code, fields, 0)
    assert operation.description


def test_bodies_of_requests() -> None:
    beat = operations.heartbeat(Heartbeat(client_id="C", producers=[ProducerData(group="G")]))
    assert fastjson.parse(beat.request.body)["producerDataSet"] == [{"groupName": "G"}]
    lock = operations.lock_queues("G", "C", [QUEUE])
    assert fastjson.parse(lock.request.body)["mqSet"] == [
        {"topic": "TopicA", "brokerName": "broker-a", "queueId": 3}
    ]
    group = operations.update_group(GroupConfig(group="G"))
    assert fastjson.parse(group.request.body)["groupName"] == "G"


@pytest.mark.parametrize(
    ("operation", "response", "value"),
    [
        (operations.min_offset(QUEUE), answer(fields={"offset": "4"}), 4),
        (operations.query_offset("G", QUEUE), answer(fields={"offset": "4"}), 4),
        (operations.query_offset("G", QUEUE), answer(22, remark="Not found"), None),
        (operations.query_offset("G", QUEUE), answer(fields={"offset": "-1"}), None),
        (operations.earliest_store_time(QUEUE), answer(fields={"timestamp": "-1"}), None),
        (operations.earliest_store_time(QUEUE), answer(fields={"timestamp": "7"}), 7),
        (operations.heartbeat(Heartbeat(client_id="C")), answer(), 479),
        (operations.consumer_ids("G"), answer(body=b'{"consumerIdList":["a","b"]}'), ["a", "b"]),
        (operations.consumer_ids("G"), answer(1, remark="no consumer for this group, G"), []),
        (operations.topic_list(), answer(body=b'{"topicList":["T"]}'), ["T"]),
        (operations.topic_list(), answer(), []),
        (operations.broker_state(), answer(body=b'{"table":{"a":"1"}}'), {"a": "1"}),
        (operations.update_offset("G", QUEUE, 1), answer(), None),
        (operations.view_message(0), answer(body=HELLO), decode_record(HELLO)),
        (operations.query_messages("T", "k"), answer(body=HELLO * 2), [decode_record(HELLO)] * 2),
        (operations.query_messages("T", "k"), answer(22, remark="can not find message"), []),
        (
            operations.lock_queues("G", "C", [QUEUE]),
            answer(
                body=b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}]}'
            ),
            [QUEUE],
        ),
    ],
)
def test_answers(operation: Operation[object], response: Command, value: object) -> None:
    assert operation.result(response, peer=PEER) == value


def test_tables_with_objects_as_keys_are_read() -> None:
    key = '{"brokerName":"broker-a","queueId":3,"topic":"TopicA"}'
    stats = operations.topic_stats("TopicA").result(
        answer(body=f'{{"offsetTable":{{{key}:{{"maxOffset":5,"minOffset":1}}}}}}'.encode()),
        peer=PEER,
    )
    assert (stats.offsets[QUEUE].min_offset, stats.offsets[QUEUE].max_offset) == (1, 5)
    route = operations.route("T").result(
        answer(body=b'{"brokerDatas":[{"brokerAddrs":{0:"h:1"},"brokerName":"b"}]}'), peer=PEER
    )
    assert route.brokers[0].addresses == {0: "h:1"}


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, SendStatus.OK),
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
def test_send_results(code: int, status: SendStatus) -> None:
    result = send().result(answer(code, STORED), peer=PEER)
    assert result.status is status
    assert result.durability_unknown == (status is not SendStatus.OK)
    assert (result.queue, result.queue_offset, result.message_id) == (QUEUE, 17, "ID")
    assert result.offset_message_ids == ["AB", "CD"]


def test_the_broker_may_choose_the_queue() -> None:
    assert send().result(answer(0, STORED | {"queueId": "1"}), peer=PEER).queue == MessageQueue(
        "TopicA", "broker-a", 1
    )


def test_a_batch_is_code_320() -> None:
    request = send(PreparedMessage("TopicA", b"body", "", None, batch=True)).request
    assert (request.code, (request.fields or {})["m"]) == (320, "true")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, PullStatus.FOUND),
        (19, PullStatus.NO_NEW),
        (20, PullStatus.NO_MATCH),
        (21, PullStatus.OFFSET_ILLEGAL),
    ],
)
def test_pull_results(code: int, status: PullStatus) -> None:
    result = pull().result(answer(code, PULLED, b"xyz"), peer=PEER)
    assert result.status is status
    assert (result.next_offset, result.min_offset, result.max_offset) == (9, 2, 12)
    assert (bytes(result.body), result.suggested_broker_id) == (b"xyz", 0)


@pytest.mark.parametrize(
    ("operation", "response", "error", "text"),
    [
        (send(), answer(13, remark="too long"), MessageIllegal, "queue 3: code 13, too long"),
        (pull(), answer(17), TopicNotExist, "offset 7: code 17"),
        (pull(), answer(4711, remark="?"), BrokerError, "code 4711"),
        (operations.route("T"), answer(17), TopicNotExist, "route of topic 'T'"),
        (operations.consumer_connections("G"), answer(206), ConsumerNotOnline, "group 'G'"),
        (operations.consumer_ids("G"), answer(1, remark="broken"), BrokerError, "broken"),
        (operations.min_offset(QUEUE), answer(), RemoteProtocolError, "'offset' is missing"),
        (operations.min_offset(QUEUE), answer(fields={"offset": "x"}), RemoteProtocolError, "'x'"),
        (operations.view_message(9), answer(1, remark="gone"), BrokerError, "offset 9: code 1, g"),
        (operations.view_message(9), answer(body=HELLO * 2), RemoteProtocolError, "2 messages"),
        (operations.view_message(9), answer(), RemoteProtocolError, "0 messages"),
        (operations.view_message(9), answer(body=HELLO[:-1]), RemoteProtocolError, "record at 0"),
        (operations.query_messages("T", "k"), answer(body=b"x"), RemoteProtocolError, "key 'k'"),
        (operations.query_messages("T", "k"), answer(2, remark="later"), BrokerError, "later"),
        (operations.route("T"), answer(body=b"{"), RemoteProtocolError, "route of topic 'T'"),
        (send(), answer(), RemoteProtocolError, "belong there"),
        (send(), answer(0, STORED | {"queueId": ""}), RemoteProtocolError, "belong there"),
        (pull(), answer(0, {}), RemoteProtocolError, "is missing"),
        (pull(), answer(0, PULLED | {"nextBeginOffset": "7"}), RemoteProtocolError, "more than 7"),
    ],
)
def test_refusals_and_nonsense(
    operation: Operation[object], response: Command, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        operation.result(response, peer=PEER)
    assert PEER in str(caught.value)


@pytest.mark.parametrize(
    "topic",
    ["", "a/b", "../x", "x" * 128, "SCHEDULE_TOPIC_XXXX", "rmq_sys_REVIVE_LOG_DefaultCluster"],
)
def test_topics_nobody_may_send_to(topic: str) -> None:
    with pytest.raises(LocalProtocolError):
        operations.check_send_topic(topic)


@pytest.mark.parametrize(
    ("error", "may"),
    [
        (BrokerError("", code=16), True),  # NO_PERMISSION: another broker may give it
        (BrokerError("", code=204), True),
        (BrokerError("", code=13), False),
        (ConnectionFailed("lost", sent=True), True),
        (RequestTimeout("silent"), True),
        (RouteNotFound("a master is away"), True),
        (LocalProtocolError("too large"), False),
    ],
)
def test_what_may_be_sent_elsewhere(error: PymqError, may: bool) -> None:
    assert operations.may_send_elsewhere(error) is may
