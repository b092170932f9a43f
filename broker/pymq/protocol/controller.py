"""What brokers, administrators and a controller say to each other.

::

    broker -> controller                          answer
    1005 GET_METADATA_INFO                        header: who leads
    1012 GET_NEXT_BROKER_ID    header             header
    1013 APPLY_BROKER_ID       header             header
    1003 REGISTER_BROKER       header             header (the master, if it is alive), SyncStateSet
    1002 ELECT_MASTER          header             header, ElectedMaster
    1004 GET_REPLICA_INFO      header             header, SyncStateSet
    1001 ALTER_SYNC_STATE_SET  header, SyncStateSet   header, SyncStateSet
    904  BROKER_HEARTBEAT      header; one-way    (``headers.routes.BrokerHeartbeatRequest``)

    controller -> broker
    1008 NOTIFY_BROKER_ROLE_CHANGED  header, SyncStateSet; one-way

    administrator -> controller                   answer
    1006 GET_SYNC_STATE_DATA   body: broker names as a JSON array     ReplicaTable
    1011 CLEAN_BROKER_DATA     header             nothing
    1009 UPDATE_CONTROLLER_CONFIG, 1010 GET_CONTROLLER_CONFIG: properties text, as in 25 and 26

    administrator -> broker                       answer
    1007 GET_BROKER_EPOCH_CACHE                   EpochCache

Broker ids here are the controller's: from 1 on, and they never change. Epochs count from 1; 0 says
that a group never had a master.

Source: RocketMQ remoting/protocol/header/controller, remoting/protocol/body, BrokerOuterAPI.
"""

from dataclasses import dataclass

from pymq.errors import RemoteProtocolError
from pymq.protocol import fastjson
from pymq.protocol.codes import ResponseCode
from pymq.protocol.headers.codec import INT64_MAX, Header, wire
from pymq.protocol.json_object import JsonObject

#: The id that a group's first broker gets.
FIRST_BROKER_ID = 1
#: What Java's controller and administrators send as ``brokerId`` when they mean no broker.
NO_BROKER_ID = -1


# ------------------------------------------------------------------- who leads the controllers


@dataclass(slots=True, kw_only=True)
class ControllerMetadataResponse(Header):
    """GET_METADATA_INFO (1005): the controllers, and which of them leads."""

    group: str | None = None
    leader_id: str | None = wire("controllerLeaderId", default=None)
    #: ``host:port``; None: nobody leads now. Brokers take it from any controller that says it.
    leader_address: str | None = wire("controllerLeaderAddress", default=None)
    #: Is the one that answers the leader?
    is_leader: bool = False
    #: RocketMQ's form is ``n0-host:port;n1-host:port``.
    peers: str | None = None


# --------------------------------------------------------------------------------- broker ids


@dataclass(slots=True, kw_only=True)
class NextBrokerIdRequest(Header):
    """GET_NEXT_BROKER_ID (1012): which id may a new broker apply for?"""

    cluster_name: str
    broker_name: str


@dataclass(slots=True, kw_only=True)
class NextBrokerIdResponse(Header):
    """Answer to GET_NEXT_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: int


@dataclass(slots=True, kw_only=True)
class ApplyBrokerIdRequest(Header):
    """APPLY_BROKER_ID (1013): take an id for good."""

    cluster_name: str
    broker_name: str
    broker_id: int = wire("appliedBrokerId")
    #: ``host:port;timestamp``: the broker's address, and what makes applying twice idempotent.
    check_code: str = wire("registerCheckCode")


@dataclass(slots=True, kw_only=True)
class ApplyBrokerIdResponse(Header):
    """Answer to APPLY_BROKER_ID."""

    cluster_name: str | None = None
    broker_name: str | None = None


# ------------------------------------------------------------------------- registration, election


@dataclass(slots=True, kw_only=True)
class RegisterReplicaRequest(Header):
    """CONTROLLER_REGISTER_BROKER (1003): a broker with an id is up, at this address."""

    cluster_name: str
    broker_name: str
    broker_id: int
    broker_address: str
    invoke_time_ms: int = wire("invokeTime", default=0)
    #: Only brokers of ours say these two: the last epoch in their log, if there is any, and that
    #: they had this id since they were started, so that they are no copy of who has it now.
    log_epoch: int | None = None
    has_had_id: bool | None = None


@dataclass(slots=True, kw_only=True)
class RegisterReplicaResponse(Header):
    """Answer to CONTROLLER_REGISTER_BROKER; the body is a ``SyncStateSet``.

    The four fields about the master are absent when there is none, or when it is not alive.
    """

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None
    #: Of a refusal by a controller of ours: where the broker is whose copy this one is. Brokers of
    #: RocketMQ do not look at it.
    copy_of: str | None = None


@dataclass(slots=True, kw_only=True)
class ElectMasterRequest(Header):
    """ELECT_MASTER (1002)."""

    cluster_name: str = ""
    broker_name: str = ""
    #: Who asks, or who is designated; ``NO_BROKER_ID``: nobody.
    broker_id: int = NO_BROKER_ID
    #: Must it be ``broker_id`` and nobody else? So do administrators ask.
    is_designated: bool = wire("designateElect", default=False)
    invoke_time_ms: int = wire("invokeTime", default=0)


@dataclass(slots=True, kw_only=True)
class ElectMasterResponse(Header):
    """Answer to ELECT_MASTER; the body is an ``ElectedMaster``.

    Filled, and with that body, for SUCCESS and for CONTROLLER_MASTER_STILL_EXIST.
    """

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int | None = None
    sync_state_set_epoch: int | None = None


@dataclass(slots=True, kw_only=True)
class ReplicaInfoRequest(Header):
    """GET_REPLICA_INFO (1004): who is the master of my group?"""

    broker_name: str


@dataclass(slots=True, kw_only=True)
class ReplicaInfoResponse(Header):
    """Answer to GET_REPLICA_INFO; the body is a ``SyncStateSet``.

    A group without a master has an epoch still, and no id and no address.
    """

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0


@dataclass(slots=True, kw_only=True)
class RoleChangedRequest(Header):
    """NOTIFY_BROKER_ROLE_CHANGED (1008); the body is a ``SyncStateSet``."""

    master_address: str | None = None
    master_epoch: int
    sync_state_set_epoch: int
    master_broker_id: int | None = None


# ------------------------------------------------------------------------- the sync state set


@dataclass(slots=True, kw_only=True)
class AlterSyncStateSetRequest(Header):
    """ALTER_SYNC_STATE_SET (1001); the body is the wanted ``SyncStateSet``, with the old epoch."""

    broker_name: str
    master_broker_id: int
    master_epoch: int
    invoke_time_ms: int = wire("invokeTime", default=0)


@dataclass(slots=True, kw_only=True)
class AlterSyncStateSetResponse(Header):
    """Answer to ALTER_SYNC_STATE_SET; the body is the new ``SyncStateSet``, with its epoch."""

    epoch: int = wire("newSyncStateSetEpoch")


@dataclass(frozen=True, slots=True)
class SyncStateSet(JsonObject):
    """The members of a group that have everything that is acknowledged, the master included."""

    broker_ids: frozenset[int] = wire("syncStateSet", default=frozenset())
    #: Counts the changes of the set, also those that come with a new master.
    epoch: int = wire("syncStateSetEpoch", default=0)


#: The codes with which a controller says that it does not change the set. Others leave open whether
#: it has: its store may have taken the change, and not have answered.
SET_REFUSALS = frozenset(
    (
        ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
        ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        ResponseCode.CONTROLLER_INVALID_MASTER,
        ResponseCode.CONTROLLER_INVALID_REPLICAS,
        ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
        ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerMemberGroup(JsonObject):
    """The brokers of a group, alive or not."""

    cluster: str
    broker_name: str
    #: broker id -> ``host:port``.
    addresses: dict[int, str] = wire("brokerAddrs", default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectedMaster(JsonObject):
    """The body that answers ELECT_MASTER."""

    #: Absent when the old master stayed.
    members: BrokerMemberGroup | None = wire("brokerMemberGroup", default=None)
    sync_state_set: frozenset[int] = frozenset()


# ------------------------------------------------------------------------------ administration


@dataclass(slots=True, kw_only=True)
class CleanBrokerDataRequest(Header):
    """CLEAN_BROKER_DATA (1011): forget brokers of a group, or the whole group."""

    cluster_name: str | None = None
    broker_name: str
    #: Ids, joined by ``;``. Absent: all of them.
    broker_ids: str | None = wire("brokerControllerIdsToClean", default=None)
    #: Also if brokers of it are alive?
    clean_living: bool = wire("isCleanLivingBroker", default=False)
    invoke_time_ms: int = wire("invokeTime", default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaIdentity(JsonObject):
    """One broker of a group (BrokerReplicasInfo.ReplicaIdentity)."""

    broker_name: str
    broker_id: int
    address: str | None = wire("brokerAddress", default=None)
    is_alive: bool = wire("alive", default=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaInfo(JsonObject):
    """A group of brokers as the controller knows it (BrokerReplicasInfo.ReplicasInfo)."""

    master_broker_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set_epoch: int = 0
    in_sync: list[ReplicaIdentity] = wire("inSyncReplicas", default_factory=list)
    not_in_sync: list[ReplicaIdentity] = wire("notInSyncReplicas", default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTable(JsonObject):
    """The body that answers GET_SYNC_STATE_DATA (1006, BrokerReplicasInfo)."""

    #: broker name -> its group. Unknown names are missing.
    groups: dict[str, ReplicaInfo] = wire("replicasInfoTable", default_factory=dict)


def decode_broker_names(body: bytes | memoryview) -> list[str]:
    """Return the names in the body of GET_SYNC_STATE_DATA (1006).

    Raises:
        RemoteProtocolError: it is not an array of strings.
    """
    names = fastjson.parse(body) if len(body) else []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RemoteProtocolError(f"{names!r:.80}, expected an array of broker names")
    return names


# ----------------------------------------------------------------------------- epochs of a broker


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochEntry(JsonObject):
    """The part of a log that one master wrote (EpochEntry)."""

    epoch: int
    #: Physical offsets, half-open. The last epoch has no end of its own yet.
    start: int = wire("startOffset")
    end: int = wire("endOffset", default=INT64_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochCache(JsonObject):
    """The body that answers GET_BROKER_EPOCH_CACHE (1007, EpochEntryCache)."""

    cluster_name: str
    broker_name: str
    broker_id: int
    epochs: list[EpochEntry] = wire("epochList", default_factory=list)
    #: Physical offset at which the log ends.
    max_offset: int = 0
