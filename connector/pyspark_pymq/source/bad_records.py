"""Messages whose bodies cannot be decoded: what becomes of them, and what is said about it.

==============  ===============================================================================
``badRecords``  a bad record
==============  ===============================================================================
fail            ends the task with an error that names it
null            is a row whose body or value is null
sideTopic       is no row; a copy of it goes to another topic
==============  ===============================================================================

Bodies are bad that cannot be decompressed, or are not of the ``valueFormat``. Who reads neither
bodies nor values has no bad records.

The copy on the side topic is acknowledged before the row is left out. It has the message's body,
flag, tags, keys and properties, its id among them, and says in properties why it is there and where
it came from; if there is no room for that, large properties of the message are left out. A task
that is repeated sends its copies again: with the same id and the same place, by which they can be
told.

Copies are sent in batches, whose bodies are not compressed: what cannot be decompressed is in one
as it was stored. A large body goes alone, compressed if it was: decompressed it may be larger than
any message that a broker takes.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pymq.client.operations import PreparedMessage
from pymq.client.sockets.batch_targets import BatchTarget
from pymq.client.sockets.bulk_client import BulkClient
from pymq.columns.record_rows import RecordRows
from pymq.errors import MessageIllegal, PymqError, RemoteProtocolError
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.codes import COMPRESSION_MASK, MessageFlag
from pymq.protocol.message import (
    CLUSTER,
    DELAY,
    FIRST_POP_TIME,
    INNER_COUNT,
    KEYS,
    POP_CHECK_POINT,
    REGION,
    TAGS,
    TIMER_DELAY_MS,
    TIMER_DELAY_S,
    TIMER_DELIVERY_MS,
    TRACE_ON,
    TRANSACTION_PREPARED,
    UNIQUE_KEY,
    WAIT,
    encode_properties,
    find_property,
)
from pymq.protocol.record import PROPERTIES_BYTES_MAX
from pyspark_pymq.format_options import FAIL, NULL, SIDE_TOPIC
from pyspark_pymq.offsets import named

LOG = logging.getLogger(__name__)

# Properties of a copy on the side topic.
REASON = "BAD_RECORD_REASON"
TOPIC = "BAD_RECORD_TOPIC"
BROKER = "BAD_RECORD_BROKER"
QUEUE_ID = "BAD_RECORD_QUEUE_ID"
QUEUE_OFFSET = "BAD_RECORD_QUEUE_OFFSET"

#: What a message was told to do once, which its copy must not do, and a batch cannot; and what
#: its broker adds to every message.
_DONE = {
    *(DELAY, TIMER_DELAY_S, TIMER_DELAY_MS, TIMER_DELIVERY_MS, TRANSACTION_PREPARED),
    *(INNER_COUNT, WAIT, POP_CHECK_POINT, FIRST_POP_TIME, "INNER_MULTI_DISPATCH"),
    *(REGION, TRACE_ON, CLUSTER),
}
_NOT_COPIED = {*_DONE, REASON, TOPIC, BROKER, QUEUE_ID, QUEUE_OFFSET}
_KEPT_LONGEST = (UNIQUE_KEY, TAGS, KEYS)
_REASON_CHARACTERS_MAX = 500
#: Of a copy; a broker adds its region, the cluster's name and the like.
_PROPERTIES_BYTES_MAX = PROPERTIES_BYTES_MAX - 512
#: Copies that are sent together; a larger one goes alone.
_BATCH_BYTES_MAX = 1 << 20
_COMPRESSION_BITS = MessageFlag.COMPRESSED | COMPRESSION_MASK
_IN_FLIGHT_MAX = 3


class BadRecords:
    """What becomes of the bad records of one task; counts them.

    Args:
        action: ``badRecords``.
        null_corrupt: bodies that cannot be decompressed are null even if the action is to fail.
        side: where they go, if that is the action.
    """

    def __init__(
        self, action: str = FAIL, *, null_corrupt: bool = False, side: "SideTopic | None" = None
    ) -> None:
        assert (side is not None) is (action == SIDE_TOPIC)
        self._action = action
        self._null_corrupt = null_corrupt
        self._side = side
        self._count = 0
        self._first = ""

    def sift(
        self, rows: RecordRows, corrupt: Mapping[int, str], undecodable: Mapping[int, str]
    ) -> npt.NDArray[np.bool_] | None:
        """Deal with the bad ones among some rows; return which rows to keep, None for all.

        Args:
            rows: the rows.
            corrupt: place of a body that cannot be decompressed -> why.
            undecodable: place of one that is not of the format -> why.

        Raises:
            RemoteProtocolError: there is one, and it is to be an error.
            PymqError: it could not be sent to the side topic.
        """
        if not corrupt and not undecodable:
            return None
        if self._action == FAIL:
            if corrupt and not self._null_corrupt:
                place = min(corrupt)
                raise RemoteProtocolError(
                    f"body of {_described(rows, place)}: {corrupt[place]}. To read it as null, and "
                    "go on behind it, set the option corruptBodies to null"
                )
            if undecodable:
                place = min(undecodable)
                raise RemoteProtocolError(
                    f"body of {_described(rows, place)}: {undecodable[place]}. To read such values "
                    "as null, set the option badRecords to null; to leave them out and keep them "
                    "in another topic, set it to sideTopic and badRecordsTopic to that topic"
                )
        reasons = {place: f"cannot be decompressed: {why}" for place, why in corrupt.items()}
        reasons |= undecodable
        self._count += len(reasons)
        place = min(reasons)
        self._first = self._first or f"{_described(rows, place)} ({reasons[place]})"
        if self._side is None:
            return None
        self._side.send(rows, dict(sorted(reasons.items())), corrupt)
        kept = np.ones(rows.count, np.bool_)
        kept[list(reasons)] = False
        return kept

    def report(self) -> None:
        """Log how many there were."""
        if not self._count:
            return
        became = "are null (badRecords=null)"
        if self._side is not None:
            became = f"are left out and stored in topic {self._side.topic} (badRecords=sideTopic)"
        elif self._action != NULL:
            became = "are null (corruptBodies=null)"
        LOG.warning(
            "%d bodies cannot be decoded and %s, first that of %s",
            self._count,
            became,
            self._first,
        )


class SideTopic:
    """Sends copies of bad records to a topic.

    Args:
        topic: that topic.
        connect: makes a client, for the first of them; ``close`` closes it.
        retry_s: how long a broker that is away is waited for.
    """

    def __init__(self, topic: str, connect: Callable[[], BulkClient], retry_s: float) -> None:
        self.topic = topic
        self._connect = connect
        self._retry_s = retry_s
        self._client: BulkClient | None = None

    def send(
        self, rows: RecordRows, reasons: Mapping[int, str], corrupt: Mapping[int, str]
    ) -> None:
        """Send copies of some rows; return when they are acknowledged.

        Args:
            rows: all rows.
            reasons: place of a bad one -> why it is.
            corrupt: those whose body cannot be decompressed.

        Raises:
            PymqError: they could not be sent.
        """
        if self._client is None:
            self._client = self._connect()
        try:
            pipeline = self._client.batch_pipeline(
                in_flight_max=_IN_FLIGHT_MAX, retry_s=self._retry_s
            )
            for batch in _requests(self.topic, _copies(rows, reasons, corrupt)):
                pipeline.send(BatchTarget(self.topic), batch)
            pipeline.flush()
        except PymqError as error:
            error.add_note(
                f"this was about bad records, which go to topic {self.topic} (options badRecords, "
                f"badRecordsTopic); the first is {_described(rows, min(reasons))}"
            )
            if isinstance(error, MessageIllegal):
                error.add_note("a copy takes some 300 B more than the message: is it too large?")
            raise

    def close(self) -> None:
        """Close the client, if there is one."""
        if self._client is not None:
            self._client.close()


def _described(rows: RecordRows, place: int) -> str:
    offset = int(rows.field("queue_offset")[place])
    return f"the message at offset {offset} of {named(rows.queue)}"


@dataclass(slots=True)
class _Copy:
    """A copy of one message: its body as it is in a batch, or alone with these system flags."""

    flag: int
    sys_flag: int
    body: bytes
    properties: bytes
    key: str | None

    @property
    def size_bytes(self) -> int:
        return len(self.body) + len(self.properties)


def _copies(
    rows: RecordRows, reasons: Mapping[int, str], corrupt: Mapping[int, str]
) -> Iterator[_Copy]:
    """Yield a copy of each bad one."""
    bodies = rows.bodies()
    buffer = rows.records.buffer
    for place, reason in reasons.items():
        first, end = (int(rows.field(name)[place]) for name in ("body_start", "body_end"))
        stored = buffer[first:end]
        sys_flag = 0
        if place in corrupt:
            body = stored.tobytes()
        elif len(bodies[place].as_buffer()) > _BATCH_BYTES_MAX:
            body = stored.tobytes()
            sys_flag = int(rows.field("sys_flag")[place]) & _COMPRESSION_BITS
        else:
            body = bodies[place].as_py()
        flag = int(rows.field("flag")[place])
        properties = _properties(rows, place, _plain(reason))
        key = find_property(properties, UNIQUE_KEY.encode())
        yield _Copy(flag, sys_flag, body, properties, None if key is None else key.decode())


def _properties(rows: RecordRows, place: int, reason: str) -> bytes:
    """Return what a copy has: the message's as they are stored, and ours.

    Where there is no room for all, the message's largest are left out, and the reason says so;
    its id, tag and keys last.
    """
    first, end = (int(rows.field(name)[place]) for name in ("properties_start", "ends"))
    stored = str(rows.records.buffer[first:end].tobytes(), "utf-8", "replace")
    kept = {}
    for entry in stored.split("\x02"):
        # Also values that clients refuse to send, such as of U+0001.
        name, _, value = entry.partition("\x01")
        if name and value and name not in _NOT_COPIED:
            kept[name] = f"{entry}\x02".encode()
    origin = {
        TOPIC: rows.queue.topic,
        BROKER: rows.queue.broker_name,
        QUEUE_ID: str(rows.queue.queue_id),
        QUEUE_OFFSET: str(int(rows.field("queue_offset")[place])),
    }
    left_out: list[str] = []
    while True:
        why = f"(without properties: {', '.join(left_out):.200}) {reason}" if left_out else reason
        ours = encode_properties({REASON: why[:_REASON_CHARACTERS_MAX], **origin})
        if len(ours) + sum(map(len, kept.values())) <= _PROPERTIES_BYTES_MAX:
            return b"".join(kept.values()) + ours
        largest = max(kept, key=lambda name: (name not in _KEPT_LONGEST, len(kept[name])))
        del kept[largest]
        left_out.append(largest)


def _plain(reason: str) -> str:
    """Return a reason as properties can have it: it may quote anything."""
    text = reason.encode("utf-8", "backslashreplace").decode()
    return text.replace("\x01", "\\x01").replace("\x02", "\\x02")


def _requests(topic: str, copies: Iterator[_Copy]) -> Iterator[bytes | PreparedMessage]:
    """Yield bodies of SEND_BATCH, and the copies that go alone."""
    found: list[_Copy] = []
    size = 0
    for copy in copies:
        if copy.sys_flag or copy.size_bytes > _BATCH_BYTES_MAX:
            text = copy.properties.decode()
            yield PreparedMessage(topic, copy.body, text, copy.key, copy.flag, copy.sys_flag)
            continue
        if found and size + copy.size_bytes > _BATCH_BYTES_MAX:
            yield _batch(found)
            found, size = [], 0
        found.append(copy)
        size += copy.size_bytes
    if found:
        yield _batch(found)


def _batch(copies: list[_Copy]) -> bytes:
    return encode_batch([(copy.flag, copy.body, copy.properties) for copy in copies])
