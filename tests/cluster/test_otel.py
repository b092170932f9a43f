"""OpenTelemetry spans from the sender to the handler."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.cluster.running import run
from tests.cluster.scenarios import TIMEOUT_S
from tests.handling import handle_until
from tests.readme import User, blocks

from pymq import Consumer, Message, Producer, PymqError, ReceivedMessage, blocking
from pymq.otel import ProducerSpans, traced
from pymq.testing import Cluster


class Spans:
    """A provider, and what has ended."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [one for one in self._exporter.get_finished_spans() if one.name == name]


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def test_one_trace_from_the_sender_to_the_handler(pymq_cluster: Cluster, spans: Spans) -> None:
    hooks = [ProducerSpans(spans.provider)]
    with (
        blocking.Producer(pymq_cluster.name_server, hooks=hooks, timeout_s=TIMEOUT_S) as producer,
        spans.tracer.start_as_current_span("checkout"),
    ):
        receipt = producer.send(Message("T", b"x", properties={"mine": "kept"}))
    attempts: list[dict[str, str]] = []

    def handle(message: ReceivedMessage) -> None:
        attempts.append(message.properties)
        with spans.tracer.start_as_current_span("pack"):
            if len(attempts) == 1:
                raise ValueError("on purpose")

    consumer = blocking.Consumer(pymq_cluster.name_server, "g", from_where="earliest")
    with consumer.subscribe("T"):
        traced_handle = traced(handle, group="g", provider=spans.provider)
        handle_until(consumer, traced_handle, lambda: len(attempts) == 2)
    (checkout,), (create,), (send,) = map(spans.named, ("checkout", "create T", "send T"))
    failed, processed = spans.named("process T")
    assert len({one.context.trace_id for one in (checkout, create, send, failed, processed)}) == 1
    for parent, child in (
        (checkout, create),
        (checkout, send),
        (create, failed),
        (create, processed),
        *zip((failed, processed), spans.named("pack"), strict=True),
    ):
        assert child.parent is not None and child.parent.span_id == parent.context.span_id
    assert (create.kind, processed.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert [link.context.span_id for link in send.links] == [create.context.span_id]
    assert send.attributes is not None and processed.attributes is not None
    assert send.attributes["messaging.message.id"] == receipt.message_id
    assert processed.attributes["messaging.message.id"] == receipt.message_id
    assert processed.attributes["messaging.consumer.group.name"] == "g"
    assert failed.status.status_code is StatusCode.ERROR
    assert processed.status.status_code is not StatusCode.ERROR
    assert {one["mine"] for one in attempts} == {"kept"}


def test_batches_link_and_failures_are_recorded(pymq_cluster: Cluster, spans: Spans) -> None:
    async def main() -> None:
        async with Producer(
            pymq_cluster.name_server, hooks=[ProducerSpans(spans.provider)], timeout_s=TIMEOUT_S
        ) as producer:
            await producer.send_batch([Message("T", b"1"), Message("T", b"2")])
            pymq_cluster.broker().kill()
            with pytest.raises(PymqError):
                await producer.send(Message("T", b"lost"), deadline_s=0.3)
            pymq_cluster.broker().start()
        seen: list[int] = []

        async def handle(messages: list[ReceivedMessage]) -> None:
            seen.append(len(messages))

        consumer = Consumer(pymq_cluster.name_server, "g", from_where="earliest")
        async with consumer.subscribe("T"):
            batch = traced(handle, group="g", provider=spans.provider)
            running = asyncio.ensure_future(consumer.run(batch, batch_size=8))
            while sum(seen) < 2 or not spans.named("process T"):
                await asyncio.sleep(0.02)
            running.cancel()

    run(main())
    created = {one.context.span_id for one in spans.named("create T")[:2]}
    sent, failed = spans.named("send T")
    assert {link.context.span_id for link in sent.links} == created
    assert failed.status.status_code is StatusCode.ERROR and failed.events[0].name == "exception"
    linked = {link.context.span_id for one in spans.named("process T") for link in one.links}
    assert linked <= created


def test_a_message_without_a_trace_begins_one(pymq_cluster: Cluster, spans: Spans) -> None:
    with blocking.Producer(pymq_cluster.name_server) as producer:
        producer.send(Message("T", b"x"))
    (message,) = pymq_cluster.messages("T")
    handle = traced(lambda given: given.body, group="g", provider=spans.provider)
    assert handle(message) == b"x"
    (processed,) = spans.named("process T")
    assert processed.parent is None


def test_an_object_that_is_called_like_a_coroutine_function(
    pymq_cluster: Cluster, spans: Spans
) -> None:
    class Handler:
        async def __call__(self, given: ReceivedMessage) -> None:
            await asyncio.sleep(0)
            raise ZeroDivisionError

    with blocking.Producer(pymq_cluster.name_server) as producer:
        producer.send(Message("T", b"x"))
    (message,) = pymq_cluster.messages("T")
    with pytest.raises(ZeroDivisionError):
        asyncio.run(traced(Handler(), group="g", provider=spans.provider)(message))
    (processed,) = spans.named("process T")
    assert processed.status.status_code is StatusCode.ERROR


def test_the_snippet_of_the_documentation(pymq_cluster: Cluster, tmp_path: Path) -> None:
    (block,) = blocks("docs/opentelemetry.md")
    # It runs until nothing comes for so long; a busy machine may need that for the first message.
    assert "timeout_s=3" in block.text
    patient = replace(block, text=block.text.replace("timeout_s=3", "timeout_s=8"))
    assert User(tmp_path, pymq_cluster.name_server).run_program(patient) == "a book\n"
