"""The blocking face of SimpleConsumer, for scripts and threads."""

from typing import Any, Self

from pymq.client.pulling import simple_consumer as _simple_consumer
from pymq.client.threaded.blocking_face import blocking, constructor
from pymq.client.threaded.threaded_client import Threaded

_Asyncio = _simple_consumer.SimpleConsumer


class SimpleConsumer(Threaded[_simple_consumer.SimpleConsumer]):
    """``pymq.client.pulling.simple_consumer.SimpleConsumer``, blocking; takes the same arguments.

    ::

        with SimpleConsumer("127.0.0.1:9876", "billing").subscribe("orders") as consumer:
            for message in consumer.receive(16, invisible_s=60):
                book(message.body)
                consumer.ack(message)
    """

    @constructor(_simple_consumer.SimpleConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: _simple_consumer.SimpleConsumer(*args, **kwargs))

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> Self:
        """See the asyncio SimpleConsumer."""
        self._set(topic, lambda client: client.subscribe(topic, tags, sql=sql))
        return self

    def unsubscribe(self, topic: str) -> None:
        """See the asyncio SimpleConsumer."""
        self._set(topic, lambda client: client.unsubscribe(topic))

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._client.group

    @property
    def client_id(self) -> str:
        """Who we are to the brokers."""
        return self._client.client_id

    def start(self) -> Self:
        """See the asyncio SimpleConsumer."""
        self._start(self._client.start, "pymq simple consumer")
        return self

    def close(self) -> None:
        """See the asyncio SimpleConsumer."""
        self._stop(lambda client: client.close())

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    receive = blocking(_Asyncio.receive)
    ack = blocking(_Asyncio.ack)
    change_invisible = blocking(_Asyncio.change_invisible)
