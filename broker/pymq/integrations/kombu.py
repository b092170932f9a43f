"""A Kombu transport, and with it a broker for Celery: ``pip install 'pymq-rocketmq[kombu]'``.

::

    import pymq.integrations.kombu                        # makes pymq:// known
    app = Celery("shop", broker="pymq://127.0.0.1:9876")

A queue of Kombu is a topic. All workers of a queue are one consumer group, whose messages are taken
with POP (so brokers are of pymq, or RocketMQ 5): each is acknowledged by itself, and one that is
not, because its worker has died, comes to another worker after ``visibility_timeout``. A task that
takes longer comes again meanwhile, and so does one that waits for its ``eta`` in a worker. What
came more often than the group retries (``retry_max_times``, 16) is a dead letter of the group.

``broker_transport_options``:

* ``visibility_timeout``: s, less than 86,400; 1800 by default.
* ``group``: the consumer group, ``kombu`` by default.
* ``queue_count``: queues of topics that are created, on each broker; 4 by default.
* ``topic_prefix``: in front of the names of queues; none by default.
* ``name_servers``: in place of the host and port of the URL, such as ``"a:9876;b:9876"``.
* ``wait_time_seconds``: how long a look for a message waits; 0.2 by default.
* ``request_timeout``: s that an answer may take; 3 by default.
* ``network``: a ``pymq.Network``.

Characters that names of topics cannot have become ``-``; a second queue of a connection that would
be the topic of another one is refused, until that is deleted. Exchanges and bindings are known only
to the process that declares them, as with other virtual transports. Fanout exchanges are refused,
so Celery's workers have no remote control and no events; bind queues to a topic exchange with the
routing key ``#`` instead. Messages have no priority.
"""

import contextlib
import logging
import time
from queue import Empty
from typing import Any

from pymq import extras
from pymq.errors import (
    BrokersFailed,
    ClientMisplaced,
    ConfigurationError,
    PymqError,
    RouteNotFound,
)
from pymq.protocol.message import Message, ReceivedMessage

extras.require("kombu", by="pymq.integrations.kombu")

from amqp.protocol import queue_declare_ok_t  # type: ignore[import-untyped]  # noqa: E402
from kombu.exceptions import ChannelError  # noqa: E402
from kombu.transport import TRANSPORT_ALIASES, virtual  # noqa: E402
from kombu.utils.encoding import bytes_to_str  # noqa: E402
from kombu.utils.json import dumps, loads  # noqa: E402
from kombu.utils.uuid import uuid  # noqa: E402

from pymq.integrations.kombu_clients import Clients  # noqa: E402

__all__ = ["Channel", "Transport"]

_log = logging.getLogger(__name__)

PORT = 9876
#: A message that is put back is visible again after this: 0 is not a time brokers take.
PUT_BACK_S = 1.0


class QoS(virtual.QoS):
    """Acknowledges messages, each by itself."""

    def ack(self, delivery_tag: str) -> None:
        """Give its place free, once: two acknowledgements would give that of another one, too."""
        if delivery_tag in self._delivered:
            super().ack(delivery_tag)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give up a message, or have it handed out again."""
        if requeue:
            self.channel.put_back(delivery_tag)
            self.ack(delivery_tag)
        else:  # As with other virtual transports: it is dropped.
            try:
                self.channel.acknowledge(delivery_tag)
            finally:
                self.ack(delivery_tag)

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Have the messages that were not acknowledged handed out again, soon."""
        self._flush()
        for delivery_tag in list(self._delivered):
            self.channel.put_back(delivery_tag)
        self._delivered.clear()


class Channel(virtual.Channel):
    """A channel: queues are topics, and messages are popped."""

    QoS = QoS
    do_restore = False

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        #: Messages that were handed out, without bodies, their topics, and when they come again
        #: (monotonic), by delivery tag.
        self._taken: dict[str, tuple[ReceivedMessage, str, float]] = {}
        super().__init__(connection, **kwargs)

    @property
    def clients(self) -> Clients:
        """Of the connection."""
        clients: Clients = self.connection.clients
        return clients

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message.

        Raises:
            PymqError: its broker does not do it; it may come again.
        """
        try:
            self.acknowledge(delivery_tag)
        finally:  # or it would keep one of the places that ``prefetch_count`` gives
            super().basic_ack(delivery_tag)

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return a message, or ``None``; without acknowledgements it is finished when it comes.

        Raises:
            PymqError: without acknowledgements, and its broker does not do it; it comes again.
        """
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if no_ack and message is not None:
            self._finish(message.delivery_tag)
        return message

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        """Consume from a queue; without acknowledgements a message is finished when it comes."""
        self._new_queue(queue)

        def acknowledged(message: Any) -> Any:
            if no_ack:
                self._finish(message.delivery_tag)
            return callback(message)

        super().basic_consume(queue, no_ack, acknowledged, consumer_tag, **kwargs)

    def acknowledge(self, delivery_tag: str) -> None:
        """Tell the broker that a message is finished.

        Raises:
            PymqError: it does not do it, and may be told again.
        """
        if (taken := self._taken.get(delivery_tag)) is not None:
            message, topic, _ = taken
            try:
                with self.clients.settling(topic) as consumer:
                    consumer.ack(message)
            except PymqError:
                self._forget_late()
                raise
            self._taken.pop(delivery_tag, None)

    def _forget_late(self) -> None:
        """Forget what was not acknowledged, will not be in hand any more, and comes again."""
        now_s = time.monotonic()
        for tag, (_, _, until_s) in list(self._taken.items()):
            if until_s < now_s and tag not in self.qos._delivered:
                del self._taken[tag]

    def _finish(self, delivery_tag: str) -> None:
        """Acknowledge a message that nobody can acknowledge again if that fails."""
        try:
            self.acknowledge(delivery_tag)
        finally:
            self._taken.pop(delivery_tag, None)

    def put_back(self, delivery_tag: str) -> None:
        """Have a message handed out again soon; if that fails, after its time."""
        if (taken := self._taken.pop(delivery_tag, None)) is not None:
            message, topic, _ = taken
            with contextlib.suppress(PymqError), self.clients.settling(topic) as consumer:
                consumer.change_invisible(message, PUT_BACK_S)

    def exchange_declare(
        self, exchange: Any = None, type: Any = "direct", *args: Any, **kwargs: Any
    ) -> None:
        """Declare an exchange, for this process.

        Raises:
            ChannelError: it is a fanout exchange; a virtual channel would drop its messages.
        """
        if type == "fanout":
            raise ChannelError(
                f"exchange {exchange!r}: pymq:// has no fanout exchanges, which Celery's remote "
                "control needs, too; declare a topic exchange and bind each queue with the routing "
                "key '#', or let each reader have a group of its own, with pymq.Consumer"
            )
        super().exchange_declare(exchange, type, *args, **kwargs)

    def queue_declare(self, queue: Any = None, passive: Any = False, **kwargs: Any) -> Any:
        """Declare a queue; how many messages it has is told if all brokers answer, or else 0.

        Raises:
            ChannelError: ``passive``, and it is not there.
            PymqError: no broker answers, or ``passive``, and not all do.
        """
        queue = queue or f"amq.gen-{uuid()}"
        try:
            return super().queue_declare(queue, passive, **kwargs)
        except BrokersFailed as error:
            if passive or not error.answers:
                raise
            return queue_declare_ok_t(queue, 0, 0)

    def queue_delete(
        self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any
    ) -> None:
        """Forget a queue; its topic is kept, with what is in it, because others may use it.

        Raises:
            PymqError: ``if_empty``, and not all brokers say how many messages it has.
        """
        if if_empty and self._size(queue):
            return
        super().queue_delete(queue, if_unused, **kwargs)
        self.clients.forget(queue)

    # --- called by virtual.Channel

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        topic = self.clients.declare(queue)
        properties = message.get("properties", {})
        keys = [str(properties["correlation_id"])] if properties.get("correlation_id") else []
        self.clients.producer.send(Message(topic, dumps(message).encode(), keys=keys))

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        clients = self.clients
        topic = clients.topic(queue)
        clients.create(topic)
        found = clients.consumer(topic).receive(
            1, clients.visibility_timeout_s, timeout_s=clients.wait_s
        )
        if not found:
            raise Empty
        tag = uuid()  # One that comes again is another delivery.
        payload = self._payload(found[0], tag)
        found[0].body = b""
        self._taken[tag] = found[0], topic, time.monotonic() + clients.visibility_timeout_s
        return payload

    def _payload(self, message: ReceivedMessage, delivery_tag: str) -> dict[str, Any]:
        """Return what Kombu has sent.

        Raises:
            Empty: somebody else has sent this. Another error would end the worker, and each one
                that comes to the message after it.
        """
        try:
            payload: dict[str, Any] = loads(bytes_to_str(message.body))
            properties = payload["properties"]
            properties["delivery_tag"] = delivery_tag
            if message.reconsume_times:
                properties.setdefault("delivery_info", {})["redelivered"] = True
            self.Message(payload, channel=self)  # As will be done with it.
        except Exception as error:  # Whatever may be wrong with what somebody else has sent.
            _log.error(
                "message %s of topic %r (%s:%d, offset %d) is not of Kombu (%r), and is passed "
                "over; it comes again after visibility_timeout, and is a dead letter of the group "
                "in the end",
                message.message_id,
                message.topic,
                message.broker_name,
                message.queue_id,
                message.queue_offset,
                error,
            )
            raise Empty from None
        return payload

    def _new_queue(self, queue: str, **_: Any) -> None:
        self.clients.declare(queue)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        try:
            self.clients.admin.topics.route(self.clients.topic(queue))
        except RouteNotFound:
            return False
        return True

    def _size(self, queue: str) -> int:
        lags = self.clients.admin.offsets.lag(self.clients.group, self.clients.topic(queue))
        return sum(one.lag for one in lags)

    def _purge(self, queue: str) -> int:
        count = 0
        consumer = self.clients.consumer(self.clients.topic(queue))
        while found := consumer.receive(32, self.clients.visibility_timeout_s, timeout_s=0):
            for message in found:
                consumer.ack(message)
            count += len(found)
        return count

    def _delete(self, queue: str, *_: Any, **__: Any) -> None:
        """Called for each binding; see ``queue_delete``."""


class Transport(virtual.Transport):
    """The transport of ``pymq://host:port``."""

    Channel = Channel
    default_port: Any = PORT
    #: A look for a message waits by itself.
    polling_interval = 0.0
    driver_type = "pymq"
    driver_name = "pymq"
    connection_errors: Any = (*virtual.Transport.connection_errors, PymqError)
    channel_errors: Any = (*virtual.Transport.channel_errors, ConfigurationError, ClientMisplaced)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        host = f"{client.hostname or '127.0.0.1'}:{client.port or PORT}"
        self.clients = Clients(client.transport_options, host)

    def driver_version(self) -> str:
        """The version of the driver, for Kombu."""
        from importlib.metadata import version

        return version("pymq-rocketmq")

    def verify_connection(self, connection: Any) -> bool:
        """Say whether the connection is of use."""
        return True

    def establish_connection(self) -> Any:
        """Reach a name server.

        Raises:
            ConnectionFailed: none answers.
        """
        assert self.clients.producer
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Close all channels and clients."""
        super().close_connection(connection)
        self.clients.close()


TRANSPORT_ALIASES["pymq"] = f"{__name__}:Transport"
