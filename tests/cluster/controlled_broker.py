"""What a controller sees of a broker: registers, beats, asks, and hears of its role."""

import asyncio
from typing import Self

from pymq.net.channel import AsyncChannel
from pymq.net.dispatcher import Dispatcher, Request
from pymq.net.server import Server, ServerConfig
from pymq.net.tasks import Tasks
from pymq.protocol.codes import CommandFlag, RequestCode
from pymq.protocol.command import Command
from pymq.protocol.controller import (
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    ElectMasterRequest,
    NextBrokerIdRequest,
    NextBrokerIdResponse,
    RegisterReplicaRequest,
    ReplicaInfoRequest,
    ReplicaInfoResponse,
    RoleChangedRequest,
    SyncStateSet,
)
from pymq.protocol.headers.codec import Header
from pymq.protocol.headers.routes import BrokerHeartbeatRequest

CLUSTER, NAME = "c", "broker-a"
TIMEOUT_S = 30.0
DEADLINE_S = 60.0


class ControlledBroker:
    """One broker; an async context manager that leaves like a process that is killed.

    Args:
        controllers: ``host:port`` of all; all get the heartbeats.
        beat_s: time between heartbeats.
        silence_ms: what it says of its heartbeats.
        port: where it listens; 0: anywhere.

    Attributes:
        id: its broker id, once it is registered.
        epoch: of its log, as it says.
        end: of its log, as it says.
        notices: what it was told.
        is_second_asked: whether requests go to the second controller, not to the first.
        is_silent: whether its heartbeats stop.
        is_deaf: whether it refuses to hear what it is told.
        beat_address: where its heartbeats say that it listens; empty: where it does.
    """

    def __init__(
        self,
        *controllers: str,
        beat_s: float = 0.02,
        silence_ms: int = 60_000,
        port: int = 0,
    ) -> None:
        self._controllers = controllers
        self._beat_s = beat_s
        self._silence_ms = silence_ms
        self._channels: list[AsyncChannel] = []
        self._dispatcher = Dispatcher(
            "fake broker", {RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self._told}
        )
        self._server = Server(
            ServerConfig(port=port), self._dispatcher.on_commands, lambda one: None
        )
        self._tasks = Tasks("fake broker")
        self.id = 0
        self.epoch, self.end = 0, 0
        self.notices: list[tuple[RoleChangedRequest, SyncStateSet]] = []
        self.is_second_asked = False
        self.is_silent = False
        self.is_deaf = False
        self.beat_address = ""
        self._beat_count = 0

    async def __aenter__(self) -> Self:
        await self._server.start()
        self._channels = [await AsyncChannel.connect(one, TIMEOUT_S) for one in self._controllers]
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._tasks.close()
        for channel in self._channels:
            channel.close()
        await self._server.close()
        await self._dispatcher.close()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    def _told(self, request: Request) -> Command:
        if self.is_deaf:
            return request.response(1, "deaf")
        notice = RoleChangedRequest.from_fields(request.fields)
        self.notices.append((notice, SyncStateSet.decode(request.body)))
        return request.response(0)

    # --- what it asks

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        fields = header.to_fields() if header else None
        channel = self._channels[self.is_second_asked]
        return await channel.request(Command(code, fields, body), TIMEOUT_S)

    async def join(self) -> int:
        """Get an id, register, and begin to beat."""
        answer = await self.ask(
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
            NextBrokerIdRequest(cluster_name=CLUSTER, broker_name=NAME),
        )
        self.id = NextBrokerIdResponse.from_fields(answer.fields).next_broker_id
        answer = await self.ask(
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            ApplyBrokerIdRequest(
                cluster_name=CLUSTER,
                broker_name=NAME,
                broker_id=self.id,
                check_code=f"{self.address};1",
            ),
        )
        assert answer.code == 0, answer.remark
        assert (await self.register()).code == 0
        return self.id

    async def register(self) -> Command:
        """Tell where it is."""
        return await self.ask(
            RequestCode.CONTROLLER_REGISTER_BROKER,
            RegisterReplicaRequest(
                cluster_name=CLUSTER,
                broker_name=NAME,
                broker_id=self.id,
                broker_address=self.address,
            ),
        )

    def begin_to_beat(self) -> None:
        self.beat()
        self._tasks.repeat("beat", self._beat_if_not_silent, self._beat_s)

    def _beat_if_not_silent(self) -> None:
        if not self.is_silent:
            self.beat()

    async def wait_beats(self, count: int) -> None:
        """Wait until it has beaten this often; then the controller knows how fast it is."""
        while self._beat_count < count:
            await asyncio.sleep(self._beat_s)
        await self.wait_heard()

    async def wait_heard(self) -> None:
        """Wait until everything has arrived."""
        await self.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)

    async def ask_who_is_master(self) -> Command:
        return await self.ask(
            RequestCode.CONTROLLER_GET_REPLICA_INFO, ReplicaInfoRequest(broker_name=NAME)
        )

    def beat(self) -> None:
        self._beat_count += 1
        header = BrokerHeartbeatRequest(
            cluster_name=CLUSTER,
            broker_address=self.beat_address or self.address,
            broker_name=NAME,
            broker_id=self.id,
            epoch=self.epoch,
            max_offset=self.end,
            heartbeat_timeout_ms=self._silence_ms,
        )
        for channel in self._channels:
            if channel.is_open:
                channel.send_one_way(
                    Command(
                        RequestCode.BROKER_HEARTBEAT,
                        header.to_fields(),
                        flag=int(CommandFlag.ONE_WAY),
                    )
                )

    async def elect(self, *, designated: int | None = None) -> Command:
        return await self.ask(
            RequestCode.CONTROLLER_ELECT_MASTER,
            ElectMasterRequest(
                cluster_name=CLUSTER,
                broker_name=NAME,
                broker_id=self.id if designated is None else designated,
                is_designated=designated is not None,
            ),
        )

    async def state(self) -> tuple[ReplicaInfoResponse, SyncStateSet]:
        answer = await self.ask_who_is_master()
        assert answer.code == 0, answer.remark
        return ReplicaInfoResponse.from_fields(answer.fields), SyncStateSet.decode(answer.body)

    async def alter(self, *broker_ids: int) -> Command:
        """Ask as the master, in its present epochs."""
        now, in_sync = await self.state()
        return await self.ask(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            AlterSyncStateSetRequest(
                broker_name=NAME, master_broker_id=self.id, master_epoch=now.master_epoch
            ),
            SyncStateSet(frozenset(broker_ids), in_sync.epoch).encode(),
        )

    async def wait_master(self, broker_id: int | None, epoch: int) -> None:
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            found, in_sync = await self.state()
            if (found.master_broker_id, found.master_epoch) == (broker_id, epoch):
                assert broker_id is None or broker_id in in_sync.broker_ids
                return
            assert asyncio.get_running_loop().time() < deadline, f"{found}, {in_sync}"
            await asyncio.sleep(0.01)

    async def wait_told(self, epoch: int) -> RoleChangedRequest:
        """Wait until it was told of a master of this epoch."""
        deadline = asyncio.get_running_loop().time() + DEADLINE_S
        while True:
            for notice, _ in self.notices:
                if notice.master_epoch == epoch:
                    return notice
            assert asyncio.get_running_loop().time() < deadline, f"{self.notices}"
            await asyncio.sleep(0.01)
