"""A bed of two brokers and a name server, each a process, for tests of what outages do.

The fixture ``two_brokers`` (``conftest.py``) starts a new bed for a test; a test that needs other
settings makes its own::

    def test_something(two_brokers: TwoBrokers) -> None:
        two_brokers.create_topic("orders")                  # four queues on each broker
        two_brokers.send("orders", numbers(80))             # 10 to each of the eight queues
        two_brokers.kill("broker-b")                        # SIGKILL; routes lose it, too
        two_brokers.start("broker-b")                       # same port, same store
        two_brokers.freeze("broker-a")                      # SIGSTOP: in routes, and silent
        two_brokers.thaw("broker-a")
        assert two_brokers.stored("orders") == two_brokers.acknowledged("orders")

    with TwoBrokers(tmp_path, expiry_s=EXPIRY_S) as bed:    # the name server forgets sooner
        with bed.load("orders") as load:                    # a producer that does not stop
            bed.restart("broker-a")
            load.wait_acknowledged(500)                     # this many more than now

No body is sent twice, whatever became of the first try. So ``acknowledged`` is what must be there
exactly once, ``attempted`` is what may be there at most once, and ``stored`` is what each queue
really holds, read by a client of its own. ``Stored`` is ordered and hashable: compare sets for
presence, sorted lists for "once".

What starts Spark is a test marked ``spark``; readers, writers and tasks can be run against the
bed without one, in a tenth of the time.
"""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.crash.servers import ServerProcess, broker_process, name_server_process

from pymq.client import operations
from pymq.client.operations import SendStatus
from pymq.client.sockets.blocking_client import BlockingClient
from pymq.client.sockets.bulk_client import BulkClient
from pymq.errors import PymqError, RouteNotFound
from pymq.protocol.bodies import MessageQueue, TopicConfig
from pymq.protocol.message import Message
from pymq.protocol.record import decode_records

NAMES = ("broker-a", "broker-b")
DEADLINE_S = 240.0
#: For answers that must come: whoever gives them may have to wait for a processor and for a disk.
ANSWER_S = 30.0
#: The shortest ``expiry_s``: no broker that goes on, and registers each second, is forgotten.
EXPIRY_S = 4
#: Brokers that refuse nothing because that takes long.
PATIENT: dict[str, str | int] = {
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": 600_000,
}
_PAUSE_S = 0.02


class Stored(NamedTuple):
    """One message in a queue."""

    broker: str
    queue_id: int
    offset: int
    body: bytes


def numbers(*bounds: int) -> list[bytes]:
    """Return the bodies ``b"<number>"`` of ``range(*bounds)``."""
    return [b"%d" % number for number in range(*bounds)]


def wait_until(holds: Callable[[], bool], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition; ``what`` is what is missing when it does not come."""
    deadline = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < deadline, f"{what}: not within {deadline_s:g} s"
        time.sleep(_PAUSE_S)


class TwoBrokers:
    """One name server, ``broker-a`` and ``broker-b``; a context manager.

    Args:
        home: an empty directory for all of it.
        expiry_s: when the name server forgets a broker of which it hears nothing.
        properties: more of the brokers' configuration.
    """

    def __init__(self, home: Path, *, expiry_s: int = 120, **properties: str | int) -> None:
        folders = [home / name for name in ("namesrv", *NAMES)]
        for folder in folders:
            folder.mkdir(parents=True)
        self.name_server_process = name_server_process(
            folders[0], pymqBrokerExpirySeconds=expiry_s, scanNotActiveBrokerInterval=200
        )
        usual: dict[str, str | int] = {
            # What a name server that restarts knows comes from the next registration.
            "registerNameServerPeriod": 1_000,
            "mappedFileSizeCommitLog": 16 << 20,
            "mappedFileSizeConsumeQueue": 20_000,
            **PATIENT,
        }
        self._stores = {name: home / name / "store" for name in NAMES}
        self._brokers = {
            name: broker_process(
                folder, self.name_server, self._stores[name], brokerName=name, **usual | properties
            )
            for name, folder in zip(NAMES, folders[1:], strict=True)
        }
        self._attempted: dict[str, list[bytes]] = {}
        self._acknowledged: dict[str, list[Stored]] = {}

    def __enter__(self) -> Self:
        try:
            self.name_server_process.start()
            for process in self._brokers.values():
                process.spawn()
            for name in self._brokers:
                self._brokers[name].wait_ready()
                self.wait_route(name)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for process in (*self._brokers.values(), self.name_server_process):
            if process.is_running:
                process.kill()

    # --- servers

    @property
    def name_server(self) -> str:
        """``host:port`` of the name server."""
        return self.name_server_process.address

    def broker(self, name: str) -> ServerProcess:
        """Return the process of a broker."""
        return self._brokers[name]

    def store(self, name: str) -> Path:
        """Return the directory of a broker's store."""
        return self._stores[name]

    def kill(self, name: str) -> None:
        """SIGKILL; returns when the name server has noticed and its routes lack the broker."""
        self._brokers[name].kill()
        self.wait_route(name, gone=True)

    def stop(self, name: str) -> None:
        """SIGTERM: the broker takes itself off the name server's routes and ends."""
        self._brokers[name].stop()
        self.wait_route(name, gone=True)

    def start(self, name: str) -> None:
        """Start it again, on its port and store; returns when the name server knows it."""
        self._brokers[name].start()
        self.wait_route(name)

    def restart(self, name: str) -> None:
        """Stop it cleanly, and start it again."""
        self.stop(name)
        self.start(name)

    def freeze(self, name: str) -> None:
        """SIGSTOP: it keeps its connections and route, takes new ones, and says nothing."""
        self._brokers[name].freeze()

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        self._brokers[name].thaw()

    def wait_route(self, name: str, *, gone: bool = False) -> None:
        """Wait until the name server knows a broker, or has forgotten it."""

        def holds() -> bool:
            with BlockingClient(self.name_server, timeout_s=ANSWER_S) as client:
                return (name in client.cluster_info().brokers) is not gone

        wait_until(holds, f"the name server {'forgets' if gone else 'knows'} {name}")

    # --- messages

    def client(self, **settings: Any) -> BulkClient:
        """Return a new client, which waits for answers unless told otherwise; the caller closes it.

        Args:
            settings: of a ``BulkClient``.
        """
        return BulkClient(self.name_server, **{"timeout_s": ANSWER_S, **settings})

    def create_topic(self, topic: str, *, queue_count: int = 4, on: Iterable[str] = NAMES) -> None:
        """Create a topic on the brokers named, and wait until all of it has a route.

        One that is there gets this many queues.
        """
        wanted = Counter(dict.fromkeys(on, queue_count))
        config = TopicConfig(
            topic=topic, read_queue_count=queue_count, write_queue_count=queue_count
        )
        with self.client() as client:
            for name in wanted:
                client.ask(self._brokers[name].address, operations.update_topic(config))

            def holds() -> bool:
                client.forget_route(topic)
                try:
                    found = Counter(queue.broker_name for queue in client.read_queues(topic))
                    return found == wanted
                except RouteNotFound:
                    return False

            wait_until(holds, f"a route of {topic} to {sorted(wanted)}")

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that have a route now."""
        with self.client() as client:
            return client.read_queues(topic)

    def send(self, topic: str, bodies: list[bytes], *, to: str | None = None) -> None:
        """Send bodies, one share to each queue (of one broker, if named); all acknowledged."""
        with self.client() as client:
            queues = [q for q in client.write_queues(topic) if to in (None, q.broker_name)]
            for number, queue in enumerate(queues):
                if some := bodies[number :: len(queues)]:
                    self._attempted.setdefault(topic, []).extend(some)
                    messages = [Message(topic, body) for body in some]
                    first = client.send_batch(queue, messages).queue_offset
                    self._note(topic, queue, first, some)

    def _note(self, topic: str, queue: MessageQueue, first: int, bodies: list[bytes]) -> None:
        found = self._acknowledged.setdefault(topic, [])
        for offset, body in enumerate(bodies, first):
            found.append(Stored(queue.broker_name, queue.queue_id, offset, body))

    @contextmanager
    def load(self, topic: str, prefix: str = "load") -> "Iterator[Load]":
        """Send one message after the other, each once, until the block ends.

        Args:
            topic: to all its queues in turn; those that are away are passed over.
            prefix: of the bodies: ``<prefix>-<number>``.
        """
        load = Load(self, topic, prefix)
        load.thread.start()
        try:
            yield load
        finally:
            load.stop()

    def acknowledged(self, topic: str) -> list[Stored]:
        """Return, sorted, what the producers of this bed know to be stored."""
        return sorted(self._acknowledged.get(topic, ()))

    def attempted(self, topic: str) -> list[bytes]:
        """Return the bodies that may be there, at most once each."""
        return list(self._attempted.get(topic, ()))

    def stored(self, topic: str) -> list[Stored]:
        """Return, sorted, what the queues that have a route hold: read, not believed."""
        found = []
        with self.client(read_deadline_s=DEADLINE_S) as client:
            for queue, (first, end) in client.bounds(client.read_queues(topic)).items():
                for chunk in client.pull_range(queue, first, end):
                    for record in decode_records(chunk.buffer, verify=True):
                        place = (queue.broker_name, queue.queue_id, record.queue_offset)
                        found.append(Stored(*place, record.body))
        return sorted(found)


class Load:
    """A producer on a thread of its own; ``TwoBrokers.load`` makes and ends it."""

    def __init__(self, bed: TwoBrokers, topic: str, prefix: str) -> None:
        self.thread = threading.Thread(target=self._run, name=f"load-{topic}", daemon=True)
        self._bed = bed
        self._topic = topic
        self._bodies = (f"{prefix}-{number}".encode() for number in itertools.count())
        self._stopped = threading.Event()
        self.acknowledged_count = 0

    def wait_acknowledged(self, count: int) -> None:
        """Wait until this many more messages are acknowledged than now."""
        wanted = self.acknowledged_count + count
        wait_until(
            lambda: self.acknowledged_count >= wanted or not self.thread.is_alive(),
            f"{count} more messages acknowledged",
        )
        assert self.thread.is_alive(), "the producer has ended"

    def stop(self) -> None:
        """End it; what is in flight is answered or failed when this returns."""
        self._stopped.set()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive(), "the producer does not end"

    def _run(self) -> None:
        attempted = self._bed._attempted.setdefault(self._topic, [])
        with self._bed.client(timeout_s=1.0, send_retries=0) as client:
            while not self._stopped.wait(0.001):
                body = next(self._bodies)
                attempted.append(body)
                try:
                    result = client.send(Message(self._topic, body))
                except PymqError:
                    self._stopped.wait(_PAUSE_S)
                    continue
                if result.status is SendStatus.OK:
                    self._bed._note(self._topic, result.queue, result.queue_offset, [body])
                    self.acknowledged_count += 1
