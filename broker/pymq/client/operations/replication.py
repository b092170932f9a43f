"""Who is the master of a group, how far its slaves are, and the controllers that decide it."""

from collections.abc import Sequence

from pymq.client.operations.operation import Operation, Plain, new_request
from pymq.errors import RemoteProtocolError
from pymq.protocol import fastjson
from pymq.protocol.admin_bodies import ReplicationStatus
from pymq.protocol.codes import RequestCode
from pymq.protocol.controller import (
    ControllerMetadataResponse,
    ElectMasterRequest,
    ElectMasterResponse,
    EpochCache,
    ReplicaTable,
)


def broker_config() -> Operation[str]:
    """The settings of a broker, as properties text with RocketMQ's keys (26)."""
    request = new_request(RequestCode.GET_BROKER_CONFIG)
    return Plain(request, "its settings", lambda response: _text(response.body))


def _text(body: bytes | memoryview) -> str:
    try:
        return str(body, "utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"not UTF-8: {error}") from error


def replication_status() -> Operation[ReplicationStatus]:
    """How far a master's slaves are; 4.9 brokers do not support it (907)."""
    request = new_request(RequestCode.GET_BROKER_HA_STATUS)
    return Plain(
        request,
        "how replication goes",
        lambda response: ReplicationStatus.decode(response.body),
    )


def epoch_cache() -> Operation[EpochCache]:
    """The epochs of a broker's log; refused by one that has no controller (1007)."""
    request = new_request(RequestCode.GET_BROKER_EPOCH_CACHE)
    return Plain(
        request, "the epochs of its log", lambda response: EpochCache.decode(response.body)
    )


def controller_metadata() -> Operation[ControllerMetadataResponse]:
    """Which controller leads; any of them says it (1005)."""
    request = new_request(RequestCode.CONTROLLER_GET_METADATA_INFO)
    return Plain(
        request,
        "who leads the controllers",
        lambda response: ControllerMetadataResponse.from_fields(response.fields),
    )


def replica_table(names: Sequence[str]) -> Operation[ReplicaTable]:
    """Masters, epochs and sync state sets of groups, as the leading controller has them (1006)."""
    request = new_request(
        RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, body=fastjson.dump(list(names))
    )
    return Plain(
        request, "the sync state sets", lambda response: ReplicaTable.decode(response.body)
    )


def designate_master(cluster: str, name: str, broker_id: int) -> Operation[ElectMasterResponse]:
    """Have the leading controller make one broker of a group its master, and nobody else (1002)."""
    header = ElectMasterRequest(
        cluster_name=cluster, broker_name=name, broker_id=broker_id, is_designated=True
    )
    request = new_request(RequestCode.CONTROLLER_ELECT_MASTER, header)
    return Plain(
        request,
        f"to make broker {broker_id} the master of {name!r}",
        lambda response: ElectMasterResponse.from_fields(response.fields),
    )
