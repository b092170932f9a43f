"""Headers between the brokers of a group."""

from dataclasses import dataclass

from pymq.protocol.bodies import DataVersion
from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class HaInfo(Header):
    """EXCHANGE_BROKER_HA_INFO (906): request without fields, and answer of a master.

    A RocketMQ master that starts sends its own to slaves, as a request.
    """

    #: ``host:port`` at which slaves reach the master's log.
    ha_address: str | None = wire("masterHaAddress", default=None)
    #: Physical offset up to which the master's log is on its disk.
    flushed_end: int | None = wire("masterFlushOffset", default=None)
    #: ``host:port`` at which clients reach the master.
    address: str | None = wire("masterAddress", default=None)


@dataclass(slots=True, kw_only=True)
class LowestIdChange(Header):
    """NOTIFY_MIN_BROKER_ID_CHANGE (905): from a name server, to the brokers of a group."""

    broker_id: int | None = wire("minBrokerId", default=None)
    broker_name: str | None = None
    address: str | None = wire("minBrokerAddr", default=None)
    #: Of the one that is gone.
    offline_address: str | None = wire("offlineBrokerAddr", default=None)
    #: Of the HA port of the one that has come.
    ha_address: str | None = wire("haBrokerAddr", default=None)


@dataclass(slots=True, kw_only=True)
class MetadataRequest(Header):
    """AWAIT_METADATA (479008)."""

    #: Of the slave.
    broker_id: int
    #: Names what the slave has; made by ``metadata_version``.
    version: str
    #: How long to wait for something else.
    wait_ms: int


@dataclass(slots=True, kw_only=True)
class MetadataResponse(Header):
    """Answer to AWAIT_METADATA: what the master has now; the body is the ids of its topics."""

    version: str
    #: What its clock says, in ms.
    time_ms: int | None = None


@dataclass(slots=True, kw_only=True)
class OffsetsRequest(Header):
    """AWAIT_OFFSETS (479009)."""

    #: Of the slave.
    broker_id: int
    #: The last change of the master's offsets that it has; empty: none.
    position: str
    #: How long to wait for another one.
    wait_ms: int


@dataclass(slots=True, kw_only=True)
class OffsetsResponse(Header):
    """Answer to AWAIT_OFFSETS; the body is ``OffsetChanges``, or empty: nothing has changed."""

    #: The last change that the body holds.
    position: str
    #: Physical offset of the end of the master's log: the offsets speak of nothing behind it.
    log_end: int


def metadata_version(*versions: DataVersion, ids: str) -> str:
    """Return what names the contents of tables with some versions, and the ids of topics.

    Args:
        ids: their digest: a slave may have the tables, which RocketMQ's requests bring as well,
            before it has the ids.
    """
    told = [f"{v.state_version}.{v.timestamp_ms}.{v.counter}" for v in versions]
    return "/".join((*told, ids))
