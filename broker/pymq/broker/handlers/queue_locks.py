"""Queue locks of orderly consumers: 41 and 42.

A lock is on a name: whether there is such a queue, here or elsewhere, is the client's affair.

Source: RocketMQ AdminBrokerProcessor.lockBatchMQ.
"""

from collections.abc import Mapping

from pymq.broker.state.queue_locks import QueueLocks
from pymq.net.dispatcher import Handler, Request
from pymq.protocol.bodies import LockRequest, LockResponse
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command


class QueueLockHandlers:
    """Grants and releases queue locks."""

    def __init__(self, locks: QueueLocks) -> None:
        self._locks = locks

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def lock(self, request: Request) -> Command:
        """LOCK_BATCH_MQ (41)."""
        header = LockRequest.decode(request.body)
        held = self._locks.lock(header.consumer_group, header.client_id, header.queues)
        return request.response(ResponseCode.SUCCESS, body=LockResponse(queues=held).encode())

    def unlock(self, request: Request) -> Command:
        """UNLOCK_BATCH_MQ (42)."""
        header = LockRequest.decode(request.body)
        self._locks.unlock(header.consumer_group, header.client_id, header.queues)
        return request.response(ResponseCode.SUCCESS)
