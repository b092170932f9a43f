"""What a producer is made of, and how its parts know each other."""

import asyncio
import logging
import weakref
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Protocol

from pymq.client.checks import check_hooks
from pymq.client.cluster.config import connect_s
from pymq.client.cluster.pool import ClientPool
from pymq.client.sending.hooks import SendHook, SendObserver
from pymq.client.sending.producer_config import ProducerConfig
from pymq.client.sending.requests import Requests
from pymq.client.sending.send_maker import SendMaker
from pymq.client.sending.sender import Sender
from pymq.client.sending.tracing import Tracer
from pymq.client.sending.transactions import TransactionCheck, Transactions
from pymq.clock import Clock
from pymq.net.channel import AsyncChannel
from pymq.protocol.codes import RequestCode
from pymq.protocol.command import Command

_log = logging.getLogger(__name__)


class Gatherer(Protocol):
    """What keeps messages back for a while and sends them later."""

    async def flush(self) -> None:
        """Send what was gathered, and wait until no message is without an answer."""

    def abandon(self) -> None:
        """Fail what was gathered and not sent: the producer is closed."""

    @property
    def _handed_count(self) -> int:
        """Messages that threads have handed over and that it has not taken yet."""

    def _end(self) -> None:
        """Fail everything that has no answer: the event loop ends, and none will come."""


class Gatherers:
    """The batchers of a producer, held weakly. Threads may add some during an iteration."""

    def __init__(self) -> None:
        # A WeakSet cannot be looked at while it grows.
        self._found: set[weakref.ref[Gatherer]] = set()

    def add(self, one: Gatherer) -> None:
        """Have another one, as long as it is there."""
        self._found.add(weakref.ref(one, self._found.discard))

    def __iter__(self) -> Iterator[Gatherer]:
        # One step, between which no thread comes. Not a tuple: to make one may collect garbage in
        # between, and that takes batchers out.
        for found in list(self._found):
            one = found()
            if one is not None:
                yield one


class ProducerParts:
    """The parts of one producer. For one event loop.

    ::

        pool <- sender <- maker <- transactions, requests

    Args:
        config: of the producer.
        check_transaction: says what became of a transaction.
        hooks: called before and after each send.
        trace_topic: where the message trace is written to; ``None``: nowhere.
        clock: for timestamps.

    Attributes:
        pool: connections, routes, heartbeats; the producer starts and closes it.
        sender: makes the attempts of sends.
        maker: makes sends of messages.
        tracer: writes the message trace, if there is one.
        transactions: half messages, and the broker's questions about them.
        requests: questions and replies.
        batchers: of the producer.
    """

    def __init__(
        self,
        config: ProducerConfig,
        check_transaction: TransactionCheck | None,
        hooks: Sequence[SendHook],
        trace_topic: str | None,
        clock: Clock,
    ) -> None:
        self.pool = ClientPool(
            config.name_servers,
            timeout_s=config.timeout_s,
            connect_timeout_s=connect_s(config),
            route_age_s=config.route_age_s,
            producer_group=config.producer_group,
            on_request={
                RequestCode.CHECK_TRANSACTION_STATE: self._on_check,
                RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: self._on_reply,
            },
            on_route=self._route_changed,
            clock=clock,
            network=config.network,
        )
        self.sender = Sender(self.pool, config, clock=clock)
        self.tracer: Tracer | None = None
        hooks = check_hooks(hooks, SendHook, trace_topic)
        if trace_topic is not None:
            untraced = SendMaker(self.pool, self.sender, config, clock)
            self.tracer = Tracer(
                self.pool,
                self.sender,
                untraced,
                trace_topic,
                group=config.producer_group,
                clock=clock,
            )
            hooks = (*hooks, self.tracer)
        observer = SendObserver(hooks, config.producer_group, clock) if hooks else None
        self.maker = SendMaker(self.pool, self.sender, config, clock, observer)
        self.transactions = Transactions(
            self.pool,
            self.sender,
            self.maker,
            config,
            check_transaction,
            on_end=None if self.tracer is None else self.tracer.ended,
        )
        self.requests = Requests(self.pool, self.sender, self.maker)
        self.batchers = Gatherers()

    async def finish(self, flush: Callable[[], Awaitable[None]], timeout_s: float) -> None:
        """Wait until no send is unanswered, nor what the trace tells of them; or until time is up.

        Args:
            flush: of the producer.
            timeout_s: for all of it.
        """
        window = self.sender.window
        try:
            async with asyncio.timeout(timeout_s):
                await flush()
                if self.tracer is not None:
                    self.tracer.flush()
                    await window.wait_idle()
        except TimeoutError:
            count, gathered = window.unanswered
            gathered += sum(one._handed_count for one in self.batchers)
            also = f"; {gathered} messages of its Batcher had no receipt" if gathered else ""
            _log.warning("%d sends were unanswered when the producer closed%s", count, also)

    # The pool comes first, and may call these only when it is started.

    def _on_check(self, channel: AsyncChannel, request: Command) -> None:
        self.transactions.on_check(channel, request)

    def _on_reply(self, channel: AsyncChannel, request: Command) -> None:
        self.requests.on_push(channel, request)

    def _route_changed(self, topic: str) -> None:
        self.sender.route_changed(topic)
        self.requests.route_changed(topic)
