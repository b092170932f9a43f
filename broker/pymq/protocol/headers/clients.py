"""Headers for the registration of clients.

GET_CONSUMER_LIST_BY_GROUP (38) and NOTIFY_CONSUMER_IDS_CHANGED (40) carry a
``groups.ConsumerGroupRequest``.
"""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class UnregisterClientRequest(Header):
    """UNREGISTER_CLIENT (35): one of the two groups; the connection says whose."""

    client_id: str | None = wire("clientID", default=None)
    producer_group: str | None = None
    consumer_group: str | None = None


@dataclass(slots=True, kw_only=True)
class HeartbeatResponse(Header):
    """Extras of 5.x in the answer to HEART_BEAT (34); without them, no heartbeat V2."""

    supports_v2: bool | None = wire("IS_SUPPORT_HEART_BEAT_V2", default=None)
    subscription_changed: bool | None = wire("IS_SUB_CHANGE", default=None)
