"""Header of CONSUMER_SEND_MSG_BACK (36)."""

from dataclasses import dataclass

from pymq.protocol.headers.codec import Header, wire


@dataclass(slots=True, kw_only=True)
class SendBackRequest(Header):
    """Deliver a message again later (ConsumerSendMsgBackRequestHeader)."""

    #: Physical offset of the message.
    offset: int
    group: str
    #: 0: the broker chooses, longer each time; below 0: to the dead letters at once.
    delay_level: int
    origin_message_id: str | None = wire("originMsgId", default=None)
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None
    broker_name: str | None = wire("bname", default=None)
