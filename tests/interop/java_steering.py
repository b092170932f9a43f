"""Requests with replies, and what administrators do with running consumers, in official clients."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from tests.interop.java_admin import JavaAdmin
from tests.interop.java_client import JavaProducer, JavaPushConsumer
from tests.interop.java_values import JavaError, Outgoing, QueueKey, call, java_message, map_items
from tests.interop.jvm import JavaClient

SYSTEM_ERROR: Final = 1


class JavaRequester(JavaProducer):
    """``DefaultMQProducer`` that asks and waits for replies; from 4.6.0 on."""

    def request(
        self, topic: str, body: bytes, timeout_s: float = 90.0
    ) -> tuple[bytes, dict[str, str]]:
        """Ask; return body and properties of the reply.

        With a callback: in 5.3.3 the form that waits returns as soon as the request is stored.

        Raises:
            JavaError: no reply came in time.
        """
        message = java_message(self.client, Outgoing(topic, body))
        reply: Future[tuple[bytes, dict[str, str]]] = Future()
        call(self.java.request, message, _RequestCallback(reply), int(timeout_s * 1000))
        return reply.result(timeout_s + 10)


class _RequestCallback:
    """``RequestCallback`` that settles a future."""

    def __init__(self, reply: Future[tuple[bytes, dict[str, str]]]) -> None:
        self._reply = reply

    def onSuccess(self, message: Any) -> None:
        if message is not None:  # 5.3.3 calls it once for the request, too
            properties = dict(map_items(message.getProperties()))
            self._reply.set_result((bytes(message.getBody()), properties))

    def onException(self, throwable: Any) -> None:
        self._reply.set_exception(JavaError.of(throwable))

    class Java:
        implements: Final = ["org.apache.rocketmq.client.producer.RequestCallback"]


class JavaResponder(JavaPushConsumer):
    """A push consumer that replies to each message with its body, twice."""

    def __init__(
        self, client: JavaClient, group: str, name_server: str, topic: str, **options: Any
    ) -> None:
        self._producer = JavaProducer(client, f"replies-{group}", name_server, **options)
        self._utility = client.jvm.org.apache.rocketmq.client.utils.MessageUtil
        #: What the producer threw.
        self.errors: list[Exception] = []
        super().__init__(client, group, name_server, topic)

    def _take(self, java_messages: Sequence[Any]) -> bool:
        for message in java_messages:
            try:
                body = bytes(message.getBody()) * 2
                reply = call(self._utility.createReplyMessage, message, body)
                call(self._producer.java.send, reply)
            except Exception as error:
                self.errors.append(error)
        return super()._take(java_messages)

    def close(self) -> None:
        """Shut consumer and producer down."""
        super().close()
        self._producer.close()


@dataclass(frozen=True, slots=True)
class RunningInfo:
    """Java ``ConsumerRunningInfo``.

    Attributes:
        offsets: (topic, queue) -> queue offset that is committed next.
        subscriptions: topics.
        properties: as Java calls them, ``PROP_CLIENT_VERSION``.
        stacks: of the consumer's threads, if they were asked for.
    """

    offsets: dict[tuple[str, QueueKey], int]
    subscriptions: set[str]
    properties: dict[str, str]
    stacks: str | None


class JavaSteering:
    """What the official admin tool does with running consumers."""

    def __init__(self, admin: JavaAdmin) -> None:
        self._admin = admin
        self._java = admin.java

    def client_ids(self, group: str) -> list[str]:
        """Return the members of a consumer group, as the broker lists them."""
        found = call(self._java.examineConsumerConnectionInfo, group)
        return sorted(one.getClientId() for one in found.getConnectionSet())

    def producer_ids(self, group: str, topic: str) -> list[str]:
        """Return the members of a producer group, as the broker lists them; it may be empty."""
        try:
            found = call(self._java.examineProducerConnectionInfo, group, topic)
        except JavaError as error:
            if error.response_code == SYSTEM_ERROR:
                return []
            raise
        return sorted(one.getClientId() for one in found.getConnectionSet())

    def running_info(self, group: str, client_id: str, *, stacks: bool = False) -> RunningInfo:
        """Return what a consumer says of itself."""
        found = call(self._java.getConsumerRunningInfo, group, client_id, stacks)
        return RunningInfo(
            offsets={
                (queue.getTopic(), _key(queue)): at.getCommitOffset()
                for queue, at in map_items(found.getMqTable())
            },
            subscriptions={one.getTopic() for one in found.getSubscriptionSet()},
            properties=dict(map_items(found.getProperties())),
            stacks=found.getJstack(),
        )

    def consume_directly(self, group: str, client_id: str, topic: str, message_id: str) -> str:
        """Have a consumer consume one message; return what it made of it: ``CR_SUCCESS``."""
        arguments = [group, client_id, topic, message_id]
        if self._admin.client.version.startswith("4.5"):
            arguments.remove(topic)
        result = call(self._java.consumeMessageDirectly, *arguments)
        return str(result.getConsumeResult().toString())

    def status(self, topic: str, group: str, client_id: str = "") -> dict[str, dict[QueueKey, int]]:
        """Return client id -> queue -> queue offset that is committed next."""
        found = call(self._java.getConsumeStatus, topic, group, client_id)
        return {
            name: {_key(queue): offset for queue, offset in map_items(queues)}
            for name, queues in map_items(found)
        }

    def reset(self, topic: str, group: str, time_ms: int) -> dict[QueueKey, int]:
        """Set a group back, or forward, to a time; return its new queue offsets."""
        found = call(self._java.resetOffsetByTimestamp, topic, group, time_ms, True)
        return {_key(queue): offset for queue, offset in map_items(found)}

    def clone(self, source: str, target: str, topic: str) -> None:
        """Put a group where another one is."""
        call(self._java.cloneGroupOffset, source, target, topic, True)


def _key(queue: Any) -> QueueKey:
    return queue.getBrokerName(), queue.getQueueId()
