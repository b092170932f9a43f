"""How a producer's sends go out: attempts, their retries, and a limit on what is in flight.

A first attempt with a known route and an open connection is plain function calls: choose a
queue, write a frame; later the response is read and the future completed. No task and no
timer is made for it. Everything else (no route yet, a connection to be opened, a retry) runs
in a task of its own, which is the same work with waiting in between.
"""

import asyncio
import logging
import random
from collections import deque

from pymq.client.config import ClientConfig
from pymq.client.operations import SendResult, read_send
from pymq.client.pool import ClientPool
from pymq.client.queue_selection import AvoidedBrokers, TopicQueues
from pymq.client.routes import Route, no_write_queue
from pymq.client.send_attempt import SendAttempt
from pymq.client.send_template import SendTemplate
from pymq.clock import Clock
from pymq.errors import (
    ConnectionFailed,
    PymqError,
    RequestTimeout,
    RouteNotFound,
    TopicNotExist,
)
from pymq.net.channel import AsyncChannel
from pymq.protocol.command import Command

_log = logging.getLogger(__name__)

#: A broker that failed gets no new message for this long while another can take it.
AVOID_BROKER_S = 5.0
#: How often we check whether a broker's time is over, while there is one.
FORGIVE_CHECK_S = 0.5
#: Pause before a retry when no other broker is there to take it.
RETRY_PAUSE_S = 0.1


class Sender:
    """Makes the attempts of one producer's sends. For one event loop.

    Args:
        pool: connections and routes; the owner starts and closes it.
        config: of the client.
        clock: for the time that brokers are avoided.
        in_flight_max: sends that may be unanswered; the owner keeps to it, with ``wait_room``.

    Attributes:
        topics: the queues of the topics in use; of one that is not there the route is read first.
        in_flight_count: sends without an answer yet.
    """

    def __init__(
        self, pool: ClientPool, config: ClientConfig, *, clock: Clock, in_flight_max: int
    ) -> None:
        self._pool = pool
        self._config = config
        self._clock = clock
        self.in_flight_max = in_flight_max
        self.in_flight_count = 0
        self.topics: dict[str, TopicQueues] = {}
        self._avoided = AvoidedBrokers()
        self._forgiving: asyncio.TimerHandle | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idle: asyncio.Future[None] | None = None

    # --- a send

    def begin(self, send: SendAttempt) -> asyncio.Future[SendResult]:
        """Make the first attempt: at once if route and connection are there."""
        queues = self.topics.get(send.topic)
        if queues is not None:
            template = send.choose(queues, self._avoided.names)
            channel = self._pool.open_channel(template.address)
            if channel is not None:
                send.attempt(channel, template, self._config.timeout_s)
                send.attempts_left = self._config.send_retries
                self.in_flight_count += 1
                return send.future
        send.attempts_left = self._config.send_retries + 1
        self.in_flight_count += 1
        self._pursue(send, None)
        return send.future

    def retry(self, send: SendAttempt, error: PymqError) -> None:
        """Go on with a send whose first attempt failed."""
        send.attempt_failed(error)
        if send.attempts_left and self._pool.is_open and send.may_retry(error):
            self._pursue(send, error)
        else:
            send.failed(error)

    def _pursue(self, send: SendAttempt, error: PymqError | None) -> None:
        task = self._pool.spawn("send", self._attempt_again(send, error))
        task.add_done_callback(send.abandoned)

    async def _attempt_again(self, send: SendAttempt, error: PymqError | None) -> None:
        """Make attempts with waiting in between, until one succeeds or none is left."""
        while send.attempts_left and not send.future.done():
            if error is not None:
                await self._recover(send, error)
            send.attempts_left -= 1
            try:
                result = await self._attempt(send)
            except PymqError as failure:
                error = failure
                send.attempt_failed(failure)
                if not send.may_retry(failure):
                    break
            else:
                send.succeeded(result)
                return
        if error is not None:
            send.failed(error)

    async def _attempt(self, send: SendAttempt) -> SendResult:
        template = await self.choose(send)
        channel = await self.channel(template)
        future: asyncio.Future[Command] = self._pool.loop.create_future()

        def on_answer(answer: Command | PymqError) -> None:
            if future.done():
                return
            if isinstance(answer, PymqError):
                self.broker_failed(template, answer)
                future.set_exception(answer)
            else:
                future.set_result(answer)

        send.request(channel, template, self._config.timeout_s, on_answer)
        return read_send(await future, template, send.message_id, peer=template.address)

    async def _recover(self, send: SendAttempt, error: PymqError) -> None:
        """Before a retry: read the route again if it may be wrong; pause if nothing else helps."""
        if isinstance(error, (TopicNotExist, ConnectionFailed)):
            try:
                await self._pool.routes.route(
                    send.topic, refresh=True, create_queue_count=self._config.default_queue_count
                )
            except PymqError as failure:
                _log.debug("route of %r not read again: %s", send.topic, failure)
        queues = self.topics.get(send.topic)
        if queues is None or send.is_bound or not queues.has_other(self._avoided.names):
            await asyncio.sleep(RETRY_PAUSE_S)

    # --- queues and connections

    async def topic_queues(self, topic: str) -> TopicQueues:
        """Return the queues of a topic that can be sent to; reads its route if need be.

        Raises:
            RouteNotFound: no broker is known for the topic.
        """
        queues = self.topics.get(topic)
        if queues is None:
            route = await self._pool.routes.route(
                topic, create_queue_count=self._config.default_queue_count
            )
            self.topics[topic] = queues = self._make_queues(route)
        return queues

    def _make_queues(self, route: Route) -> TopicQueues:
        masters = route.masters()
        templates = [
            SendTemplate(
                queue,
                masters.get(queue.broker_name),
                group=self._config.producer_group,
                default_topic_queue_count=self._config.default_queue_count,
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

    async def choose(self, send: SendAttempt) -> SendTemplate:
        """Return the queue that a send goes to.

        Raises:
            LocalProtocolError: the queue it must go to is not there.
            RouteNotFound: no broker is known for the topic.
        """
        queues = await self.topic_queues(send.topic)
        return send.choose(queues, self._avoided.names)

    async def channel(self, template: SendTemplate) -> AsyncChannel:
        """Return the connection to a queue's master.

        Raises:
            ConnectionFailed: it cannot be reached; the broker is avoided from now on.
            RouteNotFound: there is no master; likewise.
        """
        queue = template.queue
        try:
            address = template.address
            if address is None:
                address = (await self._pool.routes.route(queue.topic)).address(queue.broker_name)
            return await self._pool.broker_channel(queue.topic, queue.broker_name, address)
        except (ConnectionFailed, RouteNotFound) as error:
            self.broker_failed(template, error)
            raise

    def broker_failed(self, template: SendTemplate, error: PymqError) -> None:
        """Keep away from a broker that does not answer, and doubt what its route says."""
        if not isinstance(error, (ConnectionFailed, RequestTimeout, RouteNotFound)):
            return
        until_s = self._clock.monotonic_s() + AVOID_BROKER_S
        self._avoided.add(template.queue.broker_name, until_s)
        self._pool.routes.doubt(template.queue.topic)
        if self._forgiving is None:
            self._forgiving = self._pool.loop.call_later(AVOID_BROKER_S, self._forgive)

    def _forgive(self) -> None:
        self._forgiving = None
        self._avoided.expire(self._clock.monotonic_s())
        if self._avoided.names and self._pool.is_open:
            self._forgiving = self._pool.loop.call_later(FORGIVE_CHECK_S, self._forgive)

    # --- what is in flight

    def ended(self) -> None:
        """Count a send as answered and let the next one begin."""
        self.in_flight_count -= 1
        if self._waiting:
            self._wake_one()
        if not self.in_flight_count and self._idle is not None:
            self._idle.set_result(None)
            self._idle = None

    @property
    def _has_room(self) -> bool:
        return self.in_flight_count < self.in_flight_max

    def _wake_one(self) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
                break

    def wake_all(self) -> None:
        """Wake whoever waits for room: the client is closed."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_room(self) -> None:
        """Wait until another send may begin.

        Raises:
            ClientClosed: the producer was closed meanwhile.
        """
        while self.in_flight_count >= self.in_flight_max:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            try:
                await waiter
            finally:
                if waiter.done() and not waiter.cancelled() and self._has_room:
                    self._wake_one()  # Somebody else's turn, should we be cancelled just now.
            self._pool.check_open()

    async def flush(self) -> None:
        """Wait until no send is unanswered."""
        while self.in_flight_count:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)
