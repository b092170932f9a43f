"""The controller's answers to brokers that start: their ids, and where they are.

Source: RocketMQ ControllerRequestProcessor.
"""

import logging
from collections.abc import Callable, Mapping

from pymq.controller.answers import response
from pymq.controller.claims import Claims
from pymq.controller.groups import (
    GroupState,
    Outcome,
    apply_broker_id,
    next_broker_id,
    register,
)
from pymq.controller.liveness import Liveness
from pymq.controller.new_holders import NewHolders
from pymq.controller.registry import Registry
from pymq.controller.two_of_one_id import gives_way
from pymq.net.dispatcher import Handler, Request
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import (
    ApplyBrokerIdRequest,
    ApplyBrokerIdResponse,
    NextBrokerIdRequest,
    NextBrokerIdResponse,
    RegisterReplicaRequest,
    RegisterReplicaResponse,
)

_log = logging.getLogger(__name__)

_OK = int(ResponseCode.SUCCESS)


class RegistrationHandlers:
    """Answers requests.

    Args:
        registry: the groups.
        liveness: the brokers.
        lacks_master: has a group none, or is it surely gone?
        claims: whose ids they are.
        new_holders: is told whose id is at another address.
        now_s: tells the time.
    """

    def __init__(
        self,
        *,
        registry: Registry,
        liveness: Liveness,
        lacks_master: Callable[[GroupState], bool],
        claims: Claims,
        new_holders: NewHolders,
        now_s: Callable[[], float],
    ) -> None:
        self._registry = registry
        self._liveness = liveness
        self._lacks_master = lacks_master
        self._claims = claims
        self._new_holders = new_holders
        self._now_s = now_s

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID: self._next_broker_id,
            RequestCode.CONTROLLER_APPLY_BROKER_ID: self._apply_broker_id,
            RequestCode.CONTROLLER_REGISTER_BROKER: self._register,
        }

    async def _next_broker_id(self, request: Request) -> Command:
        header = NextBrokerIdRequest.from_fields(request.fields)
        state = await self._registry.read(header.broker_name)
        answer = NextBrokerIdResponse(
            cluster_name=header.cluster_name,
            broker_name=header.broker_name,
            next_broker_id=next_broker_id(state),
        )
        return request.response(_OK, None, answer.to_fields())

    async def _apply_broker_id(self, request: Request) -> Command:
        header = ApplyBrokerIdRequest.from_fields(request.fields)
        outcome = await self._registry.change(
            header.broker_name,
            lambda state: apply_broker_id(
                state,
                cluster=header.cluster_name,
                name=header.broker_name,
                broker_id=header.broker_id,
                check_code=header.check_code,
            ),
        )
        answer = ApplyBrokerIdResponse(
            cluster_name=header.cluster_name, broker_name=header.broker_name
        )
        return response(request, outcome, answer.to_fields())

    async def _register(self, request: Request) -> Command:
        header = RegisterReplicaRequest.from_fields(request.fields)
        name, broker_id, address = header.broker_name, header.broker_id, header.broker_address
        self._liveness.registered(name, broker_id, address)
        original = self._claims.original_of(request.connection, name, broker_id)
        address_before: str | None = None

        def decide(state: GroupState | None) -> Outcome:
            nonlocal address_before
            address_before = None if state is None else state.address_of(broker_id)
            alive = self._liveness.alive(name)
            return register(
                state,
                cluster=header.cluster_name,
                name=name,
                broker_id=broker_id,
                address=address,
                alive=alive,
                may_be_alive=self._liveness.may_be_alive(name, broker_id, self._now_s()),
                gives_way=state is not None
                and gives_way(
                    state, broker_id, epoch=header.log_epoch, address=address, alive=alive
                ),
                original=original,
            )

        outcome = await self._registry.change(name, decide)
        answer = RegisterReplicaResponse(cluster_name=header.cluster_name, broker_name=name)
        if outcome.code == ResponseCode.CONTROLLER_BROKER_ID_INVALID:
            self._refused_id(request, header, outcome)
            answer.copy_of = original
            return response(request, outcome, answer.to_fields())
        state = outcome.state
        if state is None or not outcome.is_success:
            return response(request, outcome, answer.to_fields())
        self._admitted(request, header, address_before)
        if state.master is not None and not self._lacks_master(state):
            answer.master_broker_id = state.master
            answer.master_address = state.address_of(state.master)
            answer.master_epoch = state.master_epoch
            answer.sync_state_set_epoch = state.in_sync.epoch
        return response(request, outcome, answer.to_fields(), state.in_sync.encode())

    def _admitted(
        self, request: Request, header: RegisterReplicaRequest, address_before: str | None
    ) -> None:
        """A broker has its id, at an address that may be a new one."""
        name, broker_id, address = header.broker_name, header.broker_id, header.broker_address
        self._claims.holds(request.connection, name, broker_id, address)
        if address != address_before:
            self._new_holders.came(name, broker_id, address, self._now_s())

    def _refused_id(
        self, request: Request, header: RegisterReplicaRequest, outcome: Outcome
    ) -> None:
        name, broker_id = header.broker_name, header.broker_id
        holder = self._liveness.holder(name, broker_id)
        kind = "early" if holder is None else "in use"
        if self._claims.original_of(request.connection, name, broker_id) is not None:
            kind = "copy"
        is_news = self._claims.is_news(name, broker_id, header.broker_address, kind)
        _log.log(logging.WARNING if is_news else logging.DEBUG, "%s", outcome.remark)
        if holder is not None and not header.has_had_id:
            address, heard_s = holder
            self._claims.refused(
                request.connection,
                name,
                broker_id,
                holder=address,
                heard_s=heard_s,
                awake_s=self._liveness.awake_s(self._now_s()),
                now_s=self._now_s(),
            )
