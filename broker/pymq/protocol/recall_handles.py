"""Recall handles: what a producer gets for a timer message, and sends to have it cancelled.

URL-safe Base64 of ``v1 <topic> <broker name> <time> <message id>``, separated by blanks. The time
(ms) is one that lies in the slot in which the message is due: TIMER_OUT_MS + 1. Example, for
message U10 of topic ``timert`` on ``broker-a``::

    djEgdGltZXJ0IGJyb2tlci1hIDE3OTUzNDQ2NjEwMDEgVTEw

Source: RocketMQ RecallMessageHandle, SendMessageProcessor.attachRecallHandle.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from typing import Self

from pymq.errors import RemoteProtocolError

_VERSION = "v1"
#: As Java's decoder, this takes handles with and without padding, and nothing in between.
_BASE64 = re.compile(r"[A-Za-z0-9_-]*={0,2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class RecallHandle:
    """One handle; ``time`` is a number, unless the handle was made up."""

    topic: str
    broker_name: str
    time: str
    message_id: str

    def encode(self) -> str:
        """Return the handle as it is sent."""
        text = " ".join((_VERSION, self.topic, self.broker_name, self.time, self.message_id))
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> Self:
        """Return the parts of a handle.

        Raises:
            RemoteProtocolError: it is not one.
        """
        try:
            if not handle or _BASE64.fullmatch(handle) is None:
                raise ValueError("not Base64")
            padding = "" if "=" in handle else "=" * (-len(handle) % 4)
            text = base64.urlsafe_b64decode(handle + padding).decode(errors="replace")
            version, topic, broker_name, time, message_id = text.split(" ")[:5]
        except (ValueError, binascii.Error) as error:
            raise RemoteProtocolError("recall handle is invalid") from error
        if version != _VERSION or not message_id:
            raise RemoteProtocolError("recall handle is invalid")
        return cls(topic, broker_name, time, message_id)
