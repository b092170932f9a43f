"""The controller's answers to brokers: one method per request code.

Whatever is about a group is read from the store by a process that leads, and changed there before
it is answered. Only the question who leads is answered by every controller, and every one hears
the heartbeats, so that it knows who is alive when it begins to lead.

Source: RocketMQ ControllerRequestProcessor.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from pymq.controller.answers import response
from pymq.controller.claims import Claims
from pymq.controller.config import ControllerConfig
from pymq.controller.elections import elect
from pymq.controller.failover import Failover
from pymq.controller.groups import GroupState, Outcome, alter_sync_state_set
from pymq.controller.liveness import Liveness
from pymq.controller.new_holders import NewHolders
from pymq.controller.registry import Registry
from pymq.controller.reports import LAST_PRIORITY, Report
from pymq.controller.stores.interface import ControllerStore
from pymq.errors import refusal
from pymq.net.dispatcher import Handler, Request
from pymq.net.said_once import SaidOnce
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import (
    NO_BROKER_ID,
    SET_REFUSALS,
    AlterSyncStateSetRequest,
    AlterSyncStateSetResponse,
    BrokerMemberGroup,
    ControllerMetadataResponse,
    ElectedMaster,
    ElectMasterRequest,
    ElectMasterResponse,
    ReplicaInfoRequest,
    ReplicaInfoResponse,
    SyncStateSet,
)
from pymq.protocol.headers.routes import BrokerHeartbeatRequest

_log = logging.getLogger(__name__)

_OK = int(ResponseCode.SUCCESS)
#: A broker's first heartbeat and its request to be elected are sent by two threads of Java's: one
#: waits this long for the other.
HEARTBEAT_WAIT_S = 0.3
#: Groups of which it is known what was said about them.
NO_MASTER_COUNT_MAX = 1_000
#: The cause of what is said when a sync state set is refused.
_ALTERING = "sync state set"
_HEARTBEAT_POLL_S = 0.02


class Handlers:
    """Answers requests.

    Args:
        config: how the controller behaves.
        store: says who leads.
        registry: the groups.
        liveness: the brokers.
        failover: acts when they come and go.
        claims: whose ids they are.
        new_holders: who may not join a sync state set yet.
        now_s: tells the time.
    """

    def __init__(
        self,
        config: ControllerConfig,
        *,
        store: ControllerStore,
        registry: Registry,
        liveness: Liveness,
        failover: Failover,
        claims: Claims,
        new_holders: NewHolders,
        now_s: Callable[[], float],
    ) -> None:
        self._config = config
        self._store = store
        self._registry = registry
        self._liveness = liveness
        self._failover = failover
        self._now_s = now_s
        self._said = SaidOnce(_log)
        self._claims = claims
        self._new_holders = new_holders
        #: Why groups have no master, as was said last; brokers ask several times a second.
        self._no_master: dict[str, str | None] = {}

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.BROKER_HEARTBEAT: self._heartbeat,
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: self._alter,
            RequestCode.CONTROLLER_ELECT_MASTER: self._elect,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self._replica_info,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self._metadata,
        }

    # --- answered by every controller

    def _metadata(self, request: Request) -> Command:
        leader = self._store.leader
        peers = self._config.peer_addresses() or self._store.peers
        answer = ControllerMetadataResponse(
            group=self._config.group,
            leader_id=leader.id if leader else None,
            leader_address=leader.address if leader else None,
            is_leader=self._store.is_leader,
            # RocketMQ sends id:host:port here.
            peers="".join(f"{name}:{address};" for name, address in sorted(peers.items())),
        )
        return request.response(_OK, None, answer.to_fields())

    def _heartbeat(self, request: Request) -> Command:
        header = BrokerHeartbeatRequest.from_fields(request.fields)
        if header.broker_id is None:
            raise refusal(
                ResponseCode.CONTROLLER_INVALID_REQUEST, "Heart beat with empty brokerId"
            )
        self._claims.beats(
            request.connection, header.broker_name, header.broker_id, header.broker_address
        )
        silence_ms = header.heartbeat_timeout_ms
        self._failover.heard(
            header.broker_name,
            header.broker_id,
            connection=request.connection,
            silence_s=silence_ms / 1000 if silence_ms and silence_ms > 0 else None,
            report=Report(
                epoch=header.epoch,
                max_offset=-1 if header.max_offset is None else header.max_offset,
                address=header.broker_address,
                priority=(
                    LAST_PRIORITY
                    if header.election_priority is None
                    else header.election_priority
                ),
            ),
        )
        return request.response(_OK, "Heart beat success")

    # --- who is master

    def _check_member(self, request: Request, state: GroupState | None) -> None:
        """Refuse to answer a broker whose id is that of another one.

        Raises:
            BrokerError: it is.
        """
        if state is None:
            return
        why = self._claims.why_not_member(request.connection, state)
        if why is not None:
            raise refusal(ResponseCode.CONTROLLER_BROKER_ID_INVALID, why)
        self._claims.note_held(request.connection, state)

    def _say_no_master(self, name: str, reason: str | None) -> None:
        level = logging.DEBUG if self._no_master.get(name) == reason else logging.WARNING
        if len(self._no_master) >= NO_MASTER_COUNT_MAX:
            self._no_master.clear()  # anybody may ask, for any name
        self._no_master[name] = reason
        _log.log(level, "no master for %s: %s", name, reason)

    async def _elect(self, request: Request) -> Command:
        header = ElectMasterRequest.from_fields(request.fields)
        asked = None if header.broker_id == NO_BROKER_ID else header.broker_id
        if header.is_designated and asked is None:
            raise refusal(ResponseCode.CONTROLLER_INVALID_REQUEST, "no broker is designated")
        if asked is not None:
            await self._wait_alive(header.broker_name, asked)

        def decide(state: GroupState | None) -> Outcome:
            if not header.is_designated:
                self._check_member(request, state)
            if not header.is_designated and state is not None and state.master is not None:
                early = self._too_early(state)
                if early is not None:
                    return Outcome(state, ResponseCode.CONTROLLER_ELECT_MASTER_FAILED, early)
            return elect(
                state,
                alive=self._liveness.alive(header.broker_name),
                asked=asked,
                is_designated=header.is_designated,
                unclean=self._config.unclean_elections,
            )

        outcome = await self._registry.change(header.broker_name, decide)
        state = outcome.state
        stays = outcome.code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
        if state is None or not (outcome.is_success or stays):
            self._say_no_master(header.broker_name, outcome.remark)
            return response(request, outcome, ElectMasterResponse().to_fields())
        self._no_master.pop(header.broker_name, None)
        answer = ElectMasterResponse(
            master_broker_id=state.master,
            master_address=state.address_of(state.master),
            master_epoch=state.master_epoch,
            sync_state_set_epoch=state.in_sync.epoch,
        )
        members = None
        if outcome.is_success:
            _log.warning(
                "group %s: broker %s is master of epoch %d, asked for by %s",
                state.name,
                state.master,
                state.master_epoch,
                request.connection.peer,
            )
            if outcome.remark is not None:
                _log.warning("group %s: %s", state.name, outcome.remark)
            self._failover.announce(state)
            members = BrokerMemberGroup(
                cluster=state.cluster,
                broker_name=state.name,
                addresses={key: member.address for key, member in state.members.items()},
            )
        body = ElectedMaster(members=members, sync_state_set=state.in_sync.broker_ids)
        return response(request, outcome, answer.to_fields(), body.encode())

    async def _wait_alive(self, name: str, broker_id: int) -> None:
        deadline_s = self._now_s() + HEARTBEAT_WAIT_S
        while broker_id not in self._liveness.alive(name) and self._now_s() < deadline_s:
            await asyncio.sleep(_HEARTBEAT_POLL_S)

    def _too_early(self, state: GroupState) -> str | None:
        """Return why it cannot be said yet that a group's master is gone."""
        assert state.master is not None
        if state.master in self._liveness.alive(state.name):
            return None
        if not self._liveness.may_be_alive(state.name, state.master, self._now_s()):
            return None
        return (
            f"this controller was just started and has not heard of broker {state.master}, the "
            f"master of {state.name}, yet; try again (pymqStartPatience)"
        )

    async def _replica_info(self, request: Request) -> Command:
        header = ReplicaInfoRequest.from_fields(request.fields)
        state = await self._registry.read(header.broker_name)
        if state is None:
            raise refusal(
                ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST, "Broker metadata is not existed"
            )
        self._check_member(request, state)
        answer = ReplicaInfoResponse(
            master_broker_id=state.master,
            master_address=state.address_of(state.master),
            master_epoch=state.master_epoch,
        )
        return request.response(_OK, None, answer.to_fields(), state.in_sync.encode())

    async def _alter(self, request: Request) -> Command:
        header = AlterSyncStateSetRequest.from_fields(request.fields)
        wanted = SyncStateSet.decode(request.body)
        joined: set[int] = set()

        def decide(state: GroupState | None) -> Outcome:
            members = frozenset() if state is None else state.in_sync.broker_ids
            outcome = alter_sync_state_set(
                state,
                master=header.master_broker_id,
                master_epoch=header.master_epoch,
                wanted=wanted,
                alive=self._liveness.alive(header.broker_name),
                unconfirmed=() if state is None else self._new_holders.unconfirmed(state),
            )
            joined.clear()
            joined.update(wanted.broker_ids - members if outcome.is_success else ())
            return outcome

        outcome = await self._registry.change(header.broker_name, decide)
        state = outcome.state
        if state is None or not outcome.is_success:
            # Masters ask several times a second. Names that nobody has are not kept.
            cause = _ALTERING, state and state.name, outcome.code
            self._said.warn(cause, "group %s: %s", header.broker_name, outcome.remark)
            return response(request, outcome, {})
        self._new_holders.joined(state.name, joined)
        for code in SET_REFUSALS:
            self._said.over((_ALTERING, state.name, code))
        _log.info("group %s: in sync are %s", state.name, sorted(state.in_sync.broker_ids))
        answer = AlterSyncStateSetResponse(epoch=state.in_sync.epoch)
        return response(request, outcome, answer.to_fields(), state.in_sync.encode())
