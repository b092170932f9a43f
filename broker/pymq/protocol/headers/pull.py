"""Headers of PULL_MESSAGE (11) and LITE_PULL_MESSAGE (361)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from pymq.protocol.codes import PULL_BYTES_FIELD
from pymq.protocol.headers.codec import Header, parse_int, wire


@dataclass(slots=True, kw_only=True)
class PullRequest(Header):
    """What to read, and whether to wait for it (PullMessageRequestHeader)."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    message_count_max: int = wire("maxMsgNums")
    sys_flag: int
    commit_offset: int = 0
    suspend_timeout_ms: int = wire("suspendTimeoutMillis", default=0)
    subscription: str | None = None
    sub_version: int = 0
    expression_type: str | None = None
    message_bytes_max: int | None = wire("maxMsgBytes", default=None)
    broker_name: str | None = wire("bname", default=None)
    #: Extension of pymq, see ``codes.PULL_BYTES_FIELD``.
    extended_bytes_max: int | None = wire(PULL_BYTES_FIELD, default=None)

    @classmethod
    def from_fields(cls, fields: Mapping[str, str] | None) -> "PullRequest":
        """Return the header in a string map; spelled out, because a broker reads many.

        Raises:
            RemoteProtocolError: a required field is missing, or a number is malformed.
        """
        source = fields or {}
        get = source.get
        try:
            most, extended = get("maxMsgBytes"), get(PULL_BYTES_FIELD)
            return cls(
                consumer_group=source["consumerGroup"],
                topic=source["topic"],
                queue_id=parse_int(source["queueId"]),
                queue_offset=parse_int(source["queueOffset"]),
                message_count_max=parse_int(source["maxMsgNums"]),
                sys_flag=parse_int(source["sysFlag"]),
                commit_offset=parse_int(get("commitOffset", "0")),
                suspend_timeout_ms=parse_int(get("suspendTimeoutMillis", "0")),
                subscription=get("subscription"),
                sub_version=parse_int(get("subVersion", "0")),
                expression_type=get("expressionType"),
                message_bytes_max=None if most is None else parse_int(most),
                broker_name=get("bname"),
                extended_bytes_max=None if extended is None else parse_int(extended),
            )
        except (KeyError, ValueError):
            return super(PullRequest, cls).from_fields(fields)  # says what is wrong


@dataclass(slots=True, kw_only=True)
class PullResponse(Header):
    """Where to continue reading (PullMessageResponseHeader); sent with codes 0, 19, 20 and 21."""

    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None

    def to_fields(self) -> dict[str, str]:
        """Return the string map; spelled out, because a broker makes one for every pull."""
        fields = {
            "suggestWhichBrokerId": str(self.suggest_which_broker_id),
            "nextBeginOffset": str(self.next_begin_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(self.max_offset),
        }
        if self.topic_sys_flag is not None:
            fields["topicSysFlag"] = str(self.topic_sys_flag)
        if self.group_sys_flag is not None:
            fields["groupSysFlag"] = str(self.group_sys_flag)
        return fields


#: With a refusal (16): what forbids the pull, a ``Forbidden``.
FORBIDDEN_FIELD = "forbiddenType"


class Forbidden(IntEnum):
    """What forbids a pull (ForbiddenType)."""

    BROKER = 1
    GROUP = 2
    TOPIC = 3
    BROADCASTING = 4
    SUBSCRIPTION = 5
