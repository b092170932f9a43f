"""Headers of popping: POP_MESSAGE (200050), ACK_MESSAGE (200051) and their relatives.

Source: RocketMQ PopMessageRequestHeader, AckMessageRequestHeader,
ChangeInvisibleTimeRequestHeader, NotificationRequestHeader, PollingInfoRequestHeader and their
response headers.
"""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class PopRequest(Header):
    """How many messages a consumer wants, and for how long nobody else shall get them.

    Attributes:
        queue_id: -1: any queue of the topic.
        invisible_ms: after that others get the messages, unless they were acknowledged.
        poll_ms: how long to wait for a message; from ``born_time`` on, the client's clock in ms.
        born_time: 0: when the broker reads the request.
        init_mode: where to begin in a queue without progress: 0 at its first message, 1 at its
            last one.
        expression: its tags or other filter.
        order: whether no later messages of a queue may be popped before these are acknowledged.
        attempt_id: repeated when a request in order is repeated.
    """

    consumer_group: str
    topic: str
    queue_id: int
    message_count_max: int = wire("maxMsgNums")
    invisible_ms: int = wire("invisibleTime")
    poll_ms: int = wire("pollTime")
    born_time: int = 0
    init_mode: int
    expression_type: str | None = wire("expType", default=None)
    expression: str | None = wire("exp", default=None)
    order: bool = False
    attempt_id: str | None = None


@dataclass(slots=True, kw_only=True)
class PopResponse(Header):
    """What the handles of the messages are made of; see ``receipt_handles``."""

    pop_time: int
    invisible_ms: int = wire("invisibleTime")
    revive_queue_id: int = wire("reviveQid")
    rest_count: int = wire("restNum")
    start_offset_info: str | None = None
    message_offset_info: str | None = wire("msgOffsetInfo", default=None)
    order_count_info: str | None = None


@dataclass(slots=True, kw_only=True)
class AckRequest(Header):
    """The message that was consumed."""

    consumer_group: str
    topic: str
    queue_id: int
    handle: str = wire("extraInfo")
    queue_offset: int = wire("offset")


@dataclass(slots=True, kw_only=True)
class ChangeInvisibleTimeRequest(Header):
    """A message that is to become visible after another time, counted from now."""

    consumer_group: str
    topic: str
    queue_id: int
    handle: str = wire("extraInfo")
    queue_offset: int = wire("offset")
    invisible_ms: int = wire("invisibleTime")


@dataclass(slots=True, kw_only=True)
class ChangeInvisibleTimeResponse(Header):
    """What the message's new handle is made of."""

    pop_time: int
    invisible_ms: int = wire("invisibleTime")
    revive_queue_id: int = wire("reviveQid")


@dataclass(slots=True, kw_only=True)
class NotificationRequest(Header):
    """Waits until there is a message to pop; as for ``PopRequest``."""

    consumer_group: str
    topic: str
    queue_id: int
    poll_ms: int = wire("pollTime")
    born_time: int = 0
    order: bool = False
    attempt_id: str | None = None


@dataclass(slots=True, kw_only=True)
class NotificationResponse(Header):
    """Whether there is one, and whether waiting for it was refused."""

    has_message: bool = wire("hasMsg")
    polling_full: bool = False


@dataclass(slots=True, kw_only=True)
class PollingInfoRequest(Header):
    """Asks how many requests wait."""

    consumer_group: str
    topic: str
    queue_id: int


@dataclass(slots=True, kw_only=True)
class PollingInfoResponse(Header):
    """The number of waiting requests."""

    polling_count: int = wire("pollingNum")
