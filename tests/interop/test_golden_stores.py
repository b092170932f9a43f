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
version through every state, direction and end; without it, a selection that touches each of them,
with a quarter of the messages in files of a quarter of the size.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

import pytest
from tests.interop.conftest import require_peers, some
from tests.interop.golden import (
    Served,
    StoreWitness,
    Written,
    check_same,
    index_files,
    key_questions,
    kinds,
    offset_by_time,
    queue_files,
    queue_questions,
    time_questions,
    view_questions,
)
from tests.interop.golden_places import (
    QUEUE_COUNT,
    TOPIC_COUNT,
    VERSIONS,
    Place,
    check_whole,
    config_of,
    end_of,
    open_store,
    place_in,
)
from tests.interop.golden_writers import (
    BOUNDARY_VERSION,
    SAMPLE_COUNT,
    append,
    check_continued,
    check_report,
    continued_questions,
    fill,
    times,
)
from tests.interop.test_store_exchange import OURS

from pymq.clock import Clock
from pymq.store import MessageStore
from pymq.store.rebuild import rebuild_store

pytestmark = pytest.mark.interop

#: Making a store with an official broker takes minutes; ``test_golden_own_stores.py`` is the third.
OLD, NEW = (pytest.mark.by_turns(of="golden", turn=turn) for turn in ("old", "new"))

#: Of the log, of every queue and of the index.
FILES_LEAST: Final = 4


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


@contextmanager
def copy_of(store: Path, home: Path) -> Iterator[Path]:
    """Copy a store, with the times of its files; the copy goes when all went well."""
    path = home / "store"
    shutil.copytree(store, path)
    yield path
    shutil.rmtree(path)


# Always the oldest and the newest: to make a store takes minutes. Those of 4.9.7 are exchanged in
# ``test_golden_own_stores.py`` and ``test_store_exchange.py`` as well.
@pytest.mark.parametrize(
    ("version", "state"),
    some(
        product(VERSIONS, ["clean", "killed"]),
        turns={("4.5.1", "killed"): OLD, ("5.3.3", "clean"): NEW},
    ),
)
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


@pytest.mark.parametrize(("version",), some(product(VERSIONS), turns={("5.3.3",): NEW}))
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
    some(product(VERSIONS, ["clean", "killed"]), turns={("5.3.3", "killed"): NEW}),
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
        turns={("4.5.1", "killed", "stop"): OLD, ("5.3.3", "clean", "kill"): NEW},
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
