"""BulkClient: a BlockingClient that reads and writes many queues at once, for the Spark connector.

It sends batches that the caller has encoded, several in flight, asks for the bounds of many
queues without waiting for those whose broker is away, and lists topics.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from pymq.client import operations
from pymq.client.operations import Operation, PreparedMessage, Send, SendResult
from pymq.client.sending.preencoded_records import send_records
from pymq.client.sockets.batch_pipeline import BATCHES_IN_FLIGHT, BatchPipeline
from pymq.client.sockets.batch_request import Batch
from pymq.client.sockets.batch_targets import BatchTarget
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.client.sockets.delayed_sends import DelayedMessage, DelayedSend
from pymq.client.sockets.fitting_ranges import FittingAnswer, ask_fitting
from pymq.client.sockets.many_requests import ask_many
from pymq.client.sockets.queue_bounds import BoundsAnswer, ask_bounds
from pymq.client.sockets.staging import Stage, StagedResult
from pymq.errors import ConfigurationError, PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.records_body import RecordsBody
from pymq.protocol.sink_bodies import StagedRun

T = TypeVar("T")


class BulkClient(BlockingClient):
    """A blocking client for whole topics; takes the same arguments."""

    # --- reading

    def try_bounds(
        self, queues: Iterable[MessageQueue], *, timeout_s: float | None = None
    ) -> BoundsAnswer:
        """Ask once for the bounds of queues; a broker that is away costs no other its answer.

        Args:
            queues: of any topics and brokers.
            timeout_s: for connections to be made, and then for the answers, which are awaited
                together; the client's own by default.

        Raises:
            PymqError: a broker refused, and not because it is busy or the topic unknown.
        """
        wanted = list(dict.fromkeys(queues))
        return ask_bounds(self._pool, wanted, timeout_s=timeout_s or self._config.timeout_s)

    def try_fitting(self, wanted: Mapping[MessageQueue, tuple[int, int, int]]) -> FittingAnswer:
        """Ask once how far ranges of queues go within a number of bytes; only pymq brokers tell.

        Args:
            wanted: first queue offset, end, and the bytes there may be, of each queue.
        """
        return ask_fitting(self._pool, wanted, timeout_s=self._config.timeout_s)

    def asks_master(self, queue: MessageQueue) -> bool:
        """Say whether the bounds of a queue, and losses in it, are what its master says.

        So it is if the route here has a master: a replica of one is only read from. Otherwise
        they are what a slave says, which may lag: what its master has acknowledged, and what was
        read from it, may be missing there for a while.
        """
        route = self._pool.routes.find(queue.topic)
        return route is not None and queue.broker_name in route.masters()

    def doubt_route(self, topic: str) -> None:
        """Ask for a topic's route again when it is used next; the old one serves until then."""
        self._pool.routes.doubt(topic)

    def ask(self, address: str, operation: Operation[T]) -> T:
        """Send one request to a broker or name server; once, without a retry.

        Args:
            address: its ``host:port``.
            operation: what to ask.

        Raises:
            PymqError: whatever went wrong.
        """
        return self._pool.ask(address, operation)

    def ask_many(
        self, asked: Sequence[tuple[str, Operation[T]]], *, timeout_s: float | None = None
    ) -> list[T | PymqError]:
        """Send requests to their addresses, together and once; an address may be away.

        Args:
            asked: ``host:port`` and what to ask there.
            timeout_s: as for ``try_bounds``.

        Returns:
            The results, or why there is none, in their order.
        """
        return ask_many(self._pool, asked, timeout_s=timeout_s or self._config.timeout_s)

    # --- topics and groups

    def topic_names(self) -> list[str]:
        """Return the names of all topics that a name server knows, the system's among them.

        Raises:
            ConnectionFailed: no name server could be asked.
        """
        return self._pool.ask_name_servers(operations.topic_list())

    def stored_commit(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset a group has really committed in a queue, ``None`` for none.

        Asked otherwise (``committed_offset``), brokers answer 0 for a group that has committed
        nothing, if the queue still has its first message; those before 5.0 always do.

        Raises:
            PymqError: no answer until the deadline, or the broker refused.
        """
        return self._read(queue, operations.query_offset(group, queue, zero_if_new=False))

    # --- sending

    def send_batches(
        self,
        queue: MessageQueue,
        bodies: Iterable[Batch],
        *,
        in_flight_max: int = BATCHES_IN_FLIGHT,
    ) -> list[SendResult]:
        """Send batches that the caller encoded to one queue, in their order.

        Several are in flight at a pymq broker. RocketMQ handles the requests of one connection on
        several threads, and gets one at a time.

        Args:
            queue: where all go.
            bodies: of SEND_BATCH, or pre-encoded records; each at most ``body_bytes_max``; must
                not change until this returns.
            in_flight_max: batches in flight at a time.

        Returns:
            One result per body, in their order. All are acknowledged. Of pre-encoded records, it
            has the id of the first.

        Raises:
            LocalProtocolError: a body is too large.
            PymqError: one was refused, or could not be sent ``send_retries`` times in a row;
                a note says how many were acknowledged. Those in flight then may have been
                stored, too.
        """
        results: dict[int, SendResult] = {}
        pipeline = BatchPipeline(
            self._pool,
            self._batch_operation,
            results.__setitem__,
            in_flight_max=in_flight_max,
            retries_max=self._config.send_retries,
            awaits_routes=self._config.awaits_routes,
        )
        target = BatchTarget.of(queue)
        try:
            for body in bodies:
                pipeline.send(target, body)
            pipeline.flush()
        finally:
            pipeline.abandon()
        return [results[number] for number in range(len(results))]

    def batch_pipeline(
        self, *, in_flight_max: int, retry_s: float, first_turn: int = 0
    ) -> BatchPipeline:
        """Return what sends batches to wherever they may go, until they are secured.

        A topic or broker without a route is taken for one that is away for the moment.

        Args:
            in_flight_max: batches in flight at a time.
            retry_s: a batch that has failed for this long is given up.
            first_turn: which of a topic's queues comes first; senders should differ.
        """
        return BatchPipeline(
            self._pool,
            self._batch_operation,
            in_flight_max=in_flight_max,
            retry_s=retry_s,
            awaits_routes=True,
            wants_secured=True,
            first_turn=first_turn,
        )

    def staging_pipeline(
        self,
        part: int,
        on_staged: Callable[[int, StagedRun], None],
        *,
        in_flight_max: int,
        retry_s: float,
        first_turn: int = 0,
    ) -> BatchPipeline:
        """Return what stages records for an exactly-once sink, where no consumer sees them.

        It takes only pre-encoded records, and only for brokers that take those. What was not
        acknowledged is staged again: nobody names the first copy when the batch is published.

        Args:
            part: see ``StagedRun``.
            on_staged: gets the number of a batch, counted from 0, and where it is.
            in_flight_max, retry_s, first_turn: as for ``batch_pipeline``.
        """

        def operation(queue: MessageQueue, batch: Batch) -> Send:
            if not isinstance(batch, RecordsBody):
                raise ConfigurationError(
                    f"broker {queue.broker_name!r} takes no pre-encoded records, which an "
                    "exactly-once sink needs: it must be a pymq broker that is reached over IPv4"
                )
            return Stage(self._send_operation(queue, batch.body), batch, part)

        def stored(number: int, result: SendResult) -> None:
            assert isinstance(result, StagedResult)
            on_staged(number, result.run)

        return BatchPipeline(
            self._pool,
            operation,
            stored,
            in_flight_max=in_flight_max,
            retry_s=retry_s,
            awaits_routes=True,
            first_turn=first_turn,
        )

    def _batch_operation(self, queue: MessageQueue, batch: Batch) -> Send:
        if isinstance(batch, RecordsBody):
            return send_records(self._send_operation(queue, batch.body), batch)
        if isinstance(batch, DelayedMessage):
            return DelayedSend(self._sender.operation(batch, queue), batch)
        if isinstance(batch, PreparedMessage):
            return self._sender.operation(batch, queue)
        return self._send_operation(queue, memoryview(batch).cast("B"))

    def _send_operation(self, queue: MessageQueue, body: memoryview) -> Send:
        prepared = PreparedMessage(queue.topic, body, "", None, batch=True)
        return self._sender.operation(prepared, queue)
