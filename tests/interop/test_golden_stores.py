"""Golden stores: 100,000 messages of one implementation, read and continued by the other.

**Official ones**, one of each version in ``VERSIONS``: a broker of that version with 8 MiB
commit-log files, queue files of 2,000 entries and index files of 20,000 slots and 40,000 entries
(``SETTINGS``), filled by ``java/StoreWriter.java`` through the client of the same version: 3
topics of 4 queues; 600 delayed messages first (levels 1 and 2, due at once; 17 and 18, due in
hours), 600 half messages (a third each committed, rolled back, pending), then 98,800 messages,
one in 80 sends a batch of up to 32; tags, two or three keys each (one of their own, one shared by
200), user properties, text beyond ASCII, some bodies compressed. When all of it is stored and
delivered, messages are sent one by one and the broker is killed in the midst of it. What is on
the disk then is the *killed* state. The same broker opens it again, reports what it serves, and
stops: the *clean* state.

**Ours**: the same through our broker, killed in the midst of the last messages. Before the official
one takes over, ours gets delayed messages that are due only then, and the official broker asks for
the fate of the pending half messages.

How they are checked: ``golden.py``, and ``pymq store check``. ``PYMQ_GOLDEN=all`` runs every
version through every state, direction and end; without it, a selection that touches each of them.
"""

from __future__ import annotations

import dataclasses
import random
import shutil
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from tests.crash.servers import broker_process, name_server_process
from tests.interop.conftest import require_peers, some
from tests.interop.golden import (
    HALF_TOPIC,
    LEVELS_DUE,
    OP_TOPIC,
    Program,
    Served,
    StoreWitness,
    Written,
    check_dense,
    check_keys,
    check_ledger,
    check_same,
    index_files,
    key_questions,
    kinds,
    lines_of,
    offset_by_time,
    parse_ledger,
    parse_messages,
    queue_files,
    queue_questions,
    run_report,
    time_questions,
    view_questions,
)
from tests.interop.peers import RealBroker, free_port, wait_for_route
from tests.interop.test_store_exchange import BROKER_NAME, OURS, BrokerLike

from pymq.client.admin import BlockingAdmin
from pymq.client.blocking import BlockingClient
from pymq.client.operations.sends import SendResult
from pymq.clock import Clock
from pymq.protocol import fastjson
from pymq.protocol.bodies import MessageQueue
from pymq.protocol.message import Message, decode_properties
from pymq.store import MessageStore, StoreConfig
from pymq.store.inspection import check_store
from pymq.store.rebuild import rebuild_store

pytestmark = pytest.mark.interop

VERSIONS: Final = ("4.5.1", "4.9.7", "5.3.3")
#: Its brokers find offsets by time as ours does.
BOUNDARY_VERSION: Final = "5.3.3"
TOPIC_COUNT: Final = 3
QUEUE_COUNT: Final = 4
DELAYED_COUNT: Final = 600
#: Left to whoever serves our store next: 10 s are enough to stop our broker, few enough to wait.
WAITING_COUNT: Final = 24
WAITING_LEVEL: Final = 3
HALF_COUNT: Final = 600
MESSAGE_COUNT: Final = 100_000 - DELAYED_COUNT - HALF_COUNT
#: Sent by each of two clients after the other side has opened the store.
MORE_COUNT: Final = 2_000
OUR_COUNT: Final = 40
#: Acknowledged one by one before the kill.
LAST_COUNT: Final = 100
#: Of the log, of every queue and of the index.
FILES_LEAST: Final = 4
#: Between the halves of a writer's messages, so that a range of times can end there: more than
#: an index's resolution of one second.
PAUSE_MS: Final = 3_000
SAMPLE_COUNT: Final = 200
DEADLINE_S: Final = 120.0
POLL_S: Final = 0.05

QUEUE_FILE_ENTRIES: Final = 2_000
SETTINGS: Final = {
    "mappedFileSizeCommitLog": 8 << 20,
    "mappedFileSizeConsumeQueue": 20 * QUEUE_FILE_ENTRIES,
    "maxHashSlotNum": 20_000,
    "maxIndexNum": 40_000,
}
#: Nothing may happen by itself while we compare: half messages are looked at (4.x makes their
#: topics only then), but never old enough to check.
OUR_SETTINGS: Final[dict[str, str | int | bool]] = {
    **SETTINGS,
    "flushDelayOffsetInterval": 500,
    "transactionCheckInterval": 2_000,
    "transactionTimeOut": 86_400_000,
}
OFFICIAL_SETTINGS: Final[dict[str, str | int | bool]] = {
    **OUR_SETTINGS,
    # A busy machine must not make a broker refuse.
    "brokerFastFailureEnable": False,
    "osPageCacheBusyTimeOutMills": 60_000,
    # Else a killed broker may lose what was in the last index file: it deletes the file, but begins
    # to add to the index where the queues end.
    "messageIndexSafe": True,
    "mappedFileSizeTimerLog": 1 << 20,
}
#: Asks for the fate of half messages, once: an answer that takes longer than the interval makes a
#: second copy.
CHECKING_BACK: Final = {"transactionTimeOut": 1_000, "transactionCheckInterval": 15_000}
JAVA_OPTIONS: Final = ("-Xms256m", "-Xmx384m", "-XX:MaxDirectMemorySize=256m")


# ------------------------------------------------------------------------------------ places


@dataclass(slots=True)
class Place:
    """One address and one name server, for brokers that run one after the other.

    Offset ids of messages name the address of the broker that stored them, so the next one must
    have the same.
    """

    home: Path
    name_server: str
    port: int
    client: BlockingClient

    @contextmanager
    def broker(
        self, kind: str, store: Path, **properties: str | int | bool
    ) -> Iterator[BrokerLike]:
        """Run a broker on a store; what the block does not end is killed."""
        if kind == OURS:
            home = self.directory("ours")
            settings = {**OUR_SETTINGS, **properties}
            with broker_process(
                home, self.name_server, store, listenPort=self.port, **settings
            ) as ours:
                wait_for_route(self.name_server, BROKER_NAME, broker_address=ours.address)
                yield ours
        else:
            official = RealBroker(
                kind,
                [self.name_server],
                store_dir=store,
                java_options=JAVA_OPTIONS,
                **{**OFFICIAL_SETTINGS, "listenPort": self.port, **properties},
            )
            with official:
                try:
                    yield official
                finally:
                    official.kill()

    def directory(self, name: str) -> Path:
        """Return a new directory."""
        number = len(list(self.home.iterdir()))
        path = self.home / f"{number}-{name}"
        path.mkdir()
        return path

    def report(self, version: str, questions: list[str]) -> list[str]:
        """Return what the running broker reports to the client of a version."""
        home = self.directory("report")
        return run_report(version, home, self.name_server, BROKER_NAME, questions)

    def message_count(self, topics: list[str]) -> int:
        """Return how many messages the running broker serves of some topics."""
        queues = [
            MessageQueue(topic, BROKER_NAME, queue_id)
            for topic in topics
            for queue_id in range(QUEUE_COUNT)
        ]
        for topic in topics:
            self.client.forget_route(topic)
        return sum(end - first for first, end in self.client.bounds(queues).values())

    def wait_message_count(self, topics: list[str], count: int) -> None:
        """Wait until this many are served: official brokers answer before they can be read."""
        wait(lambda: (found := self.message_count(topics)) >= count or f"{found} of {count}")


def wait(condition: Callable[[], bool | str]) -> None:
    """Wait until a condition is True; anything else says what is missing."""
    deadline = time.monotonic() + DEADLINE_S
    while (state := condition()) is not True:
        assert time.monotonic() < deadline, state
        time.sleep(POLL_S)


@contextmanager
def place_in(home: Path) -> Iterator[Place]:
    with (
        name_server_process(home) as name_server,
        BlockingClient(name_server.address, timeout_s=30.0, read_deadline_s=60.0) as client,
    ):
        yield Place(home, name_server.address, free_port(-2, 0, 1), client)


# ----------------------------------------------------------------------------- golden stores


@dataclass(frozen=True, slots=True)
class Golden:
    """A store that an official broker wrote, what the writer was answered, and what it then served.

    Attributes:
        killed, clean: the store's directory in the two states; not to be changed.
        questions, report: see ``java/StoreReport.java``.
        messages: of the report.
    """

    version: str
    place: Place
    topics: list[str]
    killed: Path
    clean: Path
    ledger: list[Written]
    questions: list[str]
    report: list[str]
    messages: list[Served]

    def state(self, name: str) -> Path:
        return self.killed if name == "killed" else self.clean

    @property
    def last_offset(self) -> int:
        """The physical offset of its last message."""
        return max(message.physical_offset for message in self.messages)


@pytest.fixture(scope="module")
def golden(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> Iterator[Callable[[str], Golden]]:
    """Return ``golden(version)``; each is made once."""
    made: dict[str, Golden] = {}
    failed: set[str] = set()
    home = tmp_path_factory.mktemp("golden")
    with place_in(home) as place:

        def store(version: str) -> Golden:
            if version not in made:
                require_peers(version)
                assert version not in failed, "it could not be made, see the first failure"
                failed.add(version)
                made[version] = make_golden(version, place, seed)
            return made[version]

        yield store
    shutil.rmtree(home)  # hundreds of MB, and nothing in it that a failure has not shown


def make_golden(version: str, place: Place, seed: int) -> Golden:
    chance = random.Random(seed)
    topics = [f"golden-{version.replace('.', '-')}-{number}" for number in range(TOPIC_COUNT)]
    killed, clean = place.directory("killed"), place.directory("clean")
    store = clean / "store"
    with place.broker(version, store) as broker:
        ledger = fill(place, broker, version, topics, store, seed=seed)
    shutil.copytree(store, killed / "store")
    questions = [
        *queue_questions(version, topics, QUEUE_COUNT),
        *view_questions(one for one in ledger if one.kind == "delayed"),
        *view_questions(chance.sample(ledger, SAMPLE_COUNT)),
        *key_questions(ledger, chance, SAMPLE_COUNT),
    ]
    if version == BOUNDARY_VERSION:
        questions += time_questions(topics, QUEUE_COUNT, times(ledger))
    with place.broker(version, store) as broker:
        report = place.report(version, questions)
        broker.stop()
    messages = check_report(report, ledger, topics)
    for files in ("commitlog", f"consumequeue/{topics[0]}/0", "index"):
        assert len(list((store / files).iterdir())) >= FILES_LEAST, files
    print(f"golden store of {version}: {len(messages)} records of {dict(kinds(ledger))}")
    return Golden(
        version, place, topics, killed / "store", store, ledger, questions, report, messages
    )


def check_report(report: list[str], ledger: list[Written], topics: list[str]) -> list[Served]:
    """A report agrees with the ledger and with itself; return its messages."""
    messages = parse_messages(report)
    check_ledger(ledger, messages, set(topics))
    check_dense(report, messages)
    check_keys(report, messages)
    return messages


def fill(
    place: Place,
    broker: BrokerLike,
    version: str,
    topics: list[str],
    store: Path,
    *,
    seed: int,
) -> list[Written]:
    """Make the topics, have the Java writer fill them, and kill the broker; return the ledger."""
    admin = BlockingAdmin(place.client)
    for topic in topics:
        admin.create_topic(topic, queue_count=QUEUE_COUNT)
    home = place.directory("writer")
    path = home / "ledger.txt"
    arguments = [
        place.name_server, BROKER_NAME, ",".join(topics), QUEUE_COUNT, seed, MESSAGE_COUNT,
        DELAYED_COUNT, HALF_COUNT, PAUSE_MS, path, "first",
    ]  # fmt: skip
    with Program("StoreWriter", version, home, arguments) as writer:
        writer.wait_text("written")
        ledger = parse_ledger(path)
        place.wait_message_count(topics, visible_count(ledger))
        wait_delivered(store, ledger)
        writer.tell("go on until the end")
        wait(lambda: len(lines_of(path)) >= len(ledger) + LAST_COUNT or "no last messages")
        broker.kill()
        writer.wait_end()
    return parse_ledger(path)


def wait_delivered(store: Path, ledger: list[Written]) -> None:
    """Wait until the broker has recorded on the disk that all due messages are delivered.

    One that is killed before delivers them once more.
    """
    path = store / "config" / "delayOffset.json"
    wanted = Counter(one.delay_level for one in ledger if one.delay_level in LEVELS_DUE)

    def is_noted() -> bool | str:
        try:
            table = fastjson.parse(path.read_text())["offsetTable"]
        except (OSError, ValueError, KeyError) as error:  # it is just being written
            return str(error)
        found = {level: table.get(str(level)) for level in wanted}
        return found == wanted or f"{found}, expected {wanted}"

    wait(is_noted)


def times(ledger: list[Written]) -> list[int]:
    """Return times before, in and after a writer's work."""
    answered = sorted(written.answered_ms for written in ledger)
    return [0, *answered[:: len(answered) // 10], answered[-1] + 3_600_000]


# ------------------------------------------------------------------------------------- tests


@contextmanager
def copy_of(store: Path, home: Path) -> Iterator[Path]:
    """Copy a store, with the times of its files; the copy goes when all went well."""
    path = home / "store"
    shutil.copytree(store, path)
    yield path
    shutil.rmtree(path)


def config_of(path: Path) -> StoreConfig:
    return StoreConfig(
        root_path=path,
        segment_bytes=SETTINGS["mappedFileSizeCommitLog"],
        queue_file_bytes=SETTINGS["mappedFileSizeConsumeQueue"],
        index_slot_count=SETTINGS["maxHashSlotNum"],
        index_item_limit=SETTINGS["maxIndexNum"],
    )


def open_store(path: Path) -> MessageStore:
    return MessageStore.open(config_of(path), Clock())


def check_whole(path: Path) -> None:
    """``pymq store check`` finds nothing wrong but what an unclean stop leaves."""
    report = check_store(config_of(path))
    assert report.is_whole, list(report.findings.groups())


@pytest.mark.parametrize("state", ["clean", "killed"])
@pytest.mark.parametrize("version", VERSIONS)
def test_message_store_reads_an_official_store(
    golden: Callable[[str], Golden], tmp_path: Path, version: str, state: str
) -> None:
    """Messages, bounds, ids and times are what the official broker said; queues are its bytes."""
    made = golden(version)
    with copy_of(made.state(state), tmp_path) as path:
        check_whole(path)
        store = open_store(path)
        try:
            check_same(StoreWitness(store).report(made.questions), made.report, state)
            check_times(store, made)
        finally:
            store.close()
        assert queue_files(path) == queue_files(made.clean)


def check_times(store: MessageStore, made: Golden) -> None:
    for topic in made.topics:
        for queue_id in range(QUEUE_COUNT):
            for time_ms in times(made.ledger):
                found = store.offset_by_time(topic, queue_id, time_ms)
                expected = offset_by_time(made.messages, (topic, queue_id), time_ms)
                assert found == expected, f"{topic} queue {queue_id}, {time_ms} ms"


@pytest.mark.parametrize("version", VERSIONS)
def test_rebuilt_are_the_bytes_of_the_official_broker(
    golden: Callable[[str], Golden], tmp_path: Path, version: str
) -> None:
    """All consume queues, and the index files that were full when the broker was killed."""
    made = golden(version)
    with copy_of(made.clean, tmp_path) as path:
        shutil.rmtree(path / "consumequeue")
        shutil.rmtree(path / "index")
        open_store(path).close()
        assert queue_files(path) == queue_files(made.clean)
        full = index_files(made.killed, version)[:-1]
        assert index_files(path, version)[: len(full)] == full


@pytest.mark.parametrize(
    ("version", "state"),
    some(product(VERSIONS, ["clean", "killed"]), ("4.9.7", "killed")),
)
def test_rebuilt_is_served_by_the_official_broker(
    golden: Callable[[str], Golden], tmp_path: Path, version: str, state: str
) -> None:
    """``pymq store rebuild`` of an official store; the same official broker goes on with it."""
    made = golden(version)
    with copy_of(made.state(state), tmp_path) as path:
        rebuild_store(config_of(path), Clock())
        assert queue_files(path) == queue_files(made.clean)
        check_whole(path)
        with made.place.broker(version, path) as official:
            report = made.place.report(version, made.questions)
            official.stop()
        check_same(report, made.report, f"{version} after a rebuild")


@pytest.mark.parametrize(
    ("version", "state", "end"),
    some(
        product(VERSIONS, ["clean", "killed"], ["stop", "kill"]),
        ("4.5.1", "killed", "stop"),
        ("4.9.7", "clean", "kill"),
        ("5.3.3", "killed", "kill"),
    ),
)
def test_official_then_ours_then_official(
    golden: Callable[[str], Golden], tmp_path: Path, seed: int, version: str, state: str, end: str
) -> None:
    """Our broker serves an official store and appends; the official one serves all of it."""
    made = golden(version)
    place = made.place
    with copy_of(made.state(state), tmp_path) as path:
        with place.broker(OURS, path) as ours:
            more = append(
                place, version, made.topics, seed, count_before=place.message_count(made.topics)
            )
            questions = continued_questions(version, made.topics, [*made.ledger, *more], seed)
            report = place.report(version, questions)
            end_of(ours, end)
        check_continued(report, made.messages)
        check_report(report, [*made.ledger, *more], made.topics)
        with place.broker(version, path) as official:
            check_same(place.report(version, questions), report, f"{version} after ours")
            official.stop()
        check_whole(path)


@pytest.mark.parametrize(
    ("version", "end"),
    some(product(VERSIONS, ["stop", "kill"]), ("4.9.7", "kill")),
)
def test_ours_then_official_then_ours(tmp_path: Path, seed: int, version: str, end: str) -> None:
    """An official broker serves our store, delivers and asks for what waits in it, and adds."""
    require_peers(version)
    topics = [f"ours-{number}" for number in range(TOPIC_COUNT)]
    with place_in(tmp_path) as place:
        store = place.directory("store")
        with place.broker(OURS, store) as ours:
            ledger = fill(place, ours, version, topics, store, seed=seed)
        questions = continued_questions(version, topics, ledger, seed)
        with place.broker(OURS, store) as ours:  # killed before
            before = check_report(place.report(version, questions), ledger, topics)
            # At the moment of the kill one may have been stored that nobody was told of.
            untold = place.message_count(topics) - visible_count(ledger)
            ledger += send_waiting(place, topics, seed)
            end_of(ours, end)
        ledger = list(map(when_asked, ledger))
        with place.broker(version, store, **CHECKING_BACK) as official:
            count = visible_count(ledger) + untold
            ledger += append(place, version, topics, seed, count_before=count)
            questions = continued_questions(version, topics, ledger, seed)
            report = place.report(version, questions)
            end_of(official, end)
        check_continued(report, before)
        check_report(report, ledger, topics)
        with place.broker(OURS, store) as ours:
            ours_report = place.report(version, questions)
            ours.stop()
        # Until its end the official broker may go on asking, and we record what it did not.
        check_continued(ours_report, parse_messages(report))
        check_same(
            without_transactions(ours_report),
            without_transactions(report),
            f"ours after {version}",
        )
        check_whole(store)
    shutil.rmtree(store)


def without_transactions(report: list[str]) -> list[str]:
    """Return the lines of a report that are not about the topics of transactions."""
    return [line for line in report if line.split("\t")[1] not in (HALF_TOPIC, OP_TOPIC)]


def visible_count(ledger: list[Written]) -> int:
    """Return how many messages of a ledger are in their topics, or will be soon."""
    return sum(one.is_visible for one in ledger)


def send_waiting(place: Place, topics: list[str], seed: int) -> list[Written]:
    """Send messages that are not due before our broker is gone; return what was written."""
    chance = random.Random(seed)
    written = []
    for number in range(WAITING_COUNT):
        message = Message(
            topics[number % TOPIC_COUNT],
            chance.randbytes(100),
            tags="a",
            keys=[f"waiting-{number}", "waiting"],
            delay_level=WAITING_LEVEL,
        )
        queue = MessageQueue(message.topic, BROKER_NAME, number // TOPIC_COUNT % QUEUE_COUNT)
        result = place.client.send(message, queue)
        written.append(
            dataclasses.replace(
                our_written(message, result, 0), kind="delayed", delay_level=WAITING_LEVEL
            )
        )
    return written


def when_asked(written: Written) -> Written:
    """Return what becomes of a pending half message once its producer is asked."""
    if written.fate != "pending":
        return written
    return dataclasses.replace(written, fate=written.properties["fate"])


def end_of(broker: BrokerLike, end: str) -> None:
    broker.stop() if end == "stop" else broker.kill()


def append(
    place: Place, version: str, topics: list[str], seed: int, *, count_before: int
) -> list[Written]:
    """Send more through both clients to the running broker; return what was written.

    Args:
        count_before: messages that the topics hold before, or will hold without ours.
    """
    home = place.directory("writer")
    path = home / "ledger.txt"
    arguments = [
        place.name_server, BROKER_NAME, ",".join(topics), QUEUE_COUNT, seed, MORE_COUNT, 0, 0, 0,
        path, home.name,
    ]  # fmt: skip
    with Program("StoreWriter", version, home, arguments) as writer:
        writer.wait_text("written")
        written = [*parse_ledger(path), *send_ours(place, topics, seed, home.name)]
        # Before the writer goes, which answers for half messages.
        place.wait_message_count(topics, count_before + len(written))
        writer.wait_end()
    return written


def send_ours(place: Place, topics: list[str], seed: int, name: str) -> list[Written]:
    """Send with our client, one by one and in batches; return what was written."""
    chance = random.Random(seed)
    written = []
    for topic in topics:
        for queue_id in range(QUEUE_COUNT):
            queue = MessageQueue(topic, BROKER_NAME, queue_id)
            messages = [
                Message(
                    topic,
                    chance.randbytes(1 + chance.randrange(5_000)),
                    tags=[None, "a", "Grüße"][number % 3],
                    keys=[f"{name}-ours-{queue_id}-{number}", f"{name}-ours"],
                    properties={"text": '世界 😀 = \\ "'} if number % 2 else {},
                )
                for number in range(OUR_COUNT)
            ]
            single, batch = messages[::2], messages[1::2]
            for message in single:
                result = place.client.send(message, queue)
                written.append(our_written(message, result, 0))
            result = place.client.send_batch(queue, batch)
            written += [our_written(one, result, number) for number, one in enumerate(batch)]
    return written


def our_written(message: Message, result: SendResult, number: int) -> Written:
    """Return the ledger's line of a message of ours, the ``number``-th of its request."""
    assert result.message_id is not None
    properties = message.encode_properties(result.message_id.split(",")[number])
    return Written(
        "single",
        message.topic,
        result.queue.queue_id,
        result.queue_offset + number,
        result.message_id.split(",")[number],
        result.offset_message_ids[number],
        int(time.time() * 1000),
        0,
        "-",
        zlib.crc32(message.body),
        len(message.body),
        decode_properties(properties),
    )


def continued_questions(
    version: str, topics: list[str], ledger: list[Written], seed: int
) -> list[str]:
    """Ask for everything in a store that others added to."""
    chance = random.Random(seed)
    questions = [
        *queue_questions(version, topics, QUEUE_COUNT),
        *view_questions(one for one in ledger if one.kind == "delayed"),
        *view_questions(chance.sample(ledger, SAMPLE_COUNT)),
        *key_questions(ledger, chance, SAMPLE_COUNT),
    ]
    if version == BOUNDARY_VERSION:
        questions += time_questions(topics, QUEUE_COUNT, times(ledger))
    return questions


def check_continued(report: list[str], before: list[Served]) -> None:
    """What was there before is there as it was."""
    at = {message.physical_offset: message for message in parse_messages(report)}
    changed = [one for one in before if at.get(one.physical_offset) != one]
    assert not changed, f"{len(changed)} messages differ, such as {changed[0]}"
