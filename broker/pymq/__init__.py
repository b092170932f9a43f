"""RocketMQ for Python and Spark: broker, name server, client, embedded broker for tests.

What applications use, loaded when first touched::

    from pymq import Consumer, Message, Producer          # asyncio
    from pymq.client.sync import Consumer, Producer       # blocking faces of the same
    from pymq.client.blocking import BlockingClient       # request and response only
    from pymq.testing import Cluster                      # name server and broker in-process

Importing this package needs the standard library only.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pymq.client.blocking import BlockingClient as BlockingClient
    from pymq.client.consumer import Consumer as Consumer
    from pymq.client.producer import Producer as Producer
    from pymq.errors import PymqError as PymqError
    from pymq.protocol.message import Message as Message
    from pymq.protocol.message import ReceivedMessage as ReceivedMessage

__version__ = "0.1.0"

_HOMES = {
    "BlockingClient": "pymq.client.blocking",
    "Consumer": "pymq.client.consumer",
    "Message": "pymq.protocol.message",
    "Producer": "pymq.client.producer",
    "PymqError": "pymq.errors",
    "ReceivedMessage": "pymq.protocol.message",
}

__all__ = ["BlockingClient", "Consumer", "Message", "Producer", "PymqError", "ReceivedMessage"]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
