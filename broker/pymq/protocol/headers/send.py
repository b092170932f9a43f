"""Headers of the send family: SEND_MESSAGE (10), _V2 (310), SEND_BATCH_MESSAGE (320), replies.

The V2 and batch forms carry the same fields under single letters. Reading and writing them is on
the hot path of broker and client, so it is spelled out instead of using the generic codec.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pymq.errors import RemoteProtocolError
from pymq.protocol.codes import MQ_VERSION, RequestCode
from pymq.protocol.command import Command
from pymq.protocol.headers.codec import Header, wire

#: Queues of a topic that a send creates, unless it says how many (DefaultMQProducer).
_DEFAULT_QUEUE_COUNT = "4"
_LONG_FORMS = frozenset((int(RequestCode.SEND_MESSAGE), int(RequestCode.SEND_REPLY_MESSAGE)))


@dataclass(slots=True)
class SendRequest:
    """One send, whatever its code (SendMessageRequestHeader, ...V2).

    Official brokers take a send that does not name its group or the template of a new topic.
    """

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_count: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str
    reconsume_times: int
    unit_mode: bool
    max_reconsume_times: int | None
    batch: bool
    broker_name: str | None = None

    @classmethod
    def of(cls, command: Command) -> "SendRequest":
        """Read the header of a send, or of a reply, in the form that its code has.

        Raises:
            RemoteProtocolError: a required field is missing, or a number is malformed.
        """
        fields = command.fields or {}
        return cls.from_v1(fields) if command.code in _LONG_FORMS else cls.from_v2(fields)

    @classmethod
    def from_v2(cls, fields: Mapping[str, str]) -> "SendRequest":
        """Read the single-letter form (310, 320, 325).

        Raises:
            RemoteProtocolError: a required letter is missing, or a number is malformed.
        """
        get = fields.get
        try:
            return cls(
                get("a", ""),
                fields["b"],
                get("c", ""),
                int(get("d", _DEFAULT_QUEUE_COUNT)),
                int(fields["e"]),
                int(fields["f"]),
                int(fields["g"]),
                int(fields["h"]),
                get("i") or "",
                int(get("j") or 0),
                get("k") == "true",
                None if (most := get("l")) is None else int(most),
                get("m") == "true",
                get("n"),
            )
        except (KeyError, ValueError) as error:
            raise RemoteProtocolError(_objection(fields) or f"send header: {error}") from error

    @classmethod
    def from_v1(cls, fields: Mapping[str, str]) -> "SendRequest":
        """Read the long form (10, 324).

        Raises:
            RemoteProtocolError: a required field is missing, or a number is malformed.
        """
        return cls.from_v2(
            {letter: fields[name] for name, letter in LETTERS.items() if name in fields}
        )

    def to_v2(self) -> dict[str, str]:
        """Write the single-letter form, as official clients do."""
        fields = {
            "a": self.producer_group,
            "b": self.topic,
            "c": self.default_topic,
            "d": str(self.default_topic_queue_count),
            "e": str(self.queue_id),
            "f": str(self.sys_flag),
            "g": str(self.born_timestamp),
            "h": str(self.flag),
            "i": self.properties,
            "j": str(self.reconsume_times),
            "k": "true" if self.unit_mode else "false",
            "m": "true" if self.batch else "false",
        }
        if self.max_reconsume_times is not None:
            fields["l"] = str(self.max_reconsume_times)
        if self.broker_name is not None:
            fields["n"] = self.broker_name
        return fields


#: Long field name (code 10) -> letter (codes 310 and 320).
LETTERS = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "reconsumeTimes": "j",
    "unitMode": "k",
    "maxReconsumeTimes": "l",
    "batch": "m",
    "bname": "n",
}


def _objection(fields: Mapping[str, str]) -> str | None:
    """Say which field of a send is missing or no number, under both of its names."""
    for name, letter in LETTERS.items():
        text = fields.get(letter)
        if text is None and letter in "befgh":
            return f"send header: field {name}/{letter!r} is missing, found {sorted(fields)}"
        if text is not None and letter in "defghjl":
            try:
                int(text)
            except ValueError:
                return f"send header: field {name}/{letter!r} is {text[:64]!r}, expected a number"
    return None


@dataclass(slots=True, kw_only=True)
class SendResponse(Header):
    """Where a message was stored (SendMessageResponseHeader)."""

    message_id: str = wire("msgId")
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    recall_handle: str | None = None
    region: str | None = wire("MSG_REGION", default=None)
    trace_on: bool | None = wire("TRACE_ON", default=None)


@dataclass(slots=True, kw_only=True)
class PushReplyRequest(Header):
    """PUSH_REPLY_MESSAGE_TO_CLIENT (326): a reply to who asked (ReplyMessageRequestHeader)."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_count: int = wire("defaultTopicQueueNums")
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str
    reconsume_times: int
    unit_mode: bool
    #: ``host:port`` of who replied.
    born_host: str
    #: ``host:port`` of this broker.
    store_host: str
    store_timestamp: int


#: The region that official brokers send by default.
REGION = "DefaultRegion"

_PREFIX = struct.Struct(">II")
_SUCCESS_HEAD = f'{{"code":0,"extFields":{{"MSG_REGION":"{REGION}","TRACE_ON":"true","msgId":"'
_SUCCESS_TAIL = f',"serializeTypeCurrentRPC":"JSON","version":{MQ_VERSION}}}'


def _success_format(more: str) -> bytes:
    return (
        f'{_SUCCESS_HEAD}%b%016X","queueId":"%d","queueOffset":"%d"{more}}},"flag":1,'
        f'"language":"JAVA","opaque":%b{_SUCCESS_TAIL}'
    ).encode()


_SUCCESS_FORMAT = _success_format("")
_HALF_SUCCESS_FORMAT = _success_format(',"transactionId":"%b"')


def encode_success(opaque: int, message_id: str, queue_id: int, queue_offset: int) -> bytes:
    """Return the whole JSON frame of a successful send's response.

    The same bytes as ``encode_frame`` of a ``SendResponse``, at a quarter of the cost: a broker
    makes one of these per message.
    """
    header = (
        f'{_SUCCESS_HEAD}{message_id}","queueId":"{queue_id}","queueOffset":"{queue_offset}"}}'
        f',"flag":1,"language":"JAVA","opaque":{opaque}{_SUCCESS_TAIL}'
    ).encode()
    return _PREFIX.pack(4 + len(header), len(header)) + header


def encode_successes(
    id_prefix: bytes,
    physical_offsets: Iterable[int],
    queue_ids: Iterable[int],
    queue_offsets: Iterable[int],
    opaques: Iterable[bytes],
    transaction_ids: Iterable[bytes] | None = None,
) -> bytes:
    """Return what ``encode_success`` does for each of many sends, one after another.

    Args:
        id_prefix: the packed address of the broker as upper-case digits.
        physical_offsets, queue_ids, queue_offsets: of each message.
        opaques: of each request, as digits.
        transaction_ids: of each half message, ASCII letters and digits; None: they are not halves.
    """
    frames: list[bytes] = []
    pack, layout = _PREFIX.pack, _SUCCESS_FORMAT
    columns: tuple[Iterable[int | bytes], ...] = (physical_offsets, queue_ids, queue_offsets)
    if transaction_ids is not None:
        layout = _HALF_SUCCESS_FORMAT
        columns += (transaction_ids,)
    for values in zip(*columns, opaques, strict=True):
        header = layout % (id_prefix, *values)
        frames += (pack(4 + len(header), len(header)), header)
    return b"".join(frames)
