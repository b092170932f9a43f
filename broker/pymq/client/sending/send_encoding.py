"""Messages as bytes: what a user gives is checked, and becomes a body and its properties.

Single sends carry properties as a JSON text that is made without a dictionary; a batch is one body
with the properties of each message inside.
"""

import functools
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring

from pymq.client.cluster.config import ClientConfig
from pymq.client.operations import check_send_topic
from pymq.errors import LocalProtocolError
from pymq.protocol.batch_body import BATCH_HEAD, BATCH_LENGTH, BATCH_OVERHEAD_BYTES
from pymq.protocol.compression import compress, compression_flags
from pymq.protocol.message import Message, check_delay_level, check_tag
from pymq.protocol.names import is_retry_topic
from pymq.protocol.record import PROPERTIES_BYTES_MAX

#: Strings longer than this leave the fast path and are measured in bytes.
_SHORT_TEXT = PROPERTIES_BYTES_MAX // 12
_INT32 = 1 << 31
_pack_head, _pack_length = BATCH_HEAD.pack, BATCH_LENGTH.pack


# -------------------------------------------------------------------------------- properties


def properties_json(
    message: Message, unique_key: str, *, system: Mapping[str, str] | None = None
) -> str:
    """Return the properties of a message as a JSON text with its quotes.

    Args:
        message: whose.
        unique_key: its id.
        system: further system properties.

    Raises:
        LocalProtocolError: a property cannot be sent.
    """
    try:
        if not (message.properties or message.delay_level or system or message.has_timer):
            keys = message.keys
            if not keys:
                return f'"UNIQ_KEY\\u0001{unique_key}\\u0002{_tag_piece(message.tags)}"'
            if type(keys) is str and (piece := _piece("KEYS", keys)) is not None:
                tag = _tag_piece(message.tags)
                return f'"UNIQ_KEY\\u0001{unique_key}\\u0002{piece}{tag}"'
        return encode_basestring(message.encode_properties(unique_key, system).decode())
    except (TypeError, AttributeError) as error:
        raise wrong_type(message, error) from error


def encode_properties(
    message: Message, unique_key: str, system: Mapping[str, str] | None = None
) -> bytes:
    """Return the properties of a message as its broker stores them.

    Args:
        message: whose.
        unique_key: its id.
        system: further system properties.

    Raises:
        LocalProtocolError: a property cannot be sent.
    """
    try:
        return message.encode_properties(unique_key, system)
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
        LocalProtocolError: it is not a message.
    """
    if not isinstance(message, Message):
        raise LocalProtocolError(
            f"{message!r:.80} is a {type(message).__name__}, expected a Message"
        )


def _piece(name: str, value: str) -> str | None:
    """Return one property, escaped; ``None`` when the fast path cannot encode it."""
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
        LocalProtocolError: the body is not bytes, empty, or too large.
        ConfigurationError: the compression needs a package that is not installed.
    """
    checked = check_body(body, topic, config.body_bytes_max)
    if config.compress_bytes_min is not None and len(checked) >= config.compress_bytes_min:
        compressed = compress(checked, config.compression, level=config.compress_level)
        if len(compressed) < len(checked):
            return compressed, compression_flags(config.compression)
    return checked, 0


def check_body(body: object, topic: str, bytes_max: int) -> bytes:
    """Return the body as immutable bytes.

    Raises:
        LocalProtocolError: the body is not bytes, empty, or too large.
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


def check_no_timer(message: Message) -> None:
    """Accept a message for a client that does not ask brokers whether they know delivery times.

    Raises:
        LocalProtocolError: it has one, and an old broker would deliver it at once.
    """
    if message.has_timer:
        raise LocalProtocolError(
            "delay_s and deliver_at are for Producer, which asks the broker whether it knows them; "
            "an old one would deliver the message at once"
        )


def check_flag(flag: int) -> None:
    """Accept a user's number of 32 bits.

    Raises:
        LocalProtocolError: it is not one.
    """
    if not isinstance(flag, int) or not -_INT32 <= flag < _INT32:
        raise LocalProtocolError(f"flag {flag!r}, expected a signed 32-bit number")


# ------------------------------------------------------------------------------------- batch


@dataclass(slots=True)
class Batch:
    """The body of one batch request, and the ids of its messages."""

    body: bytes
    unique_keys: list[str]


def batch_messages(messages: object) -> list[Message]:
    """Return what a batch is to be made of.

    Raises:
        LocalProtocolError: it is not several of anything.
    """
    if not isinstance(messages, Iterable):
        raise LocalProtocolError(
            f"batch of {messages!r:.80}, a {type(messages).__name__}: expected several messages, "
            "such as a list of Message; a single one is sent with send()"
        )
    return list(messages)


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


def iter_batches(
    messages: Sequence[Message],
    unique_keys: Iterable[str],
    bytes_max: int,
    *,
    kept_bytes_max: int,
    system: Mapping[str, str] | None = None,
) -> Iterator[Batch]:
    """Yield as few batches as the size limit allows, in the order of the messages.

    All are encoded before the first batch, and that much is kept of it; what is not kept is encoded
    again when its batch is asked for.

    Args:
        messages: all to one topic; nothing in a batch is compressed.
        unique_keys: an id for each.
        bytes_max: of the body of one batch.
        kept_bytes_max: what is kept may exceed it by one message.
        system: further system properties of all of them.

    Raises:
        LocalProtocolError: a message cannot be sent in a batch. Instead of the first batch: nothing
            of them has been sent then.
    """
    keys = list(itertools.islice(unique_keys, len(messages)))
    kept: deque[bytes] = deque()
    kept_bytes = 0
    for message, key in zip(messages, keys, strict=True):
        part = encode_in_batch(message, key, bytes_max, system)
        if kept_bytes < kept_bytes_max:
            kept.append(part)
            kept_bytes += len(part)
    parts: list[bytes] = []
    first = total = 0
    for at, key in enumerate(keys):
        if kept:
            part = kept.popleft()
        else:
            part = encode_in_batch(messages[at], key, bytes_max, system)
        if total + len(part) > bytes_max:
            yield Batch(b"".join(parts), keys[first:at])
            parts.clear()
            first, total = at, 0
        parts.append(part)
        total += len(part)
    if parts:
        yield Batch(b"".join(parts), keys[first:])


def encode_in_batch(
    message: Message, key: str, bytes_max: int, system: Mapping[str, str] | None = None
) -> bytes:
    """Return what the body of a batch has of a message.

    Args:
        message: not compressed.
        key: its id.
        bytes_max: of the body of the batch.
        system: further system properties.

    Raises:
        LocalProtocolError: it cannot be sent in a batch.
    """
    body = message.body
    if type(body) is not bytes or not body:
        body = check_body(body, message.topic, bytes_max)
    if (
        message.properties
        or message.keys
        or message.delay_level
        or message.delay_s
        or message.deliver_at is not None
        or message.flag != 0
        or system is not None
    ):
        properties = _batch_properties(message, key, system)
    else:
        try:
            properties = f"UNIQ_KEY\x01{key}\x02".encode() + _tag_bytes(message.tags)
        except TypeError as error:
            raise wrong_type(message, error) from error
    size = BATCH_OVERHEAD_BYTES + len(body) + len(properties)
    if size > bytes_max:
        raise LocalProtocolError(
            f"message of {size} B in a batch to {message.topic!r}, expected at most "
            f"{bytes_max} (body_bytes_max)"
        )
    head = _pack_head(size, 0, 0, message.flag, len(body))
    return b"".join((head, body, _pack_length(len(properties)), properties))


def encode_batch(messages: Sequence[Message], unique_keys: Iterable[str], bytes_max: int) -> Batch:
    """Return one batch with all messages.

    Args:
        messages: all to one topic; nothing in a batch is compressed.
        unique_keys: an id for each.
        bytes_max: of the body.

    Raises:
        LocalProtocolError: a message cannot be sent in a batch, or they are too large together.
    """
    keys = list(itertools.islice(unique_keys, len(messages)))
    several = zip(messages, keys, strict=True)
    body = b"".join([encode_in_batch(message, key, bytes_max) for message, key in several])
    if len(body) > bytes_max:
        raise LocalProtocolError(
            f"batch of {len(messages)} messages takes {len(body)} B,"
            f" expected at most {bytes_max} (body_bytes_max); send fewer at once"
        )
    return Batch(body, keys)


def _batch_properties(message: Message, key: str, system: Mapping[str, str] | None) -> bytes:
    if message.has_timer:
        raise LocalProtocolError(
            "a message with delay_s or deliver_at cannot be in a batch; send it alone"
        )
    if check_delay_level(message.delay_level):
        raise LocalProtocolError(
            f"a message with delay_level={message.delay_level} cannot be in a batch; send it alone"
        )
    check_flag(message.flag)
    return encode_properties(message, key, system)


@functools.lru_cache(1024)
def _tag_bytes(tags: str | None) -> bytes:
    _tag_piece(tags)
    return f"TAGS\x01{tags}\x02".encode() if tags else b""
