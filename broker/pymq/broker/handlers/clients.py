"""Heartbeats, unregistration, member lists: 34, 35, 38, 46.

Source: RocketMQ ClientManageProcessor, ConsumerManageProcessor.
"""

import asyncio
import weakref
from collections.abc import Mapping

from pymq.broker.config import BrokerConfig
from pymq.broker.selections import Selections
from pymq.broker.state.clients import Client, ClientTable
from pymq.broker.state.filters import SQL92
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.topics import TopicTable
from pymq.clock import Clock
from pymq.errors import BrokerError, refusal
from pymq.filter.evaluate import Compiled
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.net.server import ServerConnection
from pymq.protocol import names
from pymq.protocol.bodies import ClientConfigCheck, ConsumerData, Heartbeat, Subscription
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.clients import HeartbeatResponse, UnregisterClientRequest
from pymq.protocol.headers.groups import ConsumerGroupRequest

#: System flag of the retry topics of groups in unit mode (TopicSysFlag.FLAG_UNIT_SUB).
_UNIT_SUBSCRIBED = 2
#: The answers to heartbeats: have subscriptions changed?
_HEARTBEAT_FIELDS = [
    HeartbeatResponse(supports_v2=True, subscription_changed=changed).to_fields()
    for changed in (False, True)
]
#: A longer heartbeat is not remembered.
_REMEMBERED_BYTES = 1024


class ClientHandlers:
    """Handles what clients report about themselves."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        clients: ClientTable,
        groups: GroupTable,
        topics: TopicTable,
        selections: Selections,
    ) -> None:
        self._config = config
        self._clock = clock
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._selections = selections
        #: The last one of each connection: clients repeat their heartbeats to the byte.
        self._heartbeats: weakref.WeakKeyDictionary[ServerConnection, tuple[bytes, Heartbeat]] = (
            weakref.WeakKeyDictionary()
        )
        #: Held by the requests that wait for a filter of their connection, or for one another:
        #: what comes later must not overtake them, and goes without as soon as there is none.
        self._turns: weakref.WeakValueDictionary[ServerConnection, asyncio.Lock] = (
            weakref.WeakValueDictionary()
        )

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_ids,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_config,
        }

    def heartbeat(self, request: Request) -> Answer:
        """HEART_BEAT (34), both versions of 5.x.

        A client that leaves out subscriptions (V2) sends them again after it has heard that they
        changed: also when we do not know them, because we were restarted meanwhile.
        """
        body = self._decoded(request.connection, bytes(request.body))
        turn = self._turns.get(request.connection)
        if turn is None and not self._unprepared(body):
            return self._take(request, body)
        if turn is None:
            turn = self._turns[request.connection] = asyncio.Lock()
        return self._take_late(request, body, turn)

    async def _take_late(
        self, request: Request, body: Heartbeat, turn: asyncio.Lock
    ) -> Command | None:
        prepared: dict[str, Compiled] = {}
        async with turn:
            for expression in self._unprepared(body):
                if request.connection.is_open:
                    prepared[expression] = await self._selections.prepare(expression)
            if request.connection.is_open:
                with self._selections.using(prepared):
                    return self._take(request, body)
        request.abandon()  # nobody would unregister what it registers
        return None

    def _unprepared(self, body: Heartbeat) -> list[str]:
        """Return the long filters that are new here, to be compiled first."""
        new = {
            one.expression: None
            for consumer in body.consumers
            for one in consumer.subscriptions
            if one.expression_type == SQL92
            and not self._selections.is_ready(one.topic, consumer.group, one.expression)
        }
        return list(new)

    def _take(self, request: Request, body: Heartbeat) -> Command:
        client = Client(
            body.client_id,
            request.command.language,
            request.command.version,
            self._clock.monotonic_s(),
        )
        is_changed = body.heartbeat_fingerprint == 0
        refused: BrokerError | None = None
        for consumer in body.consumers:
            try:
                is_changed |= self._register_consumer(request.connection, client, consumer, body)
            except BrokerError as error:  # the client's other groups are none the worse
                refused = error
        for producer in body.producers:
            self._clients.register_producer(request.connection, client, producer.group)
        if refused is not None:
            raise refused
        return request.response(ResponseCode.SUCCESS, fields=_HEARTBEAT_FIELDS[is_changed])

    def _register_consumer(
        self, connection: ServerConnection, client: Client, consumer: ConsumerData, body: Heartbeat
    ) -> bool:
        """Take over one group of a heartbeat; return whether its subscriptions shall be sent.

        Raises:
            BrokerError: it cannot have a retry topic.
        """
        config = self._groups.find(consumer.group)
        if config is None:
            return False  # It is unknown and may not be created: its pulls will be refused.
        self._create_retry_topic(consumer, max(config.retry_queue_count, 1))
        return self._clients.register_consumer(
            connection,
            client,
            consumer,
            fingerprint=body.heartbeat_fingerprint,
            keep_subscriptions=body.heartbeat_fingerprint != 0 and body.without_sub,
            notifies=config.notify_consumer_ids_changed_enable,
        )

    def _decoded(self, connection: ServerConnection, data: bytes) -> Heartbeat:
        """Return a heartbeat, which must not be changed."""
        known = self._heartbeats.get(connection)
        if known is not None and known[0] == data:
            return known[1]
        body = Heartbeat.decode(data)
        if len(data) <= _REMEMBERED_BYTES:
            self._heartbeats[connection] = data, body
            return body
        for consumer in body.consumers:
            for subscription in consumer.subscriptions:
                self._selections.check_size(subscription)
        return body

    def _create_retry_topic(self, consumer: ConsumerData, queue_count: int) -> None:
        """Have a group's retry topic; it is an order topic as long as the group reads one."""
        topics, topic = self._topics, names.retry_topic(consumer.group)
        topics.create(
            topic, queue_count=queue_count, sys_flag=_UNIT_SUBSCRIBED if consumer.unit_mode else 0
        )
        if consumer.subscriptions:  # they may be left out
            is_ordered = any(topics.is_ordered(one.topic) for one in consumer.subscriptions)
            topics.order([topic], is_wanted=is_ordered)

    def unregister(self, request: Request) -> Answer:
        """UNREGISTER_CLIENT (35)."""
        turn = self._turns.get(request.connection)
        return self._unregister(request) if turn is None else self._unregister_late(request, turn)

    async def _unregister_late(self, request: Request, turn: asyncio.Lock) -> Command:
        async with turn:
            return self._unregister(request)

    def _unregister(self, request: Request) -> Command:
        header = UnregisterClientRequest.from_fields(request.fields)
        if header.producer_group:
            self._clients.unregister_producer(request.connection, header.producer_group)
        if header.consumer_group:
            config = self._groups.find(header.consumer_group)
            notifies = config is None or config.notify_consumer_ids_changed_enable
            self._clients.unregister_consumer(
                request.connection, header.consumer_group, notifies=notifies
            )
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
        return request.response(ResponseCode.SUCCESS, body=group.ids_body())

    def check_config(self, request: Request) -> Answer:
        """CHECK_CLIENT_CONFIG (46): sent for filters other than tags."""
        check = ClientConfigCheck.decode(request.body) if request.body else ClientConfigCheck()
        one = check.subscription
        if one is None:
            return request.response(ResponseCode.SUCCESS)
        is_sql = one.expression_type == SQL92
        if is_sql and not self._selections.is_ready(one.topic, None, one.expression):
            return self._check_late(request, one)
        return self._checked(request, one)

    async def _check_late(self, request: Request, one: Subscription) -> Command:
        await self._selections.prepare(one.expression)
        return self._checked(request, one)

    def _checked(self, request: Request, one: Subscription) -> Command:
        self._selections.check(one)
        return request.response(ResponseCode.SUCCESS)
