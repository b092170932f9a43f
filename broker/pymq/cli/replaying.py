"""Messages that were received, or printed as JSON, as messages to send again."""

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pymq.cli import output
from pymq.cli.streams import OutputFailed
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.errors import ConfigurationError, PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import SYSTEM_PROPERTIES, Message, ReceivedMessage

#: What is sent together, at most: bodies with their tags, keys and properties.
BATCH_COUNT = 256
BATCH_BYTES = 1 << 20
#: More than what a batch adds to a message: its head, and the name and the value of its id.
_ADDED_BYTES = 100


def message_of(received: ReceivedMessage, topic: str) -> Message:
    """Return a message as it was sent, for another topic; it gets another id."""
    return Message(
        topic,
        bytes(received.body),
        tags=received.tags,
        keys=received.keys or None,
        properties=_own(received.properties),
        flag=received.flag,
    )


def message_of_line(
    line: bytes, number: int, topic: str | None, whole: Callable[[str], str] = str
) -> Message:
    """Return the message that ``consume -o json`` printed as a line.

    Args:
        line: a JSON object: ``body`` or ``bodyBase64``; ``topic``, ``tags``, ``keys``,
            ``properties`` and ``flag`` if there are any. What else it has does not count.
        number: of the line, for error messages.
        topic: where to; ``None``: where the line says.
        whole: returns what brokers call a topic.

    Raises:
        ConfigurationError: it is not such an object.
    """
    try:
        row = json.loads(line)
        if b"\\u" in line:  # an escape may stand for half a character, which no string of ours is
            json.dumps(row, ensure_ascii=False).encode()
    except ValueError as error:
        raise ConfigurationError(
            f"line {number} of the JSON is not an object of one line: {error}"
        ) from error
    if not isinstance(row, dict):
        raise ConfigurationError(f"line {number} of the JSON is not an object")
    to = topic if topic is not None else row.get("topic")
    body, tags, keys = _body(row, number), row.get("tags"), row.get("keys")
    properties, flag = row.get("properties") or {}, row.get("flag", 0)
    are_texts = isinstance(properties, dict) and all(
        isinstance(value, str) for value in properties.values()
    )
    if not isinstance(to, str) or not are_texts or not isinstance(flag, int):
        raise ConfigurationError(
            f"line {number} of the JSON: expected a topic, properties that are strings, and a "
            "whole number as flag; give TOPIC where the lines have none"
        )
    return Message(
        whole(to), body, tags=tags, keys=keys or None, properties=_own(properties), flag=flag
    )


def _body(row: Mapping[str, Any], number: int) -> bytes:
    text, packed = row.get("body"), row.get("bodyBase64")
    if isinstance(text, str):
        return text.encode()
    try:
        return base64.b64decode(packed or "x", validate=True)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"line {number} of the JSON has neither a body nor a bodyBase64 that can be read"
        ) from error


def _own(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in SYSTEM_PROPERTIES}


def size_in_batch(message: Message) -> int:
    """Return how many bytes a message takes in a batch, or a few more."""
    # Lines of JSON may have other things there: the client refuses those when they are sent.
    keys = message.keys if isinstance(message.keys, list | tuple) else [message.keys]
    texts = [message.tags, *keys, *message.properties, *message.properties.values()]
    size = sum(len(one.encode("utf-8", "surrogatepass")) + 2 for one in texts if type(one) is str)
    return _ADDED_BYTES + len(message.body) + size


def batches(messages: Iterable[Message]) -> Iterator[list[Message]]:
    """Yield messages that follow each other and have one topic, several at a time."""
    group: list[Message] = []
    size = 0
    for message in messages:
        own = size_in_batch(message)
        is_full = len(group) == BATCH_COUNT or size + own > BATCH_BYTES
        if group and (is_full or message.topic != group[0].topic):
            yield group
            group, size = [], 0
        group.append(message)
        size += own
    if group:
        yield group


def send_all(
    client: BlockingClient,
    messages: Iterable[Message],
    queue: MessageQueue | None,
    *,
    form: output.Form,
    is_shown: bool = True,
    named: Callable[[str], str] = str,
) -> int:
    """Send messages, print where each is stored, and return how many were sent.

    Raises:
        PymqError: a message was refused, could not be sent, or is not proven to be safe; a note
            says how many were sent before.
        OutputFailed: what was sent cannot be told; likewise.
        KeyboardInterrupt: likewise.
    """
    sent = unproven = asked = 0
    try:
        for group in batches(messages):
            asked = len(group)
            if len(group) == 1:
                result = client.send(group[0], queue)
            else:
                result = client.send_batch(queue, group)
            sent, asked = sent + len(group), 0
            unproven += result.durability_unknown * len(group)
            for row in output.sent_rows(result, named) if is_shown else ():
                is_json = form is output.Form.JSON
                output.line(json.dumps(row) if is_json else output.sent_text(row))
    except (PymqError, OutputFailed) as error:
        error.add_note(f"{sent} messages were sent before")
        raise
    except KeyboardInterrupt as error:
        more = f", and perhaps {asked} more" if asked else ""
        error.add_note(f"interrupted: {sent} messages were sent{more}")
        raise
    if unproven:
        raise PymqError(f"{unproven} of {sent} messages are stored, but not proven to be safe")
    return sent
