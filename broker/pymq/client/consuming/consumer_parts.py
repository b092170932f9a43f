"""What a consumer is made of, and how its parts know each other."""

import logging
from collections.abc import Sequence
from pathlib import Path

from pymq.client.checks import check_hooks
from pymq.client.cluster.config import connect_s
from pymq.client.cluster.namespaces import wrapped_queue
from pymq.client.cluster.pool import ClientPool, OnRequest
from pymq.client.consuming.broadcast_retry import DroppedFailures
from pymq.client.consuming.consume_hooks import ConsumeHook, ConsumeObserver
from pymq.client.consuming.consume_tracing import ConsumeTracer
from pymq.client.consuming.consumer_config import TIMES_MAX, ConsumerConfig
from pymq.client.consuming.direct_calls import DirectCalls
from pymq.client.consuming.local_offsets import FLUSH_S, LocalOffsets
from pymq.client.consuming.member_answers import MemberAnswers
from pymq.client.consuming.ordered_inbox import OrderedInbox
from pymq.client.consuming.ordered_outcomes import OrderedOutcomes
from pymq.client.consuming.ordered_retry import OrderedFailures
from pymq.client.consuming.ordered_threads import OrderedThreadInbox
from pymq.client.consuming.outcomes import Outcomes
from pymq.client.consuming.thread_inbox import ThreadInbox
from pymq.client.group.broker_offsets import BrokerOffsets, QueueOffsets
from pymq.client.group.held_queues import HeldQueues
from pymq.client.group.inbox import Inbox
from pymq.client.group.queue_locks import QueueLocks
from pymq.client.group.rebalance import Rebalance
from pymq.client.group.rebalance_listener import ListenerCalls
from pymq.client.group.retry import FailedMessages
from pymq.clock import Clock
from pymq.errors import RemoteProtocolError
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import ConsumerData, ConsumeType, MessageQueue, Subscription
from pymq.protocol.client_bodies import OffsetReset
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command
from pymq.protocol.headers.offsets import ResetOffsetRequest

_log = logging.getLogger(__name__)


class ConsumerParts:
    """The parts of one consumer. For one event loop.

    ::

        pool, inbox <- failed_messages <- outcomes <- thread_inbox
                                       <- held <- rebalance

    Args:
        config: of the consumer.
        hooks: called before and after messages are handled.
        trace_topic: where the message trace is written to; ``None``: nowhere.
        clock: for timestamps.

    Attributes:
        subscriptions: by topic; the consumer changes them and tells ``rebalance``.
        inbox: what was pulled and is not finished.
        pool: connections, routes, heartbeats; the consumer starts and closes it.
        tracer: writes the message trace, if there is one.
        observer: calls the hooks, if there are any.
        failed_messages: sends back what could not be handled.
        outcomes: gives messages their outcomes.
        thread_inbox: the way of messages to threads and back.
        held: the queues that are ours, and their readers.
        rebalance: finds the queues that are ours.
        direct_calls: has messages handled of which an operator says so.
        is_closing: is nothing delivered any more?
    """

    def __init__(
        self,
        config: ConsumerConfig,
        hooks: Sequence[ConsumeHook],
        trace_topic: str | None,
        clock: Clock,
    ) -> None:
        self._config = config
        self.subscriptions: dict[str, Subscription] = {}
        self.is_closing = False
        self.pool = ClientPool(
            config.name_servers,
            timeout_s=config.timeout_s,
            connect_timeout_s=connect_s(config),
            route_age_s=config.route_age_s,
            consumers=self._consumer_data,
            on_request=self._on_request(),
            on_route=self._route_changed,
            instance_name=config.instance_name,
            network=config.network,
            what=f"a consumer of group {config.group!r}",
            clock=clock,
        )
        self.tracer: ConsumeTracer | None = None
        hooks = check_hooks(hooks, ConsumeHook, trace_topic)
        if trace_topic is not None:
            self.tracer = ConsumeTracer(self.pool, config, trace_topic, clock)
            hooks = (*hooks, self.tracer)
        self.observer = ConsumeObserver(hooks, config.group, clock) if hooks else None
        alone = config.is_broadcasting
        self._local_offsets = LocalOffsets(self._find_local_offsets) if alone else None
        ordered = OrderedInbox(config.limits, self._may_deliver) if config.orderly else None
        self.inbox: Inbox = ordered or Inbox(config.limits)
        self.failed_messages = self._failures(ordered)
        self.held = HeldQueues(
            config.group,
            pool=self.pool,
            inbox=self.inbox,
            offsets=self._offsets,
            on_undecodable=self.failed_messages.send_back_undecodable,
            listener=ListenerCalls(config.group, config.rebalance_listener),
            wake=lambda: self.rebalance.wake(),
        )
        self._answers = MemberAnswers(
            config, self.pool, self.held, self._consumer_data, self._may_deliver
        )
        self.direct_calls = DirectCalls(config, self.pool)
        self._locks: QueueLocks | None = None
        if ordered is not None and not config.is_broadcasting:
            self._locks = self.held.locks = self._queue_locks(ordered)
        self.outcomes = (OrderedOutcomes if config.orderly else Outcomes)(
            self.inbox,
            self.failed_messages,
            self.pool,
            consume_timeout_s=config.consume_timeout_s,
        )
        self.inbox.settler = self.outcomes
        if ordered is None:
            self.thread_inbox = ThreadInbox(self.inbox, self.outcomes)
        else:
            self.thread_inbox = OrderedThreadInbox(ordered, self.outcomes, self.pool)
            ordered.recall = lambda: self.thread_inbox.put_back([])
        self.rebalance = Rebalance(
            config.group,
            self.subscriptions,
            start=config.start,
            allocation=None if config.is_broadcasting else config.allocation,
            pool=self.pool,
            held=self.held,
        )

    def _on_request(self) -> dict[int, OnRequest]:
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._group_reset,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._answer,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._answer,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }

    def start_duties(self) -> None:
        """Begin what locks and local offsets need, once the pool is open."""
        if self._locks is not None:
            self.pool.spawn("locks", self._locks.run())
        if self._local_offsets is not None:
            self.pool.repeat("offsets", self._local_offsets.flush_now_and_then, FLUSH_S)

    def say_left(self) -> None:
        """Say what was pulled and is not finished."""
        if not (count := self.inbox.message_count):
            return
        in_hand = sum(1 for delivery in self.inbox.in_hand if delivery.taken_s)
        _log.log(
            logging.WARNING if in_hand else logging.INFO,
            "group %r: closed; %d messages that handlers or loops had are not finished, %d others "
            "were pulled and not handled: other members get them",
            *(self._config.group, in_hand, count - in_hand),
        )

    def _failures(self, ordered: OrderedInbox | None) -> FailedMessages:
        config = self._config
        if ordered is not None:
            return OrderedFailures(
                group=config.group,
                max_reconsume_times=config.max_reconsume_times,
                suspend_s=config.suspend_s,
                pool=self.pool,
                inbox=ordered,
                is_closing=lambda: self.is_closing,
            )
        times = config.max_reconsume_times
        return (DroppedFailures if config.is_broadcasting else FailedMessages)(
            group=config.group,
            max_reconsume_times=None if times is None else int(min(times, TIMES_MAX)),
            pool=self.pool,
            inbox=self.inbox,
            is_closing=lambda: self.is_closing,
        )

    def _queue_locks(self, ordered: OrderedInbox) -> QueueLocks:
        locks = QueueLocks(
            self._config.group,
            self.pool,
            confirm=self.held.may_go_on,
            on_valid=ordered.locks_changed,
            on_lost=self.held.lost_lock,
        )
        ordered.on_doubt = locks.renew_soon
        return locks

    def _offsets(self, queue: MessageQueue) -> QueueOffsets:
        if self._local_offsets is not None:
            return self._local_offsets.of(wrapped_queue(self._config.network, queue))
        return BrokerOffsets(self._config.group, queue, self.pool)

    def _find_local_offsets(self) -> Path:
        return self._config.find_offsets(self.pool.client_id, self.pool.name_servers)

    def _may_deliver(self, queue: MessageQueue) -> bool:
        return self._locks is None or self._locks.is_valid(queue)

    # The pool comes first, and may call these only when it is started.

    def _consumer_data(self) -> list[ConsumerData]:
        return [
            ConsumerData(
                group=self._config.group,
                consume_type=ConsumeType.PUSH,
                message_model=self._config.message_model,
                consume_from_where=self._config.start.where,
                subscriptions=list(self.subscriptions.values()),
            )
        ]

    def _members_changed(self, _: AsyncChannel, request: Command) -> None:
        if (request.fields or {}).get("consumerGroup") == self._config.group:
            self.rebalance.wake()

    def _answer(self, channel: AsyncChannel, request: Command) -> None:
        self._answers.answer(channel, request)

    def _consume_directly(self, channel: AsyncChannel, request: Command) -> None:
        self.direct_calls.answer(channel, request)

    def _group_reset(self, channel: AsyncChannel, request: Command) -> None:
        """A broker that keeps nothing of a reset itself tells all members to go on elsewhere."""
        try:
            header = ResetOffsetRequest.from_fields(request.fields)
            offsets = OffsetReset.decode(request.body).offsets
        except RemoteProtocolError as error:
            _log.warning("%s resets a group with %s; nothing is done", channel.peer, error)
            return
        if header.group == self._config.group:
            unwrap = self.pool.network.unwrap
            self.held.reset(
                {
                    MessageQueue(unwrap(queue.topic), queue.broker_name, queue.queue_id): offset
                    for queue, offset in offsets.items()
                }
            )

    def _route_changed(self, topic: str) -> None:
        self.rebalance.route_changed(topic)
        if self.tracer is not None:
            self.tracer.route_changed(topic)
