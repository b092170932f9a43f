"""Headers of sends as bytes: what is the same for every message of a queue is encoded once.

A producer's header differs from message to message in seven places; the rest is text that
is made once for each queue. That, and not making a dictionary for each message,
is most of what a single send costs less than the general codec.
"""

from json.encoder import encode_basestring

from pymq.errors import LocalProtocolError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import MQ_VERSION, SEND_RECORDS, RequestCode
from pymq.protocol.framing import frame_prefix
from pymq.protocol.names import DEFAULT_TOPIC
from pymq.protocol.namespaces import wrap

#: Requests whose headers differ in nothing but this code.
SEND = int(RequestCode.SEND_MESSAGE_V2)
SEND_BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
SEND_REPLY = int(RequestCode.SEND_REPLY_MESSAGE_V2)


class SendTemplate:
    """Makes the frames of sends to one queue.

    Attributes:
        address: the master's; ``None`` while it is away.
        description: of a send, for error messages.
        has_other: does the topic have a queue on another broker?
    """

    __slots__ = ("_formats", "address", "description", "has_other", "queue")

    def __init__(
        self,
        queue: MessageQueue,
        address: str | None,
        *,
        group: str,
        default_topic_queue_count: int,
        namespace: str | None = None,
        has_other: bool = False,
    ) -> None:
        self.queue = queue
        self.address = address
        self.has_other = has_other
        self.description = f"a message to topic {queue.topic!r}"
        self._formats = _HeaderFormats(
            wrap(namespace, group), wrap(namespace, queue.topic), queue, default_topic_queue_count
        )

    def head(
        self,
        opaque: int,
        body_bytes: int,
        properties: str,
        *,
        sys_flag: int,
        born_ms: int,
        flag: int,
        command_flag: int = 0,
        code: int = SEND,
    ) -> bytes:
        """Return the frame in front of its body.

        Args:
            opaque: number of the request.
            body_bytes: length of the body that will follow.
            properties: the message's, as a JSON text with its quotes; more fields may follow it.
            sys_flag: how the body is compressed.
            born_ms: when the message was made.
            flag: the user's number.
            command_flag: of the frame, 2 for one-way.
            code: of the request.

        Raises:
            LocalProtocolError: the properties are not Unicode, or the frame is too large.
        """
        text = self._formats[code] % (
            sys_flag,
            born_ms,
            flag,
            properties,
            command_flag,
            opaque,
        )
        try:
            header = text.encode()
        except UnicodeEncodeError as error:
            raise LocalProtocolError(f"a property is not Unicode: {error}") from error
        return frame_prefix(len(header), body_bytes, form=0) + header


class _HeaderFormats(dict[int, str]):
    """By request code; each is made when it is first used: a topic may have very many queues."""

    __slots__ = ("_same",)

    def __init__(self, group: str, topic: str, queue: MessageQueue, queue_count: int) -> None:
        self._same = group, topic, queue, queue_count

    def __missing__(self, code: int) -> str:
        self[code] = made = _header_format(code, *self._same)
        return made


def _header_format(
    code: int, group: str, topic: str, queue: MessageQueue, default_queue_count: int
) -> str:
    a, b, c, n = (
        encode_basestring(text).replace("%", "%%")
        for text in (group, topic, DEFAULT_TOPIC, queue.broker_name)
    )
    is_batch = "true" if code in (SEND_BATCH, SEND_RECORDS) else "false"
    return (
        f'{{"code":{code},"extFields":{{"a":{a},"b":{b},"c":{c},'
        f'"d":"{default_queue_count}","e":"{queue.queue_id}","f":"%d","g":"%d","h":"%d","i":%s,'
        f'"j":"0","k":"false","m":"{is_batch}","n":{n}}},'
        '"flag":%d,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON",'
        f'"version":{MQ_VERSION}}}'
    )
