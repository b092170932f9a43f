"""A FastStream broker: ``pip install 'pymq-rocketmq[faststream]'``.

::

    broker = RocketBroker("127.0.0.1:9876")
    app = FastStream(broker)

    @broker.subscriber("orders", "shipping")
    @broker.publisher("parcels")
    async def ship(order: Order) -> Parcel: ...

A subscriber is a member of a consumer group, with a ``Consumer`` of its own. A handler that raises
has its message delivered again, later after each try, and in the end it is a dead letter
(``AckPolicy.NACK_ON_ERROR``; other policies are FastStream's). Headers are properties of messages.
"""

import logging
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

from pymq import extras
from pymq.client.cluster.network import PLAIN, Network
from pymq.client.sending.producer import Producer
from pymq.errors import ClientClosed, ConnectionFailed, PymqError, RequestTimeout
from pymq.protocol.names import DEFAULT_PRODUCER_GROUP, DEFAULT_TOPIC

extras.require("faststream", by="pymq.integrations.faststream")

from fast_depends import dependency_provider  # noqa: E402
from faststream import Context  # noqa: E402
from faststream._internal.broker import BrokerUsecase  # noqa: E402
from faststream._internal.broker.registrator import Registrator  # noqa: E402
from faststream._internal.broker.router import BrokerRouter  # noqa: E402
from faststream._internal.context.repository import ContextRepo  # noqa: E402
from faststream._internal.di import FastDependsConfig  # noqa: E402
from faststream._internal.endpoint.subscriber.call_item import CallsCollection  # noqa: E402
from faststream._internal.logger import make_logger_state  # noqa: E402
from faststream.middlewares import AckPolicy  # noqa: E402
from faststream.response.publish_type import PublishType  # noqa: E402
from faststream.specification.schema import BrokerSpec  # noqa: E402

from pymq.integrations.faststream_endpoints import (  # noqa: E402
    Loggers,
    PublisherConfig,
    PublisherSchema,
    PublisherSchemaConfig,
    RocketConfig,
    RocketPublisher,
    RocketSubscriber,
    SubscriberConfig,
    SubscriberSchema,
    SubscriberSchemaConfig,
)
from pymq.integrations.faststream_messages import (  # noqa: E402
    NOT_GIVEN,
    RocketCommand,
    RocketMessage,
    RocketProducer,
    RocketResponse,
)

__all__ = ["CurrentMessage", "RocketBroker", "RocketMessage", "RocketResponse", "RocketRouter"]

#: The type of an argument of handlers in which they get the message itself.
CurrentMessage = Annotated[RocketMessage, Context("message")]


class _Endpoints(Registrator[Any, Any]):
    """What brokers and routers have in common: subscribers and publishers."""

    def subscriber(  # type: ignore[override]
        self,
        topic: str,
        group: str,
        *,
        tags: str = "*",
        max_workers: int = 1,
        ack_policy: AckPolicy = NOT_GIVEN,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
        **options: Any,
    ) -> RocketSubscriber:
        """Return a decorator of handlers, which get the messages of a topic.

        Args:
            topic: which.
            group: consumer group; its members share the messages.
            tags: ``*``, or the tags wanted, joined by ``||``.
            max_workers: messages that are handled at a time.
            ack_policy: what becomes of messages; by default one is delivered again when its
                handler raises.
            no_reply: answer no requests.
            dependencies, parser, decoder, codec, persistent, title, description,
                include_in_schema: as with FastStream's other brokers.
            options: further arguments of ``pymq.Consumer``, such as ``orderly=True`` or
                ``from_where="earliest"``.
        """
        config = SubscriberConfig(
            topic=topic,
            group=group,
            tags=tags,
            max_workers=max_workers,
            options=options,
            no_reply=no_reply,
            _outer_config=self.config,  # type: ignore[arg-type]  # composed of routers' ones
            _ack_policy=ack_policy,
        )
        calls = CallsCollection[Any]()
        schema = SubscriberSchemaConfig(
            topic=topic, title_=title, description_=description, include_in_schema=include_in_schema
        )
        described = SubscriberSchema(self.config, schema, calls)  # type: ignore[arg-type]
        found = RocketSubscriber(config, described, calls)
        super().subscriber(found, persistent=persistent)
        return found.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]
        self,
        topic: str,
        *,
        headers: dict[str, str] | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
        **options: Any,
    ) -> RocketPublisher:
        """Return what sends to a topic; as a decorator it sends what a handler returns.

        Args:
            topic: which.
            headers: of all messages.
            persistent, title, description, schema, include_in_schema: as with FastStream's other
                brokers.
            options: further arguments of ``pymq.Message``: ``tags``, ``keys``, ``delay_s``.
        """
        config = PublisherConfig(
            topic=topic,
            headers=headers or {},
            options=options,
            _outer_config=self.config,  # type: ignore[arg-type]
        )
        described = PublisherSchemaConfig(
            topic=topic,
            title_=title,
            description_=description,
            schema_=schema,
            include_in_schema=include_in_schema,
        )
        specification = PublisherSchema(self.config, described)  # type: ignore[arg-type]
        found = RocketPublisher(config, specification)
        super().publisher(found, persistent=persistent)
        return found


class RocketRouter(_Endpoints, BrokerRouter[Any, Any]):
    """Subscribers and publishers that a broker includes later.

    Args:
        prefix: in front of their topics.
        handlers, dependencies, middlewares, routers, parser, decoder, include_in_schema,
            ack_policy: as with FastStream's other routers.
    """

    def __init__(
        self,
        prefix: str = "",
        handlers: Iterable[Any] = (),
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        include_in_schema: bool | None = None,
        ack_policy: AckPolicy = NOT_GIVEN,
    ) -> None:
        super().__init__(
            handlers=handlers,
            config=RocketConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
            routers=routers,
        )


class RocketBroker(_Endpoints, BrokerUsecase[Any, Producer, Any]):
    """RocketMQ for FastStream.

    Args:
        name_servers: ``host:port``, several separated by ``;`` or ``,`` or as a list. ``None``:
            what ``NAMESRV_ADDR`` says.
        group: producer group.
        network: where brokers are reached, and who we say we are.
        producer_options: further arguments of ``pymq.Producer``.
        decoder, parser, codec, dependencies, middlewares, routers, ack_policy, graceful_timeout,
            logger, log_level, apply_types, serializer, context, provider, description, tags,
            security: as with FastStream's other brokers.
    """

    def __init__(
        self,
        name_servers: str | Sequence[str] | None = None,
        *,
        group: str = DEFAULT_PRODUCER_GROUP,
        network: Network = PLAIN,
        producer_options: dict[str, Any] | None = None,
        decoder: Any = None,
        parser: Any = None,
        codec: Any = None,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[Any] = (),
        ack_policy: AckPolicy = NOT_GIVEN,
        graceful_timeout: float | None = 15.0,
        logger: Any = NOT_GIVEN,
        log_level: int = logging.INFO,
        apply_types: bool = True,
        serializer: Any = NOT_GIVEN,
        context: ContextRepo | None = None,
        provider: Any = None,
        description: str | None = None,
        tags: Iterable[Any] = (),
        security: Any = None,
    ) -> None:
        url = name_servers if isinstance(name_servers, str) else ",".join(name_servers or ())
        super().__init__(
            name_servers=name_servers,
            group=group,
            network=network,
            **(producer_options or {}),
            routers=routers,
            config=RocketConfig(
                name_servers=name_servers,
                network=network,
                producer=RocketProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                logger=make_logger_state(
                    logger=logger, log_level=log_level, default_storage_cls=Loggers
                ),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                description=description,
                url=[url],
                protocol="rocketmq",
                protocol_version="1.0",
                tags=tags,
                security=security,
            ),
        )

    async def _connect(self) -> Producer:
        producer = await Producer(**self._connection_kwargs).start()
        config = self.config.broker_config
        config.producer.connect(producer, config.fd_config._serializer, config.broker_codec)
        return producer

    async def start(self) -> None:
        """Connect, and begin to consume.

        Raises:
            ConnectionFailed: no name server answers.
        """
        await self.connect()
        await super().start()

    async def stop(self, *error: Any) -> None:
        """Stop consuming, once handlers have finished; send what is in flight, and disconnect."""
        try:
            await super().stop(*error)
        finally:
            producer, self._connection = self._connection, None
            if producer is not None:
                await producer.close()
            self.config.broker_config.producer.disconnect()

    async def ping(self, timeout: float | None = None) -> bool:
        """Say whether a name server answers."""
        if self._connection is None:
            return False
        try:
            await self._connection.queues(DEFAULT_TOPIC)
        except (ClientClosed, ConnectionFailed, RequestTimeout):
            return False
        except PymqError:
            pass  # Whatever else it says, it answers.
        return True

    def _command(self, body: Any, topic: str, kind: PublishType, **fields: Any) -> RocketCommand:
        fields["correlation_id"] = fields.get("correlation_id") or self.config.id_generator()
        return RocketCommand(body, publish_type=kind, destination=topic, **fields)

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        sharding_key: str | None = None,
        reply_to: str = "",
        **options: Any,
    ) -> Any:
        """Send a message; returns its receipt.

        Args:
            message: the body; encoded by FastStream.
            topic: where to.
            headers: become properties.
            correlation_id: by default a new one.
            sharding_key: messages of one key stay in order.
            reply_to: the topic in which its handler's result is wanted.
            options: further arguments of ``pymq.Message``: ``tags``, ``keys``, ``delay_s``.

        Raises:
            PymqError: it was not sent, or may have been; see ``pymq.Producer.send``.
        """
        command = self._command(
            message,
            topic,
            PublishType.PUBLISH,
            headers=headers,
            correlation_id=correlation_id,
            sharding_key=sharding_key,
            reply_to=reply_to,
            options=options,
        )
        return await self._basic_publish(command, producer=self._producer)

    async def publish_batch(  # type: ignore[override]
        self, *messages: Any, topic: str, headers: dict[str, str] | None = None, **options: Any
    ) -> Any:
        """Send messages of one topic with as few requests as possible; returns their receipts.

        Raises:
            PymqError: as for ``publish``.
        """
        kind = PublishType.PUBLISH
        command = self._command(None, topic, kind, headers=headers, options=options)
        command.bodies = messages
        return await self._basic_publish_batch(command, producer=self._producer)

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        topic: str = "",
        *,
        timeout: float = 30.0,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Send a request and return the answer, as a message of FastStream.

        Raises:
            RequestTimeout: no answer came within ``timeout`` seconds.
            PymqError: as for ``publish``.
        """
        fields = {"headers": headers, "correlation_id": correlation_id, "options": options}
        command = self._command(
            message, topic, PublishType.REQUEST, timeout_s=timeout, **fields
        )
        return await self._basic_request(command, producer=self._producer)
