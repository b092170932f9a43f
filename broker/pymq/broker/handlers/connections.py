"""Who is connected: 203, 204, 328.

Source: RocketMQ AdminBrokerProcessor.
"""

from collections.abc import Mapping

from pymq.broker.state.clients import Client, ClientTable
from pymq.clock import Clock
from pymq.errors import refusal
from pymq.net.dispatcher import Handler, Request
from pymq.net.server import ServerConnection
from pymq.protocol.bodies import ClientConnection, ConsumerConnections, ProducerConnections
from pymq.protocol.client_bodies import LiveProducer, LiveProducers
from pymq.protocol.codes import LanguageCode, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.groups import ConsumerGroupRequest, ProducerGroupRequest


class ConnectionHandlers:
    """Lists the live members of groups."""

    def __init__(self, clients: ClientTable, clock: Clock) -> None:
        self._clients = clients
        self._clock = clock

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.consumers,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.producers,
            RequestCode.GET_ALL_PRODUCER_INFO: self.all_producers,
        }

    def consumers(self, request: Request) -> Command:
        """GET_CONSUMER_CONNECTION_LIST (203)."""
        name = ConsumerGroupRequest.from_fields(request.fields).consumer_group
        group = self._clients.consumer_group(name)
        if group is None:
            raise refusal(
                ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group[{name}] not online"
            )
        body = ConsumerConnections(
            connections=_connections(group.members),
            subscriptions=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )
        return request.response(ResponseCode.SUCCESS, body=body.encode())

    def producers(self, request: Request) -> Command:
        """GET_PRODUCER_CONNECTION_LIST (204)."""
        name = ProducerGroupRequest.from_fields(request.fields).producer_group
        members = self._clients.producers(name)
        if not members:
            raise refusal(ResponseCode.SYSTEM_ERROR, f"the producer group[{name}] not exist")
        body = ProducerConnections(connections=_connections(members))
        return request.response(ResponseCode.SUCCESS, body=body.encode())

    def all_producers(self, request: Request) -> Command:
        """GET_ALL_PRODUCER_INFO (328)."""
        clock = self._clock
        now_ms, now_s = clock.wall_ms(), clock.monotonic_s()
        body = LiveProducers()
        for group, members in self._clients.producer_groups().items():
            body.groups[group] = [
                LiveProducer(
                    client_id=client.client_id,
                    remote_address=f"/{connection.peer}",
                    language=_language(client.language),
                    version=client.version,
                    updated_ms=now_ms - round((now_s - client.seen_s) * 1000),
                )
                for connection, client in members.items()
            ]
        return request.response(ResponseCode.SUCCESS, body=body.encode())


def _connections(members: Mapping[ServerConnection, Client]) -> list[ClientConnection]:
    return [
        ClientConnection(
            client_id=client.client_id,
            client_address=connection.peer,
            language=_language(client.language),
            version=client.version,
        )
        for connection, client in members.items()
    ]


def _language(number: int) -> str:
    try:
        return LanguageCode(number).name
    except ValueError:
        return LanguageCode.OTHER.name
