"""Messages as they are when a thread hands them over, for hooks: these change them in the loop."""

import copy

from pymq.client.sending import send_encoding
from pymq.protocol.message import Message


def as_it_is(message: Message) -> Message:
    """Return a copy of a message, which its sender cannot change any more.

    Values of wrong types are left as they are, for who encodes them to refuse.

    Raises:
        LocalProtocolError: it is not a message, or its keys or properties are not several.
    """
    send_encoding.check_message(message)
    body, keys, properties = message.body, message.keys, message.properties
    if isinstance(body, (bytearray, memoryview)):
        body = bytes(body)
    try:
        if keys is not None and not isinstance(keys, str):
            keys = list(keys)
        properties = dict(properties) if properties else {}
    except (TypeError, ValueError) as error:
        raise send_encoding.wrong_type(message, error) from error
    if type(message) is not Message:  # hooks may look for what another class adds
        message = copy.copy(message)
        message.body, message.keys, message.properties = body, keys, properties
        return message
    return Message(
        message.topic,
        body,
        message.tags,
        keys,
        properties,
        message.flag,
        message.delay_level,
        message.delay_s,
        message.deliver_at,
    )
