"""Looking single messages up: by where they lie, and by key."""

from pymq.client.operations.operation import SUCCESS, Operation, Plain, new_request
from pymq.errors import CorruptRecord, RemoteProtocolError
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.headers.codec import INT64_MAX
from pymq.protocol.headers.query import QueryMessageRequest, ViewMessageRequest
from pymq.protocol.record import Record, decode_records

#: What brokers give at most (RocketMQ maxMsgsNumBatch).
QUERY_COUNT_MAX = 64


def _records(response: Command) -> list[Record]:
    try:
        return list(decode_records(response.body, verify=True))
    except CorruptRecord as error:
        raise RemoteProtocolError(str(error)) from error


def view_message(physical_offset: int, topic: str | None = None) -> Operation[Record]:
    """The message at a physical offset of a broker (33).

    RocketMQ takes whatever stands there for a message: its answer may turn out to be none.
    """

    def read(response: Command) -> Record:
        found = _records(response)
        if len(found) != 1:
            raise RemoteProtocolError(f"{len(found)} messages, expected one")
        return found[0]

    header = ViewMessageRequest(physical_offset=physical_offset, topic=topic)
    request = new_request(RequestCode.VIEW_MESSAGE_BY_ID, header)
    return Plain(request, f"the message at physical offset {physical_offset}", read)


def query_messages(
    topic: str,
    key: str,
    *,
    count_max: int = QUERY_COUNT_MAX,
    begin_ms: int = 0,
    end_ms: int = INT64_MAX,
) -> Operation[list[Record]]:
    """The newest messages with a key, or with an id that their producer gave (12).

    RocketMQ compares hashes: look at the keys of what comes.
    """
    header = QueryMessageRequest(
        topic=topic, key=key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
    )

    def read(response: Command) -> list[Record]:
        return [] if response.code == ResponseCode.QUERY_NOT_FOUND else _records(response)

    return Plain(
        new_request(RequestCode.QUERY_MESSAGE, header),
        f"the messages of topic {topic!r} with key {key!r}",
        read,
        (*SUCCESS, int(ResponseCode.QUERY_NOT_FOUND)),
    )
