"""The official Java producer and consumers, for Python tests (the admin tool: ``java_admin``).

Each object has a client instance of its own (so two of one group are two members of that group),
starts when made, and is a context manager; what a test forgets is shut down with its JVM.
Java exceptions arrive as ``JavaError``, with the response code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, Literal, Self

from tests.interop.java_values import (
    JavaError,
    MessageReader,
    Outgoing,
    QueueKey,
    ReceivedMessage,
    Sent,
    call,
    java_message,
    map_items,
    sent,
)
from tests.interop.jvm import JavaClient
from tests.interop.processes import POLL_INTERVAL_S

DEFAULT_TIMEOUT_S: Final = 120.0
SEND_TIMEOUT_MS: Final = 30_000
#: For routes, heartbeats and locks, instead of three seconds; 4.5.1 has no such setting.
API_TIMEOUT_MS: Final = 30_000
#: Instead of 30 s: a client leaves out a heartbeat while another one is under way, and a broker
#: does not know of what was subscribed to before the next one.
HEARTBEAT_MS: Final = 3_000
BATCH_COUNT_MAX: Final = 16
SETTLE_TIMEOUT_S: Final = 30.0
FROM_FIRST: Final = "CONSUME_FROM_FIRST_OFFSET"

_LISTENERS: Final = "org.apache.rocketmq.client.consumer.listener."


class Started:
    """A Java object with ``start()`` and ``shutdown()``; named once, shut down once."""

    def __init__(self, client: JavaClient, java: Any, name_server: str) -> None:
        self.client = client
        self.java = java
        self._closed = False
        java.setNamesrvAddr(name_server)
        java.setInstanceName(client.instance_name())
        java.setHeartbeatBrokerInterval(HEARTBEAT_MS)
        if client.version != "4.5.1":
            java.setMqClientApiTimeout(API_TIMEOUT_MS)

    def start(self) -> None:
        """Called once, by the constructor of the class that inherits."""
        call(self.java.start)
        self._forget = self.client.on_close(self.close)

    def close(self) -> None:
        """Shut it down as an application would: offsets are stored, the broker is told."""
        if not self._closed:
            self._closed = True
            self._forget()
            call(self.java.shutdown)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class JavaProducer(Started):
    """``DefaultMQProducer``.

    Args:
        options: set on the producer before it starts, by the name of the Java setter without
            ``set``: ``CompressMsgBodyOverHowmuch=100``.
    """

    def __init__(
        self, client: JavaClient, group: str, name_server: str, **options: int | str | bool
    ) -> None:
        java = client.jvm.org.apache.rocketmq.client.producer.DefaultMQProducer(group)
        super().__init__(client, java, name_server)
        java.setSendMsgTimeout(SEND_TIMEOUT_MS)
        _set_options(java, options)
        self.start()

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        queue_id: int | None = None,
    ) -> Sent:
        """Send synchronously; to the queue given, or else to one the producer picks.

        Raises:
            JavaError: the client threw, after its own retries.
        """
        message = self._message(Outgoing(topic, body, tags, keys, properties or {}, delay_level))
        if queue_id is None:
            return sent(call(self.java.send, message))
        return sent(call(self.java.send, message, self._queue(topic, queue_id)))

    def send_async(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Future[Sent]:
        """Send with a ``SendCallback``; the future fails with ``JavaError``."""
        result: Future[Sent] = Future()
        message = self._message(Outgoing(topic, body, tags, keys, properties or {}))
        call(self.java.send, message, _SendCallback(result))
        return result

    def send_oneway(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Send without asking for an answer."""
        message = self._message(Outgoing(topic, body, tags, keys, properties or {}))
        call(self.java.sendOneway, message)

    def send_batch(self, messages: Sequence[Outgoing]) -> Sent:
        """Send all as one batch: of one topic, without delays.

        Raises:
            JavaError: the client threw.
        """
        batch = self.client.array_list([self._message(message) for message in messages])
        return sent(call(self.java.send, batch))

    def _message(self, message: Outgoing) -> Any:
        return java_message(self.client, message)

    def _queue(self, topic: str, queue_id: int) -> Any:
        queues = call(self.java.fetchPublishMessageQueues, topic)
        for queue in queues:
            if queue.getQueueId() == queue_id:
                return queue
        raise ValueError(f"{topic}: no queue {queue_id} among {len(queues)}")


class JavaPushConsumer(Started):
    """``DefaultMQPushConsumer`` whose listener, in Python, keeps what it is given.

    Args:
        expression: tags (``*``, ``a || b``) or, with ``selector="sql"``, an SQL92 condition.
        from_where: name of a ``ConsumeFromWhere``; RocketMQ's own default is
            CONSUME_FROM_LAST_OFFSET.
        listener: ``concurrent`` or ``orderly``.
        fail_first: this many deliveries are answered "later" before the first success. Their
            messages are in ``failed``, not in ``messages``. A delivery is one message then.
        retry_delay_level: wanted for those (1 is one second); 0 leaves it to the broker (10 s).
        batch_count_max: messages per call of the listener.
        options: as for ``JavaProducer``.
    """

    def __init__(
        self,
        client: JavaClient,
        group: str,
        name_server: str,
        topic: str,
        expression: str = "*",
        *,
        selector: Literal["tag", "sql"] = "tag",
        from_where: str = FROM_FIRST,
        listener: Literal["concurrent", "orderly"] = "concurrent",
        message_model: Literal["CLUSTERING", "BROADCASTING"] = "CLUSTERING",
        fail_first: int = 0,
        retry_delay_level: int = 0,
        batch_count_max: int = BATCH_COUNT_MAX,
        **options: int | str | bool,
    ) -> None:
        rocketmq = client.jvm.org.apache.rocketmq
        java = rocketmq.client.consumer.DefaultMQPushConsumer(group)
        super().__init__(client, java, name_server)
        self._topic = topic
        self._changed = threading.Condition()
        self._messages: list[ReceivedMessage] = []
        self._failed: list[ReceivedMessage] = []
        self._fail_left = fail_first
        self._reader = MessageReader(client)
        java.setConsumeMessageBatchMaxSize(1 if fail_first else batch_count_max)
        java.setConsumeFromWhere(_from_where(client, from_where))
        models = client.moved_class(
            before_5="common.protocol.heartbeat.MessageModel",
            since_5="remoting.protocol.heartbeat.MessageModel",
        )
        java.setMessageModel(getattr(models, message_model))
        _set_options(java, options)
        call(java.subscribe, topic, _selected(client, selector, expression))
        if listener == "orderly":
            java.registerMessageListener(_OrderlyListener(client, self._take))
        else:
            java.registerMessageListener(_ConcurrentListener(client, self._take, retry_delay_level))
        self.start()

    @property
    def messages(self) -> list[ReceivedMessage]:
        """What was consumed so far, in the order of arrival."""
        with self._changed:
            return list(self._messages)

    @property
    def failed(self) -> list[ReceivedMessage]:
        """What ``fail_first`` turned away."""
        with self._changed:
            return list(self._failed)

    def wait_count(self, count: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[ReceivedMessage]:
        """Wait for at least ``count`` messages and return all.

        Raises:
            TimeoutError: fewer came; the text says how many.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._messages) >= count, timeout_s):
                raise TimeoutError(
                    f"push consumer {self.client.version}: {len(self._messages)} of {count}"
                    f" messages in {timeout_s} s; JVM wrote:\n{self.client.output()}"
                )
            return list(self._messages)

    def wait_offsets(
        self, total: int, committed: Callable[[], int], timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> None:
        """Wait until the next offsets of the topic's queues add up, at the client and the broker.

        A delivery counts only once the listener has returned; what is closed before does not
        commit it. And a pull carries the offset of its moment: one that the broker handles after
        the closing client's last word takes the group back. So the client is made to tell the
        broker while it still runs, until the broker agrees.

        Args:
            total: what they shall add up to.
            committed: asks the broker what they add up to.
            timeout_s: how long to wait for both.

        Raises:
            TimeoutError: they add up to something else.
        """
        consumer = call(self.java.getDefaultMQPushConsumerImpl)
        store = call(consumer.getOffsetStore)
        package = self.client.jvm.org.apache.rocketmq.client.consumer.store
        in_memory = package.ReadOffsetType.READ_FROM_MEMORY
        queues = list(call(self.java.fetchSubscribeMessageQueues, self._topic))
        deadline = time.monotonic() + timeout_s
        found = told = 0
        while found < total or told != total:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"push consumer {self.client.version}: offsets add up to {found} of {total}"
                    f" at the client and {told} at the broker after {timeout_s} s"
                )
            found = sum(max(0, store.readOffset(at, in_memory)) for at in queues)
            call(consumer.persistConsumerOffset)
            time.sleep(POLL_INTERVAL_S)
            told = committed()

    def close(self) -> None:
        """Shut down after the client has recorded what its listener answered.

        The listener has a message before the client knows that it succeeded; shut down in between,
        it would store an offset below that message. Waits ``SETTLE_TIMEOUT_S`` at most, and not for
        messages that the listener still turns away.
        """
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while not self._closed and not self._fail_left and self._pending_count():
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_INTERVAL_S)
        super().close()

    def queue_count(self, topic: str) -> int:
        """Return how many queues of a topic the client reads now."""
        return sum(str(queue.getTopic()) == topic for queue, _ in self._queues())

    def _pending_count(self) -> int:
        """Return how many messages the client holds, not yet consumed."""
        return sum(int(queue.getMsgCount()) for _, queue in self._queues())  # AtomicLong as int

    def _queues(self) -> list[tuple[Any, Any]]:
        balance = self.java.getDefaultMQPushConsumerImpl().getRebalanceImpl()
        return map_items(balance.getProcessQueueTable())

    def _take(self, java_messages: Sequence[Any]) -> bool:
        """Keep a delivery; False when it shall count as failed."""
        received = self._reader.read(java_messages)
        with self._changed:
            accepted = self._fail_left == 0
            self._fail_left -= not accepted
            (self._messages if accepted else self._failed).extend(received)
            self._changed.notify_all()
        return accepted


class JavaLitePullConsumer(Started):
    """``DefaultLitePullConsumer``; exists from 4.6.0 on (for 4.5.1 see ``JavaPullConsumer``).

    Args:
        mode: ``subscribe`` lets the group share the queues; ``assign`` takes ``queue_ids`` (all
            when ``None``) regardless of the group's other members.
        selector: as for ``JavaPushConsumer``; with ``sql`` in mode ``subscribe`` alone.
    """

    def __init__(
        self,
        client: JavaClient,
        group: str,
        name_server: str,
        topic: str,
        expression: str = "*",
        *,
        mode: Literal["subscribe", "assign"] = "subscribe",
        selector: Literal["tag", "sql"] = "tag",
        queue_ids: Sequence[int] | None = None,
        from_where: str = FROM_FIRST,
        **options: int | str | bool,
    ) -> None:
        java = client.jvm.org.apache.rocketmq.client.consumer.DefaultLitePullConsumer(group)
        super().__init__(client, java, name_server)
        self.topic = topic
        self._reader = MessageReader(client)
        java.setConsumeFromWhere(_from_where(client, from_where))
        _set_options(java, options)
        if mode == "subscribe":
            call(java.subscribe, topic, _selected(client, selector, expression))
        self.start()
        if mode == "assign":
            if expression != "*":
                call(java.setSubExpressionForAssign, topic, expression)
            wanted = [
                queue
                for key, queue in self.queues().items()
                if queue_ids is None or key[1] in queue_ids
            ]
            call(java.assign, client.array_list(wanted))

    def queues(self) -> dict[QueueKey, Any]:
        """Return all queues of the topic, with their Java ``MessageQueue``."""
        return _by_key(call(self.java.fetchMessageQueues, self.topic))

    def poll(self, timeout_s: float = 1.0) -> list[ReceivedMessage]:
        """Return the next messages, possibly none."""
        return self._reader.read(call(self.java.poll, int(timeout_s * 1000)))

    def poll_count(self, count: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[ReceivedMessage]:
        """Poll until there are at least ``count`` messages and return all.

        Raises:
            TimeoutError: fewer came; the text says how many.
        """
        return _poll_until(count, timeout_s, lambda: self.poll(0.5))

    def seek(self, queue: QueueKey, offset: int) -> None:
        """Continue a queue, which must be assigned to us, at a queue offset."""
        call(self.java.seek, self.queues()[queue], offset)

    def offset_at(self, queue: QueueKey, time_ms: int) -> int:
        """Return the queue offset of the first message stored at a time or later."""
        return int(call(self.java.offsetForTimestamp, self.queues()[queue], time_ms))

    def commit(self) -> None:
        """Store the offsets of what was polled, instead of every five seconds."""
        call(self.java.commitSync)

    def committed(self, queue: QueueKey) -> int | None:
        """Return the group's queue offset as this client knows it; ``None`` when it has none.

        The client answers from memory first: where an assigned queue began counts as committed.
        """
        offset = int(call(self.java.committed, self.queues()[queue]))
        return None if offset < 0 else offset


class JavaPullConsumer(Started):
    """``DefaultMQPullConsumer``: the caller names queue and offset. In every version."""

    def __init__(self, client: JavaClient, group: str, name_server: str, topic: str) -> None:
        java = client.jvm.org.apache.rocketmq.client.consumer.DefaultMQPullConsumer(group)
        super().__init__(client, java, name_server)
        self.topic = topic
        self._reader = MessageReader(client)
        self._positions: dict[QueueKey, int] = {}
        self.start()

    def queues(self) -> dict[QueueKey, Any]:
        """Return all queues of the topic, with their Java ``MessageQueue``."""
        return _by_key(call(self.java.fetchSubscribeMessageQueues, self.topic))

    def pull(
        self,
        queue: QueueKey,
        offset: int,
        *,
        expression: str = "*",
        selector: Literal["tag", "sql"] = "tag",
        count_max: int = 32,
    ) -> tuple[str, int, list[ReceivedMessage]]:
        """Pull once, without waiting for new messages.

        Returns:
            The ``PullStatus``'s name, the offset to go on with, the messages.
        """
        selected = _selected(self.client, selector, expression)
        result = call(self.java.pull, self.queues()[queue], selected, offset, count_max)
        found = result.getMsgFoundList()
        messages = [] if found is None else self._reader.read(found)
        return str(result.getPullStatus().toString()), result.getNextBeginOffset(), messages

    def poll_count(self, count: int, timeout_s: float = DEFAULT_TIMEOUT_S) -> list[ReceivedMessage]:
        """Pull all queues in turn, from offset 0, until there are at least ``count`` messages.

        Raises:
            TimeoutError: fewer came; the text says how many.
        """
        return _poll_until(count, timeout_s, self._pull_each)

    def _pull_each(self) -> list[ReceivedMessage]:
        received: list[ReceivedMessage] = []
        for key in self.queues():
            _, position, messages = self.pull(key, self._positions.get(key, 0))
            self._positions[key] = position
            received += messages
        return received


class _SendCallback:
    """``SendCallback`` that settles a future."""

    def __init__(self, result: Future[Sent]) -> None:
        self._result = result

    def onSuccess(self, result: Any) -> None:
        self._result.set_result(sent(result))

    def onException(self, throwable: Any) -> None:
        self._result.set_exception(JavaError.of(throwable))

    class Java:
        implements: Final = ["org.apache.rocketmq.client.producer.SendCallback"]


class _Listener:
    """What Java calls of any object: consumers print their listeners."""

    def toString(self) -> str:
        return type(self).__name__


class _ConcurrentListener(_Listener):
    """``MessageListenerConcurrently``; a Python exception counts as "later", as a Java one."""

    def __init__(
        self, client: JavaClient, take: Callable[[Sequence[Any]], bool], retry_delay_level: int
    ) -> None:
        statuses = client.jvm.org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus
        self._success = statuses.CONSUME_SUCCESS
        self._later = statuses.RECONSUME_LATER
        self._take = take
        self._retry_delay_level = retry_delay_level

    def consumeMessage(self, messages: Sequence[Any], context: Any) -> Any:
        if self._take(messages):
            return self._success
        context.setDelayLevelWhenNextConsume(self._retry_delay_level)
        return self._later

    def toString(self) -> str:
        """Named in the client's report about itself."""
        return type(self).__name__

    class Java:
        implements: Final = [_LISTENERS + "MessageListenerConcurrently"]


class _OrderlyListener(_Listener):
    """``MessageListenerOrderly``; a failed delivery comes again after a second."""

    def __init__(self, client: JavaClient, take: Callable[[Sequence[Any]], bool]) -> None:
        statuses = client.jvm.org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus
        self._success = statuses.SUCCESS
        self._later = statuses.SUSPEND_CURRENT_QUEUE_A_MOMENT
        self._take = take

    def consumeMessage(self, messages: Sequence[Any], context: Any) -> Any:
        return self._success if self._take(messages) else self._later

    def toString(self) -> str:
        """Named in the client's report about itself."""
        return type(self).__name__

    class Java:
        implements: Final = [_LISTENERS + "MessageListenerOrderly"]


def _selected(client: JavaClient, selector: Literal["tag", "sql"], expression: str) -> Any:
    if selector == "tag":
        return expression
    return client.jvm.org.apache.rocketmq.client.consumer.MessageSelector.bySql(expression)


def _set_options(java: Any, options: Mapping[str, int | str | bool]) -> None:
    for name, value in options.items():
        call(getattr(java, "set" + name), value)


def _from_where(client: JavaClient, name: str) -> Any:
    return getattr(client.jvm.org.apache.rocketmq.common.consumer.ConsumeFromWhere, name)


def _by_key(queues: Any) -> dict[QueueKey, Any]:
    return {(queue.getBrokerName(), queue.getQueueId()): queue for queue in queues}


def _poll_until(
    count: int, timeout_s: float, poll: Callable[[], list[ReceivedMessage]]
) -> list[ReceivedMessage]:
    deadline = time.monotonic() + timeout_s
    received: list[ReceivedMessage] = []
    while len(received) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(received)} of {count} messages in {timeout_s} s")
        received += poll()
    return received
