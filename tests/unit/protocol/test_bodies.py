"""JSON bodies: Java's own texts both ways, what may be missing, and what is refused."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol import bodies as b
from pymq.protocol.fastjson import ObjectMap, parse
from pymq.protocol.hashes import java_hash
from pymq.protocol.headers.codec import camel
from pymq.protocol.json_object import JsonObject
from pymq.protocol.registration_body import RegisterBrokerBody

QUEUE = b.MessageQueue("TopicA", "broker-a", 1)
QUEUE_TEXT = '{"brokerName":"broker-a","queueId":1,"topic":"TopicA"}'
TOPIC_TEXT = (
    '{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
    '"topicName":"TopicA","topicSysFlag":0,"writeQueueNums":4}'
)
TOPIC = b.TopicConfig(topic="TopicA", read_queue_count=4, write_queue_count=4)
VERSION_TEXT = '{"counter":3,"stateVersion":0,"timestamp":1795187246576}'
VERSION = b.DataVersion(counter=3, timestamp_ms=1795187246576)
ADDRESSES_TEXT = (
    '{"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"},"brokerName":"broker-a",'
    '"cluster":"DefaultCluster","enableActingMaster":false}'
)
ADDRESSES = b.BrokerData(
    broker_name="broker-a",
    cluster="DefaultCluster",
    addresses={0: "10.0.0.1:10911", 1: "10.0.0.2:10911"},
)
TAGS_TEXT = (
    '{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG",'
    '"subString":"TagA || TagB","subVersion":1795187936838,"tagsSet":["TagA","TagB"],'
    '"topic":"TopicA"}'
)
TAGS = b.Subscription.of_tags("TopicA", "TagA || TagB", 1795187936838)
ALL_TEXT = (
    '{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*",'
    '"subVersion":1795187936815,"tagsSet":[],"topic":"%RETRY%CG"}'
)
ALL = b.Subscription.of_tags("%RETRY%CG", "*", 1795187936815)
GROUP_TEXT = (
    '{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
    '"consumeFromMinEnable":true,"consumeMessageOrderly":false,"consumeTimeoutMinute":15,'
    '"groupName":"CG","groupRetryPolicy":{"type":"CUSTOMIZED"},"groupSysFlag":0,'
    '"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
    '"whichBrokerWhenConsumeSlowly":1}'
)
CONNECTION_TEXT = (
    '{"clientAddr":"10.0.0.5:56492","clientId":"10.0.0.5@30119#23","language":"JAVA",'
    '"version":479}'
)
CONNECTION = b.ClientConnection(
    client_id="10.0.0.5@30119#23", client_address="10.0.0.5:56492", version=479
)

# What 5.x Java writes (integer keys quoted), and the value it stands for.
BOTH_WAYS: list[tuple[JsonObject, str]] = [
    (QUEUE, QUEUE_TEXT),
    (TOPIC, TOPIC_TEXT),
    (VERSION, VERSION_TEXT),
    (b.GroupConfig(group="CG"), GROUP_TEXT),
    (
        b.Heartbeat(
            client_id="10.0.0.5@18869#2177265031018",
            consumers=[b.ConsumerData(group="CG", subscriptions=[TAGS, ALL])],
            producers=[
                b.ProducerData(group="PG"),
                b.ProducerData(group="CLIENT_INNER_PRODUCER"),
            ],
        ),
        '{"clientID":"10.0.0.5@18869#2177265031018","consumerDataSet":[{"consumeFromWhere":'
        '"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","groupName":"CG",'
        f'"messageModel":"CLUSTERING","subscriptionDataSet":[{TAGS_TEXT},{ALL_TEXT}],'
        '"unitMode":false}],"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"PG"},'
        '{"groupName":"CLIENT_INNER_PRODUCER"}],"withoutSub":false}',
    ),
    (
        b.ConsumerIds(client_ids=["10.0.0.5@18869#2177265031018"]),
        '{"consumerIdList":["10.0.0.5@18869#2177265031018"]}',
    ),
    (
        b.LockRequest(client_id="cid", consumer_group="CG", queues=[QUEUE]),
        f'{{"clientId":"cid","consumerGroup":"CG","mqSet":[{QUEUE_TEXT}],"onlyThisBroker":false}}',
    ),
    (b.LockResponse(queues=[QUEUE]), f'{{"lockOKMQSet":[{QUEUE_TEXT}]}}'),
    (b.LockResponse(), '{"lockOKMQSet":[]}'),
    (
        b.ClientConfigCheck(
            client_id="cid",
            group="CG",
            subscription=b.Subscription(
                topic="TopicA", expression="up1 = 'v1'", expression_type="SQL92", version=7
            ),
        ),
        '{"clientId":"cid","group":"CG","subscriptionData":{"classFilterMode":false,"codeSet":[],'
        '"expressionType":"SQL92","subString":"up1 = \'v1\'","subVersion":7,"tagsSet":[],'
        '"topic":"TopicA"}}',
    ),
    (
        b.TopicRoute(
            brokers=[ADDRESSES],
            queues=[b.QueueData(broker_name="broker-a", perm=6, read_queue_count=4)],
            order_topic_conf="broker-a:4;broker-b:4",
        ),
        f'{{"brokerDatas":[{ADDRESSES_TEXT}],"filterServerTable":{{}},'
        '"orderTopicConf":"broker-a:4;broker-b:4","queueDatas":[{"brokerName":"broker-a",'
        '"perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":0}]}',
    ),
    (
        b.ClusterInfo(
            brokers={"broker-a": ADDRESSES},
            clusters={"DefaultCluster": frozenset({"broker-b", "broker-a"})},
        ),
        f'{{"brokerAddrTable":{{"broker-a":{ADDRESSES_TEXT}}},'
        '"clusterAddrTable":{"DefaultCluster":["broker-a","broker-b"]}}',
    ),
    (
        b.TopicTable(version=VERSION, topics={"TopicA": TOPIC}),
        f'{{"dataVersion":{VERSION_TEXT},"topicConfigTable":{{"TopicA":{TOPIC_TEXT}}}}}',
    ),
    (
        RegisterBrokerBody(topics=b.TopicTable(version=VERSION, topics={"TopicA": TOPIC})),
        '{"filterServerList":[],"topicConfigSerializeWrapper":'
        f'{{"dataVersion":{VERSION_TEXT},"topicConfigTable":{{"TopicA":{TOPIC_TEXT}}}}}}}',
    ),
    (
        b.GroupTable(
            version=VERSION,
            groups={"CG": b.GroupConfig(group="CG")},
            forbidden={"CG": {"TopicA": 1}},
        ),
        f'{{"dataVersion":{VERSION_TEXT},"forbiddenTable":{{"CG":{{"TopicA":1}}}},'
        f'"subscriptionGroupTable":{{"CG":{GROUP_TEXT}}}}}',
    ),
    (
        b.ConsumeStats(
            consumed_per_s=0.1,
            offsets={
                QUEUE: b.QueueProgress(
                    broker_offset=5,
                    consumer_offset=5,
                    pull_offset=5,
                    last_timestamp_ms=1795187935770,
                )
            },
        ),
        f'{{"consumeTps":0.1,"offsetTable":{{{QUEUE_TEXT}:{{"brokerOffset":5,'
        '"consumerOffset":5,"lastTimestamp":1795187935770,"pullOffset":5}}}',
    ),
    (
        b.TopicStats(
            offsets={QUEUE: b.TopicOffset(max_offset=5, last_update_timestamp_ms=1795187935770)}
        ),
        f'{{"offsetTable":{{{QUEUE_TEXT}:{{"lastUpdateTimestamp":1795187935770,"maxOffset":5,'
        '"minOffset":0}},"topicPutTps":0.0}',
    ),
    (
        b.ConsumerConnections(
            connections=[CONNECTION],
            consume_from_where=b.ConsumeFromWhere.FIRST_OFFSET,
            consume_type=b.ConsumeType.PUSH,
            message_model=b.MessageModel.CLUSTERING,
            subscriptions={"TopicA": TAGS, "%RETRY%CG": ALL},
        ),
        f'{{"connectionSet":[{CONNECTION_TEXT}],"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":'
        f'{{"TopicA":{TAGS_TEXT},"%RETRY%CG":{ALL_TEXT}}}}}',
    ),
    (
        b.ProducerConnections(connections=[CONNECTION]),
        f'{{"connectionSet":[{CONNECTION_TEXT}]}}',
    ),
    (b.KVTable(table={"key": "value"}), '{"table":{"key":"value"}}'),
    (b.TopicList(topics=["a", "b"]), '{"topicList":["a","b"]}'),
    (
        b.TopicList(topics=["a"], broker_address="ip:1"),
        '{"brokerAddr":"ip:1","topicList":["a"]}',
    ),
    (b.GroupList(groups=["CG"]), '{"groupList":["CG"]}'),
    (
        b.ConsumerOffsetTable(offsets={"TopicA@CG": {0: 5, 1: 7}}, version=VERSION),
        f'{{"dataVersion":{VERSION_TEXT},"offsetTable":{{"TopicA@CG":{{"0":5,"1":7}}}}}}',
    ),
    (b.DelayOffsetTable(offsets={1: 3, 18: 1}), '{"offsetTable":{"1":3,"18":1}}'),
]
KINDS = sorted({type(value) for value, _ in BOTH_WAYS}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize(("value", "text"), BOTH_WAYS)
class TestBothWays:
    def test_encode(self, value: JsonObject, text: str) -> None:
        assert value.encode() == text.encode()

    def test_decode(self, value: JsonObject, text: str) -> None:
        assert type(value).decode(text.encode()) == value
        assert type(value).decode(memoryview(text.encode())) == value

    def test_bare_integer_keys(self, value: JsonObject, text: str) -> None:
        for number in ("0", "1", "18"):
            text = text.replace(f'"{number}":', f"{number}:")
        assert type(value).decode(text) == value

    def test_members_we_do_not_know_and_nulls(self, value: JsonObject, text: str) -> None:
        assert type(value).decode('{"unknown":[{}],' + text[1:]) == value
        absent = {
            member.metadata.get("wire") or camel(name): None
            for name, member in value.__dataclass_fields__.items()
            if getattr(value, name) is None
        }
        assert type(value).from_json({**parse(text), **absent, "other": None}) == value

    def test_truncated(self, value: JsonObject, text: str) -> None:
        for end in range(len(text)):
            with pytest.raises(RemoteProtocolError):
                type(value).decode(text[:end])


# What 4.9 writes: less than 5.x.
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (VERSION, '{"counter":3,"timestamp":1795187246576}'),
        (
            TOPIC,
            '{"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG",'
            '"topicName":"TopicA","topicSysFlag":0,"writeQueueNums":4}',
        ),
        (
            b.GroupConfig(group="CG"),
            '{"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,'
            '"consumeFromMinEnable":true,"groupName":"CG","notifyConsumerIdsChangedEnable":true,'
            '"retryMaxTimes":16,"retryQueueNums":1,"whichBrokerWhenConsumeSlowly":1}',
        ),
        (
            b.ClusterInfo(
                brokers={
                    "a": b.BrokerData(broker_name="a", cluster="C", addresses={0: "h:1"})
                },
                clusters={"C": frozenset({"a"})},
            ),
            '{"brokerAddrTable":{"a":{"brokerAddrs":{0:"h:1"},"brokerName":"a","cluster":"C"}},'
            '"clusterAddrTable":{"C":["a"]}}',
        ),
        (
            b.ConsumerOffsetTable(offsets={"TopicTest@CG": {0: 8, 1: 9}}),
            '{\n\t"offsetTable":{\n\t\t"TopicTest@CG":{0:8,1:9\n\t\t}\n\t}\n}',
        ),
        (b.ConsumerOffsetTable(), '{\n\t"offsetTable":{}\n}'),
        (b.Heartbeat(client_id="c"), '{"clientID":"c"}'),
        (b.ConsumeStats(offsets={}), '{"consumeTps":0,"offsetTable":{}}'),
    ],
)
def test_older_peers(value: JsonObject, text: str) -> None:
    assert type(value).decode(text) == value


def test_queues_sort_as_in_java() -> None:
    queues = [
        b.MessageQueue("a", "b", 10),
        b.MessageQueue("a", "b", 9),
        b.MessageQueue("a", "a", 11),
        b.MessageQueue("Z", "z", 0),
    ]
    assert sorted(queues) == [queues[3], queues[2], queues[1], queues[0]]


def test_data_versions() -> None:
    following = VERSION.next(1795187246577)
    assert (following.counter, following.timestamp_ms) == (4, 1795187246577)
    assert following != VERSION
    other_master = b.DataVersion(counter=3, timestamp_ms=1795187246576, state_version=1)
    assert other_master != VERSION


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("*", set()),
        ("", set()),
        (None, set()),
        (" * ", set()),
        ("TagA", {"TagA"}),
        ("TagA||TagB", {"TagA", "TagB"}),
        (" TagA || || TagB ||", {"TagA", "TagB"}),
        ("标签", {"标签"}),
    ],
)
def test_tag_expressions(expression: str | None, tags: set[str]) -> None:
    found = b.Subscription.of_tags("T", expression, 7)
    assert found.tags == tags
    assert found.tag_codes == {java_hash(tag) for tag in tags}
    assert (found.topic, found.version, found.expression_type) == ("T", 7, "TAG")
    assert (found.expression == "*") == (not tags)


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_a_tag_expression_without_tags_is_not_everything(expression: str) -> None:
    with pytest.raises(LocalProtocolError, match="names no tag"):
        b.Subscription.of_tags("T", expression, 0)


@pytest.mark.parametrize(
    ("kind", "value", "match"),
    [
        (b.MessageQueue, {"topic": "T", "queueId": 0}, "MessageQueue: member 'brokerName'"),
        (b.MessageQueue, {"topic": "T", "brokerName": "b", "queueId": "x"}, "queueId: 'x', "),
        (b.MessageQueue, {"topic": [], "brokerName": "b", "queueId": 1}, "a string"),
        (b.MessageQueue, {"topic": "T", "brokerName": "b", "queueId": 1 << 63}, "64-bit"),
        (b.MessageQueue, {"topic": "T", "brokerName": "b", "queueId": True}, "64-bit"),
        (b.MessageQueue, {"topic": "T", "brokerName": "b", "queueId": 1.5}, "64-bit"),
        (b.MessageQueue, [], "an object"),
        (b.MessageQueue, None, "an object"),
        (b.TopicConfig, {"topicName": "T", "order": 7}, "TopicConfig.order: 7, expected true"),
        (b.TopicConfig, {"topicName": "T", "attributes": []}, "an object"),
        (b.BrokerData, {"brokerName": "b", "brokerAddrs": {"x": "h"}}, "'x', expected a number"),
        (b.ConsumeStats, {"consumeTps": "1"}, "a number"),
        (b.ConsumeStats, {"consumeTps": 10**400}, "a number"),
        (b.ConsumeStats, {"offsetTable": {"x": {}}}, "JSON"),
        (b.ConsumeStats, {"offsetTable": [1]}, "a map"),
        (b.ConsumeStats, {"offsetTable": ObjectMap([("k", {})])}, "an object"),
        (b.ConsumerIds, {"consumerIdList": "x"}, "an array"),
        (
            b.Heartbeat,
            {"clientID": "c", "consumerDataSet": [{"groupName": {}}]},
            "Heartbeat.consumerDataSet: ConsumerData.groupName: {}, expected a string",
        ),
        (b.KVTable, {"table": ObjectMap([({}, "x")])}, "an object"),
    ],
)
def test_what_is_refused(kind: type[JsonObject], value: Any, match: str) -> None:
    with pytest.raises(RemoteProtocolError, match=match):
        kind.from_json(value)


def test_what_java_tolerates() -> None:
    queue = b.MessageQueue.from_json({"topic": "T", "brokerName": "b", "queueId": "7"})
    assert queue.queue_id == 7
    assert b.KVTable.from_json({"table": {"a": 1, "b": None}}).table == {"a": "1"}
    topic = b.TopicConfig.from_json({"topicName": "T", "order": "TRUE"})
    assert topic.order is True
    assert b.ConsumerIds.from_json({"consumerIdList": ["a", None]}).client_ids == ["a"]


# ------------------------------------------------------------------------------------ random

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        | st.lists(st.tuples(inner, inner), max_size=2).map(ObjectMap)
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_random_members_raise_only_our_error(kind: type[JsonObject], data: st.DataObject) -> None:
    texts = [text for value, text in BOTH_WAYS if type(value) is kind]
    original = json.loads(texts[0]) if "{{" not in texts[0] else parse(texts[0])
    for name in list(original):
        if data.draw(st.booleans()):
            original[name] = data.draw(json_values)
    try:
        kind.from_json(original)
    except RemoteProtocolError:
        pass
    try:
        kind.decode(data.draw(st.binary(max_size=30)))
    except RemoteProtocolError:
        pass


names = st.text("abcXYZ%|_-09", min_size=1, max_size=9)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
queues = st.builds(b.MessageQueue, names, names, int64)


@given(st.dictionaries(queues, st.builds(b.QueueProgress, broker_offset=int64), max_size=4))
def test_object_keys_round_trip(offsets: dict[b.MessageQueue, b.QueueProgress]) -> None:
    stats = b.ConsumeStats(offsets=offsets, consumed_per_s=1.0)
    assert b.ConsumeStats.decode(stats.encode()) == stats


@given(st.dictionaries(names, st.dictionaries(int64, int64, max_size=3), max_size=4))
def test_integer_keys_round_trip(offsets: dict[str, dict[int, int]]) -> None:
    table = b.ConsumerOffsetTable(offsets=offsets)
    assert b.ConsumerOffsetTable.decode(table.encode()) == table


@given(st.sets(st.text(st.characters(exclude_categories=["Cs"]), max_size=6)))
def test_sets_round_trip(tags: set[str]) -> None:
    subscription = b.Subscription(topic="T", tags=frozenset(tags))
    assert b.Subscription.decode(subscription.encode()) == subscription
