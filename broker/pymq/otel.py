"""OpenTelemetry spans of messages: ``pip install 'pymq-rocketmq[otel]'``.

::

    producer = Producer("127.0.0.1:9876", hooks=[ProducerSpans()])
    await consumer.run(traced(handle, group="shipping"))

The trace travels in properties of the messages (``traceparent``, as W3C has it), so that the other
end may be of any language. Names are those of OpenTelemetry's conventions for messaging.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, cast

from pymq import extras
from pymq.client.consuming.handler import is_async
from pymq.client.sending.hooks import SendHook, SendOutcome
from pymq.protocol.message import Message, ReceivedMessage

extras.require("opentelemetry", by="pymq.otel")

from opentelemetry import propagate, trace  # noqa: E402
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode  # noqa: E402

__all__ = ["ProducerSpans", "traced"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

_SYSTEM = {"messaging.system": "rocketmq"}
_NS_PER_MS = 1_000_000


def _tracer(provider: trace.TracerProvider | None) -> trace.Tracer:
    return trace.get_tracer("pymq", tracer_provider=provider)


class ProducerSpans(SendHook):
    """A hook for producers: a span for each message, and one for each send.

    The span of a message, ``create <topic>``, is what its consumers continue; it belongs to what is
    current where the message was sent. The span of a send, ``send <topic>``, says how long all its
    attempts took, how it ended, and links to its messages. One-way sends have none of the latter.

    Args:
        provider: makes the spans; by default the global one.
    """

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = _tracer(provider)

    def before(self, messages: Sequence[Message]) -> None:
        """Called by the producer."""
        for message in messages:
            attributes = {**_SYSTEM, "messaging.destination.name": message.topic}
            span = self._tracer.start_span(
                f"create {message.topic}",
                kind=SpanKind.PRODUCER,
                attributes=attributes | {"messaging.operation.type": "create"},
            )
            propagate.inject(message.properties, trace.set_span_in_context(span))
            span.end()

    def after(self, outcome: SendOutcome) -> None:
        """Called by the producer."""
        topic = outcome.messages[0].topic
        attributes: dict[str, str | int] = {
            **_SYSTEM,
            "messaging.destination.name": topic,
            "messaging.operation.type": "send",
            "messaging.batch.message_count": len(outcome.messages),
        }
        if outcome.broker_address is not None:
            attributes["server.address"] = outcome.broker_address
        if outcome.receipts:
            attributes["messaging.message.id"] = outcome.receipts[0].message_id or ""
        started_ns = outcome.started_ms * _NS_PER_MS
        span = self._tracer.start_span(
            f"send {topic}",
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=[link for message in outcome.messages for link in _links(message.properties)],
            start_time=started_ns,
        )
        if outcome.error is not None:
            span.record_exception(outcome.error)
            span.set_status(Status(StatusCode.ERROR, str(outcome.error)))
        span.end(started_ns + int(outcome.took_s * 1e9))


def traced(
    handler: Callable[_P, _R], *, group: str, provider: trace.TracerProvider | None = None
) -> Callable[_P, _R]:
    """Return a handler with a span, ``process <topic>``, that is current while it runs.

    The span continues that of the message. For a handler of several messages it links to theirs.
    What the handler raises is recorded, and raised: the message is tried again as always.

    Args:
        handler: of one message or a list of them; a plain or a coroutine function.
        group: of the consumer.
        provider: makes the spans; by default the global one.
    """
    tracer = _tracer(provider)

    @contextmanager
    def processing(given: object) -> Iterator[Span]:
        messages = cast(
            list[ReceivedMessage], given if isinstance(given, Sequence) else [given]
        )
        attributes: dict[str, str | int] = {
            **_SYSTEM,
            "messaging.destination.name": messages[0].topic,
            "messaging.operation.type": "process",
            "messaging.consumer.group.name": group,
            "messaging.batch.message_count": len(messages),
        }
        links = [link for message in messages for link in _links(message.properties)]
        context = None
        if len(messages) == 1:
            attributes["messaging.message.id"] = messages[0].message_id
            context = propagate.extract(messages[0].properties)
        with tracer.start_as_current_span(
            f"process {messages[0].topic}",
            context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links if context is None else [],
        ) as span:
            yield span

    if is_async(handler):

        @functools.wraps(handler)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            with processing(args[0]):
                return await cast(Any, handler)(*args, **kwargs)

        return cast(Callable[_P, _R], run_async)

    @functools.wraps(handler)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        with processing(args[0]):
            return handler(*args, **kwargs)

    return run


def _links(properties: dict[str, str]) -> list[Link]:
    context = trace.get_current_span(propagate.extract(properties)).get_span_context()
    return [Link(context)] if context.is_valid else []
