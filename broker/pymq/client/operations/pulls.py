"""Reading messages of one queue."""

from dataclasses import dataclass
from enum import Enum

from pymq.client.operations.operation import Operation
from pymq.errors import RemoteProtocolError
from pymq.protocol.bodies import MessageQueue, Subscription
from pymq.protocol.codes import PullFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.pull import PullRequest, PullResponse

_PULL = int(RequestCode.PULL_MESSAGE)


class PullStatus(Enum):
    """How a pull ended (PullStatus)."""

    FOUND = ResponseCode.SUCCESS
    #: Nothing behind the offset yet.
    NO_NEW = ResponseCode.PULL_NOT_FOUND
    #: Entries were scanned, none matched the filter; go on at ``next_offset``.
    NO_MATCH = ResponseCode.PULL_RETRY_IMMEDIATELY
    #: The offset is outside the queue; ``next_offset`` is the nearest one inside.
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_PULL_STATUSES = {int(status.value): status for status in PullStatus}


@dataclass(slots=True)
class PullResult:
    """What a pull brought.

    Attributes:
        status: see there.
        next_offset: where to go on; counts scanned messages, not only matching ones.
        min_offset: the queue's first offset that is kept.
        max_offset: the queue's end.
        body: whole stored records, back to back. A memoryview lives as its channel says.
        suggested_broker_id: 0 unless a slave should be read from.
    """

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes | memoryview
    suggested_broker_id: int = 0


class Pull(Operation[PullResult]):
    """PULL_MESSAGE (11), or LITE_PULL_MESSAGE (361)."""

    __slots__ = ("offset", "queue")

    def __init__(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        group: str,
        count_max: int = 32,
        subscription: Subscription | None = None,
        subscription_version: int = 0,
        suspend_ms: int = 0,
        bytes_max: int | None = None,
    ) -> None:
        """Prepare one pull.

        Args:
            queue: where from.
            offset: first queue offset wanted.
            group: consumer group.
            count_max: messages wanted; RocketMQ gives 32 at most.
            subscription: sent along, so that the broker needs no heartbeat of this group.
                Without it the broker uses the one of the last heartbeat.
            subscription_version: version the broker must have of it, at least.
            suspend_ms: how long the broker may wait for a message; 0: not at all.
            bytes_max: ask a pymq broker for up to this many bytes, whatever RocketMQ's
                limits; other brokers ignore it.
        """
        flags = 0
        if suspend_ms:
            flags |= PullFlag.SUSPEND
        expression, kind = None, "TAG"
        if subscription is not None:
            flags |= PullFlag.SUBSCRIPTION
            expression, kind = subscription.expression, subscription.expression_type
            subscription_version = subscription.version
        header = PullRequest(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            message_count_max=count_max,
            sys_flag=int(flags),
            suspend_timeout_ms=suspend_ms,
            subscription=expression,
            sub_version=subscription_version,
            expression_type=kind,
            broker_name=queue.broker_name,
            extended_bytes_max=bytes_max,
        )
        self.request = Command(_PULL, header.to_fields())
        self.queue = queue
        self.offset = offset

    @property
    def description(self) -> str:
        queue = self.queue
        return f"a pull of topic {queue.topic!r}, queue {queue.queue_id}, offset {self.offset}"

    def result(self, response: Command, *, peer: str) -> PullResult:
        status = _PULL_STATUSES.get(response.code)
        if status is None:
            raise self.refusal(response, peer)
        try:
            header = PullResponse.from_fields(response.fields)
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"{peer} answered {self.description}: {error}") from error
        if status is PullStatus.FOUND and header.next_begin_offset <= self.offset:
            raise RemoteProtocolError(
                f"{peer} answered {self.description}: next offset {header.next_begin_offset}, "
                f"expected more than {self.offset}"
            )
        return PullResult(
            status,
            header.next_begin_offset,
            header.min_offset,
            header.max_offset,
            response.body,
            header.suggest_which_broker_id,
        )
