"""Sends as bytes: what is the same for every message of a queue is encoded once.

A producer's header differs from message to message in seven places; the rest is text that
was made when the queue's route became known. That, and not making a dictionary on the way,
is most of what a single send costs less than the general codec.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring

from pymq.client.config import ClientConfig
from pymq.client.operations import check_send_topic
from pymq.errors import LocalProtocolError
from pymq.protocol.batch_body import BATCH_HEAD, BATCH_LENGTH, BATCH_OVERHEAD_BYTES
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import MQ_VERSION, RequestCode
from pymq.protocol.compression import compress, compression_flags
from pymq.protocol.framing import frame_prefix
from pymq.protocol.message import SHARDING_KEY, WAIT, Message, check_delay_level, check_tag
from pymq.protocol.names import DEFAULT_TOPIC, is_retry_topic
from pymq.protocol.record import PROPERTIES_BYTES_MAX

#: Texts longer than this leave the short way and are measured in bytes.
_SHORT_TEXT = PROPERTIES_BYTES_MAX // 12
_INT32 = 1 << 31


class SendTemplate:
    """Makes the frames of sends to one queue."""

    __slots__ = ("_batch", "_single", "address", "description", "queue")

    def __init__(
        self,
        queue: MessageQueue,
        address: str | None,
        *,
        group: str,
        default_topic_queue_count: int,
    ) -> None:
        self.queue = queue
        #: The master's address; ``None`` while it is away.
        self.address = address
        #: Of a send, for error messages.
        self.description = f"a message to topic {queue.topic!r}"
        fixed = (group, queue, default_topic_queue_count)
        self._single = _header_format(RequestCode.SEND_MESSAGE_V2, *fixed, batch=False)
        self._batch = _header_format(RequestCode.SEND_BATCH_MESSAGE, *fixed, batch=True)

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
        batch: bool = False,
    ) -> bytes:
        """Return the frame in front of its body.

        Args:
            opaque: number of the request.
            body_bytes: length of the body that will follow.
            properties: the message's, as a JSON text with its quotes.
            sys_flag: how the body is compressed.
            born_ms: when the message was made.
            flag: the user's number.
            command_flag: of the frame, 2 for one-way.
            batch: whether the body is a batch.

        Raises:
            LocalProtocolError: the properties are not Unicode, or the frame is too large.
        """
        text = (self._batch if batch else self._single) % (
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


def _header_format(
    code: int, group: str, queue: MessageQueue, default_queue_count: int, *, batch: bool
) -> str:
    a, b, c, n = (
        encode_basestring(text).replace("%", "%%")
        for text in (group, queue.topic, DEFAULT_TOPIC, queue.broker_name)
    )
    return (
        f'{{"code":{int(code)},"extFields":{{"a":{a},"b":{b},"c":{c},'
        f'"d":"{default_queue_count}","e":"{queue.queue_id}","f":"%d","g":"%d","h":"%d","i":%s,'
        f'"j":"0","k":"false","m":"{"true" if batch else "false"}","n":{n}}},'
        '"flag":%d,"language":"PYTHON","opaque":%d,"serializeTypeCurrentRPC":"JSON",'
        f'"version":{MQ_VERSION}}}'
    )


# -------------------------------------------------------------------------------- properties


def properties_json(
    message: Message, unique_key: str, *, sharding_key: str | None, wait_stored: bool
) -> str:
    """Return the properties of a message as a JSON text with its quotes.

    Raises:
        LocalProtocolError: a property cannot be sent.
    """
    try:
        if not (message.properties or message.delay_level or sharding_key) and wait_stored:
            keys = message.keys
            if not keys:
                return f'"UNIQ_KEY\\u0001{unique_key}\\u0002{_tag_piece(message.tags)}"'
            if type(keys) is str and (piece := _piece("KEYS", keys)) is not None:
                tag = _tag_piece(message.tags)
                return f'"UNIQ_KEY\\u0001{unique_key}\\u0002{piece}{tag}"'
        system = _system(sharding_key, wait_stored)
        return encode_basestring(message.encode_properties(unique_key, system).decode())
    except (TypeError, AttributeError) as error:
        raise wrong_type(message, error) from error


def encode_properties(message: Message, unique_key: str) -> bytes:
    """Return the properties of a message as its broker stores them.

    Raises:
        LocalProtocolError: a property cannot be sent.
    """
    try:
        return message.encode_properties(unique_key)
    except (TypeError, AttributeError) as error:
        raise wrong_type(message, error) from error


def wrong_type(message: Message, error: Exception) -> LocalProtocolError:
    """Return what to raise for tags, keys or properties of a wrong type."""
    return LocalProtocolError(
        f"message to {message.topic!r} cannot be encoded: {error}; expected tags to be a str, "
        "keys a str or several, properties a dict of str to str"
    )


def check_message(message: object) -> None:
    """Accept what can be sent.

    Raises:
        LocalProtocolError: it is no message.
    """
    if not isinstance(message, Message):
        raise LocalProtocolError(
            f"{message!r:.80} is a {type(message).__name__}, expected a Message"
        )


def check_sharding_key(key: object) -> None:
    """Accept a key that chooses a queue.

    Raises:
        LocalProtocolError: it is no text, or empty.
    """
    if not isinstance(key, str) or not key:
        hint = f"; write sharding_key=str({key!r:.80})" if isinstance(key, int | float) else ""
        raise LocalProtocolError(
            f"sharding_key={key!r:.80}, expected a str that is not empty, because its hash chooses "
            f"the queue in every client alike{hint}"
        )


def _system(sharding_key: str | None, wait_stored: bool) -> dict[str, str] | None:
    if sharding_key is None and wait_stored:
        return None
    system = {}
    if sharding_key is not None:
        system[SHARDING_KEY] = sharding_key
    if not wait_stored:
        system[WAIT] = "false"
    return system


def _piece(name: str, value: str) -> str | None:
    """Return one property, escaped; ``None`` when only the long way can judge it."""
    if len(value) > _SHORT_TEXT or "\x01" in value or "\x02" in value:
        return None
    return f"{name}\\u0001{encode_basestring(value)[1:-1]}\\u0002"


@functools.lru_cache(1024)
def _tag_piece(tags: str | None) -> str:
    if not tags:
        return ""
    check_tag(tags)
    try:
        tags.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"tag {tags[:80]!r} is not Unicode: {error}") from error
    piece = _piece("TAGS", tags)
    if piece is None:
        raise LocalProtocolError(
            f"tag {tags[:80]!r} of {len(tags)} characters, expected at most {_SHORT_TEXT} and "
            "no U+0001 or U+0002"
        )
    return piece


# -------------------------------------------------------------------------------------- body


def prepare_body(body: object, topic: str, config: ClientConfig) -> tuple[bytes, int]:
    """Return (what is sent, system flag): large bodies are compressed.

    Raises:
        LocalProtocolError: the body is no bytes, empty, or too large.
        ConfigurationError: the compression needs a package that is not installed.
    """
    checked = check_body(body, topic, config.body_bytes_max)
    if config.compress_bytes_min is not None and len(checked) >= config.compress_bytes_min:
        compressed = compress(checked, config.compression, level=config.compress_level)
        if len(compressed) < len(checked):
            return compressed, compression_flags(config.compression)
    return checked, 0


def check_body(body: object, topic: str, bytes_max: int) -> bytes:
    """Return the body as bytes that nobody can change any more.

    Raises:
        LocalProtocolError: the body is no bytes, empty, or too large.
    """
    if isinstance(body, (bytearray, memoryview)):
        body = bytes(body)
    if not isinstance(body, bytes):
        hint = "; encode it, for instance with .encode()" if isinstance(body, str) else ""
        raise LocalProtocolError(
            f"message to {topic!r}: body is a {type(body).__name__}, expected bytes{hint}"
        )
    if not 0 < len(body) <= bytes_max:
        raise LocalProtocolError(
            f"message to {topic!r}: body of {len(body)} B, expected 1..{bytes_max} "
            "(body_bytes_max; the broker's maxMessageSize limits it, too)"
        )
    return body


def check_flag(flag: int) -> None:
    """Accept a user's number of 32 bits.

    Raises:
        LocalProtocolError: it is none.
    """
    if not isinstance(flag, int) or not -_INT32 <= flag < _INT32:
        raise LocalProtocolError(f"flag {flag!r}, expected a signed 32-bit number")


# ------------------------------------------------------------------------------------- batch


@dataclass(slots=True)
class Batch:
    """The body of one batch request, and the ids of its messages."""

    body: bytes
    unique_keys: list[str]


def batch_topic(messages: list[Message]) -> str:
    """Return the topic of a batch.

    Raises:
        LocalProtocolError: there is no message, more than one topic, or one that takes none.
    """
    if not messages:
        raise LocalProtocolError("batch of no message, expected at least one")
    for message in messages:
        check_message(message)
    topic = messages[0].topic
    for message in messages:
        if message.topic != topic:
            raise LocalProtocolError(
                f"batch for {topic!r} has a message for {message.topic!r}, expected one topic"
            )
    check_send_topic(topic)
    if is_retry_topic(topic):
        raise LocalProtocolError(f"batch to {topic!r}: retry topics take no batch")
    return topic


def encode_batches(
    messages: Sequence[Message], unique_keys: Iterable[str], bytes_max: int
) -> list[Batch]:
    """Return as few batches as the size limit allows, in the order of the messages.

    Args:
        messages: all to one topic; nothing in a batch is compressed.
        unique_keys: an id for each.
        bytes_max: of the body of one batch.

    Raises:
        LocalProtocolError: a message cannot be sent in a batch.
    """
    batches: list[Batch] = []
    parts: list[bytes] = []
    keys: list[str] = []
    total = 0
    pack_head, pack_length = BATCH_HEAD.pack, BATCH_LENGTH.pack
    for message, key in zip(messages, unique_keys, strict=False):
        body = message.body
        if type(body) is not bytes or not body:
            body = check_body(body, message.topic, bytes_max)
        if message.properties or message.keys or message.delay_level or message.flag:
            properties = _batch_properties(message, key)
        else:
            try:
                properties = f"UNIQ_KEY\x01{key}\x02".encode() + _tag_bytes(message.tags)
            except TypeError as error:
                raise wrong_type(message, error) from error
        size = BATCH_OVERHEAD_BYTES + len(body) + len(properties)
        if total + size > bytes_max:
            if size > bytes_max:
                raise LocalProtocolError(
                    f"message of {size} B in a batch to {message.topic!r}, expected at most "
                    f"{bytes_max} (body_bytes_max)"
                )
            batches.append(Batch(b"".join(parts), keys))
            parts, keys, total = [], [], 0
        total += size
        keys.append(key)
        parts += (
            pack_head(size, 0, 0, message.flag, len(body)),
            body,
            pack_length(len(properties)),
            properties,
        )
    if keys:
        batches.append(Batch(b"".join(parts), keys))
    return batches


def _batch_properties(message: Message, key: str) -> bytes:
    if check_delay_level(message.delay_level):
        raise LocalProtocolError(
            f"a message with delay_level={message.delay_level} cannot be in a batch; send it alone"
        )
    check_flag(message.flag)
    return encode_properties(message, key)


@functools.lru_cache(1024)
def _tag_bytes(tags: str | None) -> bytes:
    _tag_piece(tags)
    return f"TAGS\x01{tags}\x02".encode() if tags else b""
