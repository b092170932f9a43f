"""A broker's membership in a group that has a controller: its id, its heartbeats, and the terms.

Lives as long as the broker does, whatever its role. Whoever learns of a later term takes it up;
terms come from three sides: the answer to a registration or an election, a notification of the
controller, and a question that is asked again and again, in case that one was lost.

Source: RocketMQ ReplicasManager.
"""

import asyncio
import logging
from collections.abc import Callable

from pymq.broker.config import BrokerConfig
from pymq.broker.ha.controllers import Controllers, one_way
from pymq.broker.ha.heartbeat import LogPosition, heartbeat
from pymq.broker.ha.id_refusals import IdRefusals
from pymq.broker.ha.identity import IdentityFiles
from pymq.broker.ha.membership_requests import MembershipRequests
from pymq.broker.ha.membership_texts import (
    LEARNER_ELECTED,
    LEARNER_WAITS,
    NO_MASTER,
    OLD_COPY,
    STARTED_AGAIN,
)
from pymq.broker.ha.numbering import REMOVED, check_done, find_id
from pymq.broker.ha.set_change import changed_set, say_outcome
from pymq.broker.ha.term import Term
from pymq.broker.replication_config import ReplicationConfig
from pymq.clock import Clock
from pymq.errors import PymqError, StoreError
from pymq.net.said_once import SaidOnce
from pymq.net.tasks import Tasks
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import (
    ElectedMaster,
    ElectMasterResponse,
    RegisterReplicaResponse,
    ReplicaInfoRequest,
    ReplicaInfoResponse,
    RoleChangedRequest,
    SyncStateSet,
)
from pymq.protocol.headers.routes import BrokerHeartbeatRequest

_log = logging.getLogger(__name__)

RETRY_S = 0.5
#: How often a master that begins looks whether its log has the epoch.
BEGUN_POLL_S = 0.02
_FOUND = frozenset((ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST))


class Membership:
    """One broker's.

    Args:
        config: the broker's name and cluster.
        replication: the controllers, and the intervals.
        clock: the time.
        files: keep the broker's id.
        address: ``host:port`` at which clients reach this broker.
        log: what heartbeats tell.
        on_term: called with each later term; None: this broker has no role for now.
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
        on_term: Callable[[Term | None], None],
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
        self._controllers = Controllers(replication.controllers, self._greeting)
        self._said = SaidOnce(_log)
        self._requests = MembershipRequests(config, clock, address)
        self._refusals = IdRefusals(self._said, config.name)
        self._tasks = Tasks("membership")
        self._id = 0
        self._is_registered = False
        #: Controllers shall take it for gone: an elected learner, or see ``keep_silent``.
        self._is_unwilling = False
        #: The last epoch of which this broker cannot be the master any more: that of the log when
        #: this process was started, or one that another broker with its id may have had.
        self._begun = -1
        self.term: Term | None = None

    def start(self) -> None:
        """Begin; the epochs of the log are known, and where it ends."""
        self._begun = self._log.position().epoch
        self._controllers.start()
        self._tasks.start("terms", self._run())
        self._tasks.repeat(
            "heartbeats", self._beat, self._replication.controller_heartbeat_ms / 1000
        )

    async def _run(self) -> None:
        while not self._refusals.is_copy:
            try:
                if not self._id:
                    self._id = await find_id(
                        self._controllers,
                        self._files,
                        self._config,
                        self._clock,
                        address=self._address,
                    )
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

    # --- registration

    async def _register(self) -> None:
        answer = await self._controllers.request(
            RequestCode.CONTROLLER_REGISTER_BROKER,
            self._requests.register(
                self._id,
                log_epoch=self._log.position().epoch,
                has_had_id=self._refusals.has_had,
            ),
        )
        if answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            self._said.warn(
                "removed",
                "the controllers do not know this broker, with id %d, in group %s: %s. %s",
                self._id,
                self._config.name,
                answer.remark,
                REMOVED,
            )
            return
        if answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self._refusals.refused(self._id, answer)
            return
        check_done(answer, "this broker")
        self._said.over("removed")
        found = RegisterReplicaResponse.from_fields(answer.fields)
        if found.master_broker_id is None or found.master_epoch is None:
            self._registered()
            await self._elect()
            return
        if found.master_broker_id == self._id and not self._leads(found.master_epoch):
            self._begun = max(self._begun, found.master_epoch)
            self._said.warn("again", STARTED_AGAIN, self._id, self._config.name, found.master_epoch)
            return
        self._said.over("again")
        self._registered()
        self._take_term(
            found.master_epoch,
            found.master_broker_id,
            found.master_address,
            SyncStateSet.decode(answer.body),
        )

    def _replaced(self, why: str | None) -> None:
        """Another broker has our id now: leave our role, and ask for the id again.

        The epoch that we were the master of may be that one's, with another end.
        """
        self._refusals.replaced(self._id, why)
        self._is_registered = False
        if self.term is not None:
            self._begun = max(self._begun, self.term.number)
            self.term = None
            self._on_term(None)

    def _registered(self) -> None:
        """The controllers know where we are, and are told from now on that we are alive."""
        self._is_registered = True
        self._refusals.over(self._id)
        self._beat()

    def _leads(self, number: int) -> bool:
        return self.term is not None and self.term.is_master and self.term.number == number

    def _is_of_another_life(self, number: int, master_id: int) -> bool:
        """Return whether it is a term of which this broker was the master in another process.

        That one may have written more than is left, if the power was lost, and slaves may have it:
        with another end of the same epoch, nobody would see that they differ. Nor is it known what
        it had asked for: a change of the sync state set may be made still.
        """
        return master_id == self._id and number <= self._begun

    async def _elect(self) -> None:
        """Ask for a master, whoever that will be: us, if there was none before."""
        if self._replication.is_learner:
            self._said.warn("learner", LEARNER_WAITS, self._config.name)
            return
        answer = await self._controllers.request(
            RequestCode.CONTROLLER_ELECT_MASTER, self._requests.elect(self._id)
        )
        if answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self._replaced(answer.remark)
            return
        if answer.code not in _FOUND:
            why = answer.remark or f"code {answer.code}"
            self._said.warn("nobody", NO_MASTER, self._config.name, why)
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
        known = self.term
        answer = await self._controllers.request(
            RequestCode.CONTROLLER_GET_REPLICA_INFO,
            ReplicaInfoRequest(broker_name=self._config.name),
        )
        if answer.code == ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST:
            self._is_registered = False
            return
        if answer.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self._replaced(answer.remark)
            return
        check_done(answer, "who is the master")
        found = ReplicaInfoResponse.from_fields(answer.fields)
        if found.master_broker_id is None or not found.master_address:
            await self._elect()
            return
        if known is not None and found.master_epoch < known.number:
            # It was known before they were asked: nothing has overtaken their answer.
            self._warn_of_old_copy(
                found.master_epoch, f"this broker has heard of epoch {known.number} from them"
            )
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
        # Before it is registered, this may be about the broker that had its address, or its id.
        if not self._is_registered or not address:
            return
        if known is not None and number < known.number:
            return
        if master_id == self._id and address != self._address:
            self._replaced(f"the controllers say that broker {master_id} is at {address}")
            self._begun = max(self._begun, number)
            return
        if known is not None and number == known.number:
            self._said.over("old")
            self._on_members(number, members)
            return
        if self._is_of_another_life(number, master_id):
            return
        last = self._log.position().epoch
        if number < last:
            self._warn_of_old_copy(number, f"the log of this broker has epoch {last}")
            return
        self._said.over("old")
        self._is_unwilling = master_id == self._id and self._replication.is_learner
        if self._is_unwilling:
            self._said.warn("elected", LEARNER_ELECTED, number, self._config.name)
            return
        self._said.over("learner")
        self._said.over("elected")
        self.term = term = Term(number, self._id, master_id, address, members)
        self._on_term(term)
        if term.is_master and not self._tasks.is_closed:  # a notice may come while we stop
            self._tasks.start("heartbeat of a new master", self._beat_when_begun(term))

    async def _beat_when_begun(self, term: Term) -> None:
        """Have the controllers know the new epoch at once: no log with this id counts without it.

        What is acknowledged before could be lost to a copy of this store.
        """
        while self.term is term and self._log.position().epoch < term.number:
            await asyncio.sleep(BEGUN_POLL_S)
        if self.term is term:
            self._beat()

    def keep_silent(self, *, is_silent: bool) -> None:
        """Have the controllers take this broker for gone, or not, until there is another term."""
        self._is_unwilling = is_silent

    def _warn_of_old_copy(self, number: int, why: str) -> None:
        self._said.warn(
            "old",
            OLD_COPY,
            number,
            self._config.name,
            why,
            "does nothing" if self.term is None else "keeps its role, and the set its members,",
        )

    def _beat(self) -> None:
        if self._is_alive:
            self._controllers.tell(RequestCode.BROKER_HEARTBEAT, self._heartbeat())

    @property
    def _is_alive(self) -> bool:
        return self._is_registered and not self._is_unwilling

    def _greeting(self) -> Command | None:
        if not self._is_alive:
            return None
        return one_way(RequestCode.BROKER_HEARTBEAT, self._heartbeat())

    def _heartbeat(self) -> BrokerHeartbeatRequest:
        return heartbeat(
            self._config,
            self._replication,
            broker_id=self._id,
            address=self._address,
            position=self._log.position(),
        )

    # --- the sync state set

    async def alter(
        self, broker_ids: frozenset[int], epoch: int, *, term: int
    ) -> SyncStateSet | None:
        """Ask for another sync state set; return it, or None if it is refused for one broker.

        Args:
            broker_ids: the members.
            epoch: of the set that there is.
            term: whose set it is; perhaps not the last one that is known here.

        Raises:
            NoController: the request was not done.
            SetRefused: nor was it, and no other would be.
            PymqError: it is unknown whether it was, or will be.
        """
        answer = await self._controllers.request(
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            self._requests.alter(self._id, term),
            SyncStateSet(broker_ids, epoch).encode(),
        )
        say_outcome(self._said, answer, group=self._config.name, broker_ids=broker_ids)
        return changed_set(answer)

    async def close(self) -> None:
        """Stop; idempotent."""
        await self._tasks.close()
        await self._controllers.close()
