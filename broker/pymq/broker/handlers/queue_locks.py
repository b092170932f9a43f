"""Queue locks of orderly consumers: 41 and 42."""

from collections.abc import Mapping

from pymq.broker.config import BrokerConfig
from pymq.broker.state.queue_locks import QueueLocks
from pymq.net.dispatcher import Handler, Request
from pymq.protocol.bodies import LockRequest, LockResponse, MessageQueue
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.store import QueueKey


class QueueLockHandlers:
    """Grants and releases queue locks."""

    def __init__(self, config: BrokerConfig, locks: QueueLocks) -> None:
        self._config = config
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
        held = self._locks.lock(header.consumer_group, header.client_id, self._ours(header))
        queues = [
            MessageQueue(topic=topic, broker_name=self._config.name, queue_id=queue_id)
            for topic, queue_id in held
        ]
        return request.response(ResponseCode.SUCCESS, body=LockResponse(queues=queues).encode())

    def unlock(self, request: Request) -> Command:
        """UNLOCK_BATCH_MQ (42)."""
        header = LockRequest.decode(request.body)
        self._locks.unlock(header.consumer_group, header.client_id, self._ours(header))
        return request.response(ResponseCode.SUCCESS)

    def _ours(self, request: LockRequest) -> list[QueueKey]:
        """Return the queues of the request that are on this broker."""
        return [
            (queue.topic, queue.queue_id)
            for queue in request.queues
            if queue.broker_name == self._config.name
        ]
