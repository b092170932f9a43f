"""Which broker a sink is at, and whether there is one: what answers say, and silence does not."""

import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pytest
from tests.unit.connector.fake import FakeBroker, FakeClient, FakePipeline

from pymq.client.operations import Operation
from pymq.errors import (
    ConfigurationError,
    ConnectionFailed,
    PymqError,
    RequestNotSupported,
    RouteNotFound,
    TopicNotExist,
)
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.codes import RequestCode, SinkRequest
from pymq.protocol.record import decode_record
from pymq.protocol.sink_bodies import SinkRow
from pyspark_pymq.option_values import Delivery
from pyspark_pymq.retrying import Retries
from pyspark_pymq.sink import home, identity, known_homes
from pyspark_pymq.sink.home import SinkHome, find_again, find_home
from pyspark_pymq.sink.identity import BatchIdentity, of_job
from pyspark_pymq.sink.options import SinkOptions
from pyspark_pymq.sink.plan import SinkPlan
from pyspark_pymq.sink.send_task import SendTask
from pyspark_pymq.sink.writer import PymqBatchWriter

OPTIONS = SinkOptions(name_servers=("ns-1:9876", "ns-2:9876"), topic="orders")
FIRST = BatchIdentity("sink", "query", "run-1", 0, 1)
LATER = replace(FIRST, number=1, is_first=False)
A, B = SinkHome("a", "a:1"), SinkHome("b", "b:1")


@dataclass
class Bed(FakeBroker):
    """Two brokers, a and b, and two name servers; see ``FakeBroker`` for what else they can be."""

    sinks: set[str] = field(default_factory=set)  # brokers that know the sink
    last: dict[str, BatchIdentity] = field(default_factory=dict)  # what they have of it, else FIRST
    kept: dict[str, str] = field(default_factory=dict)  # by name server
    planned: set[str] | None = None  # brokers in the route that the driver sent along
    change: Callable[[], None] | None = None  # what happens between two attempts


class Client(FakeClient):
    """What the choice asks."""

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed)
        self.bed = bed

    def write_queues(self, topic: str) -> list[MessageQueue]:
        if self.bed.planned is not None:
            return [MessageQueue(topic, name, 0) for name in sorted(self.bed.planned)]
        return super().write_queues(topic)

    def doubt_route(self, topic: str) -> None:
        super().doubt_route(topic)
        self.bed.planned = None

    def ask(self, address: str, operation: Operation[Any]) -> Any:
        request, bed = operation.request, self.bed
        if address in self.name_servers:
            if not bed.name_servers[address]:
                raise ConnectionFailed(f"{address} is silent")
            if request.code == RequestCode.PUT_KV_CONFIG:
                bed.kept[address] = request.fields["value"]
                return None
            assert request.code == RequestCode.GET_KV_CONFIG
            return bed.kept.get(address)
        assert request.code == SinkRequest.SHOW_SINKS
        name = address.removesuffix(":1")
        if name in bed.away:
            raise ConnectionFailed(f"{name} is away")
        if name in bed.official:
            raise RequestNotSupported("not supported", code=3)
        last = FIRST.batch() if name not in bed.last else bed.last[name].batch()
        return [SinkRow(last=last, decided_ms=last.planned_ms)] if name in bed.sinks else []


    def ask_many(
        self, asked: Sequence[tuple[str, Operation[Any]]], *, timeout_s: float | None = None
    ) -> list[Any]:
        answers: list[Any] = []
        for address, operation in asked:
            try:
                answers.append(self.ask(address, operation))
            except PymqError as error:
                answers.append(error)
        return answers


@pytest.fixture
def bed() -> Iterator[Bed]:
    for kept in (known_homes.homes_of_this_process, known_homes.unable_of_this_process):
        kept.cache_clear()
    yield Bed(
        {MessageQueue("orders", name, 0): [] for name in "ab"},
        name_servers=dict.fromkeys(OPTIONS.name_servers, True),
    )


class Attempts(Retries):
    """Three of them, without waiting."""

    def __init__(self, bed: Bed) -> None:
        super().__init__(1e9, "test")
        self.bed = bed
        self.errors: list[PymqError] = []

    def wait_after(self, error: PymqError) -> None:
        self.errors.append(error)
        if len(self.errors) == 3:
            raise error
        if self.bed.change is not None:
            self.bed.change()
            self.bed.change = None


def find(
    bed: Bed, batch: BatchIdentity = FIRST, options: SinkOptions = OPTIONS
) -> SinkHome | None:
    return find_home(Client(bed), options, batch, Attempts(bed))  # type: ignore[arg-type]


# ------------------------------------------------------------------- exactly once, or at least


def test_at_least_once_is_chosen_when_all_have_said_that_they_cannot(bed: Bed) -> None:
    bed.official = {"a", "b"}
    assert find(bed) is None
    bed.official = {"a"}
    known_homes.unable_of_this_process.cache_clear()
    assert find(bed) == B


def test_a_broker_that_is_silent_is_not_one_that_cannot(bed: Bed) -> None:
    bed.official, bed.away = {"a"}, {"b"}
    with pytest.raises(ConnectionFailed, match="b is away"):
        find(bed)
    bed.change = bed.away.clear
    assert find(bed) == B


def test_a_broker_that_no_name_server_knows_any_more_is_not_one_that_cannot(bed: Bed) -> None:
    """It was in the topic's route when the job was planned; what is there now cannot."""
    bed.official, bed.planned, bed.unrouted = {"a"}, {"a", "b"}, {"b"}
    with pytest.raises(RouteNotFound, match=r"not known, because b, which .* there are a\. Start"):
        find(bed)
    bed.planned = {"a", "b"}
    bed.change = bed.unrouted.clear
    assert find(bed) == B
    assert ("doubt", "orders") in bed.calls


def test_a_route_that_is_older_than_what_is_registered(bed: Bed) -> None:
    """Brokers restarted one after the other: the route has the one, name servers the other."""
    bed.planned, bed.unrouted = {"b"}, {"b"}
    assert find(bed) == A


def test_no_broker_at_all(bed: Bed) -> None:
    bed.unrouted = {"a", "b"}
    with pytest.raises(RouteNotFound, match="know no broker"):
        find(bed)
    bed.change = bed.unrouted.clear
    assert find(bed) in (A, B)
    bed.unrouted, bed.registered = {"a", "b"}, {"a", "b"}  # and topics are told later
    known_homes.homes_of_this_process.cache_clear()
    bed.kept.clear()
    with pytest.raises(RouteNotFound, match="no name server knows topic orders"):
        find(bed)


def test_what_all_have_said_holds_for_the_run(bed: Bed) -> None:
    """A broker of RocketMQ that is away holds up a query's start, and none of its batches."""
    bed.official = {"a", "b"}
    assert find(bed) is None
    bed.away = {"b"}
    assert find(bed, LATER) is None
    for other in (replace(LATER, run="run-2"), replace(LATER, sink="another")):
        with pytest.raises(ConnectionFailed):
            find(bed, other)
    with pytest.raises(ConnectionFailed):
        find(bed, LATER, replace(OPTIONS, delivery=Delivery.EXACTLY_ONCE))


def test_one_batch_write_says_nothing_of_the_next(bed: Bed) -> None:
    job = replace(FIRST, is_lasting=False)
    bed.official = {"a", "b"}
    assert find(bed, job) is None
    bed.official = set()
    assert find(bed, job) in (A, B)


# ------------------------------------------------------------------ brokers that need not answer

JOB = replace(FIRST, is_lasting=False)
AT_A = replace(OPTIONS, sink_broker="a")


def without_topic(bed: Bed, name: str) -> None:
    """Leave a broker another topic alone."""
    del bed.queues[MessageQueue("orders", name, 0)]
    bed.queues[MessageQueue("other", name, 0)] = []


def test_a_broker_without_the_topic_does_not_hold_up_a_new_sink(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    without_topic(bed, "b")
    bed.away = {"b"}
    assert find(bed) == A
    assert "sink sink is new, all name servers say; b, which its rows cannot go to" in caplog.text
    # What is known of it, or may be, is not told from what it is new for.
    known_homes.homes_of_this_process.cache_clear()
    bed.kept.clear()
    with pytest.raises(ConnectionFailed, match="b is away"):
        find(bed, LATER)
    bed.name_servers["ns-2:9876"] = False
    with pytest.raises(ConnectionFailed, match="b is away"):
        find(bed)
    with pytest.raises(ConnectionFailed, match="b is away"):  # any broker may have the topic
        find(bed, FIRST, replace(OPTIONS, topic=None))
    assert not bed.kept


def test_a_broker_that_is_not_the_one_of_the_users_choice_does_not_hold_up_a_new_sink(
    bed: Bed,
) -> None:
    bed.away = {"b"}
    assert find(bed, FIRST, AT_A) == A
    known_homes.homes_of_this_process.cache_clear()
    for kept in ({"ns-1:9876": "b"}, dict.fromkeys(OPTIONS.name_servers, "b")):
        bed.kept = dict(kept)  # it is there, or was
        with pytest.raises(ConnectionFailed, match="b is away"):
            find(bed, FIRST, AT_A)
        assert bed.kept == kept
    bed.kept.clear()
    with pytest.raises(ConnectionFailed, match="b is away"):
        find(bed, LATER, AT_A)
    bed.name_servers["ns-1:9876"] = False
    with pytest.raises(ConnectionFailed, match="b is away"):
        find(bed, FIRST, AT_A)


@pytest.mark.parametrize("batch", [FIRST, LATER, replace(FIRST, is_job=True)])
def test_a_choice_that_is_no_broker_is_not_kept(bed: Bed, batch: BatchIdentity) -> None:
    """A wrong name, and one that is waited for; then the sink is free to go elsewhere."""
    with pytest.raises(RouteNotFound, match="sinkBroker=B: .* there are a, b .did you mean b"):
        find(bed, batch, replace(OPTIONS, sink_broker="B"))
    with pytest.raises(RouteNotFound, match=r"sinkBroker=x: .* there are a, b\. Correct the name"):
        find(bed, batch, replace(OPTIONS, sink_broker="x"))
    bed.official = {"b"}
    with pytest.raises(ConfigurationError, match=r"sinkBroker=b: .* another one \(a can\)"):
        find(bed, batch, replace(OPTIONS, sink_broker="b"))
    assert not bed.kept
    bed.unrouted, bed.change = {"a"}, lambda: bed.unrouted.clear()
    assert find(bed, batch, AT_A) == A
    assert bed.kept == dict.fromkeys(OPTIONS.name_servers, "a")


@pytest.mark.parametrize("wanted", [None, "a"])
def test_a_broker_that_need_not_answer_is_heard_when_it_does(bed: Bed, wanted: str | None) -> None:
    """Name servers may have lost what they keep."""
    without_topic(bed, "b")
    bed.sinks = {"b"}
    if wanted is None:
        assert find(bed) == B
    else:
        for name, command in (("sink", "sink"), ("nightly report", "'nightly report'")):
            with pytest.raises(ConfigurationError) as caught:
                find(bed, replace(FIRST, sink=name), AT_A)
            assert f"sinkBroker=a: sink {name} is at broker b" in str(caught.value)
            assert f"`pymq sink forget {command}` first" in str(caught.value)


def test_a_batch_write_that_nobody_repeats_goes_to_the_first_broker_that_can(bed: Bed) -> None:
    bed.queues[MessageQueue("other", "c", 0)] = []
    for away in "abc":
        bed.away = {away}
        assert find(bed, JOB) == (B if away == "a" else A)
        assert find(bed, JOB, AT_A) == A
        assert find(bed, JOB, replace(OPTIONS, topic=None)) is not None
    bed.away, bed.official = {"a"}, {"b"}
    with pytest.raises(ConnectionFailed, match="a is away"):
        find(bed, JOB)
    bed.change = bed.away.clear
    assert find(bed, JOB) == A


def test_the_driver_chooses_for_all_tasks_of_such_a_write(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each task would see other brokers while one comes and goes; what they staged were lost."""

    def client(*_: object, **settings: Any) -> Client:
        assert settings["config"].timeout_s <= 3.0
        return Client(bed)

    monkeypatch.setattr(home, "BulkClient", client)
    route = Client(bed).route("orders")
    plan, chosen = SinkPlan((route,)), []
    for bed.away in ({"a"}, {"b"}, set(), {"a", "b"}):
        writer = PymqBatchWriter(OPTIONS, {"body": "body"}, plan)
        writer.choose_home()
        chosen.append(pickle.loads(pickle.dumps(writer))._home)
    assert chosen[:2] == [B, A] and chosen[2] in (A, B) and chosen[3] is None
    bed.away, calls = set(), len(bed.calls)
    for options in (
        replace(OPTIONS, txn_app_id="app", txn_version=1),
        replace(OPTIONS, delivery=Delivery.AT_LEAST_ONCE),
    ):
        writer = PymqBatchWriter(options, {"body": "body"}, plan)
        writer.choose_home()
        assert writer._home is None and len(bed.calls) == calls
    writer = PymqBatchWriter(OPTIONS, {"body": "body"})  # no name server has told of the topic
    writer.choose_home()
    assert writer._home is None and len(bed.calls) == calls


@pytest.mark.parametrize("options", [OPTIONS, AT_A], ids=["any", "the user's"])
def test_the_broker_of_such_a_write_that_is_gone(bed: Bed, options: SinkOptions) -> None:
    """Nothing of the write is anywhere else; of a sink that lasts, its last batch may be there."""
    chosen = find(bed, JOB, options)
    assert chosen is not None
    bed.unrouted = {chosen.broker}
    with pytest.raises(RouteNotFound, match=r"or run the job again: another .* is chosen") as gone:
        find_again(Client(bed), JOB, chosen, Attempts(bed))  # type: ignore[arg-type]
    assert "there twice" not in str(gone.value)
    with pytest.raises(RouteNotFound, match="what of the last batch is there already"):
        find_again(Client(bed), LATER, chosen, Attempts(bed))  # type: ignore[arg-type]
    if options is OPTIONS:
        assert find(bed, JOB) not in (None, chosen)


# ------------------------------------------------------------------------ a sink nobody knows


def test_a_later_batch_of_a_sink_that_nobody_knows(bed: Bed) -> None:
    with pytest.raises(ConfigurationError, match="batch 1 of sink sink is not the query's first"):
        find(bed, LATER)
    bed.sinks = {"b"}
    assert find(bed, LATER) == B


@pytest.mark.parametrize("what", ["broker", "name server"])
def test_that_nobody_knows_a_sink_is_not_said_before_all_have_answered(
    bed: Bed, what: str
) -> None:
    def back() -> None:
        bed.unrouted.clear()
        bed.name_servers["ns-2:9876"] = True
        if what == "broker":
            bed.sinks = {"b"}
        else:
            bed.kept = {"ns-2:9876": "b"}

    if what == "broker":
        bed.planned, bed.unrouted = {"a", "b"}, {"b"}
    else:
        bed.name_servers["ns-2:9876"] = False
    with pytest.raises(RouteNotFound, match=r"not the query's first, .* Not all have answered: "):
        find(bed, LATER)
    if what == "broker":
        bed.planned = {"a", "b"}
    bed.change = back
    assert find(bed, LATER) == B


@pytest.mark.parametrize("numbered", ["by Spark", "by the user", "by hand"])
def test_a_batch_write_whose_sink_a_name_server_may_know(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, numbered: str
) -> None:
    """Of a write in ``foreachBatch``, too, nothing tells whether it is the first of its sink."""
    told = {identity._QUERY: "query", identity._BATCH: "57", identity._RUN: str(uuid.uuid4())}
    monkeypatch.setattr(identity, "_property", ({} if numbered == "by hand" else told).get)
    version = None if numbered == "by Spark" else 57
    job = of_job(replace(OPTIONS, txn_app_id="sink", txn_version=version), "job", 1)
    bed.kept, bed.unrouted = {"ns-1:9876": "a"}, {"a"}
    bed.name_servers["ns-1:9876"] = False
    with pytest.raises(ConnectionFailed, match="ns-1:9876 is silent"):
        find(bed, job)
    assert bed.kept == {"ns-1:9876": "a"}
    bed.name_servers["ns-1:9876"] = True
    with pytest.raises(RouteNotFound, match="sink is at broker a, which no name server knows"):
        find(bed, job)
    bed.kept.clear()
    assert find(bed, replace(job, sink="new")) == B  # all name servers say that they know nothing


def test_name_servers_that_were_away_are_told_later(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the process that knows the sink, now and then; tasks do not wait for the others."""
    bed.name_servers["ns-2:9876"] = False
    first = find(bed)
    assert first is not None and bed.kept == {"ns-1:9876": first.broker}
    bed.name_servers["ns-2:9876"] = True
    assert find(bed, LATER) == first
    assert bed.kept == {"ns-1:9876": first.broker}
    monkeypatch.setattr(known_homes, "TELL_AGAIN_S", 0.0)
    known_homes.homes_of_this_process.cache_clear()
    bed.kept.clear()
    bed.name_servers["ns-2:9876"] = False
    assert find(bed) == find(bed, LATER) == first
    bed.name_servers["ns-2:9876"] = True
    assert find(bed, LATER) == first
    assert bed.kept == dict.fromkeys(OPTIONS.name_servers, first.broker)
    bed.kept.clear()
    assert find(bed, LATER) == first
    assert not bed.kept  # once is enough


def test_name_servers_that_do_not_agree_while_a_broker_is_away(bed: Bed) -> None:
    bed.kept = {"ns-1:9876": "a", "ns-2:9876": "b"}
    with pytest.raises(ConfigurationError, match="do not agree"):
        find(bed)
    bed.unrouted = {"b"}
    with pytest.raises(RouteNotFound, match=r"do not agree .* broker b is away"):
        find(bed)
    bed.official = {"a"}  # and now the other one could not take it
    with pytest.raises(RouteNotFound, match=r"do not agree .* broker b is away"):
        find(bed)


@pytest.mark.parametrize("later", [{"number": 6}, {"planned_ms": 2}], ids=["batch", "again"])
@pytest.mark.parametrize("old", ["a", "b"])
def test_name_servers_that_do_not_agree_and_two_brokers_that_know_the_sink(
    bed: Bed, old: str, later: dict[str, Any]
) -> None:
    """It moved while the old broker was lost, and a name server away. It is where its end is."""
    new = "ab".replace(old, "")
    before = replace(LATER, number=5)
    bed.sinks, bed.last = {"a", "b"}, {old: before, new: replace(before, **later)}
    kept = {"ns-1:9876": new, "ns-2:9876": old}
    for wanted in (None, new):
        bed.kept = dict(kept)
        assert find(bed, LATER, replace(OPTIONS, sink_broker=wanted)) == SinkHome(new, f"{new}:1")
        assert set(bed.kept.values()) == {new}
    bed.kept = dict(kept)
    with pytest.raises(ConfigurationError, match=f"sinkBroker={old}: sink sink is at broker {new}"):
        find(bed, LATER, replace(OPTIONS, sink_broker=old))
    assert bed.kept == kept
    bed.kept = dict.fromkeys(kept, old)  # what they agree on the user need not prove
    assert find(bed, LATER, replace(OPTIONS, sink_broker=old)) == SinkHome(old, f"{old}:1")


def test_a_sink_that_was_moved_while_the_query_was_stopped(bed: Bed) -> None:
    """A process that has seen it at the old broker asks again when the query starts again."""
    bed.kept = dict.fromkeys(OPTIONS.name_servers, "a")
    at_b = replace(OPTIONS, sink_broker="b")
    assert find(bed) == A
    bed.unrouted = {"a"}  # and another process moves the sink
    assert find(bed, replace(LATER, run="run-2"), at_b) == B
    again = replace(LATER, run="run-3")
    bed.name_servers = dict.fromkeys(bed.name_servers, False)
    for _ in range(2):
        with pytest.raises(ConnectionFailed, match="ns-1:9876 is silent"):
            find(bed, again)  # where it was seen last is not where it is for certain
    bed.name_servers = dict.fromkeys(bed.name_servers, True)
    for gone in ({"a"}, set()):
        bed.unrouted = gone
        assert find(bed, again) == B
    bed.sinks = {"b"}
    with pytest.raises(ConfigurationError, match="sinkBroker=a: sink sink is at broker b"):
        find(bed, again, AT_A)


# ------------------------------------------------------------------ topics that are elsewhere


class Staging(Client):
    """Takes what a task stages; brokers tell whether they have a topic."""

    def staging_pipeline(self, part: int, on_staged: Any, **settings: Any) -> FakePipeline:
        return FakePipeline(self, 0)

    def ask(self, address: str, operation: Operation[Any]) -> Any:
        if operation.request.code != RequestCode.GET_TOPIC_CONFIG:
            return super().ask(address, operation)
        name, topic = address.removesuffix(":1"), operation.request.fields["topic"]
        if name in self.bed.away:
            raise ConnectionFailed(f"{name} is away")
        if not any((one.topic, one.broker_name) == (topic, name) for one in self.bed.queues):
            raise TopicNotExist("No topic in this broker", code=17)
        return "its settings"


@pytest.mark.parametrize("has_keys", [False, True])
@pytest.mark.parametrize("how", ["column", "option"])
def test_a_topic_that_the_broker_of_a_sink_has_not(bed: Bed, how: str, has_keys: bool) -> None:
    """It is no queue that comes back; so nothing is waited for, and the error says what to do."""
    bed.queues[MessageQueue("elsewhere", "b", 0)] = []
    given = {"body": ["x"], "topic": ["elsewhere"]} | ({"shardingKey": ["k"]} if has_keys else {})
    topic = "elsewhere" if how == "option" else None
    columns = {name: name for name in given if topic is None or name != "topic"}
    options = replace(OPTIONS, topic=topic, retry_timeout_s=1.0)

    def run() -> None:
        task = SendTask(Staging(bed), options, columns, stage_at="a")  # type: ignore[arg-type]
        task.run([pa.RecordBatch.from_pydict(given)])

    with pytest.raises(ConfigurationError, match="at broker a, and topic elsewhere at b") as caught:
        run()
    assert "sinkBroker" in str(caught.value) and "Create topic" in str(caught.value)
    # What is away, or about to be told of, is waited for: those are other errors.
    bed.unrouted = {"a"}
    with pytest.raises(RouteNotFound):
        run()
    bed.unrouted, bed.away = set(), {"a"}
    with pytest.raises(RouteNotFound):
        run()
    bed.away = set()
    bed.queues[MessageQueue("elsewhere", "a", 0)] = []
    run()
    assert [len(bed.queues[MessageQueue("elsewhere", name, 0)]) for name in "ab"] == [1, 0]


def test_staged_rows_of_a_queue_keep_their_order_whether_they_name_its_broker_or_not(
    bed: Bed,
) -> None:
    table = {
        "body": [b"%d" % n for n in range(6)],
        "queueId": [0] * 6,
        "brokerName": [None, "a"] * 3,
    }
    task = SendTask(
        Staging(bed),  # type: ignore[arg-type]
        OPTIONS,
        {name: name for name in table},
        stage_at="a",
    )
    task.run([pa.RecordBatch.from_pydict(table)])
    found = bed.queues[MessageQueue("orders", "a", 0)]
    assert [int(decode_record(item).body) for item in found] == list(range(6))


def test_the_choice_of_a_batch_write_is_checked_too(bed: Bed) -> None:
    """Nothing is kept for it, but a broker of RocketMQ would only say what it does not support."""
    job = of_job(OPTIONS, "job", 1)
    bed.official = {"b"}
    with pytest.raises(ConfigurationError, match="sinkBroker=b: .* cannot be written exactly once"):
        find(bed, job, replace(OPTIONS, sink_broker="b"))
    with pytest.raises(RouteNotFound, match="sinkBroker=A: .* there are a, b .did you mean a"):
        find(bed, job, replace(OPTIONS, sink_broker="A"))
