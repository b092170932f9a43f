"""Queue locks of orderly consumers: 41 and 42."""

from collections.abc import Mapping

from pymq.broker.config import BrokerConfig
from pymq.broker.handling import Handler
from pymq.broker.state.queue_locks import QueueLocks
from pymq.net.server import ServerConnection
from pymq.protocol.bodies import LockRequest, LockResponse, MessageQueue
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command


class LockHandlers:
    """Grants and takes back queue locks."""

    def __init__(self, config: BrokerConfig, locks: QueueLocks) -> None:
        self._config = config
        self._locks = locks

    def table(self) -> Mapping[int, Handler]:
        """Return what each code leads to."""
        return {
            RequestCode.LOCK_BATCH_MQ: self.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.unlock,
        }

    def lock(self, connection: ServerConnection, command: Command) -> Command:
        """LOCK_BATCH_MQ (41)."""
        request = LockRequest.decode(command.body)
        held = self._locks.lock(
            request.consumer_group, request.client_id, self._ours(request)
        )
        queues = [
            MessageQueue(topic=topic, broker_name=self._config.name, queue_id=queue_id)
            for topic, queue_id in held
        ]
        return command.reply(ResponseCode.SUCCESS, body=LockResponse(queues=queues).encode())

    def unlock(self, connection: ServerConnection, command: Command) -> Command:
        """UNLOCK_BATCH_MQ (42)."""
        request = LockRequest.decode(command.body)
        self._locks.unlock(request.consumer_group, request.client_id, self._ours(request))
        return command.reply(ResponseCode.SUCCESS)

    def _ours(self, request: LockRequest) -> list[tuple[str, int]]:
        """Return the queues of the request that are on this broker."""
        return [
            (queue.topic, queue.queue_id)
            for queue in request.queues
            if queue.broker_name == self._config.name
        ]
