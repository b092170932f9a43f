"""A store, what it is asked to do, and the history of it; over crashes and restarts.

All files are real, the clock is not. A session writes down what it attempts before, and what it
was promised after, every call: an exception may come out of any of them.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.crash.checkers import Found, check_index_files
from tests.crash.disk import index_contents, log_by_topic, log_records, queues_by_topic
from tests.crash.group_offsets import GroupOffsets
from tests.crash.history import Findings, History, Life, check
from tests.crash.ledger import Acknowledged, Attempted, Failed, body_of, make_key
from tests.crash.served import served
from tests.unit.store.index.index_model import IndexModel
from tests.unit.store.stores import HOST, FakeClock, batch, record

from pymq.errors import FlushFailed, StoreError
from pymq.protocol.record import NewRecord
from pymq.store import Files, FlushMode, MessageStore, PutStatus, QueueRemoval
from pymq.store.config import StoreConfig
from pymq.store.state.sealed_file import SealedFile
from pymq.testing.faulty_files import FaultyFiles

TOPICS: Final = ("A", "B", "%RETRY%c")
TAGS: Final = (None, "x", "yy")
SMALL: Final = {
    "segment_bytes": 1024,
    "queue_file_bytes": 100,
    "index_slot_count": 7,
    "index_item_limit": 12,
}


@dataclass(frozen=True, slots=True)
class Send:
    """One request: a message, or a batch when there are several sizes."""

    topic: str
    queue_id: int
    sizes: tuple[int, ...]


class Session:
    """Drives the store in ``root``; ``start`` opens it, as often as wanted.

    ``history`` and clock go on over restarts; ``root`` and ``files`` may be others each time.
    """

    def __init__(self, mode: FlushMode, **settings: Any) -> None:
        self.history = History()
        self.clock = FakeClock()
        self.store: MessageStore | None = None
        self._mode = mode
        self._settings = SMALL | settings
        self._number = 0
        #: (end of its records, life, promise) of what waits for a flush.
        self._waiting: list[tuple[int, Life, Acknowledged]] = []
        #: What removes the files of deleted topics.
        self._removals: list[QueueRemoval] = []
        #: Topics that were deleted at once, until it is known whether they are.
        self._deleted_together: tuple[str, ...] = ()

    # -- restarts -----------------------------------------------------------------------------

    def start(self, root: Path, files: Files) -> None:
        """Open the store."""
        self._root, self._files = root, files
        self._waiting.clear()
        self._removals.clear()
        config = StoreConfig(root_path=root, flush_mode=self._mode, **self._settings)
        self.store = MessageStore.open(config, self.clock, files=files)
        self._table = SealedFile(root / "config" / "table.json", files=files)
        self._table.load(_parse_table)
        self._offsets = GroupOffsets(self.clock, root, files, self.store)
        there = {topic for topic, _ in self.store.queues()}
        left = there.intersection(self._deleted_together)
        assert len(left) in (0, len(self._deleted_together)), f"only {left} are not deleted"
        self._deleted_together = ()
        self.history.resolve_endings(there, self.store.log_end)
        self._note_durable()

    def stop(self) -> None:
        """Close the store in order."""
        store, self.store = self._running, None
        durable, taken = store.log_end, store.not_writable_reason is None
        store.close()
        if taken:
            self._settle(durable)

    def restart(self) -> None:
        """Close and open it."""
        self.stop()
        self.start(self._root, self._files)

    def fork(self) -> Session:
        """Return a session with the same past, which may have another future; none runs."""
        twin = Session(self._mode, **self._settings)
        twin.history = copy.deepcopy(self.history)
        twin.clock.now_ms = self.clock.now_ms
        twin._number = self._number
        twin._deleted_together = self._deleted_together
        return twin

    @property
    def _running(self) -> MessageStore:
        assert self.store is not None
        return self.store

    def forget_lost(self) -> None:
        """Count as unknown what was not durable when the power went."""
        self.history.forget_beyond(self._running.log_end)

    # -- work ---------------------------------------------------------------------------------

    def put(self, *sends: Send) -> None:
        """Put all of them at once."""
        self.clock.now_ms += 7
        entries: list[Any] = []
        notes: list[tuple[Life, str]] = []
        for send in sends:
            life = self.history.lives.setdefault(send.topic, Life())
            keys = []
            for size in send.sizes:
                self._number += 1
                keys.append(make_key(0, self._number, size))
            request = keys[0]
            life.events.append(Attempted(request, tuple(keys)))
            notes.append((life, request))
            bodies = [body_of(key) for key in keys]
            if len(bodies) > 1:
                entries.append(batch(bodies, topic=send.topic, queue_id=send.queue_id))
            else:
                entries.append(self._record(send, bodies[0]))
        results = self._running.put(entries, HOST)
        for send, entry, (life, request), result in zip(
            sends, entries, notes, results, strict=True
        ):
            if result.status is not PutStatus.OK:
                life.events.append(Failed(request, True, str(result.remark)))
                continue
            starts = entry.starts.tolist() if len(send.sizes) > 1 else [0]
            physical = tuple(result.physical_offset + start for start in starts)
            promise = Acknowledged(request, send.queue_id, result.queue_offset, physical)
            if self._mode is FlushMode.SYNC:
                self._waiting.append((result.physical_end, life, promise))
            else:
                life.events.append(promise)

    def _record(self, send: Send, body: bytes) -> NewRecord:
        """Return a record with a tag or none, and with one, two or no keys."""
        tag = TAGS[self._number % len(TAGS)]
        new = record(body, topic=send.topic, queue_id=send.queue_id, tag=tag)
        keys = " ".join(f"k{self._number % 5}" for _ in range(self._number % 3))
        new.properties = b"\x02".join(filter(None, (new.properties, f"KEYS\x01{keys}".encode())))
        return new

    def index(self) -> None:
        """Index the keys of all that is visible."""
        while self._running.keys.index_step():
            pass

    def flush(self) -> None:
        """Flush the log."""
        self.clock.now_ms += 400
        self._running.durability.flush()
        self._note_durable()

    def _note_durable(self) -> None:
        self._settle(self._running.durability.flushed_end)

    def _settle(self, durable_end: int) -> None:
        self.history.durable_end = max(durable_end, self.history.durable_end)
        while self._waiting and self._waiting[0][0] <= durable_end:
            _, life, promise = self._waiting.pop(0)
            life.events.append(promise)

    def flush_queues(self) -> None:
        """Flush the consume queues."""
        self.clock.now_ms += 400
        self._running.durability.flush_queues()

    def prepare(self) -> None:
        """Make the next log file ahead of need."""
        self._running.ahead.prepare_segment()

    def delete(self, topic: str) -> None:
        """Delete a topic's queues, and their files."""
        self.begin_delete(topic)
        self.finish_deletes()

    def begin_delete(self, *topics: str) -> None:
        """Delete the queues of topics, and where the group is in them; their files are left."""
        known = {one: self.history.lives[one] for one in topics if one in self.history.lives}
        there = {topic for topic, _ in self._running.queues()}
        # An earlier attempt may have been done.
        were_ending = {topic: life.is_ending for topic, life in known.items()}
        for life in known.values():
            life.is_ending = True
        if not any(were_ending.values()):
            self._deleted_together = tuple(there.intersection(known))
        try:
            removals = self._running.retention.begin_delete_topics(list(known))
        except FlushFailed:
            raise  # It may have been done; nothing is written to these topics any more.
        except StoreError:
            for topic, life in known.items():
                life.is_ending = were_ending[topic]  # It says that this attempt was not done.
            self._deleted_together = ()
            raise
        self._deleted_together = ()
        for topic in known:
            self.history.end_life(topic, self._running.log_end)
            self._offsets.delete(topic)
        self._removals += removals

    def finish_deletes(self) -> None:
        """Remove the files of deleted topics."""
        for removal in self._removals:
            removal.run()
            self._running.retention.finish_delete(removal)
        self._removals.clear()

    def save(self) -> None:
        """Save the state table, and where a group is that has consumed all that is durable."""
        self.history.save_begun += 1
        self._table.save(f'{{"saved":{self.history.save_begun}}}')
        self.history.saved = self.history.save_begun
        self._offsets.save()

    def pass_time(self, ms: int) -> None:
        """Let the clock go on."""
        self.clock.now_ms += ms

    # -- looking ------------------------------------------------------------------------------

    def messages(self) -> dict[str, list[Found]]:
        """Return everything that the store serves."""
        return served(self._running)

    def findings(self) -> Findings:
        """Return what the store serves, and what its files hold."""
        return Findings(
            self._running.log_end,
            self.messages(),
            self._table.load(_parse_table) or 0,
            log_by_topic(self._root),
            queues_by_topic(self._root),
        )

    def check(self) -> list[str]:
        """Return what is wrong."""
        return check(self.history, self.findings()) + self._offsets.complaints(TOPICS)


def _parse_table(text: str) -> int:
    return int(json.loads(text)["saved"])


def index_complaints(root: Path) -> list[str]:
    """Return how the index of a closed store differs from one made from its log."""
    model = IndexModel(SMALL["index_slot_count"], SMALL["index_item_limit"])
    for one in log_records(root):
        model.add(one)
    return check_index_files(index_contents(root), model.contents())


def recover(
    session: Session, root: Path, files: FaultyFiles, *, lost_power: bool = False
) -> list[str]:
    """Start on what a crash left, and check; then write more, die, start and check again.

    Args:
        session: what was before.
        root: of the store.
        files: of the first start and what is written then.
        lost_power: what was not durable may be gone.

    Returns:
        What is wrong.
    """
    session.start(root, files)
    if lost_power:
        session.forget_lost()
    complaints = session.check()
    session.put(Send("A", 0, (30,)), Send("B", 1, (10, 20)))
    session.flush()
    session.store = None
    files.abandon()
    with contextlib.closing(_Closing(session)):
        session.start(root, Files())
        complaints += [f"at the second start: {text}" for text in session.check()]
    return complaints + index_complaints(root)


class _Closing:
    def __init__(self, session: Session) -> None:
        self._session = session

    def close(self) -> None:
        if self._session.store is not None:
            self._session.stop()


# ------------------------------------------------------------------------------------ scripts

Step = Callable[["Session"], None]
Script = Callable[["Session"], None]


def _put(*sends: Send) -> Step:
    return lambda session: session.put(*sends)


#: Everything a store can be asked for, over several files of each kind.
FIXED_STEPS: Final[tuple[Step, ...]] = (
    _put(Send("A", 0, (20,))),
    Session.flush,
    Session.save,
    _put(Send("A", 0, (100,)), Send("A", 1, (0,)), Send("B", 0, (30, 40, 50))),
    Session.prepare,
    _put(*(Send("A", number % 2, (90,)) for number in range(6))),  # rolls over
    Session.index,
    Session.flush_queues,
    _put(Send("B", 0, (60, 60, 60, 60)), Send("%RETRY%c", 0, (5,))),
    lambda session: session.pass_time(5_000),
    Session.flush,
    Session.save,
    lambda session: session.delete("B"),
    _put(Send("B", 0, (10,)), Send("B", 2, (10, 10))),
    Session.save,
    Session.restart,
    _put(Send("A", 0, (700,)), Send("A", 1, (500,)), Send("B", 0, (20,))),
    Session.flush,
    Session.save,
    Session.flush_queues,
    _put(Send("A", 0, (30, 30))),
    lambda session: session.begin_delete("%RETRY%c", "B"),
    _put(Send("B", 2, (10,)), Send("A", 0, (10,))),
    Session.flush,
    Session.finish_deletes,
    Session.save,
    lambda session: session.begin_delete("B"),
    Session.stop,
)


def fixed_script(session: Session) -> None:
    """Do all of ``FIXED_STEPS``."""
    for step in FIXED_STEPS:
        step(session)
