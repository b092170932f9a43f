"""Rebalancing by the broker: QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401), 402.

Source: RocketMQ QueryAssignmentProcessor, AdminBrokerProcessor.
"""

import logging
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from pymq.broker.config import BrokerConfig
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.request_modes import RequestModes
from pymq.broker.state.topics import TopicTable
from pymq.broker.state_saving import AnswerSaved
from pymq.broker.topic_routes import TopicRoutes
from pymq.errors import RemoteProtocolError, refusal
from pymq.net.dispatcher import Handler, Request
from pymq.protocol.allocation import Strategy, allocate, allocate_by_circle, allocate_shared
from pymq.protocol.bodies import MessageModel, MessageQueue
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.names import is_retry_topic
from pymq.protocol.pop_bodies import (
    AssignmentQuery,
    Assignments,
    GroupRequestMode,
    QueueAssignment,
    RequestMode,
)

_log = logging.getLogger(__name__)

_MODELS, _MODES = frozenset(MessageModel), frozenset(RequestMode)
_STRATEGIES: Final[Mapping[str, Strategy]] = {
    "AVG": allocate,
    "AVG_BY_CIRCLE": allocate_by_circle,
}


class AssignmentHandlers:
    """Tells the members of groups what to read, and how."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientTable,
        modes: RequestModes,
        routes: TopicRoutes,
        answer_saved: AnswerSaved,
    ) -> None:
        self._config = config
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._modes = modes
        self._routes = routes
        self._answer_saved = answer_saved

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.QUERY_ASSIGNMENT: self.query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.modes,
        }

    async def query(self, request: Request) -> Command:
        """QUERY_ASSIGNMENT (400)."""
        query = AssignmentQuery.decode(request.body)
        mode = self._modes.find(query.topic, query.group) or self._default_mode(query)
        queues = await self._allocate(query, mode)
        answer = Assignments()
        if queues is not None:
            answer.assignments = [QueueAssignment(queue=one, mode=mode.mode) for one in queues]
        return request.response(ResponseCode.SUCCESS, body=answer.encode())

    def _default_mode(self, query: AssignmentQuery) -> GroupRequestMode:
        mode = GroupRequestMode(topic=query.topic, group=query.group)
        if not is_retry_topic(query.topic):
            mode.mode = self._config.request_mode
            mode.share_count = self._config.pop_share_count
        return mode

    async def _allocate(
        self, query: AssignmentQuery, mode: GroupRequestMode
    ) -> list[MessageQueue] | None:
        """Return a client's queues; None if it shall keep what it has."""
        if query.message_model not in _MODELS:
            raise RemoteProtocolError(f"message model {query.message_model!r:.80}")
        queues = await self._routes.queues(query.topic)
        if queues is None:
            return None
        if (
            query.message_model == MessageModel.BROADCASTING
            or not self._config.server_load_balancer
        ):
            return queues
        group = self._clients.consumer_group(query.group)
        strategy = _STRATEGIES.get(query.strategy)
        if group is None or strategy is None or not queues:
            if strategy is None:
                _log.warning("group %.80s: no strategy %.80r", query.group, query.strategy)
            return None
        members = group.client_ids()
        if mode.mode == RequestMode.POP:
            return allocate_shared(
                strategy, queues, members, query.client_id, share_count=mode.share_count
            )
        return strategy(queues, members, query.client_id)

    def set_mode(self, request: Request) -> Coroutine[Any, Any, Command]:
        """SET_MESSAGE_REQUEST_MODE (401)."""
        mode = GroupRequestMode.decode(request.body)
        if mode.mode not in _MODES:
            raise RemoteProtocolError(f"message request mode {mode.mode!r:.80}")
        if is_retry_topic(mode.topic):
            raise refusal(
                ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode"
            )
        if mode.topic not in self._topics:
            raise refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist")
        if self._groups.find(mode.group) is None:
            raise refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
            )
        self._modes.put(mode)
        return self._answer_saved(request)

    def modes(self, request: Request) -> Command:
        """GET_ALL_MESSAGE_REQUEST_MODE (402)."""
        return request.response(ResponseCode.SUCCESS, body=self._modes.body().encode())
