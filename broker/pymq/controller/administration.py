"""The controller's answers to administrators: one method per request code.

Source: RocketMQ ControllerRequestProcessor.
"""

import logging
from collections.abc import Mapping

from pymq.controller.groups import GroupState, clean
from pymq.controller.live_settings import LiveSettings
from pymq.controller.liveness import Liveness
from pymq.controller.registry import Registry
from pymq.errors import refusal
from pymq.net.dispatcher import Handler, Request
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.controller import (
    CleanBrokerDataRequest,
    ReplicaIdentity,
    ReplicaInfo,
    ReplicaTable,
    decode_broker_names,
)
from pymq.setting_changes import read_changes
from pymq.settings import format_properties

_log = logging.getLogger(__name__)

_OK = int(ResponseCode.SUCCESS)
#: Most groups that are asked about at once.
NAME_COUNT_MAX = 10_000


class AdministrationHandlers:
    """Answers requests.

    Args:
        settings: of the controller.
        registry: the groups.
        liveness: the brokers.
    """

    def __init__(
        self, settings: LiveSettings, *, registry: Registry, liveness: Liveness
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._liveness = liveness

    def table(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return {
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self._sync_state_data,
            RequestCode.UPDATE_CONTROLLER_CONFIG: self._update_config,
            RequestCode.GET_CONTROLLER_CONFIG: self._read_config,
            RequestCode.CLEAN_BROKER_DATA: self._clean,
        }

    def _read_config(self, request: Request) -> Command:
        return request.response(_OK, body=format_properties(self._settings.properties()).encode())

    def _update_config(self, request: Request) -> Command:
        self._settings.change(read_changes(request.body))
        return request.response(_OK)

    async def _sync_state_data(self, request: Request) -> Command:
        names = decode_broker_names(request.body)
        if len(names) > NAME_COUNT_MAX:
            raise refusal(
                ResponseCode.CONTROLLER_INVALID_REQUEST,
                f"{len(names)} broker names, expected {NAME_COUNT_MAX} at most (NAME_COUNT_MAX)",
            )
        groups = await self._registry.read_all()
        table = {name: self._replica_info_of(groups[name]) for name in names if name in groups}
        return request.response(_OK, body=ReplicaTable(groups=table).encode())

    def _replica_info_of(self, state: GroupState) -> ReplicaInfo:
        alive = self._liveness.alive(state.name)
        info = ReplicaInfo(
            master_broker_id=state.master,
            master_address=state.address_of(state.master),
            master_epoch=state.master_epoch,
            sync_state_set_epoch=state.in_sync.epoch,
        )
        for broker_id, member in sorted(state.members.items()):
            replicas = info.in_sync if broker_id in state.in_sync.broker_ids else info.not_in_sync
            replicas.append(
                ReplicaIdentity(
                    broker_name=state.name,
                    broker_id=broker_id,
                    address=member.address,
                    is_alive=broker_id in alive,
                )
            )
        return info

    async def _clean(self, request: Request) -> Command:
        header = CleanBrokerDataRequest.from_fields(request.fields)
        broker_ids = _broker_ids(header.broker_ids)
        outcome = await self._registry.change(
            header.broker_name,
            lambda state: clean(
                state,
                name=header.broker_name,
                broker_ids=broker_ids,
                even_living=header.clean_living,
                alive=self._liveness.alive(header.broker_name),
            ),
        )
        if outcome.is_success:
            _log.warning(
                "group %s: %s cleaned by %s",
                header.broker_name,
                "everything" if broker_ids is None else f"brokers {sorted(broker_ids)}",
                request.connection.peer,
            )
        return request.response(outcome.code, outcome.remark)


def _broker_ids(text: str | None) -> frozenset[int] | None:
    if text is None or not text.strip():
        return None
    try:
        return frozenset(int(one) for one in text.split(";"))
    except ValueError as error:
        raise refusal(
            ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            "Please set the option <brokerControllerIdsToClean> according to the format, "
            f"exception: {error}",
        ) from error
