"""Python values for what the official Java client takes and gives, and how they cross py4j.

A call through py4j costs 30 to 70 microseconds and a message needs a dozen of them: fine for some
thousands of messages, too slow for a benchmark (that is what ``tests/bench/java`` is for).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from py4j.protocol import Py4JJavaError
from tests.interop.jvm import JavaClient

# (broker name, queue id): a queue of a topic that may lie on several brokers.
QueueKey = tuple[str, int]


class JavaError(Exception):
    """The official client threw.

    Attributes:
        class_name: of the Java exception, without its package: ``MQClientException``.
        response_code: of an ``MQClientException`` or ``MQBrokerException``; ``None`` for others.
    """

    def __init__(self, class_name: str, response_code: int | None, text: str) -> None:
        super().__init__(f"{class_name} (response code {response_code}): {text}")
        self.class_name = class_name
        self.response_code = response_code

    @classmethod
    def of(cls, throwable: Any) -> Self:
        """Translate a ``java.lang.Throwable``."""
        class_name = str(throwable.getClass().getSimpleName())
        has_code = class_name in ("MQClientException", "MQBrokerException")
        code = int(throwable.getResponseCode()) if has_code else None
        return cls(class_name, code, str(throwable.toString()))


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to send. ``delay_level`` 0 is none; ``keys`` are separated by blanks."""

    topic: str
    body: bytes
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_level: int = 0


@dataclass(frozen=True, slots=True)
class Sent:
    """Java ``SendResult``. For a batch ``msg_id`` holds all ids, separated by commas.

    ``status`` is the enum's name: SEND_OK, FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT,
    SLAVE_NOT_AVAILABLE. ``queue_offset`` is that of the first message.
    """

    status: str
    msg_id: str
    queue_id: int
    queue_offset: int
    offset_msg_id: str
    broker_name: str


@dataclass(frozen=True, slots=True)
class ReceivedMessage:
    """Java ``MessageExt`` as a listener saw it; times in ms since 1970, sizes in bytes."""

    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    tags: str | None
    keys: str | None
    properties: Mapping[str, str]
    msg_id: str
    born_timestamp: int
    store_timestamp: int
    commit_log_offset: int
    store_size: int
    reconsume_times: int
    flag: int
    sys_flag: int


def call(method: Callable[..., Any], *arguments: Any) -> Any:
    """Call a Java method.

    Raises:
        JavaError: it threw.
    """
    try:
        return method(*arguments)
    except Py4JJavaError as error:
        raise JavaError.of(error.java_exception) from error


def map_items(java_map: Any) -> list[tuple[Any, Any]]:
    """Return the entries of a Java map.

    Not py4j's ``items()``: it looks every key up again, and a Long key that became a Python int
    goes back as an Integer, which is not found.
    """
    return [(entry.getKey(), entry.getValue()) for entry in java_map.entrySet()]


def java_message(client: JavaClient, message: Outgoing) -> Any:
    """Return the ``Message`` for the official producer."""
    result = client.jvm.org.apache.rocketmq.common.message.Message(message.topic, message.body)
    if message.tags is not None:
        result.setTags(message.tags)
    if message.keys is not None:
        result.setKeys(message.keys)
    if message.delay_level:
        result.setDelayTimeLevel(message.delay_level)
    for name, value in message.properties.items():
        call(result.putUserProperty, name, value)
    return result


def sent(result: Any) -> Sent:
    """Translate a ``SendResult``."""
    queue = result.getMessageQueue()
    return Sent(
        status=str(result.getSendStatus().toString()),
        msg_id=result.getMsgId(),
        queue_id=queue.getQueueId(),
        queue_offset=result.getQueueOffset(),
        offset_msg_id=result.getOffsetMsgId(),
        broker_name=queue.getBrokerName(),
    )


class MessageReader:
    """Translates lists of ``MessageExt``; thread-safe."""

    def __init__(self, client: JavaClient) -> None:
        decoder = client.jvm.org.apache.rocketmq.common.message.MessageDecoder
        # Looked up once: the look-up is a call of its own.
        self._properties_text = decoder.messageProperties2String

    def read(self, messages: Sequence[Any]) -> list[ReceivedMessage]:
        """Translate a Java list; in its order."""
        return [self._read_one(message) for message in messages]

    def _read_one(self, message: Any) -> ReceivedMessage:
        properties = self._properties(message)
        body = message.getBody()
        return ReceivedMessage(
            topic=message.getTopic(),
            queue_id=message.getQueueId(),
            queue_offset=message.getQueueOffset(),
            body=b"" if body is None else bytes(body),
            tags=properties.get("TAGS"),
            keys=properties.get("KEYS"),
            properties=properties,
            msg_id=message.getMsgId(),
            born_timestamp=message.getBornTimestamp(),
            store_timestamp=message.getStoreTimestamp(),
            commit_log_offset=message.getCommitLogOffset(),
            store_size=message.getStoreSize(),
            reconsume_times=message.getReconsumeTimes(),
            flag=message.getFlag(),
            sys_flag=message.getSysFlag(),
        )

    def _properties(self, message: Any) -> dict[str, str]:
        # One string instead of two calls per property: name 0x01 value 0x02 ...
        text: str = self._properties_text(message.getProperties())
        pairs = (item.partition("\x01") for item in text.split("\x02") if item)
        return {name: value for name, _, value in pairs}
