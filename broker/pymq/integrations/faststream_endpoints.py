"""Subscribers and publishers of the FastStream broker."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.mixins import TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream._internal.logger import DefaultLoggerStorage
from faststream._internal.logger.logging import get_broker_logger
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import (
    Message as MessageSchema,
)
from faststream.specification.schema import (
    Operation,
    PublisherSpec,
    SubscriberSpec,
)

from pymq.client.cluster.network import PLAIN, Network
from pymq.client.consuming.consumer import Consumer
from pymq.client.pulling.pull_consumer import PullConsumer
from pymq.errors import AlreadySettled, ClientClosed, CommitFailed, NotInHand
from pymq.integrations.faststream_messages import (
    NOT_GIVEN,
    ReplyPublisher,
    RocketCommand,
    RocketMessage,
    RocketProducer,
    decode,
    parse_message,
)
from pymq.protocol.message import ReceivedMessage


@dataclass(kw_only=True)
class RocketConfig(BrokerConfig):
    """What endpoints need of their broker."""

    producer: RocketProducer = field(default_factory=RocketProducer)
    name_servers: str | Sequence[str] | None = None
    network: Network = PLAIN


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """What a subscriber reads, and how."""

    _outer_config: RocketConfig = field(default_factory=RocketConfig)
    topic: str
    group: str
    tags: str = "*"
    max_workers: int = 1
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def ack_policy(self) -> AckPolicy:
        """When a message is acknowledged; the default delivers one whose handler raised again."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not NOT_GIVEN:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class SubscriberSchemaConfig(SubscriberSpecificationConfig):
    """What AsyncAPI says of a subscriber."""

    topic: str


@dataclass(kw_only=True)
class PublisherConfig(PublisherUsecaseConfig):
    """Where a publisher sends to."""

    _outer_config: RocketConfig = field(default_factory=RocketConfig)
    topic: str
    headers: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(kw_only=True)
class PublisherSchemaConfig(PublisherSpecificationConfig):
    """What AsyncAPI says of a publisher."""

    topic: str


class SubscriberSchema(SubscriberSpecification[RocketConfig, SubscriberSchemaConfig]):
    """The part of AsyncAPI's document that is about a subscriber."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        """Called by FastStream."""
        return [self.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Called by FastStream."""
        payload = resolve_payloads(self.get_payloads())
        return {
            self.name: SubscriberSpec(
                address=self.topic,
                description=self.description,
                operation=Operation(
                    message=MessageSchema(title=f"{self.name}:Message", payload=payload),
                    bindings=None,
                ),
                bindings=None,
            )
        }


class PublisherSchema(PublisherSpecification[RocketConfig, PublisherSchemaConfig]):
    """The part of AsyncAPI's document that is about a publisher."""

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        """Called by FastStream."""
        return self.config.title_ or f"{self.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Called by FastStream."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        return {
            self.name: PublisherSpec(
                address=self.topic,
                description=self.config.description_,
                operation=Operation(
                    message=MessageSchema(title=f"{self.name}:Message", payload=payload),
                    bindings=None,
                ),
                bindings=None,
            )
        }


class RocketSubscriber(TasksMixin, SubscriberUsecase[Any]):
    """Reads a topic as a member of a group, with a ``Consumer`` of its own."""

    _outer_config: RocketConfig

    def __init__(self, config: SubscriberConfig, specification: Any, calls: Any) -> None:
        config.parser, config.decoder = self._parse, decode
        super().__init__(config, specification, calls)
        self._config = config
        self._consumer: Consumer | None = None
        self._puller: PullConsumer | None = None

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._config.topic}"

    async def _parse(self, raw: ReceivedMessage) -> RocketMessage:
        message = await parse_message(raw)
        message.is_manual = self._config.ack_policy is AckPolicy.MANUAL
        return message

    def _make_response_publisher(self, message: Any) -> Sequence[Any]:
        return (ReplyPublisher(self._outer_config.producer, message),)

    def get_log_context(self, message: Any) -> dict[str, str]:
        """Called by FastStream."""
        return {
            "topic": self.topic,
            "group": self._config.group,
            "message_id": getattr(message, "message_id", ""),
        }

    # --- life

    async def start(self) -> None:
        """Join the group, if there are handlers.

        Raises:
            PymqError: no name server answers.
        """
        await super().start()
        if self.calls:
            config, outer = self._config, self._outer_config
            self._consumer = Consumer(
                outer.name_servers, config.group, network=outer.network, **config.options
            ).subscribe(self.topic, config.tags)
            await self._consumer.start()
            self._post_start()
            self.add_task(self._run, restart_on_failure=False)
        else:
            self._post_start()

    async def stop(self) -> None:
        """Leave the group, once the handlers at work have finished."""
        if self._consumer is not None:
            # What comes from now on has no handler, and would count as failed.
            with contextlib.suppress(ClientClosed):  # its start has failed
                self._consumer.pause()
        await super().stop()
        consumer, self._consumer = self._consumer, None
        puller, self._puller = self._puller, None
        for client in (consumer, puller):
            if client is not None:
                await client.close()

    async def _run(self) -> None:
        assert self._consumer is not None
        await self._consumer.run(self._take, concurrency=self._config.max_workers)

    async def _take(self, raw: ReceivedMessage) -> None:
        await self.consume(raw)
        # FastStream's policy gave it its outcome. Without one it is not known to be handled.
        with contextlib.suppress(AlreadySettled, NotInHand):
            raw.retry()

    # --- without a handler

    async def get_one(self, *, timeout: float = 5.0) -> Any:
        """Return the next message; ``None``: none came in time. It counts as handled then."""
        assert not self.calls, "get_one() is for subscribers without handlers"
        puller = await self._pulling()
        if not (found := await puller.poll(1, timeout)):
            return None
        with contextlib.suppress(CommitFailed):  # It is committed later, or comes again.
            await puller.commit()
        return await self._processed(found[0])

    async def __aiter__(self) -> AsyncIterator[Any]:
        puller = await self._pulling()
        async for raw in puller:
            yield await self._processed(raw)

    async def _pulling(self) -> PullConsumer:
        if self._puller is None:
            config, outer = self._config, self._outer_config
            known = ("from_where", "timeout_s", "limits")
            options = {name: config.options[name] for name in known if name in config.options}
            self._puller = PullConsumer(
                outer.name_servers, config.group, network=outer.network, **options
            ).subscribe(self.topic, config.tags)
        return await self._puller.start()  # again, if it could not start before

    async def _processed(self, raw: ReceivedMessage) -> Any:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        return await process_msg(
            msg=raw,
            middlewares=(one(raw, context=context) for one in self._broker_middlewares),
            parser=parser,
            decoder=decoder,
        )


class RocketPublisher(PublisherUsecase):
    """Sends to a topic; also a decorator of handlers, whose results it sends."""

    _outer_config: RocketConfig

    def __init__(self, config: PublisherConfig, specification: Any) -> None:
        super().__init__(config, specification)
        self._config = config

    @property
    def topic(self) -> str:
        """The topic, with the prefixes of routers."""
        return f"{self._outer_config.prefix}{self._config.topic}"

    def _command(self, body: Any, kind: PublishType, **fields: Any) -> RocketCommand:
        options = {**self._config.options, **fields.pop("options", {})}
        headers = {**self._config.headers, **(fields.pop("headers", None) or {})}
        return RocketCommand(
            body,
            publish_type=kind,
            destination=fields.pop("topic", "") or self.topic,
            headers=headers,
            correlation_id=fields.pop("correlation_id", None) or self._outer_config.id_generator(),
            options=options,
            **fields,
        )

    async def publish(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        sharding_key: str | None = None,
        reply_to: str = "",
        **options: Any,
    ) -> Any:
        """Send a message; returns its receipt. Arguments as for the broker's ``publish``."""
        command = self._command(
            message,
            PublishType.PUBLISH,
            topic=topic,
            headers=headers,
            correlation_id=correlation_id,
            sharding_key=sharding_key,
            reply_to=reply_to,
            options=options,
        )
        return await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=()
        )

    async def _publish(self, cmd: Any, *, _extra_middlewares: Any) -> Any:
        command = RocketCommand.from_cmd(cmd)
        command.destination = command.destination or self.topic
        command.add_headers(self._config.headers, override=False)
        command.options = {**self._config.options, **command.options}
        return await self._basic_publish(
            command,
            producer=self._outer_config.producer,
            _extra_middlewares=_extra_middlewares,
        )

    async def request(
        self, message: Any, topic: str = "", *, timeout: float = 30.0, **fields: Any
    ) -> Any:
        """Send a request and return its answer. Arguments as for ``publish``."""
        command = self._command(
            message, PublishType.REQUEST, topic=topic, timeout_s=timeout, **fields
        )
        return await self._basic_request(command, producer=self._outer_config.producer)


class Loggers(DefaultLoggerStorage):
    """Makes the logger of a broker that was given none."""

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Called by FastStream."""

    def get_logger(self, *, context: Any) -> Any:
        """Called by FastStream."""
        if (found := self._get_logger_ref()) is None:
            found = get_broker_logger(
                name="rocketmq",
                default_context={"topic": "", "group": ""},
                message_id_ln=10,
                fmt="%(asctime)s %(levelname)-8s - %(topic)s | %(group)s | %(message_id)-10s - "
                "%(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(found)
        return found
