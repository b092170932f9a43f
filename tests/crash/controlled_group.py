"""A group of brokers without disks, under real controllers: what of a failover can go wrong.

Each member has a log in memory, which outlives its process. The master acknowledges a value when
every member of the sync state set that it knows has it, and members take nothing from a master
whose epoch is below theirs: the rules of RocketMQ's ``allAckInSyncStateSet``. A member joins the
set once it has the master's whole log. So whatever was acknowledged is in the log of every later
master, and each epoch has one master: if, and only if, the controllers keep their promises.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence

from pymq.errors import PymqError
from pymq.net.channel import AsyncChannel
from pymq.net.dispatcher import Dispatcher, Request
from pymq.net.server import Server, ServerConfig
from pymq.net.tasks import Tasks
from pymq.protocol import controller as wire
from pymq.protocol.codes import CommandFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.codec import Header
from pymq.protocol.headers.routes import BrokerHeartbeatRequest

CLUSTER, NAME = "c", "broker-a"
BEAT_S = 0.04
THINK_S = 0.03
#: Of a request; some of those who are asked are frozen.
TIMEOUT_S = 2.0


class Group:
    """All members, and what was seen of them from outside.

    Attributes:
        members: by id.
        masters: epoch -> who was said to be its master.
        acknowledged: the values.
    """

    def __init__(self, controllers: Sequence[str], count: int, chance: random.Random) -> None:
        self.controllers = tuple(controllers)
        self.chance = chance
        self.members = {number: Member(self, number) for number in range(1, count + 1)}
        self.masters: dict[int, int] = {}
        self.acknowledged: set[int] = set()
        self.next_value = 0
        self.errors: list[str] = []

    def saw(self, master: int | None, epoch: int, where: str) -> None:
        """Record that somebody said who is master of an epoch."""
        if master is None:
            return
        known = self.masters.setdefault(epoch, master)
        if known != master:
            self.errors.append(f"epoch {epoch} has masters {known} and {master} ({where})")


class Member:
    """One broker: a log that stays, and a process that comes and goes."""

    def __init__(self, group: Group, number: int) -> None:
        self._group = group
        self.id = number
        #: (epoch, value)
        self.log: list[tuple[int, int]] = []
        self.is_running = False
        self.is_frozen = False
        self._is_registered = False
        self._forget()

    def _forget(self) -> None:
        #: The last one it heard of, and whose.
        self.epoch = 0
        self.master: int | None = None
        self._set = wire.SyncStateSet()
        #: Who is in changes that may still be made: they count, too. Those of an older epoch of
        #: the set cannot.
        self._pending: frozenset[int] = frozenset()

    async def start(self) -> None:
        """Begin a process with the log that is there."""
        self._forget()
        self._channels: dict[str, AsyncChannel] = {}
        self._dispatcher = Dispatcher(
            "member", {RequestCode.NOTIFY_BROKER_ROLE_CHANGED: self._told}
        )
        self._server = Server(ServerConfig(), self._dispatcher.on_commands, lambda one: None)
        await self._server.start()
        self._tasks = Tasks(f"member {self.id}")
        self.is_running, self.is_frozen = True, False
        self._is_registered = False
        self._tasks.start("life", self._live())
        for controller in self._group.controllers:
            self._tasks.start("beats", self._beat(controller))

    async def kill(self) -> None:
        """End it as SIGKILL does."""
        self.is_running = False
        await self._tasks.close()
        for channel in self._channels.values():
            channel.close()
        await self._server.close()
        await self._dispatcher.close()

    @property
    def _address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    @property
    def has_all_in_sync(self) -> bool:
        """Is it master, with every member in its sync state set?"""
        everybody = self._group.members.keys()
        return self.master == self.id and self._set.broker_ids == everybody

    # --- its role

    def _heard(
        self, master: int | None, epoch: int, in_sync: wire.SyncStateSet, where: str
    ) -> None:
        self._group.saw(master, epoch, where)
        if epoch > self.epoch:
            self.epoch, self.master, self._set = epoch, master, in_sync
            self._pending = frozenset()
        elif epoch == self.epoch and master == self.id and in_sync.epoch > self._set.epoch:
            self._set = in_sync
            self._pending = frozenset()

    async def _told(self, request: Request) -> Command:
        while self.is_frozen:
            await asyncio.sleep(BEAT_S)
        notice = wire.RoleChangedRequest.from_fields(request.fields)
        in_sync = wire.SyncStateSet.decode(request.body)
        self._heard(notice.master_broker_id, notice.master_epoch, in_sync, "notice")
        return request.response(0)

    async def _beat(self, controller: str) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            if self.is_frozen or not self._is_registered:
                continue
            channel = self._channels.get(controller)
            with contextlib.suppress(PymqError):  # it may be lost as soon as it is made
                if channel is None or not channel.is_open:
                    channel = await AsyncChannel.connect(controller, TIMEOUT_S)
                    self._channels[controller] = channel
                if not self.is_frozen:
                    channel.send_one_way(self._heartbeat())

    def _heartbeat(self) -> Command:
        header = BrokerHeartbeatRequest(
            cluster_name=CLUSTER,
            broker_address=self._address,
            broker_name=NAME,
            broker_id=self.id,
            epoch=self.log[-1][0] if self.log else 0,
            max_offset=len(self.log),
            heartbeat_timeout_ms=10_000,
        )
        flag = int(CommandFlag.ONE_WAY)
        return Command(RequestCode.BROKER_HEARTBEAT, header.to_fields(), flag=flag)

    async def _live(self) -> None:
        while True:
            await asyncio.sleep(THINK_S * self._group.chance.random())
            if self.is_frozen:
                continue
            try:
                self._write()  # it may not be master any more, and not know it
                if not self._is_registered:
                    await self._register()
                else:
                    await self._look()
                self._write()
                await self._adjust_set()
            except PymqError:
                continue

    async def _ask(self, code: int, header: Header, body: bytes = b"") -> Command:
        """Ask some controller; only the one that leads knows anything."""
        channel = await AsyncChannel.connect(
            self._group.chance.choice(self._group.controllers), TIMEOUT_S
        )
        try:
            answer = await channel.request(Command(code, header.to_fields(), body), TIMEOUT_S)
        finally:
            channel.close()
        while self.is_frozen:  # an answer from before it froze is heard afterwards
            await asyncio.sleep(BEAT_S)
        return answer

    async def _register(self) -> None:
        answer = await self._ask(
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            wire.ApplyBrokerIdRequest(
                cluster_name=CLUSTER, broker_name=NAME, broker_id=self.id, check_code=f"{self.id}"
            ),
        )
        if answer.code != ResponseCode.SUCCESS:
            return
        answer = await self._ask(
            RequestCode.CONTROLLER_REGISTER_BROKER,
            wire.RegisterReplicaRequest(
                cluster_name=CLUSTER,
                broker_name=NAME,
                broker_id=self.id,
                broker_address=self._address,
            ),
        )
        self._is_registered = answer.code == ResponseCode.SUCCESS

    async def _look(self) -> None:
        answer = await self._ask(
            RequestCode.CONTROLLER_GET_REPLICA_INFO, wire.ReplicaInfoRequest(broker_name=NAME)
        )
        if answer.code != ResponseCode.SUCCESS:
            return
        found = wire.ReplicaInfoResponse.from_fields(answer.fields)
        in_sync = wire.SyncStateSet.decode(answer.body)
        if found.master_broker_id is not None:
            self._heard(found.master_broker_id, found.master_epoch, in_sync, "look")
            return
        answer = await self._ask(
            RequestCode.CONTROLLER_ELECT_MASTER,
            wire.ElectMasterRequest(cluster_name=CLUSTER, broker_name=NAME, broker_id=self.id),
        )
        elected = wire.ElectMasterResponse.from_fields(answer.fields)
        if elected.master_epoch is not None and elected.sync_state_set_epoch is not None:
            body = wire.ElectedMaster.decode(answer.body)
            in_sync = wire.SyncStateSet(body.sync_state_set, elected.sync_state_set_epoch)
            self._heard(elected.master_broker_id, elected.master_epoch, in_sync, "election")

    # --- what a master does

    def _can_take(self, member: Member) -> bool:
        """Does a member take what this master sends? Its process may have heard of a later one."""
        return (
            member.is_running
            and not member.is_frozen
            and member.epoch == self.epoch
            and member.master == self.id
        )

    def _write(self) -> None:
        if self.master != self.id:
            return
        self._group.next_value += 1
        value = self._group.next_value
        self.log.append((self.epoch, value))
        needed = (self._set.broker_ids | self._pending) - {self.id}
        members = self._group.members
        for number in needed:
            if self._can_take(members[number]):
                members[number].log = list(self.log)
        if self._set.broker_ids and all(self._can_take(members[one]) for one in needed):
            self._group.acknowledged.add(value)

    async def _adjust_set(self) -> None:
        """Take in who follows, and drop who does not."""
        if self.master != self.id:
            return
        following = [one for one in self._group.members.values() if self._can_take(one)]
        for member in following:
            member.log = list(self.log)
        wanted = frozenset({self.id, *(member.id for member in following)})
        if wanted == self._set.broker_ids:
            return
        self._pending |= wanted
        epoch = self.epoch
        answer = await self._ask(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            wire.AlterSyncStateSetRequest(
                broker_name=NAME, master_broker_id=self.id, master_epoch=self.epoch
            ),
            wire.SyncStateSet(wanted, self._set.epoch).encode(),
        )
        if answer.code == ResponseCode.SUCCESS:
            self._heard(self.id, epoch, wire.SyncStateSet.decode(answer.body), "alteration")
