"""A client with the connector's part of ``BulkClient``, over queues held in memory."""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pymq.client.cluster.routes import Route
from pymq.client.operations import Operation, PreparedMessage, PullResult, PullStatus
from pymq.client.sockets.batch_targets import BatchTarget, QueueChooser, fitting
from pymq.client.sockets.fitting_ranges import FittingAnswer
from pymq.client.sockets.queue_bounds import BoundsAnswer
from pymq.errors import (
    BrokerError,
    ConnectionFailed,
    OffsetOutOfRange,
    PymqError,
    RequestNotSupported,
    RouteNotFound,
)
from pymq.filter.evaluate import compile_sql92
from pymq.protocol.bodies import BrokerData, ClusterInfo, Heartbeat, MessageQueue
from pymq.protocol.codes import RequestCode
from pymq.protocol.hashes import java_hash
from pymq.protocol.message import decode_properties, encode_properties, find_property
from pymq.protocol.new_batch import NewBatch
from pymq.protocol.new_records import NewRecords, SharedFields
from pymq.protocol.preencoded_records import PreencodedRecords, unpack_sizes
from pymq.protocol.range_bodies import Fitting
from pymq.protocol.record import (
    NewRecord,
    decode_record,
    encode_record,
    pack_host,
    record_size,
    topic_field,
)
from pymq.protocol.records_body import RecordsBody

BORN_HOST = pack_host("10.0.0.1", 50000)
STORE_HOST = pack_host("10.0.0.2", 10911)
#: Where a record says when it was stored, if its producer's address is one of IPv4.
STORE_TIMESTAMP, STORE_TIMESTAMP_AT = struct.Struct(">q"), 56


def record(
    body: bytes = b"hello",
    properties: bytes | dict[str, str] = b"",
    *,
    topic: str = "orders",
    queue_id: int = 0,
    queue_offset: int = 0,
    born_host: bytes = BORN_HOST,
    store_host: bytes = STORE_HOST,
    sys_flag: int = 0,
    flag: int = 0,
) -> bytes:
    """Return one stored record."""
    text = encode_properties(properties) if isinstance(properties, dict) else properties
    new = NewRecord(topic, queue_id, body, text, born_host, 1_700_000_000_123, flag, sys_flag)
    field = topic_field(topic.encode())
    hosts = len(born_host) + len(store_host)
    parts = encode_record(
        new,
        field,
        size=record_size(len(body), len(field), len(text), hosts),
        queue_offset=queue_offset,
        physical_offset=4096 + 1000 * queue_offset,
        store_timestamp=1_700_000_000_456,
        store_host=store_host,
    )
    return b"".join(parts)


@dataclass
class Chunk:
    buffer: memoryview
    first: int
    next_offset: int
    is_from_master: bool = True


@dataclass
class FakeBroker:
    """Queues of records; ``first`` is the queue offset of each one's first record.

    ``errors`` are raised one after another by the next calls; ``pull_count`` is how many
    messages one answer has; ``takes_records`` False makes it one of RocketMQ's; ``exact_end``
    False lets answers run beyond what was asked for.
    """

    queues: dict[MessageQueue, list[bytes]] = field(default_factory=dict)
    first: dict[MessageQueue, int] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)
    pull_count: int = 3
    exact_end: bool = True
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    open_clients: int = 0
    takes_records: bool = True
    only_slaves: set[str] = field(default_factory=set)  # brokers whose master is away
    acting: set[str] = field(default_factory=set)  # those whose slave stands for it in routes
    #: What a replica has instead, from which the broker suggests to read.
    replicas: dict[MessageQueue, list[bytes]] = field(default_factory=dict)
    away: set[str] = field(default_factory=set)  # brokers that do not answer
    unrouted: set[str] = field(default_factory=set)  # brokers that no name server knows
    registered: set[str] = field(default_factory=set)  # and of those, known without topics
    deleted: set[str] = field(default_factory=set)  # topics
    offset_at: dict[int, int] = field(default_factory=dict)  # by time, ms; of every queue
    groups: set[str] = field(default_factory=set)  # that may commit
    committed: dict[tuple[str, MessageQueue], int] = field(default_factory=dict)  # by group
    own_topics: set[str] = field(default_factory=set)  # more of what a name server lists
    topic_ids: dict[tuple[str, str], str] = field(default_factory=dict)  # of pymq brokers
    official: set[str] = field(default_factory=set)  # brokers of RocketMQ
    name_servers: dict[str, bool] = field(default_factory=lambda: {"ns:9876": True})  # who answer

    def add(self, queue: MessageQueue, *messages: tuple[bytes, dict[str, str]]) -> None:
        records = self.queues.setdefault(queue, [])
        for body, properties in messages:
            offset = self.first.get(queue, 0) + len(records)
            records.append(
                record(
                    body,
                    properties,
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    queue_offset=offset,
                )
            )

    def trim(self, queue: MessageQueue, first: int) -> None:
        """Forget the messages before ``first``."""
        del self.queues[queue][: first - self.first.get(queue, 0)]
        self.first[queue] = first

    def stored(self, queue: MessageQueue, offset: int) -> bytes:
        """Return a record, stored when ``offset_at`` says, if that says anything."""
        item = bytearray(self.queues[queue][offset - self.first.get(queue, 0)])
        if self.offset_at:
            times = [time for time, first in self.offset_at.items() if first <= offset]
            STORE_TIMESTAMP.pack_into(item, STORE_TIMESTAMP_AT, max(times, default=0))
        return bytes(item)

    def client(self, name_servers: Sequence[str], **settings: object) -> "FakeClient":
        self.open_clients += 1
        return FakeClient(self)


class FakeClient:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self._open = True

    def close(self) -> None:
        self._broker.open_clients -= self._open
        self._open = False

    def _called(self, *call: Any) -> None:
        assert self._open, f"{call} on a closed client"
        self._broker.calls.append(call)
        if self._broker.errors:
            raise self._broker.errors.pop(0)

    def read_queues(self, topic: str) -> list[MessageQueue]:
        self._called("read_queues", topic)
        return self._queues(topic)

    def write_queues(self, topic: str) -> list[MessageQueue]:
        self._called("write_queues", topic)
        return self._queues(topic)

    def _queues(self, topic: str) -> list[MessageQueue]:
        queues = [q for q in self._broker.queues if q.topic == topic and self._is_routed(q)]
        if not queues:
            raise RouteNotFound(f"no name server knows topic {topic}")
        return queues

    def cluster_info(self) -> ClusterInfo:
        self._called("cluster_info")
        unknown = self._broker.unrouted - self._broker.registered
        names = {queue.broker_name for queue in self._broker.queues} - unknown
        slaves = self._broker.only_slaves | self._broker.acting
        return ClusterInfo(
            brokers={
                name: BrokerData(broker_name=name, addresses={int(name in slaves): f"{name}:1"})
                for name in names
            }
        )

    def ask(self, address: str, operation: Operation[int]) -> int:
        """Answer what is asked about the bounds of a queue; one of a deleted topic is empty."""
        self._called("ask", address)
        fields, code = operation.request.fields, operation.request.code
        name = address.removesuffix(":1")
        if name in self._broker.away:
            raise ConnectionFailed(f"{name} is away")
        queue = MessageQueue(str(fields["topic"]), name, int(fields["queueId"]))
        if queue.topic in self._broker.deleted:
            return 0
        return self._bounds(queue)[code == RequestCode.GET_MAX_OFFSET]

    def ask_many(
        self, asked: Sequence[tuple[str, Operation[Any]]], *, timeout_s: float | None = None
    ) -> list[Any]:
        """Answer what concerns groups, at addresses of ``known_routes``; and about all brokers."""
        return [self._answer_group(address, operation) for address, operation in asked]

    @property
    def name_servers(self) -> tuple[str, ...]:
        return tuple(self._broker.name_servers)

    def _answer_group(self, address: str, operation: Operation[Any]) -> Any:
        request, name = operation.request, address.removesuffix(":1")
        if address in self._broker.name_servers:
            if not self._broker.name_servers[address]:
                return ConnectionFailed(f"name server {address} is silent")
            assert request.code == RequestCode.GET_BROKER_CLUSTER_INFO
            return self.cluster_info()
        self._called(RequestCode(request.code).name, name)
        if name in self._broker.away:
            return ConnectionFailed(f"{name} is away")
        if request.code == RequestCode.HEART_BEAT:
            (consumer,) = Heartbeat.decode(bytes(request.body)).consumers
            self._broker.groups.add(consumer.group)
            return 0
        group = str(request.fields["consumerGroup"])
        if request.code == RequestCode.UNREGISTER_CLIENT:
            return None
        queue = MessageQueue(str(request.fields["topic"]), name, int(request.fields["queueId"]))
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            assert request.fields["setZeroIfNotFound"] == "false"
            return self._broker.committed.get((group, queue))
        assert request.code == RequestCode.UPDATE_CONSUMER_OFFSET
        if group not in self._broker.groups:
            return BrokerError.of(26, f"Group {group} not exist!", peer=address, request="a commit")
        self._broker.committed[group, queue] = int(request.fields["commitOffset"])
        return None

    def route(self, topic: str) -> Route:
        """Return the route of a topic, such as the retry topic of a group."""
        self._called("route", topic)
        for route in self.known_routes():
            if route.topic == topic:
                return route
        raise RouteNotFound(f"no name server knows topic {topic}")

    def forget_route(self, topic: str) -> None:
        self._called("forget", topic)

    def __enter__(self) -> "FakeClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def topic_names(self) -> list[str]:
        self._called("topic_names")
        names = {queue.topic for queue in self._broker.queues if self._is_routed(queue)}
        return list(names | self._broker.own_topics)

    def stored_commit(self, group: str, queue: MessageQueue) -> int | None:
        self._called("stored_commit", group, queue)
        self._check_there(queue)
        return self._broker.committed.get((group, queue))

    def pull(
        self, queue: MessageQueue, offset: int, *, count_max: int, bytes_max: int, group: str
    ) -> PullResult:
        """Answer with whole messages, one at least, stored when ``offset_at`` says."""
        self._called("pull", queue, offset, count_max)
        self._check_there(queue)
        first, end = self._bounds(queue)
        some = b""
        for place in range(offset, min(offset + count_max, end)) if offset >= first else ():
            item = self._broker.stored(queue, place)
            if some and len(some) + len(item) > bytes_max:
                break
            some += item
        status = PullStatus.FOUND if some else PullStatus.NO_NEW
        return PullResult(status, offset, first, end, some)

    def _check_there(self, queue: MessageQueue) -> None:
        if queue.broker_name in self._broker.away:
            raise ConnectionFailed(f"{queue.broker_name} is away")

    def doubt_route(self, topic: str) -> None:
        self._broker.calls.append(("doubt", topic))

    def _is_routed(self, queue: MessageQueue) -> bool:
        return (
            queue.broker_name not in self._broker.unrouted
            and queue.topic not in self._broker.deleted
        )

    def asks_master(self, queue: MessageQueue) -> bool:
        return queue.broker_name not in self._broker.only_slaves

    def bounds(self, queues: Sequence[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
        self._called("bounds", len(queues))
        return {queue: self._bounds(queue) for queue in queues}

    def try_bounds(
        self, queues: Iterable[MessageQueue], *, timeout_s: float | None = None
    ) -> BoundsAnswer:
        answer = BoundsAnswer()
        asked = list(queues)
        try:
            self._called("bounds", len(asked))
        except PymqError as error:
            return BoundsAnswer(failed=dict.fromkeys((q.broker_name for q in asked), error))
        for queue in asked:
            if queue.topic in self._broker.deleted:
                missing = RouteNotFound(f"no name server knows topic {queue.topic}")
                answer.failed.setdefault(queue.broker_name, missing)
            elif queue.broker_name in self._broker.registered:
                missing = RouteNotFound(f"topic {queue.topic} has no route")
                answer.failed.setdefault(queue.broker_name, missing)
            elif queue.broker_name in self._broker.away:
                answer.failed[queue.broker_name] = ConnectionFailed(f"{queue.broker_name} is away")
            else:
                answer.found[queue] = self._bounds(queue)
                place = queue.topic, queue.broker_name
                if place in self._broker.topic_ids:
                    answer.topic_ids[place] = self._broker.topic_ids[place]
        return answer

    def try_fitting(self, wanted: Mapping[MessageQueue, tuple[int, int, int]]) -> FittingAnswer:
        self._called("fitting", dict(wanted))
        answer = FittingAnswer()
        for queue, (first, end, bytes_max) in wanted.items():
            name = queue.broker_name
            if name in self._broker.away:
                answer.failed[name] = ConnectionFailed(f"{name} is away")
            elif name in self._broker.official:
                answer.failed[name] = RequestNotSupported("not supported", code=3)
            else:
                low, high = self._bounds(queue)
                at, size_bytes = first, 0
                for item in self._broker.queues[queue][max(first - low, 0) : min(end, high) - low]:
                    if size_bytes and size_bytes + len(item) > bytes_max:
                        break
                    at, size_bytes = at + 1, size_bytes + len(item)
                answer.found[queue] = Fitting(at, size_bytes)
        return answer

    def known_routes(self) -> list[Route]:
        queues = [queue for queue in self._broker.queues if self._is_routed(queue)]
        slaves = self._broker.only_slaves
        return [
            Route(
                topic,
                tuple(sorted(q for q in of_topic if q.broker_name not in self._broker.acting)),
                tuple(sorted(of_topic)),
                {
                    queue.broker_name: {int(queue.broker_name in slaves): f"{queue.broker_name}:1"}
                    for queue in of_topic
                },
            )
            for topic in sorted({queue.topic for queue in queues})
            if (of_topic := [queue for queue in queues if queue.topic == topic])
        ]

    def offset_by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        self._called("offset_by_time", queue, timestamp_ms)
        self._check_there(queue)
        first, end = self._bounds(queue)
        return min(max(first, self._broker.offset_at.get(timestamp_ms, first)), end)

    def _bounds(self, queue: MessageQueue) -> tuple[int, int]:
        first = self._broker.first.get(queue, 0)
        return first, first + len(self._broker.queues[queue])

    def pull_range(
        self,
        queue: MessageQueue,
        first: int,
        end: int,
        *,
        group: str = "group",
        tags: str = "*",
        sql: str | None = None,
        bytes_max: int = 8 << 20,
        passes_gaps: bool = False,
        reads_replicas: bool = True,
    ) -> Iterator[Chunk]:
        records = self._broker.queues[queue]
        is_from_master = queue.broker_name not in self._broker.only_slaves
        if reads_replicas and queue in self._broker.replicas:
            records, is_from_master = self._broker.replicas[queue], False
        codes = {java_hash(tag.strip()) for tag in tags.split("||")} if tags != "*" else None
        while first < end:
            self._called("pull", queue, first, end, tags)
            low, high = self._bounds(queue)
            if first < low or first >= high:
                raise OffsetOutOfRange(f"{first} is not in {low}..{high}")
            following = min(first + self._broker.pull_count, high)
            if self._broker.exact_end:
                following = min(following, end)
            some = records[first - low : following - low]
            if sql is not None:
                some = matching(sql, some)
            found = memoryview(b"".join(filter_by(codes, some)))
            yield Chunk(found, first, following, is_from_master)
            first = following

    def batch_pipeline(
        self, *, in_flight_max: int, retry_s: float, first_turn: int = 0
    ) -> "FakePipeline":
        return FakePipeline(self, first_turn)

    def store(self, queue: MessageQueue, body: Any) -> None:
        self._called("send", queue)
        stored = self._broker.queues[queue]
        if isinstance(body, PreparedMessage):
            stored.append(
                record(
                    bytes(body.body),
                    body.properties.encode(),
                    topic=queue.topic,
                    queue_id=queue.queue_id,
                    queue_offset=len(stored),
                    sys_flag=body.sys_flag,
                    flag=body.flag,
                )
            )
            return
        assert isinstance(body, RecordsBody) is self._broker.takes_records
        batch = _preencoded(body, queue) if self._broker.takes_records else _taken(body, queue)
        data = batch.encode(
            physical_offset=4096 + 1000 * len(stored),
            queue_offset=len(stored),
            store_timestamp=1_700_000_000_456,
            store_host=STORE_HOST,
        )
        ends = batch.sizes.cumsum()
        for start, end in zip(ends - batch.sizes, ends, strict=True):
            stored.append(bytes(data[start:end]))


class FakePipeline:
    """Chooses queues as the real one does, and has stored a batch when ``send`` returns."""

    def __init__(self, client: FakeClient, first_turn: int) -> None:
        self._client = client
        self._chooser = QueueChooser(first_turn)
        self._count = 0

    def takes_records(self, target: BatchTarget) -> bool:
        return self._client._broker.takes_records

    def send(self, target: BatchTarget, body: Any) -> None:
        queues = fitting(target, self._client._queues(target.topic), set())
        queue = self._chooser.choose(target, self._count, queues, 0.0)
        is_plain = not isinstance(body, (RecordsBody, PreparedMessage))
        size = len(body if is_plain else body.body)
        self._client.store(queue, body)
        self._chooser.sent(queue, self._count, size)
        self._chooser.ended(queue)
        self._count += 1

    def flush(self) -> None:
        assert self._client._open


def _preencoded(body: RecordsBody, queue: MessageQueue) -> NewRecords:
    return PreencodedRecords(bytes(body.body), unpack_sizes(body.sizes), _shared(queue))


def _taken(body: bytes | memoryview, queue: MessageQueue) -> NewRecords:
    return NewBatch(bytes(body), _shared(queue))


def _shared(queue: MessageQueue) -> SharedFields:
    return SharedFields(
        topic=queue.topic,
        queue_id=queue.queue_id,
        born_timestamp=1_700_000_000_123,
        born_host=BORN_HOST,
        store_host=STORE_HOST,
    )


def filter_by(codes: set[int] | None, records: list[bytes]) -> list[bytes]:
    """As a broker does: by the hash of the tag, so that tags of one hash come through."""
    if codes is None:
        return records
    return [item for item in records if item and java_hash(tag_of(item)) in codes]


def matching(sql: str, records: list[bytes]) -> list[bytes]:
    """Return the records whose properties fulfil an SQL92 expression."""
    compiled = compile_sql92(sql)
    return [
        item
        for item in records
        if item and compiled.matches(decode_properties(decode_record(item).properties))
    ]


def tag_of(item: bytes) -> str:
    return (find_property(decode_record(item).properties, b"TAGS") or b"").decode()
