"""The Kombu transport, and a Celery worker on it; a worker and a broker are killed."""

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kombu")

import kombu
from kombu.exceptions import ChannelError

import pymq.integrations.kombu
from pymq import Message, Network, blocking
from pymq.errors import ConfigurationError, PymqError
from pymq.testing import Cluster

LIMIT_S = 120.0
#: Nothing is visible again by itself while a test lasts.
VISIBLE_S = 1800


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as running:
        yield running


def until(condition: Callable[[], object], what: str) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {LIMIT_S:g} s: {what}"
        time.sleep(0.05)


def connection(cluster: Cluster, **options: Any) -> kombu.Connection:
    options.setdefault("request_timeout", LIMIT_S)  # a busy disk takes long to create a topic
    return kombu.Connection(f"pymq://{cluster.name_server}", transport_options=options)


def test_queues_acknowledgements_and_rejections(cluster: Cluster) -> None:
    exchange = kombu.Exchange("shop", type="direct")
    queue = kombu.Queue("orders@eu.new", exchange, routing_key="new")
    got: list[dict[str, int]] = []

    def handle(body: dict[str, int], message: Any) -> None:
        got.append(body)
        if body["n"] == 1 and not message.delivery_info.get("redelivered"):
            message.requeue()
        elif body["n"] == 2:
            message.reject()
        else:
            message.ack()

    with connection(cluster, visibility_timeout=VISIBLE_S) as conn:
        producer = conn.Producer()
        for number in range(4):
            producer.publish(
                {"n": number}, exchange=exchange, routing_key="new", declare=[queue],
                correlation_id=f"c{number}",
            )  # fmt: skip
        with conn.Consumer([queue], callbacks=[handle]):
            deadline_s = time.monotonic() + LIMIT_S
            while len(got) < 5 and time.monotonic() < deadline_s:
                try:
                    conn.drain_events(timeout=1)
                except TimeoutError:
                    continue
        assert Counter(one["n"] for one in got) == {0: 1, 1: 2, 2: 1, 3: 1}
        with pytest.raises(socket.timeout), conn.Consumer([queue], callbacks=[handle]):
            conn.drain_events(timeout=2)
    # Characters that topics cannot have were replaced, and keys are there for `message find`.
    assert {one.keys[0] for one in cluster.messages("orders-eu-new")} == {"c0", "c1", "c2", "c3"}


def test_simple_queues_and_what_is_left_unacknowledged(cluster: Cluster) -> None:
    options = {
        "visibility_timeout": VISIBLE_S,
        "topic_prefix": "q-",
        "network": Network(namespace="kb"),
    }
    with connection(cluster, **options) as conn, conn.SimpleQueue("simple") as queue:
        queue.put("kept")
        queue.put("taken")
        first = queue.get(timeout=LIMIT_S)
        second = queue.get(timeout=LIMIT_S)
        taken = next(one for one in (first, second) if one.payload == "taken")
        taken.ack()
    assert len(cluster.messages("kb%q-simple")) == 2
    # The one that was not acknowledged is put back when the connection closes.
    with connection(cluster, **options) as conn, conn.SimpleQueue("simple") as queue:
        again = queue.get(timeout=LIMIT_S)
        assert again.payload == "kept"
        again.ack()
        assert queue.qsize() >= 0
        for number in range(5):
            queue.put(number)
        assert queue.clear() == 5
        with pytest.raises(queue.Empty):
            queue.get(block=False)


def test_what_would_be_lost_in_a_fanout_exchange_is_refused(cluster: Cluster) -> None:
    """What the refusal names instead does it."""
    every = [kombu.Queue(f"every-{n}", kombu.Exchange("all", "topic"), "#") for n in range(2)]
    with kombu.Connection(f"pymq://{cluster.name_server}") as conn:
        fanout = kombu.Exchange("news", "fanout")
        producer = conn.Producer()
        with pytest.raises(conn.channel_errors, match="fanout.*topic exchange.*'#'"):
            kombu.Queue("reader", fanout, channel=conn.channel()).declare()
        with pytest.raises(conn.channel_errors, match="fanout"):
            producer.publish({"n": 1}, exchange=fanout, declare=[fanout])
        producer.publish({"n": 2}, exchange=every[0].exchange, routing_key="x", declare=every)
        for queue in every:
            with conn.SimpleQueue(queue) as simple:
                message = simple.get(timeout=LIMIT_S)
                assert message.payload == {"n": 2}
                message.ack()
    assert not cluster.messages("reader")


def test_a_celery_that_has_no_remote_control_says_so(cluster: Cluster) -> None:
    celery = pytest.importorskip("celery")
    app = celery.Celery("shop", broker=f"pymq://{cluster.name_server}")
    with pytest.raises(kombu.exceptions.OperationalError, match="remote control"):
        app.control.ping(timeout=0.1)
    app.close()


def test_a_broker_that_does_not_answer_does_not_stop_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues are new, and one of two brokers is silent; when it answers it has them, too."""
    monkeypatch.setattr(pymq.integrations.kombu_clients, "CREATE_AGAIN_S", 0.0)
    silent = cluster.broker("broker-b").delay(60)
    with connection(cluster, request_timeout=4) as conn:
        queue = conn.SimpleQueue("new")
        queue.put({"n": 0})  # each asks the silent one again
        assert {one.broker_name for one in cluster.messages("new")} <= {"broker-a"}
        silent.end()
        for number in range(1, 4):
            queue.put({"n": number})
        found = []
        for _ in range(4):
            message = queue.get(timeout=LIMIT_S)
            found.append(message.payload["n"])
            message.ack()
        assert sorted(found) == [0, 1, 2, 3]
        queue.put({"n": 4})
        with blocking.Admin(cluster.name_server, timeout_s=LIMIT_S) as admin:
            assert admin.topics.config("new").keys() == {"broker-a", "broker-b"}
            assert "kombu" in admin.groups.names()
        cluster.broker().kill()
        with pytest.raises(conn.connection_errors + conn.channel_errors):
            conn.channel().queue_declare("another")


def test_no_name_server_is_an_error_of_the_connection() -> None:
    with kombu.Connection("pymq://127.0.0.1:1") as conn:
        with pytest.raises(conn.connection_errors, match=r"127\.0\.0\.1:1"):
            conn.connect()
        assert not conn.connected


TASKS = """
import os
import time

import pymq.integrations.kombu
from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER"])
app.conf.broker_transport_options = {
    "visibility_timeout": int(os.environ["VISIBLE_S"]), "request_timeout": 60
}
app.conf.task_acks_late = True
app.conf.task_reject_on_worker_lost = True
app.conf.worker_prefetch_multiplier = 1
app.conf.broker_connection_retry_on_startup = True


def note(text):
    with open(os.environ["NOTES"], "a") as file:
        file.write(text + "\\n")


@app.task
def add(x, y):
    note(f"sum {x + y} in {os.getpid()}")
    return x + y


@app.task(bind=True, max_retries=3)
def fail_once(self, name):
    note(f"try {self.request.retries} of {name}")
    if self.request.retries == 0:
        raise self.retry(countdown=1)


@app.task
def chain(left):
    note(f"link {left}")
    if left:
        chain.delay(left - 1)  # Sent from a child of the worker.


@app.task
def slow(name):
    note(f"begin {name}")
    time.sleep(3)
    note(f"end {name}")
"""


class Worker:
    """A Celery worker with processes, as a program of its own."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        (folder / "tasks.py").write_text(TASKS)
        self.notes = folder / "notes"
        self.notes.touch()
        self.log = folder / "log"
        environment = {
            **os.environ,
            "BROKER": f"pymq://{cluster.name_server}",
            "NOTES": str(self.notes),
            "VISIBLE_S": str(VISIBLE_S),
            "PYTHONPATH": os.pathsep.join([str(folder), *sys.path]),
        }
        self.command = [
            *(sys.executable, "-m", "celery", "-A", "tasks", "worker", "--concurrency", "2"),
            *("--pool", "prefork", "--loglevel", "INFO", "--without-heartbeat"),
        ]
        self._environment, self._folder = environment, folder
        self.process = self.start()

    def start(self) -> "subprocess.Popen[bytes]":
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=self._environment,
                cwd=self._folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.process

    def lines(self) -> list[str]:
        return self.notes.read_text().splitlines()

    def kill(self) -> None:
        """Kill it and its children, which would otherwise work on."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """End it as an operator does.

        Raises:
            subprocess.TimeoutExpired: it hangs.
        """
        self.process.terminate()
        self.process.wait(LIMIT_S)


@pytest.fixture
def worker(cluster: Cluster, tmp_path: Path) -> Iterator[Worker]:
    pytest.importorskip("celery")
    running = Worker(tmp_path, cluster)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()


def test_a_celery_worker(
    cluster: Cluster, worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER", f"pymq://{cluster.name_server}")
    monkeypatch.setenv("NOTES", str(worker.notes))
    monkeypatch.setenv("VISIBLE_S", str(VISIBLE_S))
    tasks: dict[str, Any] = {}
    exec(compile(TASKS, "tasks.py", "exec"), tasks)
    app = tasks["app"]

    def send(name: str, *arguments: object) -> None:
        app.send_task(f"tasks.{name}", arguments)

    def sums() -> set[str]:
        return {line.split()[1] for line in worker.lines() if line[:3] == "sum"}

    for number in range(10):
        send("add", number, number)
    until(lambda: sums() == {str(2 * n) for n in range(10)}, "the sums are there")
    send("fail_once", "a")
    send("chain", 3)
    until(lambda: "link 0" in worker.lines(), "children send, too")
    until(lambda: "try 1 of a" in worker.lines(), "it is retried")
    # A broker is killed and started while tasks are sent.
    cluster.kill_broker("broker-b")
    for number in range(100, 110):
        send("add", number, 0)
    cluster.start_broker("broker-b")
    for number in range(110, 120):
        send("add", number, 0)
    wanted = {str(number) for number in range(100, 120)}
    until(lambda: wanted <= sums(), "all sums are there in spite of it")
    # A worker that is killed at work: another one gets the task when it is visible again.
    send("slow", "b")
    until(lambda: "begin b" in worker.lines(), "it has begun")
    worker.kill()
    cluster.clock.advance(VISIBLE_S)
    worker.start()
    until(lambda: "end b" in worker.lines(), "it is done again")
    worker.close()
    log = worker.log.read_text()
    assert worker.process.returncode == 0, log
    assert "Traceback" not in log.split("Warm shutdown")[-1], log
    app.close()


def test_the_transport_is_known_by_its_name() -> None:
    assert kombu.Connection("pymq://h:1").get_transport_cls() is pymq.integrations.kombu.Transport


def test_an_acknowledgement_that_fails_gives_its_place_free() -> None:
    with Cluster(brokers=2) as cluster:
        options = {"wait_time_seconds": 0.2, "visibility_timeout": 600}
        with kombu.Connection(
            f"pymq://{cluster.name_server}", transport_options=options
        ) as connection:
            queue = kombu.Queue("jobs", routing_key="jobs")
            with connection.Producer() as producer:
                for number in range(20):
                    producer.publish(number, routing_key="jobs", declare=[queue])
            held: list[kombu.Message] = []
            with connection.Consumer(
                queue, callbacks=[lambda body, message: held.append(message)], prefetch_count=1
            ) as consumer:

                def take() -> kombu.Message:
                    deadline = time.monotonic() + 60
                    while not held and time.monotonic() < deadline:
                        with contextlib.suppress(TimeoutError):
                            connection.drain_events(timeout=1)
                    return held.pop()

                message = take()
                name = consumer.channel._taken[message.delivery_tag][0].broker_name
                cluster.broker(name).kill()
                for _ in range(2):  # and what was not done is not called done
                    with pytest.raises(PymqError):
                        message.ack()
                assert consumer.channel.qos.can_consume()
                other = take()
                with pytest.raises(PymqError):
                    message.ack()
                assert not consumer.channel.qos.can_consume()  # that was not the other one's place
                other.ack()
                cluster.broker(name).start()

                def acknowledge() -> bool:
                    with contextlib.suppress(PymqError):  # Its route was read just now.
                        message.ack()
                    return bool(message.acknowledged)

                until(acknowledge, "it is acknowledged")
                assert not consumer.channel._taken


def test_what_is_got_without_acknowledgements_is_finished(cluster: Cluster) -> None:
    with connection(cluster, visibility_timeout=VISIBLE_S) as conn:
        queue = kombu.Queue("jobs", routing_key="jobs")
        conn.Producer().publish("x", routing_key="jobs", declare=[queue])
        got: list[Any] = []

        def get() -> bool:
            got.extend(one for one in [queue(channel).get(no_ack=True)] if one is not None)
            return bool(got)

        channel = conn.channel()
        until(get, "a message")
        assert got[0].payload == "x" and not channel._taken
        cluster.clock.advance(VISIBLE_S + 1)  # it would be handed out again now
        assert queue(channel).get(no_ack=True) is None
        until(lambda: cluster.lag("kombu", "jobs") == 0, "nothing is left")


def test_a_message_that_kombu_did_not_send_stops_no_worker(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Each worker would end with an error of JSON when it comes to the message."""
    bodies: list[Any] = []
    with (
        connection(cluster, visibility_timeout=VISIBLE_S) as conn,
        blocking.Producer(cluster.name_server) as others,
    ):
        queue = kombu.Queue("jobs", routing_key="jobs")
        queue(conn.channel()).declare()
        foreign = [
            *(b"no JSON", b"\xff", b"[1]", b'{"body": "x"}', b"[" * 200_000),
            b'{"__type__": "decimal", "__value__": "x"}',
            b'{"body": 5, "headers": 5, "properties": {"body_encoding": "base64"}}',
        ]
        receipts = [others.send(Message("jobs", body)) for body in foreign]
        conn.Producer().publish("of kombu", routing_key="jobs")

        def work() -> bool:
            with contextlib.suppress(TimeoutError):
                conn.drain_events(timeout=1)
            said = [one for one in receipts if one.message_id in caplog.text]
            return len(bodies) == 1 and len(said) == len(foreign)

        with conn.Consumer([queue], callbacks=[lambda body, _: bodies.append(body)], no_ack=True):
            until(work, "all messages were looked at")
    assert bodies == ["of kombu"] and "is not of Kombu" in caplog.text


def test_two_queues_are_not_one_topic(cluster: Cluster) -> None:
    with connection(cluster) as conn:
        with conn.SimpleQueue("orders.eu") as queue:
            queue.put("kept")
            with pytest.raises(ChannelError, match=r"orders-eu.*'orders\.eu'.*other name"):
                conn.SimpleQueue("orders:eu")
            assert queue.get(timeout=LIMIT_S).payload == "kept"
        with conn.SimpleQueue("orders.eu") as again:  # the same one, of another channel
            again.put("more")


def test_the_name_of_a_queue_is_free_again_when_it_is_deleted(cluster: Cluster) -> None:
    with connection(cluster) as conn, conn.channel() as channel:
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            channel.queue_declare("a.b", passive=True)
        # Nobody has used it: he only asked whether it is there.
        channel.queue_declare("a:b")
        with pytest.raises(ChannelError, match=r"'a:b' is"):
            channel.queue_declare("a.b", passive=True)
        for name, other in (("a:b", "a.b"), ("a.b", "a-b")):
            with conn.SimpleQueue(name) as queue:  # it has a binding, the first one has none
                queue.put(name)
                assert queue.get(timeout=LIMIT_S).payload == name
            channel.queue_delete(name)
            channel.queue_declare(other)
        channel.queue_delete("a-b")
        clients = channel.clients
        assert not clients._queues and not clients._known and not clients._consumers


def test_what_was_taken_of_a_queue_is_finished_after_it_is_deleted(cluster: Cluster) -> None:
    """And leaves nothing open."""
    with connection(cluster, visibility_timeout=VISIBLE_S) as conn, conn.channel() as channel:
        queue = kombu.Queue("a.b", routing_key="a.b")(channel)
        queue.declare()
        with conn.Producer() as producer:
            for name in ("done", "again"):
                producer.publish(name, routing_key="a.b")
        taken: dict[object, Any] = {}

        def take() -> bool:
            if (message := queue.get()) is not None:
                taken[message.payload] = message
            return message is not None

        for _ in range(2):
            until(take, "it is taken")
        clients = channel.clients
        assert clients._consumers
        channel.queue_delete("a.b")
        taken.pop("done").ack()
        taken.pop("again").requeue()
        assert not clients._consumers
        cluster.clock.advance(VISIBLE_S)
        until(take, "it comes again")
        assert list(taken) == ["again"]


def test_a_queue_that_is_not_empty_may_be_kept(cluster: Cluster) -> None:
    with (
        connection(cluster) as conn,
        conn.channel() as channel,
        conn.SimpleQueue("a.b") as queue,
    ):
        queue.put("first")
        queue.get(timeout=LIMIT_S).ack()  # its group has begun
        queue.put("second")
        until(lambda: channel._size("a.b") == 1, "it is counted")
        channel.queue_delete("a.b", if_empty=True)
        channel.queue_delete("a-b")  # nobody's
        with pytest.raises(ChannelError, match=r"'a\.b' is"):
            channel.queue_declare("a-b")


@pytest.mark.parametrize("seconds", [86_400, 0, -1, "soon", None, math.nan])
def test_a_time_that_no_broker_takes(seconds: object) -> None:
    conn = kombu.Connection(
        "pymq://127.0.0.1:1", transport_options={"visibility_timeout": seconds}
    )
    with pytest.raises(ConfigurationError, match=f"visibility_timeout={seconds!r}: expected sec"):
        conn.connect()
