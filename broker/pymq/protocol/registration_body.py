"""What a broker announces to a name server: the body of REGISTER_BROKER, JSON or compressed.

The compressed form is a zlib stream of length-prefixed parts, big-endian int32 each::

    n, data version JSON | count, (n, topic)* | n, filter servers JSON
    | since broker version 5.0.0: count, (n, mapping JSON)*

A topic is a line of blank-separated values: name, read queues, write queues, permission, filter
type and, since 5.x, its attributes as JSON. Worked example: ``TopicA 4 4 6 SINGLE_TAG {}``.

Source: RocketMQ RegisterBrokerBody, TopicConfig.encode.
"""

import struct
from dataclasses import dataclass
from typing import Any, Self

from pymq.errors import RemoteProtocolError
from pymq.protocol import fastjson
from pymq.protocol.bodies import DataVersion, TopicConfig, TopicTable
from pymq.protocol.compression import deflate, inflate
from pymq.protocol.headers.codec import wire
from pymq.protocol.json_object import JsonObject

#: Largest size that a compressed registration may inflate to.
REGISTRATION_BYTES_MAX = 64 << 20

#: Since this version (5.0.0) brokers end a compressed registration with static-topic mappings.
MQ_VERSION_MAPPINGS = 413

_INT = struct.Struct(">i")


@dataclass(slots=True, kw_only=True)
class RegisterBrokerBody(JsonObject):
    """A broker's topics, as it announces them (103)."""

    topics: TopicTable = wire("topicConfigSerializeWrapper", default_factory=TopicTable)
    filter_servers: list[str] = wire("filterServerList", default_factory=list)

    def encode_compressed(self, version: int) -> bytes:
        """Return the compressed form; ``version`` is the MQ version that the request reports."""
        topics = [topic_line(topic).encode() for topic in self.topics.topics.values()]
        parts = [_sized(self.topics.version.encode()), _INT.pack(len(topics))]
        parts += [_sized(topic) for topic in topics]
        parts.append(_sized(fastjson.dump(self.filter_servers)))
        if version >= MQ_VERSION_MAPPINGS:
            parts.append(_INT.pack(0))
        return deflate(b"".join(parts), level=9)

    @classmethod
    def decode_compressed(cls, data: bytes | memoryview, version: int) -> Self:
        """Return the body of the compressed form sent by a broker of that MQ version.

        Raises:
            RemoteProtocolError: the bytes are malformed, or inflate to more than
                ``REGISTRATION_BYTES_MAX``.
        """
        parts = _Parts(inflate(data, bytes_max=REGISTRATION_BYTES_MAX))
        table = TopicTable(version=DataVersion.decode(parts.next()))
        for _ in range(parts.count()):
            topic = topic_of_line(parts.next_text())
            table.topics[topic.topic] = topic
        body = cls.from_json({"filterServerList": fastjson.parse(parts.next())})
        body.topics = table
        if version >= MQ_VERSION_MAPPINGS and not parts.at_end:
            for _ in range(parts.count()):
                parts.next()  # static topics: pymq does not use them
        return body


def _sized(part: bytes) -> bytes:
    return _INT.pack(len(part)) + part


class _Parts:
    """Cursor over length-prefixed parts."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._data)

    def count(self) -> int:
        remaining = len(self._data) - self._at
        if remaining < 4:
            raise RemoteProtocolError(f"registration ends at {self._at}, expected a length")
        (number,) = _INT.unpack_from(self._data, self._at)
        self._at += 4
        if not 0 <= number <= remaining - 4:
            raise RemoteProtocolError(
                f"registration announces {number} at {self._at - 4}, expected 0..{remaining - 4}"
            )
        return int(number)

    def next(self) -> bytes:
        size = self.count()
        self._at += size
        return self._data[self._at - size : self._at]

    def next_text(self) -> str:
        try:
            return self.next().decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"registration: a topic is not UTF-8: {error}") from error


def topic_line(topic: TopicConfig) -> str:
    """Return a topic in the form of compressed registrations; loses two members."""
    attributes = fastjson.dump(topic.attributes).decode()
    return (
        f"{topic.topic} {topic.read_queue_count} {topic.write_queue_count} {topic.perm} "
        f"{topic.filter_type} {attributes}"
    )


def topic_of_line(line: str) -> TopicConfig:
    """Return the topic of a line, with (5.x) or without attributes.

    Raises:
        RemoteProtocolError: the line does not have this form.
    """
    parts = line.split(" ", 5)
    if len(parts) < 5:
        raise RemoteProtocolError(f"topic {line[:80]!r}, expected 5 or 6 parts, found fewer")
    names = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")
    members: dict[str, Any] = dict(zip(names, parts[:5], strict=True))
    if len(parts) == 6:
        members["attributes"] = fastjson.parse(parts[5])
    return TopicConfig.from_json(members)
