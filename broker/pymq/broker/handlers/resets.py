"""Sets groups to other places in their queues, for administrators: 222, 314.

A reset is done by the broker itself or, as in 4.9, by the consumers (``useServerSideResetOffset``).

Source: RocketMQ AdminBrokerProcessor.resetOffsetInner, Broker2Client.resetOffset.
"""

import asyncio
from collections.abc import Callable, Mapping

from pymq.broker.cold_reads import ColdReads
from pymq.broker.config import BrokerConfig
from pymq.broker.state.clients import ClientTable
from pymq.broker.state.groups import GroupTable
from pymq.broker.state.offsets import OffsetTable
from pymq.broker.state.topics import TopicTable
from pymq.broker.state_saving import AnswerSaved
from pymq.errors import LocalProtocolError, refusal
from pymq.net.dispatcher import Answer, Handler, Request
from pymq.protocol import names
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.client_bodies import OffsetOfQueue, OffsetReset, OffsetResetForCpp
from pymq.protocol.codes import (
    MQ_VERSION_OFFSETS,
    CommandFlag,
    LanguageCode,
    RequestCode,
    ResponseCode,
)
from pymq.protocol.command import Command
from pymq.protocol.framing import encode_frame
from pymq.protocol.headers.offsets import CloneOffsetsRequest, ResetOffsetRequest
from pymq.store import MessageStore, QueueKey

#: Queues looked at in one turn of the event loop.
_TURN_COUNT = 256


class ResetHandlers:
    """Moves groups.

    Args:
        wake: answers the held requests of a queue for which a function is true.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        cold_reads: ColdReads,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        clients: ClientTable,
        answer_saved: AnswerSaved,
        wake: Callable[[QueueKey, Callable[[Request], bool]], object],
    ) -> None:
        self._config = config
        self._store = store
        self._cold_reads = cold_reads
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._clients = clients
        self._answer_saved = answer_saved
        self._wake = wake

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
        }

    def reset(self, request: Request) -> Answer:
        """INVOKE_BROKER_TO_RESET_OFFSET (222)."""
        header = ResetOffsetRequest.from_fields(request.fields)
        if self._config.server_side_reset:
            return self._reset(request, header)
        return self._have_clients_reset(request, header)

    # --- by the broker

    async def _reset(self, request: Request, header: ResetOffsetRequest) -> Command:
        """Set a group to other offsets; answered once they are on the disk.

        Its members hear of it in the answers to their pulls, those that are held included.
        """
        topic, group = header.topic, header.group
        topic_id = self._topics.id_of(topic)
        offsets = await self._new_offsets(header)
        if self._topics.id_of(topic) != topic_id:  # the offsets are of the one before
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"topic {topic} was deleted meanwhile, and nothing is reset; ask again",
            )
        for queue_id, offset in offsets.items():
            self._offsets.reset(group, topic, queue_id, offset)
        response = await self._answer_saved(request)
        response.body = self._body(topic, offsets).encode()
        for queue_id in offsets:
            self._wake(
                (topic, queue_id),
                lambda held: (held.fields or {}).get("consumerGroup") == group,
            )
        return response

    async def _new_offsets(self, header: ResetOffsetRequest) -> dict[int, int]:
        """Return the new offset in each queue of a topic, or in the one that is named."""
        config = self._topics.find(header.topic)
        if config is None:
            raise refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} does not exist")
        if header.group not in self._groups:
            raise refusal(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.group} does not exist"
            )
        if header.queue_id < 0:
            queues = range(config.read_queue_count)
            return {queue_id: await self._offset_at(header, queue_id) for queue_id in queues}
        queue_id, offset = header.queue_id, header.offset
        if offset is None or offset == -1:
            return {queue_id: await self._offset_at(header, queue_id)}
        first, end = self._store.queue_bounds(header.topic, queue_id)
        if not first <= offset <= end + 1:
            raise refusal(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {offset} not in consume queue range [{first}-{end}]",
            )
        return {queue_id: offset}

    async def _offset_at(self, header: ResetOffsetRequest, queue_id: int) -> int:
        if queue_id % _TURN_COUNT == 0:  # topics may have many queues
            await asyncio.sleep(0)
        if header.timestamp_ms < 0:
            return self._store.queue_bounds(header.topic, queue_id)[1]
        return await self._cold_reads.offset_by_time(
            header.topic, queue_id, header.timestamp_ms
        )

    # --- by the consumers

    async def _have_clients_reset(self, request: Request, header: ResetOffsetRequest) -> Command:
        """Tell all members of a group where to go on; they commit that."""
        topic, group = header.topic, header.group
        offsets = await self._offsets_for_clients(header)
        online = self._clients.consumer_group(group)
        if online is None:
            raise refusal(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {group} Topic: {topic} "
                f"Timestamp: {header.timestamp_ms}",
            )
        for client in online.members.values():
            if client.version < MQ_VERSION_OFFSETS:
                raise refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"the client does not support this feature. version={client.version}",
                )
        body = self._body(topic, offsets)
        told: OffsetReset | OffsetResetForCpp = body
        if request.command.language == LanguageCode.CPP:
            told = _for_cpp(body)
        fields = ResetOffsetRequest(
            topic=topic, group=group, timestamp_ms=header.timestamp_ms
        ).to_fields()
        frame = encode_frame(
            Command(
                RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
                fields,
                told.encode(),
                flag=CommandFlag.ONE_WAY,
                language=LanguageCode.JAVA,
            )
        )
        for connection in online.members:
            connection.send(frame)
        return request.response(ResponseCode.SUCCESS, body=body.encode())

    async def _offsets_for_clients(self, header: ResetOffsetRequest) -> dict[int, int]:
        config = self._topics.find(header.topic)
        if config is None:
            raise refusal(
                ResponseCode.TOPIC_NOT_EXIST,
                "[reset-offset] reset offset failed, no topic in this broker. "
                f"topic={header.topic}",
            )
        offsets = {}
        for queue_id in range(config.write_queue_count):
            committed = self._offsets.find(header.group, header.topic, queue_id)
            if committed is None:
                raise refusal(
                    ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist"
                )
            offset = max(await self._offset_at(header, queue_id), 0)
            offsets[queue_id] = offset if header.is_force else min(offset, committed)
        return offsets

    def _body(self, topic: str, offsets: Mapping[int, int]) -> OffsetReset:
        return OffsetReset(
            offsets={
                MessageQueue(topic, self._config.name, queue_id): offset
                for queue_id, offset in offsets.items()
            }
        )

    # --- clones

    def clone(self, request: Request) -> Answer:
        """CLONE_GROUP_OFFSET (314): have one group be where another one is."""
        header = CloneOffsetsRequest.from_fields(request.fields)
        try:
            names.check_group(header.target_group)
        except LocalProtocolError as error:
            raise refusal(ResponseCode.INVALID_PARAMETER, f"nothing is cloned: {error}") from error
        source = header.source_group
        topics = [header.topic] if header.topic else self._offsets.topics_of(source)
        online = self._clients.consumer_group(source)
        for topic in topics:
            is_wanted = header.offline or online is None or topic in online.subscriptions
            if is_wanted and topic in self._topics:
                self._offsets.clone(source, header.target_group, topic)
        return self._answer_saved(request)


def _for_cpp(body: OffsetReset) -> OffsetResetForCpp:
    return OffsetResetForCpp(
        offsets=[
            OffsetOfQueue(
                topic=queue.topic,
                broker_name=queue.broker_name,
                queue_id=queue.queue_id,
                offset=offset,
            )
            for queue, offset in body.offsets.items()
        ]
    )
