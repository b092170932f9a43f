"""What a consumer is made of, and how its parts know each other."""

from collections.abc import Sequence

from pymq.client.config import connect_s
from pymq.client.consume_hooks import ConsumeHook, ConsumeObserver
from pymq.client.consume_tracing import ConsumeTracer
from pymq.client.consumer_config import ConsumerConfig
from pymq.client.inbox import Inbox
from pymq.client.outcomes import Outcomes
from pymq.client.pool import ClientPool
from pymq.client.rebalance import Rebalance
from pymq.client.retry import FailedMessages
from pymq.client.thread_inbox import ThreadInbox
from pymq.clock import Clock
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import ConsumerData, ConsumeType, Subscription
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command


class ConsumerParts:
    """The parts of one consumer. For one event loop.

    ::

        pool, inbox <- failed_messages <- outcomes <- thread_inbox
                                       <- rebalance

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
        rebalance: finds the queues that are ours and reads them.
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
        self.inbox = Inbox(config.limits)
        self.pool = ClientPool(
            config.name_servers,
            timeout_s=config.timeout_s,
            connect_timeout_s=connect_s(config),
            route_age_s=config.route_age_s,
            consumers=self._consumer_data,
            on_request={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed},
            on_route=self._route_changed,
            clock=clock,
        )
        self.tracer: ConsumeTracer | None = None
        if trace_topic is not None:
            self.tracer = ConsumeTracer(self.pool, config, trace_topic, clock)
            hooks = (*hooks, self.tracer)
        self.observer = ConsumeObserver(hooks, config.group, clock) if hooks else None
        self.failed_messages = FailedMessages(
            group=config.group,
            max_reconsume_times=config.max_reconsume_times,
            pool=self.pool,
            inbox=self.inbox,
            is_closing=lambda: self.is_closing,
        )
        self.outcomes = Outcomes(
            self.inbox,
            self.failed_messages,
            self.pool,
            consume_timeout_s=config.consume_timeout_s,
        )
        self.inbox.settler = self.outcomes
        self.thread_inbox = ThreadInbox(self.inbox, self.outcomes)
        self.rebalance = Rebalance(
            config.group,
            self.subscriptions,
            start=config.start,
            pool=self.pool,
            inbox=self.inbox,
            on_undecodable=self.failed_messages.send_back_undecodable,
        )

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

    def _route_changed(self, topic: str) -> None:
        self.rebalance.wake()
        if self.tracer is not None:
            self.tracer.route_changed(topic)
