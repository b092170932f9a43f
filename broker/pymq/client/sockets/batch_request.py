"""One batch in a pipeline, and what became of its attempts."""

from dataclasses import dataclass
from typing import Any

from pymq.client.operations import PreparedMessage, SendStatus
from pymq.client.sockets.batch_targets import BatchTarget
from pymq.errors import DurabilityUnknown, PymqError
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.records_body import RecordsBody

#: A SEND_BATCH body, or records that need less of the broker, or one message, which may be
#: compressed as a batch may not.
Batch = bytes | bytearray | memoryview | RecordsBody | PreparedMessage

_CURES = {
    SendStatus.FLUSH_DISK_TIMEOUT: "its disk did not confirm it in time (syncFlushTimeout)",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "its slave did not confirm it in time",
    SendStatus.SLAVE_NOT_AVAILABLE: "no slave is in reach and up to date: start one, or make the "
    "broker an ASYNC_MASTER",
}


@dataclass(slots=True, eq=False)
class BatchRequest:
    """A batch, and what became of its attempts.

    Attributes:
        failed_s: when the first attempt failed.
        not_before_s: not to be sent before to a broker that failed.
        unsecured: copies that are stored and not secured.
        unknown: why an attempt may have stored it.
        denied: brokers that have no permission for it.
        queue, send, channel, opaque: of the last attempt.
        sent_s: when the last attempt began, on the monotonic clock.
    """

    number: int
    target: BatchTarget
    batch: Batch
    failed_s: float | None = None
    failures: int = 0
    not_before_s: float = 0.0
    unsecured: int = 0
    unknown: PymqError | None = None
    denied: frozenset[str] = frozenset()
    queue: MessageQueue | None = None
    send: Any = None
    channel: Any = None
    opaque: int = 0
    sent_s: float = 0.0

    @property
    def size_bytes(self) -> int:
        """Bytes of the batch."""
        batch = self.batch
        body = batch.body if isinstance(batch, (RecordsBody, PreparedMessage)) else batch
        return memoryview(body).nbytes


def unsecured(request: BatchRequest, status: SendStatus, peer: str) -> DurabilityUnknown:
    """Return the error for a batch that a broker stored without what its settings promise."""
    return DurabilityUnknown(
        f"{peer} stored {request.send.description} and answered {status}: {_CURES[status]}; what "
        "its settings promise is not proven"
    )
