"""The clients behind a connection of Kombu, and which topic a queue is."""

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from kombu.exceptions import ChannelError

from pymq import blocking
from pymq.client.checks import SECONDS_MAX, check_seconds
from pymq.client.cluster.network import PLAIN
from pymq.errors import BrokersFailed, ConfigurationError, PymqError, RouteNotFound

#: As Kombu's other transports have it for brokers that hide messages.
VISIBILITY_TIMEOUT_S = 1800
GROUP = "kombu"
QUEUE_COUNT = 4
WAIT_S = 0.2
TIMEOUT_S = 3.0
#: When brokers that did not answer are asked again to create topic and group.
CREATE_AGAIN_S = 30.0
_ILLEGAL = re.compile(r"[^%|a-zA-Z0-9_-]")


class Clients:
    """The clients of one connection of Kombu. For one thread at a time, as Kombu has it.

    Args:
        options: the transport's.
        name_servers: of its URL.
    """

    def __init__(self, options: dict[str, Any], name_servers: str) -> None:
        self._name_servers = options.get("name_servers", name_servers)
        self._network = options.get("network", PLAIN)
        self.group = str(options.get("group", GROUP))
        self.visibility_timeout_s = _visibility_timeout_s(options)
        self.wait_s = float(options.get("wait_time_seconds", WAIT_S))
        self._timeout_s = float(options.get("request_timeout", TIMEOUT_S))
        self._queue_count = int(options.get("queue_count", QUEUE_COUNT))
        self._prefix = str(options.get("topic_prefix", ""))
        self._producer: blocking.Producer | None = None
        self._admin: blocking.Admin | None = None
        self._consumers: dict[str, blocking.SimpleConsumer] = {}
        #: Topic -> the queue that it is, of those that were declared or sent to.
        self._queues: dict[str, str] = {}
        #: Topic -> until when nothing is to be done for it, monotonic.
        self._known: dict[str, float] = {}
        self._unfinished: set[str] = set()

    def topic(self, queue: str) -> str:
        """Return the topic that is a queue.

        Raises:
            ChannelError: another queue of this connection is that topic.
        """
        topic = self._name(queue)
        first = self._queues.get(topic, queue)
        if first != queue:
            raise ChannelError(
                f"queue {queue!r} would be topic {topic!r}, as queue {first!r} is: names of topics "
                "have letters, digits, '-', '_', '%' and '|' only, and all else becomes '-'; give "
                "one of the queues another name"
            )
        return topic

    def declare(self, queue: str) -> str:
        """Return the topic that is a queue from now on; it is created if it is not there.

        Raises:
            ChannelError: another queue of this connection is that topic.
            PymqError: see ``create``.
        """
        topic = self.topic(queue)
        self.create(topic)
        self._queues[topic] = queue
        return topic

    def forget(self, queue: str) -> None:
        """Leave a topic to other queues; a connection may use many queues, each for a while."""
        topic = self._name(queue)
        if self._queues.get(topic, queue) != queue:
            return
        self._queues.pop(topic, None)
        self._known.pop(topic, None)
        self._close_consumer(topic)

    def _name(self, queue: str) -> str:
        return _ILLEGAL.sub("-", self._prefix + queue)

    @property
    def producer(self) -> blocking.Producer:
        """Sends messages; opened when first used."""
        if self._producer is None:
            producer = blocking.Producer(
                self._name_servers, timeout_s=self._timeout_s, network=self._network
            )
            self._producer = producer.start()
        return self._producer

    @property
    def admin(self) -> blocking.Admin:
        """Creates topics; opened when first used."""
        if self._admin is None:
            admin = blocking.Admin(
                self._name_servers, timeout_s=self._timeout_s, network=self._network
            )
            self._admin = admin.start()
        return self._admin

    def consumer(self, topic: str) -> blocking.SimpleConsumer:
        """Return what takes messages of a topic; opened when first used."""
        if topic not in self._consumers:
            consumer = blocking.SimpleConsumer(
                self._name_servers,
                self.group,
                from_where="earliest",
                timeout_s=self._timeout_s,
                network=self._network,
            )
            self._consumers[topic] = consumer.subscribe(topic).start()
        return self._consumers[topic]

    @contextlib.contextmanager
    def settling(self, topic: str) -> Iterator[blocking.SimpleConsumer]:
        """Yield what settles a message that was taken; of a topic that is left, for that only."""
        is_left = topic not in self._consumers
        try:
            yield self.consumer(topic)
        finally:
            if is_left:
                self._close_consumer(topic)

    def _close_consumer(self, topic: str) -> None:
        if (consumer := self._consumers.pop(topic, None)) is not None:
            with contextlib.suppress(PymqError):
                consumer.close()

    def create(self, topic: str) -> None:
        """Create a topic that is not there, and the group, where brokers answer.

        Those that do not, while others do, are asked again from time to time.

        Raises:
            PymqError: that cannot be found out, or no broker does it.
        """
        if self._known.get(topic, -math.inf) > time.monotonic():
            return
        is_whole = self._create_topic(topic) and self._create_group()
        self._known[topic] = math.inf if is_whole else time.monotonic() + CREATE_AGAIN_S

    def _create_topic(self, topic: str) -> bool:
        try:
            self.admin.topics.route(topic)
        except RouteNotFound:
            self._unfinished.add(topic)
        if topic in self._unfinished:
            if not _done(lambda: self.admin.topics.create(topic, queue_count=self._queue_count)):
                return False
            self._unfinished.discard(topic)
        return True

    def _create_group(self) -> bool:
        try:
            names = set(self.admin.groups.names())
        except BrokersFailed as error:
            if not error.answers:
                raise
            return False  # Brokers create the group themselves when its first consumer comes.
        return self.group in names or _done(lambda: self.admin.groups.create(self.group))

    def close(self) -> None:
        """Close what was opened. Idempotent."""
        opened = [self._producer, self._admin, *self._consumers.values()]
        self._producer = self._admin = None
        self._consumers.clear()
        for client in opened:
            if client is not None:
                with contextlib.suppress(PymqError):
                    client.close()


def _visibility_timeout_s(options: dict[str, Any]) -> float:
    value = options.get("visibility_timeout", VISIBILITY_TIMEOUT_S)
    try:
        seconds = float(value)
        check_seconds("visibility_timeout", seconds)
    except (TypeError, ValueError, ConfigurationError) as error:
        raise ConfigurationError(
            f"visibility_timeout={value!r:.80}: expected seconds, 0 < s < {SECONDS_MAX}"
        ) from error
    return seconds


def _done(change: Callable[[], object]) -> bool:
    """Change something on all brokers; return whether all have done it.

    Raises:
        PymqError: none has.
    """
    try:
        change()
    except BrokersFailed as error:
        if not error.answers:
            raise
        return False
    return True
