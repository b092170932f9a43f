"""The namespace of a client: put in front of names that go out, taken away from those that come.

Inside a client topics and groups have the names that its user gave them. Requests are changed
just before they are encoded, and results just after they are read, so that the code between knows
of no namespace. What is left are the places that make or read bytes themselves: templates of
sends, stored records, handles of popped messages, local offsets, and divisions of queues by hashes
of their names, which must be those of Java's members. They ask the client's ``Network``.
"""

import dataclasses
import json
from typing import Any

from pymq.client.cluster.network import Network
from pymq.errors import ConfigurationError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.namespaces import unwrap, wrap, wrap_values

#: Fields of headers that name topics and groups.
_FIELDS = frozenset(
    {
        *("topic", "originTopic", "group", "groupName", "consumerGroup", "producerGroup"),
        *("compareGroup", "srcGroup", "destGroup"),
    }
)
#: The same in the short headers of sends: producer group and topic.
_SHORT_FIELDS = frozenset({"a", "b"})
_SENDS = frozenset(
    {
        int(RequestCode.SEND_MESSAGE_V2),
        int(RequestCode.SEND_BATCH_MESSAGE),
        int(RequestCode.SEND_REPLY_MESSAGE_V2),
    }
)
#: Fields of results that hold texts of users, not names: what a member subscribes to.
_TEXTS = frozenset({"expression", "tags"})
#: Requests whose bodies are JSON with names in it.
_BODIES = frozenset(
    {
        int(RequestCode.HEART_BEAT),
        int(RequestCode.LOCK_BATCH_MQ),
        int(RequestCode.UNLOCK_BATCH_MQ),
        int(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP),
    }
)


def wrapped_queue(network: Network, queue: MessageQueue) -> MessageQueue:
    """Return a queue as brokers call it."""
    if network.namespace is None:
        return queue
    return MessageQueue(network.wrap(queue.topic), queue.broker_name, queue.queue_id)


def refuse_namespace(network: Network) -> None:
    """Accept a network without a namespace.

    Raises:
        ConfigurationError: it has one.
    """
    if network.namespace is not None:
        raise ConfigurationError(
            f"namespace={network.namespace!r}: BlockingClient has no namespaces; give it whole "
            f"names, such as {network.wrap('orders')!r}, or take the clients of pymq.blocking"
        )


class Namespaced:
    """Changes the requests and results of a client with a namespace.

    Args:
        network: of the client; it has a namespace.
    """

    def __init__(self, network: Network) -> None:
        assert network.namespace is not None
        self._namespace = network.namespace

    def leave(self, request: Command) -> None:
        """Wrap the names in a request that goes out; idempotent."""
        fields = request.fields
        if fields:
            for name in _SHORT_FIELDS if request.code in _SENDS else _FIELDS:
                if name in fields:
                    fields[name] = wrap(self._namespace, fields[name])
        if request.code in _BODIES and request.body:
            body = wrap_values(self._namespace, json.loads(bytes(request.body)), _FIELDS)
            request.body = json.dumps(body, separators=(",", ":")).encode()

    def enter(self, request: Command) -> None:
        """Unwrap the names in a request of a broker."""
        for name, value in (request.fields or {}).items():
            if name in _FIELDS and request.fields is not None:
                request.fields[name] = unwrap(self._namespace, value)

    def result(self, value: Any) -> Any:
        """Return a result with the names in it unwrapped.

        Where a table has a name both with and without the namespace, the former counts.
        """
        if isinstance(value, str):
            return unwrap(self._namespace, value) if type(value) is str else value
        if isinstance(value, dict):
            found = {self.result(key): self.result(one) for key, one in value.items()}
            for key, one in value.items():
                if (short := self.result(key)) != key:
                    found[short] = self.result(one)
            return found
        if type(value) in (list, tuple, set, frozenset):
            return type(value)(map(self.result, value))
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._changed(value)
        return value

    def _changed(self, value: Any) -> Any:
        changes = {}
        for field in dataclasses.fields(value):
            if field.init and field.name not in _TEXTS:
                before = getattr(value, field.name)
                after = self.result(before)
                if after is not before and after != before:
                    changes[field.name] = after
        return dataclasses.replace(value, **changes) if changes else value
