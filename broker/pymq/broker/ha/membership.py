"""A broker's membership in a group that has a controller: its id, its heartbeats, and the terms.

Lives as long as the broker does, whatever its role. Whoever learns of a later term takes it up;
terms come from three sides: the answer to a registration or an election, a notification of the
controller, and a question that is asked again and again, in case that one was lost.

Source: RocketMQ ReplicasManager.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from pymq.broker.config import BrokerConfig
from pymq.broker.ha.controllers import Controllers
from pymq.broker.ha.identity import Identity, IdentityFiles
from pymq.broker.ha.set_change import changed_set
from pymq.broker.ha.term import Term
from pymq.broker.replication_config import ReplicationConfig
from pymq.clock import Clock
from pymq.errors import BrokerError, PymqError, StoreError
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import (
    AlterSyncStateSetRequest,
    ApplyBrokerIdRequest,
    ElectedMaster,
    ElectMasterRequest,
    ElectMasterResponse,
    NextBrokerIdRequest,
    NextBrokerIdResponse,
    RegisterReplicaRequest,
    RegisterReplicaResponse,
    ReplicaInfoRequest,
    ReplicaInfoResponse,
    RoleChangedRequest,
    SyncStateSet,
)
from pymq.protocol.headers.routes import BrokerHeartbeatRequest

_log = logging.getLogger(__name__)

RETRY_S = 0.5
_FOUND = frozenset((ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST))


class LogPosition(Protocol):
    """How far this broker's log is; heartbeats tell the controller."""

    def position(self) -> tuple[int, int, int]:
        """Return the last epoch, and the physical offsets of its end and what is confirmed."""


class Membership:
    """One broker's.

    Args:
        config: the broker's name and cluster.
        replication: the controllers, and the intervals.
        clock: the time.
        files: keep the broker's id.
        address: ``host:port`` at which clients reach this broker.
        log: what heartbeats tell.
        on_term: called with each later term.
        on_members: called with the number of the term and its sync state set, as the controller
            has it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        replication: ReplicationConfig,
        clock: Clock,
        files: IdentityFiles,
        *,
        address: str,
        log: LogPosition,
        on_term: Callable[[Term], None],
        on_members: Callable[[int, SyncStateSet], None],
    ) -> None:
        self._config = config
        self._replication = replication
        self._clock = clock
        self._files = files
        self._address = address
        self._log = log
        self._on_term = on_term
        self._on_members = on_members
        self._controllers = Controllers(replication.controllers)
        self._said = SaidOnce(_log)
        self._tasks = Tasks("membership")
        self._id = 0
        self._is_registered = False
        #: The last epoch of the log when this process was started.
        self._begun = -1
        self.term: Term | None = None

    def start(self) -> None:
        """Begin; the epochs of the log are known."""
        self._begun = self._log.position()[0]
        self._controllers.start()
        self._tasks.start("terms", self._run())
        self._tasks.repeat(
            "heartbeats", self._beat, self._replication.controller_heartbeat_ms / 1000
        )

    async def _run(self) -> None:
        while True:
            try:
                if not self._id:
                    self._id = await self._find_id()
                if not self._is_registered:
                    await self._register()
                else:
                    await self._look()
            except StoreError as error:
                self._said.warn("store", "this broker's id cannot be kept: %s", error)
            except PymqError as error:
                self._said.warn(
                    "controller",
                    "the controllers do not say who is the master of %s: %s; %s",
                    self._config.name,
                    error,
                    "this broker waits for them" if self.term is None else "its role stays",
                )
            except Exception:
                _log.exception("what a controller answered could not be used")
            else:
                self._said.over("controller", "the controllers say who is the master again")
            pause_s = self._replication.term_interval_ms / 1000
            await asyncio.sleep(pause_s if self.term is not None else min(pause_s, RETRY_S))

    # --- id and registration

    async def _find_id(self) -> int:
        """Return the id that the controllers know us by.

        Raises:
            PymqError: they do not answer, or the file is another broker's.
        """
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(None, self._files.load)
        while found is None or found.check_code is not None:
            if found is None:
                found = Identity(
                    self._config.cluster,
                    self._config.name,
                    await self._ask_next_id(),
                    f"{self._address};{self._clock.wall_ms()}",
                )
                await loop.run_in_executor(None, self._files.save, found)
            if await self._apply(found):
                found = Identity(found.cluster, found.name, found.broker_id)
                await loop.run_in_executor(None, self._files.save, found)
                _log.info("this broker has id %d in group %s", found.broker_id, found.name)
            else:
                await loop.run_in_executor(None, self._files.forget_application)
                found = None
        return found.broker_id

    async def _ask_next_id(self) -> int:
        answer = await self._ask(
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
            NextBrokerIdRequest(cluster_name=self._config.cluster, broker_name=self._config.name),
        )
        return NextBrokerIdResponse.from_fields(answer.fields).next_broker_id

    async def _apply(self, wanted: Identity) -> bool:
        """Apply for an id; False: another broker has it."""
        assert wanted.check_code is not None
        answer = await self._controllers.request(
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            ApplyBrokerIdRequest(
                cluster_name=wanted.cluster,
                broker_name=wanted.name,
                broker_id=wanted.broker_id,
                check_code=wanted.check_code,
            ),
        )
        if answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            return False
        _check(answer, "an id for this broker")
        return True

    async def _register(self) -> None:
        answer = await self._ask(
            RequestCode.CONTROLLER_REGISTER_BROKER,
            RegisterReplicaRequest(
                cluster_name=self._config.cluster,
                broker_name=self._config.name,
                broker_id=self._id,
                broker_address=self._address,
                invoke_time_ms=self._clock.wall_ms(),
            ),
        )
        found = RegisterReplicaResponse.from_fields(answer.fields)
        if found.master_broker_id is None or found.master_epoch is None:
            self._registered()
            await self._elect()
            return
        if self._is_of_another_life(found.master_epoch, found.master_broker_id):
            self._said.warn(
                "again",
                "the controllers still say that this broker, which was started again, is the "
                "master of epoch %d of group %s. It waits until they have found that it was gone, "
                "and elected a master for a new epoch",
                found.master_epoch,
                self._config.name,
            )
            return
        self._said.over("again")
        self._registered()
        self._take_term(
            found.master_epoch,
            found.master_broker_id,
            found.master_address,
            SyncStateSet.decode(answer.body),
        )

    def _registered(self) -> None:
        """The controllers know where we are, and are told from now on that we are alive."""
        self._is_registered = True
        self._beat()

    def _is_of_another_life(self, number: int, master_id: int) -> bool:
        """Return whether it is a term of which this broker was the master in another process.

        That one may have written more than is left, if the power was lost, and slaves may have it:
        with another end of the same epoch, nobody would see that they differ. Nor is it known what
        it had asked for: a change of the sync state set may be made still.
        """
        return master_id == self._id and number <= self._begun

    async def _elect(self) -> None:
        """Ask for a master, whoever that will be: us, if there was none before."""
        answer = await self._controllers.request(
            RequestCode.CONTROLLER_ELECT_MASTER,
            ElectMasterRequest(
                cluster_name=self._config.cluster,
                broker_name=self._config.name,
                broker_id=self._id,
                invoke_time_ms=self._clock.wall_ms(),
            ),
        )
        if answer.code not in _FOUND:
            self._said.warn(
                "nobody",
                "group %s has no master, and none of its brokers that are alive may be one: %s. "
                "Start those that had everything last (mqadmin getSyncStateSet)",
                self._config.name,
                answer.remark or f"code {answer.code}",
            )
            return
        self._said.over("nobody")
        found = ElectMasterResponse.from_fields(answer.fields)
        if found.master_broker_id is None or found.master_epoch is None:
            return
        members = ElectedMaster.decode(answer.body).sync_state_set
        self._take_term(
            found.master_epoch,
            found.master_broker_id,
            found.master_address,
            SyncStateSet(members, found.sync_state_set_epoch or 0),
        )

    # --- terms

    async def _look(self) -> None:
        """Ask who is the master now."""
        answer = await self._controllers.request(
            RequestCode.CONTROLLER_GET_REPLICA_INFO,
            ReplicaInfoRequest(broker_name=self._config.name),
        )
        if answer.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
            self._is_registered = False
            return
        _check(answer, "who is the master")
        found = ReplicaInfoResponse.from_fields(answer.fields)
        if found.master_broker_id is None or not found.master_address:
            await self._elect()
            return
        members = SyncStateSet.decode(answer.body)
        self._take_term(
            found.master_epoch, found.master_broker_id, found.master_address, members
        )

    def told(self, request: Command) -> None:
        """Take a notification of a controller (NOTIFY_BROKER_ROLE_CHANGED, 1008).

        Raises:
            RemoteProtocolError: it is malformed.
        """
        found = RoleChangedRequest.from_fields(request.fields)
        members = SyncStateSet.decode(request.body)
        if found.master_broker_id is not None:
            self._take_term(
                found.master_epoch, found.master_broker_id, found.master_address, members
            )

    def _take_term(
        self, number: int, master_id: int, address: str | None, members: SyncStateSet
    ) -> None:
        known = self.term
        if known is not None and number == known.number:
            self._on_members(number, members)
        if not self._id or not address or (known is not None and number <= known.number):
            return
        if self._is_of_another_life(number, master_id):
            return
        last = self._log.position()[0]
        if number < last:
            self._said.warn(
                "old",
                "the controllers say that epoch %d of group %s is the last one, but the log of "
                "this broker has epoch %d: they have an old copy of their data, or those of "
                "another group. This broker does nothing until they know a later epoch",
                number,
                self._config.name,
                last,
            )
            return
        self._said.over("old")
        self.term = Term(number, self._id, master_id, address, members)
        self._on_term(self.term)

    def _beat(self) -> None:
        if not self._is_registered:
            return
        config, replication = self._config, self._replication
        epoch, end, confirmed_end = self._log.position()
        self._controllers.tell(
            RequestCode.BROKER_HEARTBEAT,
            BrokerHeartbeatRequest(
                cluster_name=config.cluster,
                broker_address=self._address,
                broker_name=config.name,
                broker_id=self._id,
                epoch=epoch,
                max_offset=end,
                confirm_offset=confirmed_end,
                heartbeat_timeout_ms=replication.controller_timeout_ms,
                election_priority=replication.election_priority,
            ),
        )

    # --- the sync state set

    async def alter(
        self, broker_ids: frozenset[int], epoch: int, *, term: int
    ) -> SyncStateSet | None:
        """Ask for another sync state set; return it, or None if it was certainly refused.

        Args:
            broker_ids: the members.
            epoch: of the set that there is.
            term: whose set it is; perhaps not the last one that is known here.

        Raises:
            NoController: the request was not done.
            PymqError: it is unknown whether it was, or will be.
        """
        answer = await self._controllers.request(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            AlterSyncStateSetRequest(
                broker_name=self._config.name,
                master_broker_id=self._id,
                master_epoch=term,
                invoke_time_ms=self._clock.wall_ms(),
            ),
            SyncStateSet(broker_ids, epoch).encode(),
        )
        found = changed_set(answer)
        if found is None:
            _log.info("sync state set %s was refused: %s", sorted(broker_ids), answer.remark)
        return found

    async def _ask(
        self, code: int, header: NextBrokerIdRequest | RegisterReplicaRequest
    ) -> Command:
        answer = await self._controllers.request(code, header)
        _check(answer, "this broker")
        return answer

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()
        await self._controllers.close()


def _check(answer: Command, what: str) -> None:
    """Raise unless a controller has done what it was asked for.

    Raises:
        BrokerError: it has not.
    """
    if answer.code != ResponseCode.SUCCESS:
        raise BrokerError.of(answer.code, answer.remark, peer="the controller", request=what)
