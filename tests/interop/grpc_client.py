"""The official gRPC client, for Python tests; it reaches brokers through a proxy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.interop.java_values import JavaError, call
from tests.interop.jvm import JavaClient

#: For an answer, instead of three seconds.
REQUEST_S = 20.0
_STARTS_MAX = 4


@dataclass(frozen=True, slots=True)
class GrpcMessage:
    """A ``MessageView``, and the object itself for whoever acknowledges it."""

    body: bytes
    message_id: str
    delivery_attempt: int
    view: Any


class GrpcSite:
    """Makes producers and consumers; they end with their JVM.

    Args:
        client: the JVM with the gRPC client.
        proxy_address: ``host:port`` of the proxy.
    """

    def __init__(self, client: JavaClient, proxy_address: str) -> None:
        self._client = client
        self.proxy_address = proxy_address
        self._apis = client.jvm.org.apache.rocketmq.client.apis
        self._provider = self._apis.ClientServiceProvider.loadService()
        builder = self._apis.ClientConfiguration.newBuilder()
        builder.setEndpoints(proxy_address).enableSsl(False)
        self._configuration = builder.setRequestTimeout(self.duration(REQUEST_S)).build()

    def duration(self, seconds: float) -> Any:
        return self._client.jvm.java.time.Duration.ofMillis(int(seconds * 1000))

    def _subscription(self, topic: str, expression: str) -> Any:
        filters = self._apis.consumer.FilterExpression
        return self._client.jvm.java.util.Collections.singletonMap(topic, filters(expression))

    def producer(self, *topics: str) -> GrpcProducer:
        names = self._client.gateway.new_array(self._client.jvm.java.lang.String, len(topics))
        for number, topic in enumerate(topics):
            names[number] = topic
        builder = self._provider.newProducerBuilder()
        builder.setClientConfiguration(self._configuration).setTopics(names)
        return GrpcProducer(self._provider, _started(builder))

    def consumer(self, group: str, topic: str, expression: str = "*") -> GrpcConsumer:
        """Return a consumer that receives when it is told to."""
        builder = self._provider.newSimpleConsumerBuilder()
        builder.setClientConfiguration(self._configuration).setConsumerGroup(group)
        builder.setAwaitDuration(self.duration(5))
        builder.setSubscriptionExpressions(self._subscription(topic, expression))
        return GrpcConsumer(self, _started(builder))

    def push(
        self, group: str, topic: str, consume: Callable[[GrpcMessage], bool]
    ) -> GrpcPushConsumer:
        """Return a consumer that calls ``consume``, which says whether it succeeded."""
        builder = self._provider.newPushConsumerBuilder()
        builder.setClientConfiguration(self._configuration).setConsumerGroup(group)
        builder.setSubscriptionExpressions(self._subscription(topic, "*"))
        builder.setConsumptionThreadCount(4)
        listener = GrpcPushConsumer(self._apis.consumer.ConsumeResult, consume)
        builder.setMessageListener(listener)
        _started(builder)
        return listener


def _started(builder: Any) -> Any:
    """Return what a builder builds; it gives the first answer of a proxy three seconds.

    A proxy that has just started takes longer where all cores are busy.
    """
    for _ in range(_STARTS_MAX - 1):
        try:
            return call(builder.build)
        except JavaError as error:
            if "FAILED" not in str(error):
                raise
    return call(builder.build)


class GrpcProducer:
    """``Producer``."""

    def __init__(self, provider: Any, java: Any) -> None:
        self._provider = provider
        self._java = java

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        tag: str | None = None,
        message_group: str | None = None,
        delivery_ms: int | None = None,
    ) -> str:
        """Send a message; return its id.

        Raises:
            JavaError: it was not accepted.
        """
        builder = self._provider.newMessageBuilder().setTopic(topic).setBody(body)
        if tag is not None:
            builder.setTag(tag)
        if message_group is not None:
            builder.setMessageGroup(message_group)
        if delivery_ms is not None:
            builder.setDeliveryTimestamp(delivery_ms)
        receipt = call(self._java.send, builder.build())
        return str(receipt.getMessageId().toString())


class GrpcConsumer:
    """``SimpleConsumer``."""

    def __init__(self, site: GrpcSite, java: Any) -> None:
        self._site = site
        self._java = java

    def receive(self, count_max: int = 16, invisible_s: float = 60) -> list[GrpcMessage]:
        """Return messages, after waiting for them for some seconds."""
        views = call(self._java.receive, count_max, self._site.duration(invisible_s))
        return [_message(view) for view in views]

    def receive_all(
        self, count: int, *, timeout_s: float = 120, **options: Any
    ) -> list[GrpcMessage]:
        """Return that many messages.

        Raises:
            TimeoutError: fewer came.
        """
        found: list[GrpcMessage] = []
        deadline = time.monotonic() + timeout_s
        while len(found) < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{len(found)} of {count} messages in {timeout_s} s")
            found += self.receive(**options)
        return found

    def ack(self, messages: Sequence[GrpcMessage]) -> None:
        """Acknowledge messages."""
        for message in messages:
            call(self._java.ack, message.view)

    def change(self, message: GrpcMessage, invisible_s: float) -> None:
        """Change when a message becomes visible again, from now on."""
        call(self._java.changeInvisibleDuration, message.view, self._site.duration(invisible_s))


class GrpcPushConsumer:
    """``MessageListener``: keeps what it is given."""

    class Java:
        implements = ("org.apache.rocketmq.client.apis.consumer.MessageListener",)

    def __init__(self, results: Any, consume: Callable[[GrpcMessage], bool]) -> None:
        self._results = results
        self._consume = consume
        self._changed = threading.Condition()
        self._messages: list[GrpcMessage] = []

    def consume(self, view: Any) -> Any:
        message = _message(view)
        accepted = self._consume(message)
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()
        return self._results.SUCCESS if accepted else self._results.FAILURE

    def wait_count(self, count: int, timeout_s: float = 120) -> list[GrpcMessage]:
        """Wait for that many deliveries, failed ones included.

        Raises:
            TimeoutError: there were fewer.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._messages) >= count, timeout_s):
                raise TimeoutError(f"{len(self._messages)} of {count} deliveries in {timeout_s} s")
            return list(self._messages)


def _message(view: Any) -> GrpcMessage:
    # py4j knows arrays of bytes, but not buffers.
    buffer = view.getBody()
    body = bytes(buffer.get(number) & 0xFF for number in range(buffer.remaining()))
    return GrpcMessage(
        body, str(view.getMessageId().toString()), int(view.getDeliveryAttempt()), view
    )
