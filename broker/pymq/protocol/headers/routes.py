"""Headers of the name server's codes.

Fields that some supported version does not send are optional here, even if newer ones require them.
"""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class RegisterBrokerRequest(Header):
    """REGISTER_BROKER (103): announces a broker and its topics (body)."""

    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster_name: str
    #: 0: master.
    broker_id: int
    ha_server_address: str | None = wire("haServerAddr", default=None)
    heartbeat_timeout_ms: int | None = wire("heartbeatTimeoutMillis", default=None)
    #: Its absence marks a broker older than 5.0.
    enable_acting_master: bool | None = None
    compressed: bool = False
    #: Of the body as sent, 31 bits; 0: not to be checked.
    body_crc32: int = 0


@dataclass(slots=True, kw_only=True)
class RegisterBrokerResponse(Header):
    """Where a slave finds its master (103)."""

    ha_server_address: str | None = wire("haServerAddr", default=None)
    master_address: str | None = wire("masterAddr", default=None)


@dataclass(slots=True, kw_only=True)
class UnregisterBrokerRequest(Header):
    """UNREGISTER_BROKER (104)."""

    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster_name: str
    broker_id: int


@dataclass(slots=True, kw_only=True)
class RouteRequest(Header):
    """GET_ROUTEINFO_BY_TOPIC (105)."""

    topic: str = ""
    accept_standard_json_only: bool | None = None


@dataclass(slots=True, kw_only=True)
class PutKVRequest(Header):
    """PUT_KV_CONFIG (100)."""

    namespace: str
    key: str
    value: str


@dataclass(slots=True, kw_only=True)
class KVKeyRequest(Header):
    """GET_KV_CONFIG (101), DELETE_KV_CONFIG (102)."""

    namespace: str = ""
    key: str = ""


@dataclass(slots=True, kw_only=True)
class KVValueResponse(Header):
    """The value of a key (101)."""

    value: str | None = None


@dataclass(slots=True, kw_only=True)
class KVNamespaceRequest(Header):
    """GET_KVLIST_BY_NAMESPACE (219)."""

    namespace: str = ""


@dataclass(slots=True, kw_only=True)
class BrokerNameRequest(Header):
    """WIPE_WRITE_PERM_OF_BROKER (205), ADD_WRITE_PERM_OF_BROKER (327)."""

    broker_name: str


@dataclass(slots=True, kw_only=True)
class WipeWritePermResponse(Header):
    """How many topics lost their write permission (205)."""

    wipe_topic_count: int


@dataclass(slots=True, kw_only=True)
class AddWritePermResponse(Header):
    """How many topics regained their write permission (327)."""

    add_topic_count: int


@dataclass(slots=True, kw_only=True)
class DataVersionRequest(Header):
    """QUERY_DATA_VERSION (322): has the broker's table (version in the body) changed?"""

    broker_name: str
    broker_address: str = wire("brokerAddr")
    cluster_name: str
    broker_id: int | None = None


@dataclass(slots=True, kw_only=True)
class DataVersionResponse(Header):
    """Answer to 322."""

    changed: bool


@dataclass(slots=True, kw_only=True)
class DeleteTopicRoutesRequest(Header):
    """DELETE_TOPIC_IN_NAMESRV (216); without a cluster: from all clusters."""

    topic: str
    cluster_name: str | None = None


@dataclass(slots=True, kw_only=True)
class BrokerHeartbeatRequest(Header):
    """BROKER_HEARTBEAT (904): a broker is still alive."""

    cluster_name: str
    broker_address: str = wire("brokerAddr")
    broker_name: str
    broker_id: int | None = None
    epoch: int | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    #: The wire's spelling differs from REGISTER_BROKER's.
    heartbeat_timeout_ms: int | None = wire("heartbeatTimeoutMills", default=None)
    election_priority: int | None = None


@dataclass(slots=True, kw_only=True)
class TopicsOfClusterRequest(Header):
    """GET_TOPICS_BY_CLUSTER (224)."""

    cluster: str


@dataclass(slots=True, kw_only=True)
class BrokerMemberGroupRequest(Header):
    """GET_BROKER_MEMBER_GROUP (901): the addresses of a broker and its slaves."""

    cluster_name: str | None = None
    broker_name: str
