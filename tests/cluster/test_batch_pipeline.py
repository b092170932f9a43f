"""Batches for two brokers that a test plays: which go where, how often, in what order."""

import collections
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.cluster.played import Played, PlayedNameServer, closed_address, route_to
from tests.cluster.test_blocking_failover import LIMIT_S, Silence
from tests.cluster.test_preencoded_records import preencoded

from pymq.client.cluster.config import ClientConfig
from pymq.client.sockets import batch_pipeline, batch_targets
from pymq.client.sockets.batch_pipeline import BatchPipeline
from pymq.client.sockets.batch_targets import BatchTarget
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import (
    DurabilityUnknown,
    LocalProtocolError,
    MessageIllegal,
    NoPermission,
    PymqError,
    RequestTimeout,
    RouteNotFound,
)
from pymq.protocol.batch_body import encode_batch
from pymq.protocol.bodies import TopicRoute
from pymq.protocol.codes import SEND_RECORDS, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.framing import FrameDecoder, encode_frame
from pymq.testing import wait_until

ANY = BatchTarget("T")
IN_FLIGHT = 3
FREEZE = -1
HANG_UP = -2
LOSE_ANSWER = -3


def body(number: int) -> bytes:
    return encode_batch([(0, b"%d" % number, b"")])


NUMBERS = {body(number): number for number in range(1_000)}


class Shelf(Played):
    """Keeps what it is sent; ``script`` has what is done with the next batches.

    ``of_queue`` has what is done with all for a queue.

    A pymq broker handles the requests of a connection in their order; RocketMQ mixes up those that
    are there at the same time.
    """

    def __init__(self, name: str, *, is_pymq: bool) -> None:
        super().__init__(self._answer)
        self.name = name
        self.is_pymq = is_pymq
        self.is_silent = False
        self.script: list[int] = []
        self.of_queue: dict[int, int] = {}
        self.always = int(ResponseCode.SUCCESS)
        self.stored: list[tuple[int, bytes]] = []

    def queues(self) -> dict[int, list[int]]:
        """Return the numbers in each queue."""
        found = collections.defaultdict(list)
        for queue_id, data in self.stored:
            found[queue_id].append(NUMBERS[data])
        return dict(found)

    def _answer(self, request: Command) -> Command | None:
        if self.is_silent:
            return None
        fields = request.fields or {}
        if request.code == SEND_RECORDS and not request.body:
            unknown = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            return request.reply(ResponseCode.SUCCESS if self.is_pymq else unknown)
        assert request.code in (SEND_RECORDS, RequestCode.SEND_BATCH_MESSAGE)
        code = self.script.pop(0) if self.script else self.always
        code = self.of_queue.get(int(fields["e"]), code)
        if code in (0, 10, 11, 12, FREEZE, HANG_UP, LOSE_ANSWER):
            self.stored.append((int(fields["e"]), bytes(request.body)))
        if code in (FREEZE, LOSE_ANSWER):
            self.is_silent = code == FREEZE
            return None
        if code == HANG_UP:
            raise OSError("the test hangs up")
        place = {"msgId": "ID", "queueId": fields["e"], "queueOffset": str(len(self.stored))}
        return request.reply(code, "because", fields=place)

    def _serve(self, connection: socket.socket) -> None:
        if self.is_pymq:
            super()._serve(connection)
            return
        decoder = FrameDecoder()
        with connection:
            try:
                while data := connection.recv(1 << 16):
                    requests = list(decoder.feed(data))
                    poll = select.poll()
                    poll.register(connection, select.POLLIN)
                    while poll.poll(5):
                        if not (data := connection.recv(1 << 16)):
                            break
                        requests += decoder.feed(data)
                    for request in reversed(requests):
                        self.requests.append(request)
                        if (response := self.answer(request)) is not None:
                            connection.sendall(encode_frame(response))
            except OSError:
                return


class Bed:
    """A name server and two brokers."""

    def __init__(self, *, is_pymq: bool = True, queue_count: int = 4) -> None:
        self.name_server = PlayedNameServer()
        self.a = Shelf("broker-a", is_pymq=is_pymq)
        self.b = Shelf("broker-b", is_pymq=is_pymq)
        self.queue_count = queue_count

    def route(self, *shelves: Shelf) -> None:
        """Have the name server know these brokers."""
        found = [route_to(shelf.address, self.queue_count, shelf.name) for shelf in shelves]
        self.name_server.routes["T"] = TopicRoute(
            queues=[queue for one in found for queue in one.queues],
            brokers=[broker for one in found for broker in one.brokers],
        )

    @contextmanager
    def pipeline(self, *, retry_s: float = LIMIT_S) -> Iterator[BatchPipeline]:
        config = ClientConfig(name_servers=(self.name_server.address,), timeout_s=LIMIT_S)
        with BulkClient(config.name_servers, config=config) as client:
            yield client.batch_pipeline(in_flight_max=IN_FLIGHT, retry_s=retry_s)

    def send(self, *numbers: int, target: BatchTarget = ANY, retry_s: float = LIMIT_S) -> None:
        with self.pipeline(retry_s=retry_s) as pipeline:
            for number in range(*numbers):
                pipeline.send(target, body(number))
            pipeline.flush()

    def copies(self) -> collections.Counter[int]:
        return collections.Counter(NUMBERS[one] for _, one in [*self.a.stored, *self.b.stored])

    def check_order(self) -> None:
        """First copies of what a queue holds are in order."""
        for shelf in (self.a, self.b):
            for numbers in shelf.queues().values():
                first = list(dict.fromkeys(numbers))
                assert first == sorted(first)


@contextmanager
def running(**settings: bool | int) -> Iterator[Bed]:
    bed = Bed(**settings)  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch, bed.name_server, bed.a, bed.b:
        silence = Silence(patch)
        silence.of(bed.a)
        silence.of(bed.b)
        bed.route(bed.a, bed.b)
        yield bed


@pytest.fixture(params=[True, False], ids=["pymq", "rocketmq"])
def bed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    monkeypatch.setattr(batch_targets, "TURN_BYTES", 10 * len(body(100)))
    monkeypatch.setattr(batch_pipeline, "UNSECURED_PAUSE_S", 0.02)
    with running(is_pymq=request.param) as made:
        yield made


def later(action: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(0.5, action)
    timer.start()
    return timer


# -------------------------------------------------------------------------------------- order


def test_each_queue_gets_its_batches_in_order(bed: Bed) -> None:
    bed.send(0, 120)
    assert set(bed.copies().values()) == {1} and len(bed.copies()) == 120
    assert len(bed.a.queues()) == len(bed.b.queues()) == 4  # in turn
    bed.check_order()


def test_a_queue_that_is_asked_for_gets_all_in_order(bed: Bed) -> None:
    bed.send(0, 60, target=BatchTarget("T", 2, "broker-b"))
    assert bed.b.queues() == {2: list(range(60))} and not bed.a.stored
    bed.send(60, 70, target=BatchTarget("T", 2))
    assert bed.a.queues() == {2: list(range(60, 70))}


# ----------------------------------------------------------------------------------- failures


def test_batches_for_any_queue_pass_a_broker_that_is_away(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    bed.a.stop()
    bed.send(0, 60)
    assert set(bed.copies().values()) == {1} and len(bed.copies()) == 60
    bed.check_order()
    assert caplog.text.count(f"no connection to {bed.a.address}") == 1
    bed.a.start()


def test_nothing_is_written_to_a_broker_that_was_frozen_before(bed: Bed) -> None:
    bed.a.is_silent = True
    bed.send(0, 60)
    assert set(bed.copies().values()) == {1} and len(bed.copies()) == 60
    assert bed.a.count(RequestCode.SEND_BATCH_MESSAGE) == 0
    bed.check_order()


def test_a_broker_that_freezes_in_the_middle(bed: Bed) -> None:
    bed.a.script = [0] * 5 + [FREEZE]
    with bed.pipeline() as pipeline:
        for number in range(60):
            pipeline.send(ANY, body(number))
        pipeline.flush()
    copies = bed.copies()
    assert set(copies) == set(range(60))
    # Only what was in flight when it happened is there twice.
    assert sum(copies.values()) <= 60 + IN_FLIGHT
    bed.check_order()


def test_a_connection_that_breaks(bed: Bed) -> None:
    for target in (ANY, BatchTarget("T", 1, "broker-a")):
        bed.a.stored.clear()
        bed.b.stored.clear()
        bed.a.script = [0, 0, HANG_UP, 0, 0, HANG_UP]
        bed.send(0, 60, target=target)
        copies = bed.copies()
        assert set(copies) == set(range(60))
        assert sum(copies.values()) <= 60 + 2 * IN_FLIGHT
        bed.check_order()


def test_a_batch_waits_for_the_broker_it_must_go_to(bed: Bed) -> None:
    target = BatchTarget("T", 1, "broker-a")
    for first, routed in ((0, [bed.a, bed.b]), (20, [bed.b])):
        # In the second case a name server has forgotten the broker, too.
        with bed.pipeline() as pipeline:
            pipeline.send(target, body(first))
            pipeline.flush()
            bed.a.stop()
            bed.route(*routed)
            timer = later(lambda: (bed.a.start(), bed.route(bed.a, bed.b)))
            for number in range(first + 1, first + 20):
                pipeline.send(target, body(number))
            pipeline.flush()
            timer.join()
    assert bed.a.queues() == {1: list(range(40))} and not bed.b.stored


def test_a_queue_without_a_broker_moves_when_routes_lose_its_broker(bed: Bed) -> None:
    bed.a.is_silent = True
    timer = later(lambda: bed.route(bed.b))
    bed.send(0, 20, target=BatchTarget("T", 3))
    timer.join()
    assert bed.b.queues() == {3: list(range(20))} and not bed.a.stored


def test_a_topic_without_a_route_is_waited_for(bed: Bed) -> None:
    route = bed.name_server.routes.pop("T")
    timer = later(lambda: bed.name_server.routes.update(T=route))
    bed.send(0, 20)
    timer.join()
    assert len(bed.copies()) == 20
    bed.name_server.routes.clear()
    with pytest.raises(RouteNotFound, match="'T'"):
        bed.send(0, 1, retry_s=0.2)


def test_a_queue_that_never_was(bed: Bed) -> None:
    for target in (BatchTarget("T", 4), BatchTarget("T", 4, "broker-a")):
        with pytest.raises(LocalProtocolError, match=r"has no queue .*4; there are broker-a/0"):
            bed.send(0, 1, target=target)
    with pytest.raises(RouteNotFound, match=r"queue broker-c/0 has no route, there are broker-a/0"):
        bed.send(0, 1, target=BatchTarget("T", 0, "broker-c"), retry_s=0.1)


def test_a_permission_that_another_broker_gives(bed: Bed) -> None:
    bed.a.always = int(ResponseCode.NO_PERMISSION)
    bed.send(0, 20)
    assert len(bed.copies()) == 20 and not bed.a.stored
    with pytest.raises(NoPermission):
        bed.send(0, 1, target=BatchTarget("T", 0, "broker-a"))
    bed.b.always = int(ResponseCode.NO_PERMISSION)
    with pytest.raises(NoPermission):
        bed.send(0, 1)


def test_a_broker_that_is_busy_is_left_to_others(bed: Bed) -> None:
    bed.a.script = [int(ResponseCode.SYSTEM_BUSY)] * 3
    bed.send(0, 60)
    assert set(bed.copies().values()) == {1} and len(bed.copies()) == 60
    bed.b.always = bed.a.always = int(ResponseCode.SYSTEM_BUSY)
    with pytest.raises(PymqError, match="code 2, because") as failed:
        bed.send(0, 1, retry_s=0.2)
    assert failed.value.outcome_known


def test_records_for_a_broker_that_does_not_take_them() -> None:
    records = preencoded("T", [(b"1", b"TAGS\x01x\x02"), (b"2", b"")])
    with running(is_pymq=False) as bed:
        with bed.pipeline() as pipeline:
            assert not pipeline.takes_records(ANY)
            pipeline.send(ANY, records)
            pipeline.flush()
        expected = encode_batch([(0, b"1", b"TAGS\x01x\x02"), (0, b"2", b"")])
        assert bed.a.stored == [(0, expected)]
        bed.a.is_pymq = True
        with bed.pipeline() as pipeline:
            assert pipeline.takes_records(ANY)
            pipeline.send(ANY, records)
            pipeline.flush()
        assert bed.a.stored[1:] == [(0, bytes(records.body))]


def test_records_are_not_made_for_a_broker_that_does_not_answer(bed: Bed) -> None:
    bed.a.is_silent = True
    with bed.pipeline() as pipeline:
        assert not pipeline.takes_records(BatchTarget("T", 0))
        assert pipeline.takes_records(ANY) is bed.b.is_pymq
        bed.b.is_silent = True
        # It is not asked again and again.
        assert not any(pipeline.takes_records(BatchTarget("T", 0)) for _ in range(50))
    assert bed.a.count(SEND_RECORDS) == 1


# --------------------------------------------------------------------- stored, and not secured


def test_what_is_not_secured_is_sent_again(bed: Bed) -> None:
    bed.a.script = [10, 12, 11]
    bed.send(0, 20, target=BatchTarget("T", 0, "broker-a"))
    copies = bed.copies()
    assert set(copies) == set(range(20)) and sum(copies.values()) == 23
    bed.check_order()


def test_what_one_broker_cannot_secure_another_one_gets(bed: Bed) -> None:
    bed.a.always = int(ResponseCode.SLAVE_NOT_AVAILABLE)
    bed.send(0, 60)
    assert {number for numbers in bed.b.queues().values() for number in numbers} == set(range(60))
    assert len(bed.a.stored) <= IN_FLIGHT
    bed.check_order()


@pytest.mark.parametrize("code", [10, 11, 12])
def test_what_nobody_secures_fails_after_few_copies(bed: Bed, code: int) -> None:
    bed.a.always = bed.b.always = code
    with pytest.raises(DurabilityUnknown) as failed:
        bed.send(0, 20, retry_s=1.0)
    assert not failed.value.outcome_known
    name = {10: "FLUSH_DISK_TIMEOUT", 11: "SLAVE_NOT_AVAILABLE", 12: "FLUSH_SLAVE_TIMEOUT"}[code]
    assert f"answered {name}: " in str(failed.value)
    notes = failed.value.__notes__
    assert any("tried again for " in note and " 0 s" not in note for note in notes)
    assert "0 batches were acknowledged before" in notes
    # Pauses double from 0.02 s to the end of the second; a copy more for the other broker.
    assert bed.copies()[0] <= 9
    assert sum(bed.copies().values()) <= 9 + IN_FLIGHT - 1


# ------------------------------------------------------------------------------ the outcome


def test_an_earlier_attempt_makes_the_outcome_unknown(bed: Bed) -> None:
    """The last attempt is refused by a closed port; the one before may have been stored."""
    bed.route(bed.a)
    bed.a.script = [FREEZE]
    with bed.pipeline(retry_s=2.0) as pipeline:
        pipeline.send(ANY, body(0))
        wait_until(lambda: bed.a.stored, timeout_s=LIMIT_S)
        timer = later(bed.a.stop)
        with pytest.raises(PymqError) as failed:
            pipeline.flush()
        timer.join()
    assert not failed.value.outcome_known
    bed.a.start()
    assert bed.copies()[0] >= 1


def test_a_refusal_beside_a_batch_that_is_not_answered(bed: Bed) -> None:
    """The second batch is refused for good; the first one is stored, and nobody said so."""
    bed.a.of_queue = {0: LOSE_ANSWER, 1: int(ResponseCode.MESSAGE_ILLEGAL)}
    with bed.pipeline() as pipeline:
        for number in range(2):
            pipeline.send(BatchTarget("T", number, "broker-a"), body(number))
        channel = pipeline._in_flight[1].channel
        wait_until(lambda: channel._readable.poll(0), timeout_s=LIMIT_S)  # the refusal is there
        with pytest.raises(MessageIllegal, match="did not answer") as failed:
            pipeline.flush()
    assert not failed.value.outcome_known
    assert bed.copies() == {0: 1}


def test_the_outcome_is_known_when_nothing_was_written(bed: Bed) -> None:
    address = closed_address()
    bed.name_server.routes["T"] = route_to(address, 4)
    with pytest.raises(PymqError, match=address) as failed:
        bed.send(0, 1, retry_s=0.2)
    assert failed.value.outcome_known
    bed.a.is_silent = True
    bed.route(bed.a)
    with pytest.raises(RequestTimeout) as frozen:
        bed.send(0, 1, retry_s=0.2)  # it was asked, and nothing else
    assert bed.a.count(RequestCode.SEND_BATCH_MESSAGE) == 0
    assert frozen.value.retriable
