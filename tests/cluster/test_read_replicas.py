"""Reading ranges from replicas that a broker suggests; master and replicas are played."""

from collections.abc import Iterator

import pytest
from tests.cluster.played import (
    QUEUE,
    Answer,
    Played,
    PlayedNameServer,
    closed_address,
    route_to,
    unreachable_address,
)
from tests.unit.connector.fake import record

from pymq.client.ranges import PullChunk
from pymq.client.sockets import read_sources
from pymq.client.sockets.blocking_pool import BlockingPool
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import ConnectionFailed, OffsetOutOfRange
from pymq.net.blocking import BlockingChannel
from pymq.protocol.codes import RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.record_batch import read_columns

END = 400


class PlayedReplica(Played):
    """Has messages ``0..end`` of ``QUEUE`` but for some, gives 10 at a time, suggests a broker."""

    def __init__(self, suggests: int, *, end: int = END, lacks: range = range(0)) -> None:
        super().__init__(self.give)
        self.suggests = suggests
        self.end = end
        self.lacks = lacks

    @property
    def offsets(self) -> list[int]:
        """Where it was asked to begin."""
        return [int((one.fields or {})["queueOffset"]) for one in self.requests]

    def give(self, request: Command) -> Command | None:
        assert request.code == RequestCode.PULL_MESSAGE
        fields = request.fields or {}
        first = int(fields["queueOffset"])
        following = min(first + min(10, int(fields["maxMsgNums"])), self.end)
        there = [offset for offset in range(first, following) if offset not in self.lacks]
        answer = {
            "suggestWhichBrokerId": str(self.suggests),
            "nextBeginOffset": str(following if following > first else self.end),
            "minOffset": "0",
            "maxOffset": str(self.end),
        }
        code = ResponseCode.SUCCESS if there else ResponseCode.PULL_NOT_FOUND
        if first > self.end:
            code = ResponseCode.PULL_OFFSET_MOVED
        body = b"".join(record(topic="T", queue_offset=offset) for offset in there)
        return request.reply(code, None, answer, body)


@pytest.fixture
def master() -> Iterator[PlayedReplica]:
    with PlayedReplica(suggests=1) as played:
        yield played


@pytest.fixture
def replica() -> Iterator[PlayedReplica]:
    with PlayedReplica(suggests=1) as played:
        yield played


@pytest.fixture
def name_server(master: PlayedReplica, replica: PlayedReplica) -> Iterator[PlayedNameServer]:
    route = route_to(master.address)
    route.brokers[0].addresses[1] = replica.address
    with PlayedNameServer({"T": route}) as played:
        yield played


@pytest.fixture
def client(name_server: PlayedNameServer) -> Iterator[BulkClient]:
    with BulkClient(name_server.address, timeout_s=30.0, read_deadline_s=60.0) as opened:
        yield opened


@pytest.fixture
def hasty(name_server: PlayedNameServer) -> Iterator[BulkClient]:
    """A client that soon gives up: for who is silent, or away."""
    with BulkClient(name_server.address, timeout_s=2.0, read_deadline_s=3.0) as opened:
        yield opened


def read(client: BulkClient, *, first: int = 0, **how: bool) -> list[PullChunk]:
    """Read up to the end; return the chunks, which must follow one another."""
    chunks = list(client.pull_range(QUEUE, first, END, **how))
    assert chunks[0].first == first and chunks[-1].next_offset == END
    assert all(a.next_offset == b.first for a, b in zip(chunks, chunks[1:], strict=False))
    return chunks


def offsets(chunks: list[PullChunk]) -> list[int]:
    return [int(n) for chunk in chunks for n in read_columns(chunk.buffer).queue_offset]


def test_a_suggestion_is_followed(
    client: BulkClient, master: PlayedReplica, replica: PlayedReplica
) -> None:
    chunks = read(client)
    assert offsets(chunks) == list(range(END))
    assert master.offsets == [0] and len(replica.requests) == 39
    assert not any(chunk.is_from_master for chunk in chunks)  # the small ones were joined
    assert client.asks_master(QUEUE)  # which says what is lost


def test_it_is_followed_back_to_the_master(
    client: BulkClient, master: PlayedReplica, replica: PlayedReplica
) -> None:
    def nearing_the_end(request: Command) -> Command | None:
        is_near = int((request.fields or {})["queueOffset"]) >= 50
        master.suggests = replica.suggests = 0 if is_near else 1
        return replica.give(request)

    replica.answer = nearing_the_end
    assert offsets(read(client)) == list(range(END))
    assert 0 < len(replica.requests) < 39 and max(master.offsets) == END - 10


def test_it_is_not_followed_when_it_is_not_wanted_or_nobody_is_there(
    client: BulkClient,
    master: PlayedReplica,
    replica: PlayedReplica,
    name_server: PlayedNameServer,
) -> None:
    (chunk,) = read(client, reads_replicas=False)
    assert chunk.is_from_master and not replica.requests
    master.suggests = 7
    (chunk,) = read(client)
    assert chunk.is_from_master and not replica.requests


@pytest.mark.parametrize("passes_gaps", [True, False])
@pytest.mark.parametrize("is_filtered", [True, False])
def test_a_replica_that_lags(
    client: BulkClient,
    master: PlayedReplica,
    replica: PlayedReplica,
    passes_gaps: bool,
    is_filtered: bool,
) -> None:
    """The master has what it lacks; and where it lacks nothing it has been read."""
    replica.end = 55
    sql = {"sql": "TRUE"} if is_filtered else {}
    chunks = list(client.pull_range(QUEUE, 0, END, passes_gaps=passes_gaps, **sql))
    assert offsets(chunks) == list(range(END)) and chunks[-1].next_offset == END
    assert min(replica.offsets) > 0 and set(range(10, 50, 10)) <= set(replica.offsets)
    # It is not asked again soon.
    before = len(replica.requests)
    assert len(read(client, first=60)) and len(replica.requests) == before


def test_a_replica_that_lacks_something_between(
    client: BulkClient, master: PlayedReplica, replica: PlayedReplica
) -> None:
    """Whoever passes over gaps is told that it was not the master who did not have it."""
    replica.lacks = range(30, 40)
    assert offsets(read(client)) == list(range(END))
    replica.requests.clear()
    client._read_sources._avoided_until_s.clear()
    chunks = read(client, passes_gaps=True)
    assert offsets(chunks) == [*range(30), *range(40, END)] and not chunks[0].is_from_master


def failing(name: str) -> Answer:
    def refuse(request: Command) -> Command | None:
        match name:
            case "silent":
                return None
            case "no group":
                return request.reply(26, "subscription group [x] does not exist")
            case "not to be read":
                return request.reply(16, "the broker[x] pulling message is forbidden")
        return request.reply(0, "no header")

    return refuse


@pytest.mark.parametrize("how", ["silent", "no group", "not to be read", "nonsense"])
def test_a_replica_that_fails(
    request: pytest.FixtureRequest, master: PlayedReplica, replica: PlayedReplica, how: str
) -> None:
    client = request.getfixturevalue("hasty" if how == "silent" else "client")
    replica.answer = failing(how)
    assert offsets(read(client)) == list(range(END))
    asked = len(replica.requests)
    assert asked and offsets(read(client)) == list(range(END))
    assert len(replica.requests) == asked


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_replica_that_cannot_be_reached(
    master: PlayedReplica,
    name_server: PlayedNameServer,
    monkeypatch: pytest.MonkeyPatch,
    is_lost: bool,
) -> None:
    """That may cost time: it is tried for one of many ranges, and again after a while."""
    tries: list[str] = []
    channel = BlockingPool.channel

    def counted(pool: BlockingPool, address: str, hint: str) -> BlockingChannel:
        tries.append(address)
        return channel(pool, address, hint)

    monkeypatch.setattr(BlockingPool, "channel", counted)
    with unreachable_address() as lost:
        address = lost if is_lost else closed_address()
        name_server.routes["T"].brokers[0].addresses[1] = address
        for avoided_s, count in ((30.0, 1), (0.0, 3)):
            monkeypatch.setattr(read_sources, "REPLICA_AVOIDED_S", avoided_s)
            tries.clear()
            timeout_s = 2.0 if is_lost else 30.0
            with BulkClient(name_server.address, timeout_s=timeout_s) as client:
                for _ in range(3):
                    (chunk,) = read(client)
                    assert chunk.is_from_master and offsets([chunk]) == list(range(END))
            assert tries.count(address) == count


def test_what_the_master_lacks_is_lost(
    client: BulkClient, master: PlayedReplica, replica: PlayedReplica
) -> None:
    master.end = replica.end = 100
    with pytest.raises(OffsetOutOfRange, match="offset 100 of the range up to 400 is not there"):
        read(client)
    assert 100 in master.offsets and 100 in replica.offsets


def test_without_a_master_nobody_else_is_asked(
    client: BulkClient,
    hasty: BulkClient,
    master: PlayedReplica,
    replica: PlayedReplica,
    name_server: PlayedNameServer,
) -> None:
    del name_server.routes["T"].brokers[0].addresses[0]
    (chunk,) = read(client)
    assert not chunk.is_from_master and not master.requests and not client.asks_master(QUEUE)
    replica.end = 100
    with pytest.raises(OffsetOutOfRange):
        read(client)
    replica.stop()
    with pytest.raises(ConnectionFailed):
        read(hasty)
