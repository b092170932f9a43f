"""How replication goes (907, 1007), where its master is (906), and who that is now (1008).

Source: RocketMQ AdminBrokerProcessor (getBrokerHaStatus, getBrokerEpochCache, exchangeBrokerHaInfo,
notifyBrokerRoleChanged).
"""

from collections.abc import Awaitable, Callable, Mapping

from pymq.broker.config import BrokerConfig
from pymq.broker.ha.acting import Acting
from pymq.broker.ha.followers import Followers
from pymq.broker.ha.offset_followers import OffsetFollowers
from pymq.broker.ha.replica_group import ReplicaGroup
from pymq.broker.state.topic_ids import TopicIds
from pymq.clock import Clock
from pymq.errors import refusal
from pymq.net.dispatcher import Handler, Request
from pymq.protocol.admin_bodies import ReplicationStatus
from pymq.protocol.codes import AWAIT_METADATA, AWAIT_OFFSETS, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import EpochCache, EpochEntry
from pymq.protocol.headers.replication import (
    HaInfo,
    LowestIdChange,
    MetadataRequest,
    MetadataResponse,
    OffsetsRequest,
    OffsetsResponse,
)
from pymq.store import MessageStore

#: How long a slave's question is kept at most.
METADATA_WAIT_MAX_MS = 10_000


class ReplicationHandlers:
    """Tells what a master knows of its slaves, or a slave of its master.

    Args:
        config: of the broker.
        store: its log.
        address: ``host:port`` at which clients reach it.
        ha_address: ``host:port`` of a master's HA port; None: this is a slave.
        group: in which it is, if that has a controller.
        status: returns how replication goes.
        acting: of a slave that may act for its master.
        pause: has such a slave deliver nothing any more, and returns when it does not.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        address: str,
        ha_address: str | None,
        group: ReplicaGroup | None,
        status: Callable[[], ReplicationStatus],
        *,
        acting: Acting | None,
        pause: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._config = config
        self._store = store
        self._address = address
        self._ha_address = ha_address
        self._group = group
        self._status = status
        self._acting = acting
        self._pause = pause

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        handlers: dict[int, Handler] = {
            RequestCode.GET_BROKER_HA_STATUS: self.status,
            RequestCode.EXCHANGE_BROKER_HA_INFO: self.ha_info,
            RequestCode.GET_BROKER_EPOCH_CACHE: self.epochs,
        }
        if self._group is not None:
            handlers[RequestCode.NOTIFY_BROKER_ROLE_CHANGED] = self.role_changed
        if self._acting is not None:
            handlers[RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE] = self.lowest_id_changed
        return handlers

    def status(self, request: Request) -> Command:
        """GET_BROKER_HA_STATUS (907)."""
        return request.response(ResponseCode.SUCCESS, body=self._status().encode())

    async def ha_info(self, request: Request) -> Command:
        """EXCHANGE_BROKER_HA_INFO (906): where slaves connect; a slave knows of no such place."""
        answer, told = HaInfo(), HaInfo.from_fields(request.fields)
        if self._acting is not None and told.ha_address:
            if self._pause is not None:
                await self._pause()  # the master asks next how far deliveries are
            self._acting.told(told)
        if self._ha_address is not None:
            answer = HaInfo(
                ha_address=self._ha_address,
                flushed_end=self._store.durability.flushed_end,
                address=self._address,
            )
        return request.response(ResponseCode.SUCCESS, fields=answer.to_fields())

    def lowest_id_changed(self, request: Request) -> Command:
        """NOTIFY_MIN_BROKER_ID_CHANGE (905): sooner than this slave would have asked."""
        assert self._acting is not None
        told = LowestIdChange.from_fields(request.fields)
        is_ours = told.broker_name in (None, self._config.name)  # RocketMQ's name no group
        if told.broker_id is not None and told.address and is_ours:
            self._acting.lowest(told.broker_id, told.address, told.ha_address)
        return request.response(ResponseCode.SUCCESS)

    def epochs(self, request: Request) -> Command:
        """GET_BROKER_EPOCH_CACHE (1007)."""
        group, config, log_end = self._group, self._config, self._store.log_end
        if group is None:
            raise refusal(ResponseCode.SYSTEM_ERROR, "this request only for controllerMode ")
        entries = group.epochs.epochs.entries
        ends = [*(one.first for one in entries[1:]), log_end][: len(entries)]
        body = EpochCache(
            cluster_name=config.cluster,
            broker_name=config.name,
            broker_id=config.broker_id,
            epochs=[
                EpochEntry(epoch=one.number, start=one.first, end=end)
                for one, end in zip(entries, ends, strict=True)
            ],
            max_offset=log_end,
        )
        return request.response(ResponseCode.SUCCESS, body=body.encode())

    def role_changed(self, request: Request) -> Command:
        """NOTIFY_BROKER_ROLE_CHANGED (1008)."""
        assert self._group is not None
        self._group.steering.told(request.command)
        return request.response(ResponseCode.SUCCESS)


class MetadataHandlers:
    """Tells slaves of changes of topics, groups and offsets."""

    def __init__(
        self,
        store: MessageStore,
        followers: Followers,
        ids: TopicIds,
        offset_followers: OffsetFollowers,
        clock: Clock,
    ) -> None:
        self._clock = clock
        self._store = store
        self._followers = followers
        self._ids = ids
        self._offset_followers = offset_followers

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {AWAIT_METADATA: self.wait_other, AWAIT_OFFSETS: self.wait_offsets}

    async def wait_other(self, request: Request) -> Command:
        """AWAIT_METADATA (479008): answered when this master has others than the slave.

        With the ids of the topics, which no request of RocketMQ's asks for.
        """
        told = MetadataRequest.from_fields(request.fields)
        wait_s = min(max(told.wait_ms, 0), METADATA_WAIT_MAX_MS) / 1000
        version = await self._followers.wait_other(told.broker_id, told.version, wait_s)
        fields = MetadataResponse(version=version, time_ms=self._clock.wall_ms()).to_fields()
        body = self._ids.body() if version != told.version else b""
        return request.response(ResponseCode.SUCCESS, fields=fields, body=body)

    async def wait_offsets(self, request: Request) -> Command:
        """AWAIT_OFFSETS (479009): answered when offsets have changed that the slave has not."""
        told = OffsetsRequest.from_fields(request.fields)
        wait_s = min(max(told.wait_ms, 0), METADATA_WAIT_MAX_MS) / 1000
        position, changes = await self._offset_followers.wait_changes(
            told.broker_id, told.position, wait_s
        )
        fields = OffsetsResponse(position=position, log_end=self._store.log_end).to_fields()
        body = b"" if changes is None else changes.encode()
        return request.response(ResponseCode.SUCCESS, fields=fields, body=body)
