"""Writing exactly once, without Spark: the writers' own functions against two brokers.

What Spark does with writers is done here: tasks run, fail, run again, on whichever executor.
"""

import logging
import pickle
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark_types
from tests.cluster.played import closed_address
from tests.spark.test_sink_faults import BATCH_ROWS, batches, in_background
from tests.spark.two_brokers import DEADLINE_S, NAMES, TwoBrokers

from pymq.client import operations
from pymq.client.operations import Operation
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import (
    BrokerError,
    ConfigurationError,
    ConnectionFailed,
    LocalProtocolError,
    RequestTimeout,
    RouteNotFound,
)
from pymq.protocol.codes import SinkCode, SinkRequest
from pymq.protocol.sink_bodies import SinkRow
from pymq.protocol.sink_decisions import StagedRuns
from pyspark_pymq.data_source import PymqSource
from pyspark_pymq.sink import answers, exactly_once, home, identity
from pyspark_pymq.sink.answers import NAMESPACE
from pyspark_pymq.sink.exactly_once import Staged
from pyspark_pymq.sink.known_homes import homes_of_this_process, unable_of_this_process
from pyspark_pymq.sink.plan import _plans_of_this_process
from pyspark_pymq.sink.writer import PymqBatchWriter, PymqStreamWriter, Written

#: For brokers to start again, on a machine that has other things to do.
RETRY_MS = "180000"
BODY = spark_types.StructType().add("body", "string")
TOLD = "is still being published at"
PLACED = spark_types.StructType().add("body", "string").add("queueId", "integer")
AT_BROKER = spark_types.StructType(PLACED.fields[:]).add("brokerName", "string")


class Query:
    """A streaming query's sink, as Spark uses it.

    Args:
        bed: the brokers.
        context: what tasks are told; ``batch`` sets it.
        options: more of the sink's.
    """

    def __init__(self, bed: TwoBrokers, context: dict[str, str], **options: str) -> None:
        self.bed = bed
        self.run = "run-1"
        self.query = "0c0ffee0"
        self._context = context
        self.options = {
            "nameServer": bed.name_server,
            "topic": "T",
            "requestTimeoutMs": "30000",  # of brokers that are there, or come back
            "retryTimeoutMs": RETRY_MS,
            **options,
        }

    def writer(self, number: int, schema: spark_types.StructType = BODY) -> PymqStreamWriter:
        """Return the writer of a micro-batch, as it arrives where it is used."""
        self._enter(number)
        writer = PymqSource(self.options).streamWriter(schema, False)
        return pickle.loads(pickle.dumps(writer))  # type: ignore[no-any-return]

    def batch_writer(self, number: int, app: str, **options: str) -> PymqBatchWriter:
        """Return the writer of a write in a micro-batch's ``foreachBatch`` function."""
        self._enter(number)
        options = {**self.options, "txnAppId": app, **options}
        writer = PymqSource(options).writer(BODY, False)
        return pickle.loads(pickle.dumps(writer))  # type: ignore[no-any-return]

    def _enter(self, number: int) -> None:
        self._context.update(
            {
                identity._QUERY: self.query,
                identity._BATCH: str(number),
                identity._RUN: self.run,
            }
        )

    def batch(self, number: int, *tasks: Iterator[pa.RecordBatch]) -> list[Written | Staged]:
        """Run a micro-batch; return what its tasks reported."""
        messages = [self.writer(number).write(task) for task in tasks]
        self.writer(number).commit(messages, number)
        return messages

    def stored(self) -> list[int]:
        """Return the numbers that are seen, sorted."""
        return sorted(int(one.body) for one in self.bed.stored("T"))

    def sinks(self) -> dict[str, list[SinkRow]]:
        """Return what the brokers know."""
        with self.bed.client() as client:
            return {
                name: client.ask(self.bed.broker(name).address, operations.list_sinks())
                for name in NAMES
            }

    def home(self) -> str:
        """Return the broker of the sink."""
        (name,) = (name for name, rows in self.sinks().items() if rows)
        return name

    def other(self) -> str:
        """Return the other one."""
        return next(name for name in NAMES if name != self.home())


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What ``TaskContext`` would say; each test begins in a new process."""
    found: dict[str, str] = {}
    monkeypatch.setattr(identity, "_property", found.get)
    new_process()
    return found


def new_process() -> None:
    """Forget what a process keeps from one task to the next."""
    homes_of_this_process.cache_clear()
    unable_of_this_process.cache_clear()
    _plans_of_this_process.cache_clear()


@pytest.fixture
def query(two_brokers: TwoBrokers, context: dict[str, str]) -> Query:
    two_brokers.create_topic("T")
    return Query(two_brokers, context)


def rows(*bounds: int, **more: list[object]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"body": [str(n) for n in range(*bounds)], **more})


# ---------------------------------------------------------------------------- tasks and batches


def test_what_failed_attempts_staged_is_never_seen(query: Query) -> None:
    """Also in the next micro-batch, and of a twin that ended later."""

    def fails() -> Iterator[pa.RecordBatch]:
        yield from rows(0, 10)
        raise KeyError("executor lost")

    with pytest.raises(KeyError):
        query.writer(0).write(fails())
    late = query.writer(0).write(rows(0, 10))
    messages = [query.writer(0).write(rows(0, 10)), query.writer(0).write(rows(10, 20))]
    query.writer(0).abort([messages[0], None], 0)
    assert query.stored() == []
    query.writer(0).commit(messages, 0)
    assert query.stored() == list(range(20))
    query.writer(0).commit([late], 0)  # whose driver does not know that it was replaced
    query.batch(1, rows(20, 30))
    assert query.stored() == list(range(30))


def test_a_micro_batch_that_is_run_again(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    """With other tasks and in another order: nothing is written, nothing is said."""
    query.batch(0, rows(0, 10), rows(10, 20))
    query.run = "run-2"
    with caplog.at_level(logging.INFO):
        again = query.batch(0, rows(15, 20), rows(0, 5), rows(5, 15))
    assert all(isinstance(message, Staged) and not message.runs for message in again)
    assert query.stored() == list(range(20))
    assert "was published before, with the same 20 rows" in caplog.text
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    with caplog.at_level(logging.INFO):
        query.batch(0, rows(0, 21))
    assert "with other rows than it has now: 20:30:" in caplog.text
    assert query.stored() == list(range(20))


def test_micro_batches_without_rows(query: Query) -> None:
    """They publish nothing, and their numbers are not missed. The first finds the sink a broker."""
    query.batch(0, iter(()))
    assert not any(query.sinks().values())
    query.batch(1, rows(0, 5), iter(()))
    query.batch(2, rows(0))
    query.batch(4, rows(5, 9))
    assert query.stored() == list(range(9))
    assert query.sinks()[query.home()][0].last.batch == 4


def test_older_runs_may_not_write(query: Query) -> None:
    query.batch(0, rows(0, 5))
    late = query.writer(1).write(rows(5, 10))
    old, query.run = query.run, "run-2"
    query.batch(1, rows(5, 10))
    query.run = old
    for action in (
        lambda: query.writer(1).commit([late], 1),
        lambda: query.writer(2).write(rows(10, 12)),
    ):
        with pytest.raises(BrokerError) as caught:
            action()
        assert caught.value.code == SinkCode.FENCED
        assert "copies of one checkpoint" in str(caught.value)
    assert query.stored() == list(range(10))


def test_a_task_that_is_left_of_an_older_run(
    query: Query, context: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for the first time when the newer run has begun to write."""
    query.batch(0, rows(0, 5))
    query.run = "run-2"
    late = query.writer(1)
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + 60.0)
    query.run = "run-3"
    message = query.writer(1).write(rows(5, 10))
    with pytest.raises(BrokerError, match="run run-3 of the query began after this one, run-2"):
        context[identity._RUN] = "run-2"
        late.write(rows(5, 10))
    query.writer(1).commit([message], 1)
    assert query.stored() == list(range(10))


@pytest.mark.parametrize("is_numbered", [False, True])
def test_a_copied_checkpoint_of_writes_in_foreach_batch(query: Query, is_numbered: bool) -> None:
    """The query that started last goes on; neither one takes the other's batches for its own."""
    first, second = str(uuid.uuid4()), str(uuid.uuid4())

    def write(run: str, number: int, *bounds: int) -> None:
        query.run = run
        options = {"txnVersion": str(number)} if is_numbered else {}
        for app, move in (("one", 0), ("another", 1000)):
            task = rows(bounds[0] + move, bounds[1] + move)
            writer = query.batch_writer(number, app, **options)
            writer.commit([writer.write(task)])

    write(first, 57, 0, 10)
    write(first, 58, 10, 20)
    write(second, 58, 10, 20)  # its copy is behind: this is known
    for number in (58, 59, 60):
        with pytest.raises(BrokerError) as caught:
            write(first, number, 20, 30)
        assert caught.value.code == SinkCode.FENCED
    write(second, 59, 20, 25)
    assert query.stored() == [*range(25), *range(1000, 1025)]


def test_writes_in_foreach_batch_under_a_job_group_of_the_users(query: Query) -> None:
    """It names no run of the query, and may be another one from batch to batch."""
    for number, query.run in enumerate(("even", "odd", "even", "odd")):
        writer = query.batch_writer(number, "one")
        writer.commit([writer.write(rows(number))])
    assert query.stored() == [0, 0, 0, 1, 1, 2]


@pytest.mark.parametrize("other", ["a group that comes and goes", "a write by hand"])
def test_writes_in_foreach_batch_among_others_of_their_sink(
    query: Query, context: dict[str, str], other: str
) -> None:
    """Of those nothing tells which start of the query they belong to: they do not end its right."""
    first, second = str(uuid.uuid4()), str(uuid.uuid4())

    def write(run: str, number: int) -> None:
        query.run = run
        writer = query.batch_writer(number, "one", txnVersion=str(number))
        if run == other and "hand" in other:
            context.clear()
        for _ in range(2):  # the second time it is there already
            writer.commit([writer.write(rows(number, number + 1))])

    for number, run in enumerate((first, other, first, other, second, other, second)):
        write(run, number)
    with pytest.raises(BrokerError) as caught:
        write(first, 7)
    assert caught.value.code == SinkCode.FENCED
    assert query.stored() == list(range(7))


def test_rows_of_a_queue_keep_their_order(query: Query) -> None:
    message = query.writer(0, PLACED).write(batches(10, queue_id=2))
    assert isinstance(message, Staged) and len(message.runs) == 1
    query.writer(0, PLACED).commit([message], 0)
    found = [int(one.body) for one in query.bed.stored("T")]
    assert found == list(range(10 * BATCH_ROWS))
    assert {one.queue_id for one in query.bed.stored("T")} == {2}
    assert {one.broker for one in query.bed.stored("T")} == {query.home()}


def test_rows_that_cannot_be_written_exactly_once(query: Query) -> None:
    query.batch(0, rows(0, 1))
    with pytest.raises(LocalProtocolError, match=f"names broker {query.other()}, but this sink"):
        query.writer(1, AT_BROKER).write(rows(1, 2, queueId=[0], brokerName=[query.other()]))
    one = rows(1, 2, queueId=[0], brokerName=[query.home()])
    query.writer(1).commit([query.writer(1, AT_BROKER).write(one)], 1)
    assert query.stored() == [0, 1]
    query.options["maxMessageSize"] = "4096"
    large = pa.RecordBatch.from_pydict({"body": ["0", "1" * 4000]})
    with pytest.raises(LocalProtocolError, match=r"row 1 of the task, for topic T: its record"):
        query.writer(2).write(iter([large]))


# -------------------------------------------------------------------------------------- brokers


@pytest.mark.by_turns("action")
@pytest.mark.parametrize("action", ["restart", "kill", "freeze"])
def test_brokers_that_go_and_come_back(query: Query, action: str) -> None:
    """Under tasks, and between them and the driver's request."""
    bed = query.bed
    query.batch(0, rows(0))
    query.batch(1, rows(0, 50))
    name = query.home()

    def away() -> None:
        {"restart": bed.stop, "kill": bed.kill, "freeze": bed.freeze}[action](name)

    def back() -> None:
        bed.thaw(name) if action == "freeze" else bed.start(name)

    def interrupted(first: int, before: int) -> Iterator[pa.RecordBatch]:
        """Yield four batches of 25 rows; before one of them the broker goes, and comes back."""
        for place in range(4):
            if place == before:
                away()
                threads.append(in_background(back))
            yield from rows(first + 25 * place, first + 25 * place + 25)

    threads: list[threading.Thread] = []
    for number in range(2, 6):
        first = 50 + 100 * (number - 2)
        message = query.writer(number).write(interrupted(first, number - 2))
        if number == 5:
            away()
            threads.append(in_background(back))
        query.writer(number).commit([message], number)
        threads.pop().join()
    assert query.stored() == list(range(450))


def test_a_broker_that_is_away_is_not_taken_for_one_that_never_was(query: Query) -> None:
    """Although the name server has forgotten it, and the other one could take the rows."""
    query.batch(0, rows(0, 5))
    name = query.home()
    query.bed.stop(name)
    query.bed.name_server_process.stop()
    query.bed.name_server_process.start()
    query.bed.wait_route(next(one for one in NAMES if one != name))
    new_process()
    query.options["retryTimeoutMs"] = "1500"
    for number in (0, 1):  # the same once more, and the next
        with pytest.raises(RouteNotFound, match=f"is at broker {name}, which no name server") as e:
            query.writer(number).write(rows(0, 5))
        assert "retryTimeoutMs" in e.value.__notes__[-1]
    query.options["retryTimeoutMs"] = RETRY_MS
    back = in_background(lambda: query.bed.start(name))
    query.batch(0, rows(0, 5))
    query.batch(1, rows(5, 10))
    back.join()
    assert query.stored() == list(range(10))


def test_brokers_that_restart_one_after_the_other_while_a_query_starts(query: Query) -> None:
    """The driver planned with a route to the one; when a task begins only the other is there."""
    bed = query.bed
    bed.stop("broker-a")
    writer = query.writer(0)
    assert {queue.broker_name for route in writer._plan.routes for queue in route.write_queues} == {
        "broker-b"
    }
    bed.start("broker-a")
    bed.stop("broker-b")
    message = writer.write(rows(0, 5))
    assert isinstance(message, Staged) and message.home is not None
    assert message.home.broker == "broker-a"
    query.writer(0).commit([message], 0)
    bed.start("broker-b")
    new_process()
    query.batch(1, rows(5, 10))
    assert query.stored() == list(range(10))
    assert query.home() == "broker-a"


@pytest.mark.by_turns("action", "is_planned")
@pytest.mark.parametrize("gone", [NAMES[:1], NAMES[1:], NAMES])
@pytest.mark.parametrize("action", ["stop", "kill", "freeze"])
@pytest.mark.parametrize("is_planned", [True, False])
def test_a_query_that_starts_while_brokers_are_away(
    query: Query, gone: tuple[str, ...], action: str, is_planned: bool
) -> None:
    """Its rows are written exactly once, at whichever broker answers first, and never otherwise."""
    bed = query.bed
    writer = query.writer(0) if is_planned else None
    for name in gone:
        {"stop": bed.stop, "kill": bed.kill, "freeze": bed.freeze}[action](name)
    if writer is None:
        writer = query.writer(0)

    def back() -> None:
        time.sleep(0.5)
        for name in gone:
            bed.thaw(name) if action == "freeze" else bed.start(name)

    thread = in_background(back)
    messages = [writer.write(rows(0, 5)), writer.write(rows(5, 10))]
    assert all(isinstance(message, Staged) for message in messages)
    query.writer(0).commit(messages, 0)
    thread.join()
    new_process()
    query.batch(1, rows(10, 15))
    bed.wait_route("broker-a")
    assert query.stored() == list(range(15))
    assert sum(map(len, query.sinks().values())) == 1


@pytest.mark.by_turns("delivery")
@pytest.mark.parametrize("delivery", ["exactlyOnce", "atLeastOnce"])
def test_a_query_that_starts_again_while_the_brokers_of_its_topic_restart(
    tmp_path: Path, context: dict[str, str], delivery: str
) -> None:
    """The cluster goes on without them, and without the topic: that is not a wrong name."""
    with TwoBrokers(tmp_path / "bed", autoCreateTopicEnable="false") as bed:
        query = Query(bed, context, delivery=delivery)
        with pytest.raises(RouteNotFound, match="pymq topic create T"):
            query.writer(0).write(rows(0, 5))
        bed.create_topic("T", on=["broker-b"])
        query.batch(0, rows(0, 5))
        bed.stop("broker-b")
        new_process()
        writer = query.writer(1)
        assert writer._plan.missing is not None
        back = in_background(lambda: bed.start("broker-b"))
        message = writer.write(rows(5, 10))
        back.join()
        query.writer(1).commit([message], 1)
        assert query.stored() == list(range(10))


def test_a_query_that_starts_while_all_brokers_stay_away(query: Query) -> None:
    """It fails with the cause and the limit; nothing is written by another way."""
    query.options |= {"requestTimeoutMs": "2000", "retryTimeoutMs": "1500"}
    writer = query.writer(0)
    for name in NAMES:
        query.bed.freeze(name)
    with pytest.raises(RequestTimeout, match="what sink '0c0ffee0' has published") as caught:
        writer.write(rows(0, 5))
    assert "retryTimeoutMs" in caught.value.__notes__[-1]
    for name in NAMES:
        query.bed.thaw(name)
        query.bed.stop(name)
    with pytest.raises(RouteNotFound, match="know no broker") as no_broker:
        writer.write(rows(0, 5))
    assert "retryTimeoutMs" in no_broker.value.__notes__[-1]
    for name in NAMES:
        query.bed.start(name)
    assert query.stored() == []


def test_a_frozen_broker_that_has_nothing_to_do_with_a_new_sink(
    query: Query, context: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name servers take minutes to forget it, and so long nothing would be written."""
    bed = query.bed
    bed.create_topic("only", on=["broker-a"])
    query.options |= {"requestTimeoutMs": "1000", "retryTimeoutMs": "1500"}
    monkeypatch.setattr(answers, "OTHERS_TIMEOUT_S", 0.2)
    bed.freeze("broker-b")
    at_a, chosen = {"topic": "only"}, {"sinkBroker": "broker-a"}

    def write(**options: str) -> None:
        writer = PymqSource({**query.options, **options}).writer(BODY, False)
        writer = pickle.loads(pickle.dumps(writer))
        writer.commit([writer.write(rows(0, 5)), writer.write(rows(5, 10))])

    for number, options in enumerate((at_a, chosen, at_a | chosen)):
        write(**options)
        write(**options, txnAppId=f"app-{number}", txnVersion="1")
        new = Query(bed, query._context, **query.options | options)
        new.query = f"new-{number}"
        new.batch(0, rows(0, 10))
    # Nobody can know the sink of a write without a name: any broker of the topic will do. The
    # driver chooses it, so that it is the same one after the other has come back.
    context.clear()
    writers = [PymqSource(query.options).writer(BODY, False) for _ in range(8)]
    tasks = [[writer.write(rows(0, 5))] for writer in writers]
    bed.thaw("broker-b")
    for writer, messages in zip(writers, tasks, strict=True):
        writer.commit([*messages, writer.write(rows(5, 10))])
    assert len(bed.stored("only")) == 60
    assert {one.broker for one in bed.stored("only")} == {"broker-a"}
    assert {one.broker for one in bed.stored("T")} == {"broker-a"}
    assert len(query.stored()) == 30 + 80


def test_name_servers_that_lost_what_they_kept(query: Query) -> None:
    """The broker that has the sink is found all the same, and else it is not guessed."""
    query.batch(0, rows(0, 5))
    name = query.home()
    with query.bed.client() as client:
        address = query.bed.name_server
        kept = client.ask(address, operations.find_value(NAMESPACE, query.query))
        assert kept == name
        client.ask(address, operations.put_value(NAMESPACE, query.query, ""))
    new_process()
    query.batch(1, rows(5, 10))
    query.query = "0ther"
    with pytest.raises(ConfigurationError, match="batch 7 of sink 0ther is not the query's first"):
        query.writer(7).write(rows(10, 15))
    query.options["sinkBroker"] = query.other()
    query.batch(7, rows(10, 15))
    del query.options["sinkBroker"]
    query.batch(8, rows(15, 20))
    assert query.stored() == list(range(20))
    assert all(len(found) == 1 for found in query.sinks().values())


def test_a_batch_write_stays_at_its_broker(query: Query) -> None:
    """It leaves the name server while it restarts; what was staged is there, and nowhere else."""
    writer = PymqSource(query.options).writer(BODY, False)
    message = writer.write(rows(0, 5))
    assert isinstance(message, Staged) and message.home is not None
    name = message.home.broker
    query.bed.stop(name)
    query.bed.wait_route(next(one for one in NAMES if one != name))
    back = in_background(lambda: query.bed.start(name))
    writer.commit([message])
    back.join()
    assert query.stored() == list(range(5))


def test_a_numbered_batch_write_wants_all_name_servers_to_say_that_its_sink_is_new(
    query: Query,
) -> None:
    """One that is away may know where versions before were written."""
    query.options |= {"txnAppId": "nightly", "txnVersion": "57", "retryTimeoutMs": "1500"}
    only = query.options["nameServer"]
    query.options["nameServer"] = f"{only};{closed_address()}"
    with pytest.raises(ConnectionFailed, match=closed_address().split(":")[0]):
        PymqSource(query.options).writer(BODY, False).write(rows(0, 5))
    query.options["nameServer"] = only
    writer = PymqSource(query.options).writer(BODY, False)
    writer.commit([writer.write(rows(0, 5))])
    new_process()
    query.options |= {"txnVersion": "58", "nameServer": f"{only};{closed_address()}"}
    writer = PymqSource(query.options).writer(BODY, False)
    writer.commit([writer.write(rows(5, 10))])
    assert query.stored() == list(range(10))


def test_name_servers_that_do_not_agree(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that knows the sink decides; without one nothing is guessed."""
    told = {"name-server-1:9876": NAMES[0], "name-server-2:9876": NAMES[1]}
    monkeypatch.setattr(home, "remembered_homes", lambda *_: (told, None))
    with pytest.raises(ConfigurationError, match="do not agree .*-1:9876 says broker-a, "):
        query.writer(0).write(rows(0, 5))
    query.options["sinkBroker"] = NAMES[1]
    query.batch(0, rows(0, 5))
    del query.options["sinkBroker"]
    new_process()
    query.batch(1, rows(5, 10))
    assert query.home() == NAMES[1] and query.stored() == list(range(10))


def test_a_batch_that_takes_long_to_be_published(
    query: Query, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is waited for as long as its broker goes on with it, and told."""
    query.batch(0, rows(0, 5))
    query.options["retryTimeoutMs"] = "200"
    message = query.writer(1).write(rows(5, 10))
    monkeypatch.setattr(exactly_once, "TOLD_EVERY_S", 0.3)
    until_s = time.monotonic() + 1.0
    ask = BulkClient.ask

    def takes_long() -> bool:
        now_s = time.monotonic()
        return now_s < until_s or (TOLD not in caplog.text and now_s < until_s + DEADLINE_S)

    def slow(client: BulkClient, address: str, operation: Operation[Any]) -> Any:
        found = ask(client, address, operation)
        if operation.request.code == SinkRequest.PUBLISH_BATCH and takes_long():
            raise RequestTimeout("no answer")
        return found

    monkeypatch.setattr(BulkClient, "ask", slow)
    query.writer(1).commit([message], 1)
    assert time.monotonic() > until_s
    assert TOLD in caplog.text
    assert query.stored() == list(range(10))


def test_a_broker_of_the_users_choice(query: Query) -> None:
    for name in NAMES:
        query.options |= {"sinkBroker": name, "txnAppId": f"at-{name}"}
        query.batch(0, rows(0, 5))
        assert [row.last.sink for row in query.sinks()[name]] == [f"at-{name}"]
    new_process()
    query.options["txnAppId"] = f"at-{NAMES[0]}"  # and still sinkBroker=broker-b
    with pytest.raises(ConfigurationError, match=r"at-broker-a is at broker broker-a\. .* forget"):
        query.writer(1).write(rows(5, 6))


def test_tasks_that_see_different_brokers(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """One must not win by chance."""
    query.batch(0, rows(0, 5))
    messages = [query.writer(1).write(rows(5, 10))]
    monkeypatch.setattr(home, "_find", lambda *_: (query.other(), {}))
    new_process()
    messages.append(query.writer(1).write(rows(10, 15)))
    with pytest.raises(ConfigurationError, match="different brokers .broker-a, broker-b."):
        query.writer(1).commit(messages, 1)
    assert query.stored() == list(range(5))


def test_what_was_staged_is_lost(query: Query) -> None:
    """The driver hears of it; the batch is written again when the query starts again."""
    query.batch(0, rows(0, 5))
    (message,) = [query.writer(1).write(rows(5, 10))]
    assert isinstance(message, Staged)
    (run,) = message.runs
    message = replace(message, runs=StagedRuns.of([replace(run, part=run.part + 1)]))
    with pytest.raises(BrokerError, match="not there any more") as caught:
        query.writer(1).commit([message], 1)
    assert caught.value.code == SinkCode.RUNS_LOST
    (note,) = caught.value.__notes__
    assert "has become the master" in note and "start the query again" in note
    assert query.stored() == list(range(5))
    query.run = "run-2"
    query.batch(1, rows(5, 10))
    assert query.stored() == list(range(10))


def test_spark_that_says_nothing_of_the_query(
    two_brokers: TwoBrokers, context: dict[str, str]
) -> None:
    two_brokers.create_topic("T")
    query = Query(two_brokers, context)
    writer = query.writer(0)
    context.clear()
    with pytest.raises(ConfigurationError, match="delivery=atLeastOnce"):
        writer.write(rows(0, 5))
    query.options["delivery"] = "atLeastOnce"
    writer = query.writer(0)
    context.clear()
    assert isinstance(writer.write(rows(0, 5)), Written)
    assert query.stored() == list(range(5))
