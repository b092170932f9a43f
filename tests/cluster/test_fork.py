"""Clients of ``pymq.blocking`` after a fork: the child has its own, and the parent notices nothing.

The programs fork as servers do that start their workers so (gunicorn, uwsgi, multiprocessing).
"""

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.children import in_child
from tests.handling import handle_until

from pymq import ClientMisplaced, Message, Network, ReceivedMessage, blocking
from pymq.client.threaded.loop_thread import LoopThread
from pymq.testing import Cluster

DEADLINE_S = 60.0
#: Two processes may stand still, one after the other, and nothing is to be sent twice for that.
PATIENT: dict[str, Any] = {"timeout_s": 30.0}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=2) as running:
        yield running


def until(condition: Callable[[], object], what: str, limit_s: float = DEADLINE_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, f"not within {limit_s} s: {what}"
        time.sleep(0.02)


def bodies(cluster: Cluster, topic: str) -> Counter[str]:
    return Counter(message.body.decode() for message in cluster.messages(topic))


def program(tmp_path: Path, text: str, *arguments: str) -> subprocess.Popen[str]:
    path = tmp_path / "program.py"
    path.write_text(text)
    return subprocess.Popen(
        [sys.executable, path, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], *, quiet: bool = True) -> str:
    """Return what a program wrote that ended by itself, in time and without a complaint."""
    try:
        out, err = process.communicate(timeout=3 * DEADLINE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise AssertionError(f"it hangs: {process.communicate()}") from None
    assert process.returncode == 0 and "Traceback" not in err, err
    assert not (quiet and err)
    return out


def test_every_client_works_in_a_child_and_goes_on_in_the_parent(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    server = cluster.name_server
    caplog.set_level(logging.INFO)
    with (
        blocking.Producer(server, **PATIENT) as producer,
        blocking.Batcher(producer, linger_s=0.01) as batcher,
        blocking.Admin(server, **PATIENT) as admin,
        blocking.PullConsumer(server, "pull", from_where="earliest", **PATIENT).subscribe(
            "T"
        ) as puller,
        blocking.SimpleConsumer(server, "pop", from_where="earliest", **PATIENT).subscribe(
            "T"
        ) as popper,
    ):
        ids = {producer.send(Message("T", b"before")).message_id}
        batcher.send(Message("T", b"gathered"))
        clients = [producer, admin._client._pool, puller, popper]
        ours = [client.client_id for client in clients]

        def use() -> list[Any]:
            sent = [producer.send(Message("T", b"child")).message_id]
            sent.append(batcher.send(Message("T", b"gathered in child")).message_id)
            sent.append(producer.send_nowait(Message("T", b"soon")).result().message_id)
            assert "T" in admin.topics.names()
            popped = []
            until(lambda: popped.extend(popper.receive(8, timeout_s=1)) or popped, "popped")
            popper.ack(popped[0])
            queues = puller.queues("T")
            theirs = [producer.client_id, puller.client_id, popper.client_id]
            return [sent, theirs, len(queues)]

        child = in_child(use)
        assert isinstance(child, list), child
        sent, theirs, _ = child
        assert not set(ours) & set(theirs)
        assert [client.client_id for client in clients] == ours
        ids |= {*sent, producer.send(Message("T", b"after")).message_id}
        batcher.send(Message("T", b"gathered after"))
        assert len(ids) == 5
        assert puller.poll(timeout_s=DEADLINE_S) and "T" in admin.topics.names()
    expected = {"before", "gathered", "child", "gathered in child", "soon", "after"}
    assert bodies(cluster, "T") == Counter({*expected, "gathered after"})
    assert "was lost" not in caplog.text


def test_what_a_parent_holds_is_acknowledged_by_the_parent_alone(cluster: Cluster) -> None:
    with blocking.Producer(cluster.name_server, **PATIENT) as producer:
        producer.send(Message("T", b"held"))
    consumer = blocking.Consumer(cluster.name_server, "g", from_where="earliest").subscribe("T")
    with pytest.raises(KeyError), consumer:
        held = consumer.receive(DEADLINE_S)
        assert held is not None

        def leave() -> str:
            with pytest.raises(ClientMisplaced, match="make a client in each process"):
                held.ack()
            consumer.acknowledge()
            consumer.__exit__(None)
            return "left"

        assert in_child(leave) == "left"
        assert in_child(consumer.close) is None
        consumer.commit()
        assert cluster.lag("g") == 1
        assert consumer.assignment
        raise KeyError  # It is not handled.
    again = blocking.Consumer(cluster.name_server, "g").subscribe("T")
    with again:
        message = again.receive(DEADLINE_S)
        assert message is not None and message.body == b"held"


def test_a_child_is_another_member_of_the_group(cluster: Cluster) -> None:
    network = Network(instance_name="worker")
    consumer = blocking.Consumer(cluster.name_server, "g", network=network).subscribe("T")
    with (
        blocking.Producer(cluster.name_server) as producer,
        blocking.Admin(cluster.name_server, **PATIENT) as admin,
    ):
        admin.topics.create("T", queue_count=4)
        with consumer:
            own_id = consumer.client_id

            def members() -> set[str]:
                return {one.client_id for one in admin.groups.members("g").connections}

            def join() -> list[str]:
                with consumer:
                    until(lambda: len(members()) == 2, "both are members")
                    until(lambda: consumer.assignment, "the child has a share")
                    return [consumer.client_id, *sorted(members())]

            child = in_child(join)
            assert isinstance(child, list), child
            child_id, *both = child
            assert own_id.endswith("@worker") and child_id.startswith(f"{own_id}-")
            assert set(both) == {own_id, child_id}
            until(lambda: members() == {own_id}, "the child has left")
            every = set(producer.queues("T"))
            until(lambda: every <= set(consumer.assignment), "the parent has all again")


def test_what_is_under_way_in_the_parent_stays_there(cluster: Cluster) -> None:
    """A transaction, and a loop over messages; neither of them hangs in the child."""
    with blocking.Producer(cluster.name_server, **PATIENT) as producer:
        producer.send_batch([Message("T", b"%d" % number) for number in range(5)])
    consumer = blocking.Consumer(cluster.name_server, "g", from_where="earliest").subscribe("T")
    with consumer:
        until(lambda: consumer.backlog_count, "the parent has them")
        messages = consumer.messages(timeout_s=5)
        first = next(messages)

        def go_on() -> list[str]:
            with consumer:
                return [message.body.decode() for message in messages]

        child = in_child(go_on)
        assert isinstance(child, list), child
        consumer.acknowledge()
        found, every = {first.body.decode(), *child}, {"0", "1", "2", "3", "4"}
        deadline_s = time.monotonic() + DEADLINE_S
        # They are the child's or, some time after its end, the parent's again.
        while found != every and time.monotonic() < deadline_s:
            message = consumer.receive(1.0)
            found |= {message.body.decode()} if message is not None else set()
        assert found == every


def test_a_fork_while_threads_start_and_send(cluster: Cluster) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    is_over = threading.Event()
    stored: list[str] = []
    failures: list[BaseException] = []
    with blocking.Producer(cluster.name_server, **PATIENT) as producer:

        def send() -> None:
            try:
                while not is_over.is_set():
                    stored.append(producer.send(Message("T", b"parent")).message_id)
                    with blocking.Producer(cluster.name_server, **PATIENT) as other:
                        other.send_nowait(Message("T", b"parent")).result()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=send) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for number in range(20):
                time.sleep(dice.random() * 0.03)

                def one(text: bytes = b"child %d" % number) -> str:
                    receipt = producer.send(Message("T", text))
                    producer.close()
                    return receipt.message_id

                assert len(in_child(one)) == 32
        finally:
            is_over.set()
            for thread in threads:
                thread.join(DEADLINE_S)
        assert not failures
    found = bodies(cluster, "T")
    assert found["parent"] == 2 * len(stored)
    assert [found[f"child {number}"] for number in range(20)] == [1] * 20


def test_a_thread_that_ends_with_its_process_is_not_waited_for() -> None:
    thread = LoopThread("test")
    assert in_child(thread.close) is None
    thread.close()


PREFORK = """
import json
import os
import signal
import sys
import threading
import time

from pymq import Message, blocking

server, worker_count, message_count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
end_file = sys.argv[4]  # It is there when the workers have done everything.
# As with preload_app: all of it before the workers are there.
producer = blocking.Producer(server, timeout_s=30, deadline_s=120).start()
producer.send(Message("in", b"master 0"))
consumer = blocking.Consumer(server, "workers", from_where="earliest").subscribe("in").start()


def work(number):
    for count in range(message_count):
        producer.send(Message("in", b"%d %d" % (number, count)))
        if count == message_count // 2 and number == worker_count - 1:
            os.kill(os.getpid(), signal.SIGKILL)  # A worker that crashes.

    def handle(message):
        producer.send(Message("out", message.body))

    while number < worker_count and not os.path.exists(end_file):
        consumer.run(handle, timeout_s=0.5)
    sys.exit(0)


def fork(number):
    pid = os.fork()
    if pid == 0:
        work(number)
    return pid


workers = {fork(number): number for number in range(worker_count)}
consumer.close()  # The master handles nothing; its workers do.
codes = []
while workers:
    pid, status = os.wait()
    number = workers.pop(pid)
    codes.append(os.waitstatus_to_exitcode(status))
    if codes[-1] == -signal.SIGKILL:
        workers[fork(worker_count)] = worker_count
producer.send(Message("in", b"master 1"))
sys.stdout.write(json.dumps(sorted(codes)))
"""


@pytest.mark.parametrize("trouble", ["none", "restarted"])
def test_preforked_workers(cluster: Cluster, tmp_path: Path, trouble: str) -> None:
    """A worker crashes and is replaced; with trouble, a broker is killed while they work."""
    count, workers, end_file = 60, 3, tmp_path / "end"
    expected = {"master 0"}
    for number in range(workers + 1):
        expected |= {f"{number} {n}" for n in range(count if number != workers - 1 else count // 2)}
    arguments = [cluster.name_server, str(workers), str(count), str(end_file)]
    process = program(tmp_path, PREFORK, *arguments)
    if trouble == "restarted":
        until(lambda: sum(bodies(cluster, "in").values()) > 20, "they send")
        cluster.kill_broker("broker-b")
        time.sleep(1)
        cluster.start_broker("broker-b")

    def is_done() -> bool:
        time.sleep(0.2)  # Each look is work for the brokers, too.
        sent = bodies(cluster, "in").keys()
        return expected <= sent and sent <= bodies(cluster, "out").keys()

    try:
        until(is_done, "all is sent and handled", 2 * DEADLINE_S)
    finally:
        end_file.touch()
    codes = json.loads(ended(process, quiet=trouble == "none"))
    assert codes == [-signal.SIGKILL] + [0] * workers
    sent = bodies(cluster, "in")
    assert sent.keys() - {f"{workers - 1} {count // 2}"} == expected | {"master 1"}
    if trouble == "none":
        assert set(sent.values()) == {1}
    ids = [message.message_id for message in cluster.messages("in")]
    assert len(set(ids)) == len(sent)
    handled = bodies(cluster, "out")
    assert sent.keys() - handled.keys() <= {"master 1"}


POOL = """
import multiprocessing
import sys

from pymq import Message, blocking

producer = blocking.Producer(sys.argv[1], timeout_s=30)


def send(number):
    return producer.send(Message("T", b"%d" % number)).message_id


if __name__ == "__main__":
    with producer:
        producer.send(Message("T", b"first"))
        with multiprocessing.get_context("fork").Pool(3) as pool:
            ids = pool.map(send, range(100), chunksize=5)
        ids.append(producer.send(Message("T", b"last")).message_id)
    sys.stdout.write(str(len(set(ids))))
"""


def test_a_pool_of_processes(cluster: Cluster, tmp_path: Path) -> None:
    assert ended(program(tmp_path, POOL, cluster.name_server)) == "101"
    assert bodies(cluster, "T") == Counter([*map(str, range(100)), "first", "last"])


LEFT = """
import os
import sys
import time

from pymq import blocking

consumer = blocking.Consumer(sys.argv[1], "left").subscribe("T").start()
if os.fork() == 0:
    time.sleep(300)  # A worker that has no use for the client, and outlives its parent.
    os._exit(0)
sys.stdout.write(str(consumer.client_id))
sys.stdout.flush()
time.sleep(300)
"""


def test_brokers_see_that_a_parent_is_gone_though_its_child_lives(
    cluster: Cluster, tmp_path: Path
) -> None:
    with blocking.Producer(cluster.name_server) as producer:
        producer.send(Message("T", b"x"))
    with blocking.Admin(cluster.name_server, **PATIENT) as admin:
        process = program(tmp_path, LEFT, cluster.name_server)
        try:
            until(lambda: admin.groups.members("left").connections, "it is a member")
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            until(lambda: children.read_text().split(), "it has a child")
            (child,) = map(int, children.read_text().split())
            try:
                process.kill()
                process.wait()
                until(lambda: not admin.groups.members("left").connections, "it is gone")
                os.kill(child, 0)
            finally:
                os.kill(child, signal.SIGKILL)
        finally:
            process.kill()
            process.communicate()


def test_a_handler_in_a_child(cluster: Cluster) -> None:
    with blocking.Producer(cluster.name_server) as producer:
        consumer = blocking.Consumer(
            cluster.name_server, "g", from_where="earliest", orderly=True
        ).subscribe("T")
        with consumer:
            producer.send(Message("T", b"1"))
            until(lambda: consumer.backlog_count, "the parent has it")

            def handle() -> list[str]:
                got: list[str] = []

                def take(message: ReceivedMessage) -> None:
                    got.append(message.topic)

                with consumer:
                    consumer.pause([])
                    producer.send_batch([Message("T", b"2")] * 20)
                    consumer.run(take, timeout_s=2)
                return got

            child = in_child(handle)
            assert isinstance(child, list) and set(child) <= {"T"}, child
            ours: list[bytes] = []
            handle_until(
                consumer,
                lambda message: ours.append(message.body),
                lambda: len(ours) + len(child) >= 21,
            )
