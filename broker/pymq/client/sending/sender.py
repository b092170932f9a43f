"""How a producer's sends go out: attempts, their retries until the deadline of each send.

A first attempt with a known route and an open connection is plain function calls: choose a
queue, write a frame; later the response is read and the future completed. No task and no
timer is made for it. Everything else (no route yet, a connection to be opened, a retry) runs
in a task of its own, which is the same work with waiting in between.
"""

import asyncio
import logging
import random
from typing import Any, TypeVar

from pymq.client.cluster.pool import ClientPool
from pymq.client.cluster.routes import Route, no_write_queue
from pymq.client.sending.broker_health import BrokerHealth
from pymq.client.sending.broker_kinds import BrokerKinds
from pymq.client.sending.producer_config import ProducerConfig
from pymq.client.sending.queue_selection import TopicQueues
from pymq.client.sending.send_attempt import SendAttempt
from pymq.client.sending.send_history import before_sending
from pymq.client.sending.send_retry import may_try_again, pause_s
from pymq.client.sending.send_template import SendTemplate
from pymq.client.sending.send_window import SendWindow
from pymq.clock import Clock
from pymq.errors import (
    ClientClosed,
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    RouteNotFound,
    ServiceNotAvailable,
    TooManyPending,
    TopicNotExist,
)
from pymq.net.channel import AsyncChannel
from pymq.protocol.command import Command

_log = logging.getLogger(__name__)

#: A retry waits no longer than this for its route to be read again; that goes on meanwhile.
ROUTE_WAIT_S = 0.5
#: A retry with less time than this is not made: nobody could answer it, and whether it stored the
#: message would not be known.
ATTEMPT_MIN_S = 0.05
_ONE_WAY = 2
#: Failures after which the route is read again: it may be wrong.
_ROUTE_DOUBTED = (TopicNotExist, ConnectionFailed, RouteNotFound, ServiceNotAvailable)

R = TypeVar("R")


class _TooLate(Exception):
    """A broker was reached when there was no time for another attempt any more."""


class Sender:
    """Makes the attempts of one producer's sends. For one event loop.

    Args:
        pool: connections and routes; the owner starts and closes it.
        config: of the producer.
        clock: for the time that brokers are avoided.

    Attributes:
        topics: the queues of the topics in use; of one that is not there the route is read first.
        window: what is in flight; the owner waits for room in it.
        kinds: what brokers say of themselves.
    """

    def __init__(self, pool: ClientPool, config: ProducerConfig, *, clock: Clock) -> None:
        self._pool = pool
        self._config = config
        self.window = SendWindow(config.in_flight_max, config.in_flight_bytes_max)
        self.topics: dict[str, TopicQueues] = {}
        self.kinds = BrokerKinds(pool)
        self._health = BrokerHealth(clock, lambda: pool.is_open)

    # --- a send

    def begin(self, send: SendAttempt[R]) -> asyncio.Future[R]:
        """Make the first attempt: at once if route and connection are there."""
        queues = self.topics.get(send.topic)
        send.attempted_s = self._pool.loop.time()
        left_s = send.deadline_s - send.attempted_s
        if left_s <= 0:
            late = TooManyPending(
                f"what was sent to topic {send.topic!r} before took all the time of this send; "
                "nothing of it was sent (deadline_s)"
            )
            return self.refuse(send, late)
        if queues is not None and not (send.NEEDS_VERSION or send.ASKS_FIRST):
            try:
                template = send.choose(queues, self._health.names)
            except RouteNotFound as error:  # of a broker that may come back
                self.window.begin(send.size_bytes)
                self.retry(send, error)
                return send.future
            channel = self._pool.open_channel(template.address)
            if channel is not None:
                if channel.late_until_s > send.attempted_s:
                    self._health.failed(template.queue.broker_name)
                send.attempt(channel, template, min(self._config.timeout_s, left_s))
                self.window.begin(send.size_bytes)
                return send.future
        self.window.begin(send.size_bytes)
        self._pursue(send, None)
        return send.future

    def refuse(self, send: SendAttempt[R], error: PymqError) -> asyncio.Future[R]:
        """Give up a send that did not begin."""
        self.window.begin(send.size_bytes)
        send.failed(error)
        return send.future

    def retry(self, send: SendAttempt[Any], error: PymqError) -> None:
        """Go on with a send whose first attempt failed."""
        if self._may_go_on(send, error):
            self._pursue(send, error)
        else:
            send.failed(error)

    def _may_go_on(self, send: SendAttempt[Any], error: PymqError) -> bool:
        """Record a failed attempt, and say whether another one may follow."""
        now_s = self._pool.loop.time()
        history = send.attempt_failed(error, now_s)
        return (
            self._pool.is_open
            and now_s < send.deadline_s
            and may_try_again(
                error,
                failures=history.count,
                retries=self._config.retries,
                is_bound=send.placement is not None or not send.MAY_REPEAT,
                is_placed=send.template is not None,
            )
        )

    def _pursue(self, send: SendAttempt[Any], error: PymqError | None) -> None:
        if not self._pool.is_open:
            send.failed(ClientClosed("the producer was closed meanwhile; nothing was sent"))
            return
        task = self._pool.spawn("send", self._attempt_until_deadline(send, error))
        task.add_done_callback(send.abandoned)

    async def _attempt_until_deadline(
        self, send: SendAttempt[Any], error: PymqError | None
    ) -> None:
        """Make attempts with waiting in between, until one succeeds or none is allowed."""
        while not send.future.done():
            if error is not None and not await self._recover(send, error):
                send.failed(error)
                return
            try:
                result = await self._attempt(send)
            except _TooLate:
                assert error is not None
                send.failed(error)
                return
            except PymqError as failure:
                error = failure
                if not self._may_go_on(send, failure):
                    send.failed(failure)
                    return
            else:
                send.succeeded(result)
                return

    async def _attempt(self, send: SendAttempt[R]) -> R:
        template, channel = await self._reach(send)
        if send.NEEDS_VERSION:
            await self.kinds.check_version(channel, send.NEEDS_VERSION, send.topic)
        if send.ASKS_FIRST:
            await send.ask_first(channel)
        future: asyncio.Future[Command] = self._pool.loop.create_future()

        def on_answer(answer: Command | PymqError) -> None:
            if future.done():
                return
            if isinstance(answer, PymqError):
                self.broker_failed(template, answer)
                future.set_exception(answer)
            else:
                future.set_result(answer)

        send.attempted_s = self._pool.loop.time()
        left_s = max(send.deadline_s - send.attempted_s, 0.0)
        if left_s < ATTEMPT_MIN_S and send.history is not None:
            raise _TooLate
        if channel.late_until_s > send.attempted_s:
            self._health.failed(template.queue.broker_name)
        send.request(channel, template, min(self._config.timeout_s, left_s), on_answer)
        answer = await future
        try:
            return send.read(answer, template)
        except PymqError as error:
            self.broker_failed(template, error)
            raise

    async def _reach(self, send: SendAttempt[Any]) -> tuple[SendTemplate, AsyncChannel]:
        """Return the queue that a send goes to, and the connection to its broker.

        Raises:
            LocalProtocolError: the queue it must go to does not exist.
            RouteNotFound: no broker is known for the topic, or not that of its queue.
            ConnectionFailed: no name server or no broker was reached until the send's deadline.
        """
        avoid = self._health.names
        last, send.template = send.template, None
        if last is not None:
            avoid = avoid | {last.queue.broker_name}
        try:
            async with asyncio.timeout_at(send.deadline_s):
                queues = await self.topic_queues(send.topic)
                send.template = send.choose(queues, avoid)
                return send.template, await self._channel(send.template)
        except TimeoutError as error:
            if send.template is None:
                raise self._no_answer(send.topic) from error
            raise ConnectionFailed(
                f"topic {send.topic!r}: broker {send.template.queue.broker_name!r} took no "
                "connection before the send had to end (deadline_s)"
            ) from error

    def _no_answer(self, topic: str) -> ConnectionFailed:
        return ConnectionFailed(
            f"topic {topic!r}: no name server of {', '.join(self._config.name_servers)} gave its "
            "route before the send had to end (deadline_s)"
        )

    async def _recover(self, send: SendAttempt[Any], error: PymqError) -> bool:
        """Wait before a retry, reading the route again if it may be wrong; false: no time left."""
        loop = self._pool.loop
        if isinstance(error, _ROUTE_DOUBTED):
            await self._read_route_again(send.topic, send.deadline_s)
        queues = self.topics.get(send.topic)
        avoid = self._health.names
        if send.template is not None:
            avoid = avoid | {send.template.queue.broker_name}
        has_other = send.placement is None and queues is not None and queues.has_other(avoid)
        assert send.history is not None
        wait_s = pause_s(send.history.count, has_other=has_other)
        if loop.time() + wait_s >= send.deadline_s - ATTEMPT_MIN_S:
            return False
        await asyncio.sleep(wait_s)
        return True

    async def _read_route_again(self, topic: str, until_s: float) -> None:
        try:
            async with asyncio.timeout_at(min(self._pool.loop.time() + ROUTE_WAIT_S, until_s)):
                await self._pool.routes.route(
                    topic, refresh=True, create_queue_count=self._config.default_queue_count
                )
        except (PymqError, TimeoutError) as failure:
            _log.debug("route of %r not read again: %s", topic, failure)

    async def send_one_way(self, send: SendAttempt[Any]) -> None:
        """Write a message that is not answered, once the connection takes it.

        Raises:
            ConnectionFailed: no connection; nothing was sent.
            RouteNotFound: no broker is known for the topic.
        """
        template, channel = await self._reach(send)
        try:
            async with asyncio.timeout_at(send.deadline_s):
                await channel.wait_writable()
        except TimeoutError as error:
            raise ConnectionFailed(
                f"{channel.peer} does not read what it is sent; nothing of a message to "
                f"{send.topic!r} was sent (deadline_s)"
            ) from error
        send.write(channel, template, 0, _ONE_WAY)

    # --- queues and connections

    async def topic_queues(self, topic: str) -> TopicQueues:
        """Return the queues of a topic that can be sent to; reads its route if need be.

        Raises:
            RouteNotFound: no broker is known for the topic.
        """
        queues = self.topics.get(topic)
        if queues is None:
            with before_sending():
                route = await self._pool.routes.route(
                    topic, create_queue_count=self._config.default_queue_count
                )
            queues = self.topics.get(topic)  # many first sends wait for it; one makes them for all
            if queues is None:
                self.topics[topic] = queues = self._make_queues(route)
        return queues

    async def wait_queues(self, topic: str, until_s: float) -> TopicQueues:
        """Return the queues of a topic, for which it waits as a send does.

        Args:
            topic: which.
            until_s: for how long, on the clock of the event loop.

        Raises:
            RouteNotFound: no broker is known for the topic.
            ConnectionFailed: no name server answers.
        """
        time_s, failures = self._pool.loop.time, 0
        while True:
            try:
                async with asyncio.timeout_at(until_s):
                    return await self.topic_queues(topic)
            except TimeoutError as error:
                raise self._no_answer(topic) from error
            except PymqError as error:
                failures += 1
                if not may_try_again(
                    error,
                    failures=failures,
                    retries=self._config.retries,
                    is_bound=False,
                    is_placed=False,
                ):
                    raise
                wait_s = pause_s(failures, has_other=False)
                if time_s() + wait_s >= until_s:
                    raise
            await asyncio.sleep(wait_s)
            await self._read_route_again(topic, until_s)

    def _make_queues(self, route: Route) -> TopicQueues:
        network = self._pool.network
        masters = {name: network.send_address(at) for name, at in route.masters().items()}
        brokers = {queue.broker_name for queue in route.write_queues}
        templates = [
            SendTemplate(
                queue,
                masters.get(queue.broker_name),
                group=self._config.producer_group,
                default_topic_queue_count=self._config.default_queue_count,
                namespace=network.namespace,
                has_other=len(brokers) > 1,
            )
            for queue in route.write_queues
        ]
        if not templates:
            raise no_write_queue(route)
        # Or each of many producers that live for one message would choose the same queue.
        return TopicQueues(templates, turn=random.randrange(len(templates)))

    def route_changed(self, topic: str) -> None:
        """Find out a topic's queues again, when it is used next."""
        self.topics.pop(topic, None)

    async def _channel(self, template: SendTemplate) -> AsyncChannel:
        """Return the connection to a queue's master.

        Raises:
            ConnectionFailed: it cannot be reached; the broker is avoided from now on.
            RouteNotFound: there is no master; likewise.
        """
        queue = template.queue
        try:
            address = template.address
            if address is None:
                route = await self._pool.routes.route(queue.topic)
                address = self._pool.network.send_address(route.address(queue.broker_name))
            return await self._pool.broker_channel(queue.topic, queue.broker_name, address)
        except (ConnectionFailed, RouteNotFound) as error:
            self.broker_failed(template, error)
            raise

    def broker_failed(self, template: SendTemplate, error: PymqError) -> None:
        """Keep away from a broker that does not answer, and doubt what its route says.

        One that takes no messages may have become a slave.
        """
        if isinstance(error, ServiceNotAvailable):
            self._pool.routes.doubt(template.queue.topic)
        if not isinstance(error, (ConnectionFailed, RequestTimeout, RouteNotFound)):
            return
        self._health.failed(template.queue.broker_name)
        self._pool.routes.doubt(template.queue.topic)

    # --- what is in flight

    def ended(self, send: SendAttempt[Any]) -> None:
        """Count a send as answered and let the next one begin."""
        self.window.end(send.size_bytes)
        if self._config.avoid_slow_brokers and send.template is not None and send.is_stored:
            took_s = self._pool.loop.time() - send.attempted_s
            self._health.answered(send.template.queue.broker_name, took_s)

    def abandoned(self, send: SendAttempt[Any]) -> None:
        """Count a send whose task has ended without its answer."""
        self.window.lost_count += 1
