"""Headers of requests about the broker as a whole."""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class BrokerStatsRequest(Header):
    """VIEW_BROKER_STATS_DATA (315)."""

    #: Such as ``TOPIC_PUT_NUMS``.
    name: str = wire("statsName")
    #: Such as a topic.
    key: str = wire("statsKey")


@dataclass(slots=True, kw_only=True)
class ReadAheadRequest(Header):
    """SET_COMMITLOG_READ_MODE (2004)."""

    #: As madvise takes it: 0: read ahead, 1: do not.
    mode: int | None = wire("READ_AHEAD_MODE", default=None)


@dataclass(slots=True, kw_only=True)
class BrokerConfigResponse(Header):
    """GET_BROKER_CONFIG (26)."""

    #: A ``DataVersion``, as JSON.
    version: str
