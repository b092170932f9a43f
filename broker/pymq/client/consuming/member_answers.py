"""What operators ask one member of a group, by way of its broker: ``mqadmin``, dashboards.

Source: RocketMQ ClientRemotingProcessor, DefaultMQPushConsumerImpl.consumerRunningInfo.
"""

import dataclasses
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping

from pymq.client.cluster.namespaces import wrapped_queue
from pymq.client.cluster.pool import ClientPool
from pymq.client.consuming.consumer_config import ConsumerConfig
from pymq.client.group.held_queues import HeldQueues
from pymq.client.group.process_queue import ProcessQueue
from pymq.errors import RemoteProtocolError
from pymq.net.channel import AsyncChannel
from pymq.protocol.bodies import ConsumerData, MessageQueue
from pymq.protocol.client_bodies import ConsumerRunningInfo, ConsumerStatus, ProcessQueueInfo
from pymq.protocol.codes import MQ_VERSION_TEXT, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.groups import ConsumerStatusRequest, RunningInfoRequest

_MIB = 1 << 20


class MemberAnswers:
    """Answers them for a push consumer.

    Args:
        config: of the consumer.
        pool: its connections.
        held: the queues that are its.
        data: returns what its heartbeats say of it.
        may_deliver: is a queue surely its, if it has to be locked?
    """

    def __init__(
        self,
        config: ConsumerConfig,
        pool: ClientPool,
        held: HeldQueues,
        data: Callable[[], list[ConsumerData]],
        may_deliver: Callable[[MessageQueue], bool],
    ) -> None:
        self._config = config
        self._pool = pool
        self._held = held
        self._data = data
        self._may_deliver = may_deliver
        self._made_ms = time.time_ns() // 1_000_000
        self._answers: Mapping[int, Callable[[Command], bytes]] = {
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._running_info,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._status,
        }

    def answer(self, channel: AsyncChannel, request: Command) -> None:
        """Answer a request of a broker."""
        try:
            body = self._answers[request.code](request)
        except (LookupError, RemoteProtocolError) as error:
            remark = str(error.args[0])
            channel.respond(request, request.reply(ResponseCode.SYSTEM_ERROR, remark))
        else:
            channel.respond(request, request.reply(ResponseCode.SUCCESS, body=body))

    def _running_info(self, request: Command) -> bytes:
        header = RunningInfoRequest.from_fields(request.fields)
        self._check_group(header.consumer_group)
        (data,) = self._data()
        network = self._pool.network
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(self._config.name_servers),
                "PROP_CONSUMEORDERLY": str(self._config.orderly).lower(),
                "PROP_CONSUME_TYPE": str(data.consume_type),
                "PROP_CLIENT_VERSION": MQ_VERSION_TEXT,
                "PROP_CONSUMER_START_TIMESTAMP": str(self._made_ms),
            },
            subscriptions=[
                dataclasses.replace(one, topic=network.wrap(one.topic))
                for one in data.subscriptions
            ],
            queues={
                wrapped_queue(network, queue): self._info(process_queue)
                for queue, process_queue in self._process_queues()
            },
            stacks=_stacks() if header.jstack_enable else None,
        ).encode()

    def _status(self, request: Command) -> bytes:
        header = ConsumerStatusRequest.from_fields(request.fields)
        self._check_group(header.group)
        return ConsumerStatus(
            offsets={
                wrapped_queue(self._pool.network, queue): process_queue.commit_offset
                for queue, process_queue in self._process_queues()
                if queue.topic == header.topic
            }
        ).encode()

    def _check_group(self, group: str) -> None:
        if group != self._config.group:
            raise LookupError(f"The Consumer Group <{group}> not exist in this consumer")

    def _process_queues(self) -> list[tuple[MessageQueue, ProcessQueue]]:
        return [
            (queue, reader.process_queue)
            for queue, reader in self._held.readers.items()
            if reader.process_queue is not None
        ]

    def _info(self, process_queue: ProcessQueue) -> ProcessQueueInfo:
        last_offset = process_queue.last_offset
        info = ProcessQueueInfo(
            commit_offset=process_queue.commit_offset,
            is_locked=self._config.orderly and self._may_deliver(process_queue.queue),
            is_dropped=process_queue.dropped,
            pulled_ms=process_queue.pulled_ms,
        )
        if last_offset is not None:
            info.first_offset, info.last_offset = process_queue.commit_offset, last_offset
            info.message_count = process_queue.message_count
            info.size_mib = process_queue.message_bytes // _MIB
        return info


def _stacks() -> str:
    """Return what each thread of this process does at the moment."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, '?')} TID: {ident}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
