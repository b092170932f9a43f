"""Heartbeats, unregistration, member lists: 34, 35, 38, 46 and the notification 40."""

from collections.abc import Mapping

from pymq.broker.config import BrokerConfig
from pymq.broker.state.clients import Client, ClientTable
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.topics import TopicTable
from pymq.clock import Clock
from pymq.errors import refusal
from pymq.net.dispatcher import Handler, Request
from pymq.net.server import ServerConnection
from pymq.protocol import names
from pymq.protocol.bodies import ClientConfigCheck, ConsumerData, ConsumerIds, Heartbeat
from pymq.protocol.codes import CommandFlag, LanguageCode, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame
from pymq.protocol.headers.clients import UnregisterClientRequest
from pymq.protocol.headers.groups import ConsumerGroupRequest


class ClientHandlers:
    """Handles what clients report about themselves."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        clients: ClientTable,
        groups: GroupTable,
        topics: TopicTable,
    ) -> None:
        self._config = config
        self._clock = clock
        self._clients = clients
        self._groups = groups
        self._topics = topics

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_ids,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    def heartbeat(self, request: Request) -> Command:
        """HEART_BEAT (34)."""
        body = Heartbeat.decode(request.body)
        client = Client(
            body.client_id,
            request.command.language,
            request.command.version,
            self._clock.monotonic_s(),
        )
        for consumer in body.consumers:
            self._register_consumer(request.connection, client, consumer, body.without_sub)
        for producer in body.producers:
            self._clients.register_producer(request.connection, client, producer.group)
        return request.response(ResponseCode.SUCCESS)

    def _register_consumer(
        self,
        connection: ServerConnection,
        client: Client,
        consumer: ConsumerData,
        without_subscriptions: bool,
    ) -> None:
        config = self._groups.find(consumer.group)
        if config is None:
            return  # The group is unknown and may not be created: its pulls will be refused.
        self._topics.create(
            names.retry_topic(consumer.group), queue_count=max(config.retry_queue_count, 1)
        )
        self._clients.register_consumer(
            connection, client, consumer, keep_subscriptions=without_subscriptions
        )

    def unregister(self, request: Request) -> Command:
        """UNREGISTER_CLIENT (35)."""
        header = UnregisterClientRequest.from_fields(request.fields)
        if header.producer_group:
            self._clients.unregister_producer(request.connection, header.producer_group)
        if header.consumer_group:
            self._clients.unregister_consumer(request.connection, header.consumer_group)
        return request.response(ResponseCode.SUCCESS)

    def consumer_ids(self, request: Request) -> Command:
        """GET_CONSUMER_LIST_BY_GROUP (38)."""
        header = ConsumerGroupRequest.from_fields(request.fields)
        group = self._clients.consumer_group(header.consumer_group)
        if group is None:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"no consumer for this group, {header.consumer_group}",
            )
        return request.response(
            ResponseCode.SUCCESS, body=ConsumerIds(client_ids=group.client_ids()).encode()
        )

    def check_config(self, request: Request) -> Command:
        """CHECK_CLIENT_CONFIG (46): sent for filters other than tags."""
        check = ClientConfigCheck.decode(request.body)
        kind = check.subscription.expression_type
        if kind not in ("", "TAG"):
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"The broker does not support consumer to filter message by {kind}",
            )
        return request.response(ResponseCode.SUCCESS)


def notify_members(group: str, members: list[ServerConnection]) -> None:
    """Tell the members of a consumer group to rebalance (NOTIFY_CONSUMER_IDS_CHANGED, 40)."""
    frame = encode_frame(
        Command(
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            ConsumerGroupRequest(consumer_group=group).to_fields(),
            flag=CommandFlag.ONE_WAY,
            language=LanguageCode.JAVA,
        )
    )
    for connection in members:
        connection.send(frame)
