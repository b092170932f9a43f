"""Requests of every code that official servers and ours both know, and what can be bad about them.

A whole request is made bad in one way at a time: a field is missing, is no number, names a topic or
group that there is not, or a queue or offset out of range; the body is missing or not of its form.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from pymq.errors import PymqError
from pymq.net.blocking import BlockingChannel
from pymq.protocol.addresses import split_address
from pymq.protocol.command import Command

TOPIC, GROUP, CLIENT = "bad-input", "bad-group", "bad-client"
MESSAGE_COUNT: Final = 3
#: Some requests RocketMQ never answers: each of them costs this time at both brokers.
TIMEOUT_S, PATIENCE_S = 8.0, 60.0

_SEND = (
    f"producerGroup=pg topic={TOPIC} defaultTopic=TBW102 defaultTopicQueueNums=4 queueId=0"
    " sysFlag=0 bornTimestamp=1700000000000 flag=0 reconsumeTimes=0 unitMode=false batch=false"
)
_SEND_V2 = f"a=pg b={TOPIC} c=TBW102 d=4 e=0 f=0 g=1700000000000 h=0 j=0 k=false m=false"
_PULL = (
    f"consumerGroup={GROUP} topic={TOPIC} queueId=0 queueOffset=0 maxMsgNums=32 sysFlag=4"
    " commitOffset=0 suspendTimeoutMillis=0 subscription=* subVersion=0 expressionType=TAG"
)
_QUEUE = f"topic={TOPIC} queueId=0"
_GROUP_QUEUE = f"consumerGroup={GROUP} {_QUEUE}"
_TOPIC = (
    f"topic={TOPIC} defaultTopic=TBW102 readQueueNums=2 writeQueueNums=2 perm=6"
    " topicFilterType=SINGLE_TAG topicSysFlag=0 order=false"
)
_END = (
    "producerGroup=pg tranStateTableOffset=0 commitLogOffset=0 commitOrRollback=8"
    " fromTransactionCheck=false msgId=7F0000010000887F0000000000002094 transactionId=t"
)
_BACK = f"offset=0 group={GROUP} delayLevel=0 originMsgId=m originTopic={TOPIC} maxReconsumeTimes=3"
_POP = (
    f"{_GROUP_QUEUE} maxMsgNums=1 invisibleTime=60000 pollTime=0 bornTime=0 initMode=0"
    " exp=* expType=TAG order=false"
)
_HANDLE = "0 1700000000000 60000 0 0 broker-a 0 0"
_RESET = f"topic={TOPIC} group={GROUP} timestamp=-1 isForce=true"

_HEARTBEAT = (
    b'{"clientID":"%b","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"%b","messageModel":"CLUSTERING",'
    b'"subscriptionDataSet":[{"classFilterMode":false,"codeSet":[],"expressionType":"TAG",'
    b'"subString":"*","subVersion":1,"tagsSet":[],"topic":"%b"}],"unitMode":false}],'
    b'"producerDataSet":[{"groupName":"pg"}]}'
) % (CLIENT.encode(), GROUP.encode(), TOPIC.encode())
_LOCK = (
    b'{"clientId":"%b","consumerGroup":"%b","mqSet":[{"brokerName":"broker-a","queueId":0,'
    b'"topic":"%b"}]}'
) % (CLIENT.encode(), GROUP.encode(), TOPIC.encode())
_GROUP_CONFIG = b'{"groupName":"%b","consumeEnable":true,"retryMaxTimes":16}' % GROUP.encode()
_CHECK = (
    b'{"clientId":"%b","group":"%b","subscriptionData":{"topic":"%b","subString":"a > 1",'
    b'"expressionType":"SQL92"}}'
) % (CLIENT.encode(), GROUP.encode(), TOPIC.encode())
_ASSIGNMENT = (
    b'{"clientId":"%b","consumerGroup":"%b","messageModel":"CLUSTERING","strategyName":"AVG",'
    b'"topic":"%b"}'
) % (CLIENT.encode(), GROUP.encode(), TOPIC.encode())
_MODE = b'{"topic":"%b","consumerGroup":"%b","mode":"POP","popShareQueueNum":0}' % (
    TOPIC.encode(),
    GROUP.encode(),
)
_BATCH_ACK = (
    b'{"brokerName":"broker-a","acks":[{"c":"%b","t":"%b","r":"0","so":0,"q":0,"rq":0,'
    b'"it":60000,"pt":1700000000000,"b":"AQ=="}]}'
) % (GROUP.encode(), TOPIC.encode())

#: Whole requests of a broker: code, fields, body. What changes what the others find comes last.
BROKER: Final[list[tuple[int, str, bytes]]] = [
    (10, _SEND, b"x"),
    (11, _PULL, b""),
    (12, f"topic={TOPIC} key=k maxNum=32 beginTimestamp=0 endTimestamp=9223372036854775807", b""),
    (14, _GROUP_QUEUE, b""),
    (15, f"{_GROUP_QUEUE} commitOffset=1", b""),
    (21, "", b""),
    (25, "", b"noSuchKey=1"),
    (29, f"{_QUEUE} timestamp=0", b""),
    (30, _QUEUE, b""),
    (31, _QUEUE, b""),
    (32, _QUEUE, b""),
    (33, "offset=0", b""),
    (34, "", _HEARTBEAT),
    (35, f"clientID=other producerGroup=pg consumerGroup={GROUP}", b""),
    (36, _BACK, b""),
    (37, _END, b""),
    (38, f"consumerGroup={GROUP}", b""),
    (41, "", _LOCK),
    (42, "", _LOCK),
    (46, "", _CHECK),
    (60, "", b""),
    (61, "", b""),
    (202, f"topic={TOPIC}", b""),
    (203, f"consumerGroup={GROUP}", b""),
    (204, "producerGroup=pg", b""),
    (208, f"consumerGroup={GROUP} topic={TOPIC}", b""),
    (222, _RESET, b""),
    (222, f"{_RESET} queueId=0 offset=1", b""),
    (223, f"topic={TOPIC} group={GROUP} clientAddr=nobody", b""),
    (300, f"topic={TOPIC}", b""),
    (303, f"topic={TOPIC} group={GROUP}", b""),
    (305, "", b""),
    (307, f"consumerGroup={GROUP} clientId=nobody jstackEnable=false", b""),
    (308, f"filterGroups=x compareGroup={GROUP} topic={TOPIC}", b""),
    (309, f"consumerGroup={GROUP} clientId=nobody msgId=7F0000010000887F0000000000002094", b""),
    (310, _SEND_V2, b"x"),
    (315, f"statsName=TOPIC_PUT_NUMS statsKey={TOPIC}", b""),
    (317, "isOrder=false", b""),
    (320, _SEND_V2.replace("m=false", "m=true"), b"x"),
    (321, f"{_QUEUE} index=0 count=2 consumerGroup={GROUP}", b""),
    (322, "", b""),
    (323, "topic=x msgId=7F0000010000887F0000000000002094", b""),
    (324, _SEND, b"x"),
    (325, _SEND_V2, b"x"),
    (328, "", b""),
    (343, f"group={GROUP}", b""),
    (345, f"group={GROUP} topic={TOPIC}", b""),
    (351, f"topic={TOPIC} lo=true", b""),
    (352, f"group={GROUP}", b""),
    (353, f"group={GROUP} topic={TOPIC} readable=true", b""),
    (361, _PULL, b""),
    (370, f"producerGroup=pg topic={TOPIC} recallHandle=x", b""),
    (400, "", _ASSIGNMENT),
    (401, "", _MODE),
    (907, "", b""),
    (908, "masterFlushOffset=0", b""),
    (2001, "", f"{GROUP}=100".encode()),
    (2002, "", GROUP.encode()),
    (2003, "", b""),
    (2004, "READ_AHEAD_MODE=1", b""),
    (200050, _POP, b""),
    (200051, f"{_GROUP_QUEUE} extraInfo=<handle> offset=0", b""),
    (200053, f"{_GROUP_QUEUE} extraInfo=<handle> offset=0 invisibleTime=1000", b""),
    (200054, f"{_GROUP_QUEUE} pollTime=0 bornTime=0", b""),
    (200055, _GROUP_QUEUE, b""),
    (200151, "", _BATCH_ACK),
    (314, f"srcGroup={GROUP} destGroup=other-group topic={TOPIC} offline=true", b""),
    (17, _TOPIC, b""),
    (18, "", b'{"topicConfigList":[]}'),
    (200, "", _GROUP_CONFIG),
    (225, "", b'{"groupConfigList":[]}'),
    (207, "groupName=gone-group removeOffset=true", b""),
    (215, "topic=gone-topic", b""),
    (9999, "", b""),
]
NAME_SERVER: Final[list[tuple[int, str, bytes]]] = [
    (100, "namespace=bad key=k value=v", b""),
    (101, "namespace=bad key=never", b""),
    (102, "namespace=bad key=k", b""),
    (
        103,
        "brokerName=b brokerAddr=127.0.0.1:1 clusterName=c haServerAddr=127.0.0.1:2 brokerId=0",
        b"",
    ),
    (104, "brokerName=b brokerAddr=127.0.0.1:1 clusterName=c brokerId=0", b""),
    (105, "topic=nosuch", b""),
    (106, "", b""),
    (205, "brokerName=nobody", b""),
    (206, "", b""),
    (216, "topic=nosuch", b""),
    (217, "topic=registered", b'{"queueDatas":[]}'),
    (219, "namespace=bad", b""),
    (224, "cluster=DefaultCluster", b""),
    (304, "", b""),
    (311, "", b""),
    (312, "", b""),
    (313, "", b""),
    (318, "", b"noSuchKey=1"),
    (319, "", b""),
    (322, "brokerAddr=127.0.0.1:1 brokerName=b brokerId=0 clusterName=c", b""),
    (327, "brokerName=nobody", b""),
    (901, "clusterName=c brokerName=b", b""),
    (904, "clusterName=c brokerName=b brokerAddr=127.0.0.1:1", b""),
    (9999, "", b""),
]

#: SQL92 filters that are none, that compare apples with pears, or that only look wrong.
EXPRESSIONS: Final = (
    "", " ", "1", "'x'", "a", "NOT", "NULL", "TRUE", "a >", "a > 1 AND", "a = ", "(a = 1", "a = 1)",
    "a ~ 1", "a == 1", "a != 1", "a <> 1", "a.b = 1", "a-b = 1", "日本 = 1", "a = 'x", 'a = "x"',
    "a > 'x'", "a > '1'", "'a' > 1", "1 > 'x'", "a = TRUE", "a > TRUE", "TRUE > FALSE", "TRUE = 1",
    "'x' = 1", "1 = 1", "a = NULL", "a IS", "a IS NOT", "a IS NULL IS NULL", "a IN (1,2)",
    "a IN ('x',)", "a IN ()", "1 IN ('1')", "a BETWEEN 1 AND", "a BETWEEN 3 AND 1",
    "a BETWEEN 'x' AND 'y'", "a BETWEEN NULL AND 1", "a CONTAINS 1", "a CONTAINS ''", "a LIKE 'x'",
    "a STARTSWITH 1", "a + 1 > 2", "-a = 1", "/* c */ a = 1", "a = 1 -- c", "1.5e > 2",
    "99999999999999999999 > a", "a > 1e400", "(" * 5000 + "a = 1" + ")" * 5000,
    " AND ".join(["a = 1"] * 1000), "(" * 70 + "a = 1" + ")" * 70,
)  # fmt: skip

_TOPICS: Final = frozenset(["topic", "b", "originTopic"])
_GROUPS: Final = frozenset(
    ["consumerGroup", "group", "producerGroup", "a", "srcGroup", "groupName", "compareGroup"]
)
_QUEUES: Final = frozenset(["queueId", "e"])
_OFFSETS: Final = frozenset(
    ["queueOffset", "commitOffset", "offset", "index", "commitLogOffset", "tranStateTableOffset"]
)
#: The body of a message: any bytes will do.
_ALWAYS_WRITTEN: Final = frozenset((b"x",))
#: What is to be there before.
_TOPICS_MADE: Final = (TOPIC, "gone-topic")
_GROUPS_MADE: Final = (GROUP, "gone-group")


@dataclass(frozen=True, slots=True)
class Case:
    """One request, and what is bad about it.

    Attributes:
        name: the code, and what is bad.
        unread: the field that is missing or no number, or "body": what RocketMQ reads as null.
    """

    name: str
    code: int
    fields: dict[str, str]
    body: bytes
    unread: str | None = None


def cases(requests: list[tuple[int, str, bytes]]) -> Iterator[Case]:
    """Make each of the whole requests bad in every way."""
    for code, text, body in requests:
        pairs = (pair.split("=", 1) for pair in text.split())
        fields = {name: value.replace("<handle>", _HANDLE) for name, value in pairs}
        yield Case(f"{code}", code, fields, body)
        for name, value in fields.items():
            without = {key: one for key, one in fields.items() if key != name}
            yield Case(f"{code} without {name}", code, without, body, name)
            for odd in _oddities(name, value):
                unread = name if odd == "x" else None
                yield Case(f"{code} {name}={odd}", code, fields | {name: odd}, body, unread)
        if (body and body not in _ALWAYS_WRITTEN) or code == 320:
            for odd_body in (b"", b'{"a":', b"[]", b"{}", b"null"):
                yield Case(f"{code} body {odd_body.decode()}", code, fields, odd_body, "body")


def expression_cases() -> Iterator[Case]:
    """Have each of the expressions checked."""
    for expression in EXPRESSIONS:
        subscription = {"topic": TOPIC, "subString": expression, "expressionType": "SQL92"}
        body = {"clientId": CLIENT, "group": GROUP, "subscriptionData": subscription}
        yield Case(f"46 {expression}", 46, {}, json.dumps(body).encode())


def _oddities(name: str, value: str) -> Iterator[str]:
    if value.lstrip("-").isdigit():
        yield "x"
    if name in _TOPICS:
        yield from ("no-such-topic", "a/b", "t" * 128)
    if name in _GROUPS:
        yield from ("no-such-group", "a/b", "g" * 256)
    if name in _QUEUES:
        yield from ("7", "-1")
    if name in _OFFSETS:
        yield from ("-5", "1000000000000")


class Server:
    """A server under test, asked over one connection that is made again when it is closed."""

    def __init__(self, address: str) -> None:
        self._address = split_address(address)
        self._channel: BlockingChannel | None = None

    def ask(self, case: Case, timeout_s: float = TIMEOUT_S) -> tuple[str, str]:
        """Return code and remark of the answer; what happened instead, if there is none."""
        try:
            answer = self._answer(case, timeout_s)
        except PymqError as error:
            return type(error).__name__, ""
        return str(answer.code), answer.remark or ""

    def _answer(self, case: Case, timeout_s: float) -> Command:
        deadline_s = time.monotonic() + timeout_s
        if self._channel is None or not self._channel.is_open:
            host, port = self._address
            self._channel = BlockingChannel.connect(host, port, timeout_s=timeout_s)
        number = self._channel.send(Command(case.code, case.fields or None, case.body), deadline_s)
        return self._channel.receive(number, deadline_s)

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()

    def prepare(self) -> None:
        """Have the topics, groups and messages that the requests name, and a member."""
        whole = {case.name: case for case in cases(BROKER)}
        requests = [
            *(
                replace(whole["17"], fields=whole["17"].fields | {"topic": topic})
                for topic in _TOPICS_MADE
            ),
            *(
                replace(whole["200"], body=b'{"groupName":"%b"}' % name.encode())
                for name in _GROUPS_MADE
            ),
            *[whole["310"]] * MESSAGE_COUNT,
            whole["34"],
        ]
        for request in requests:
            code, remark = self.ask(request)
            assert code == "0", (request.name, code, remark)
        # RocketMQ acknowledges before a message is in its queue.
        deadline_s = time.monotonic() + PATIENCE_S
        while int((self._answer(whole["30"], PATIENCE_S).fields or {})["offset"]) < MESSAGE_COUNT:
            assert time.monotonic() < deadline_s, "the messages are not in their queue"
            time.sleep(0.01)
