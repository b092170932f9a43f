"""What goes into a golden store and what must come out of it again, as text to be compared.

Three witnesses answer the same questions about one store directory, in the same lines: an
official broker and ours, each through the official Java client (``java/StoreReport.java``, where
questions and lines are described), and ``MessageStore`` itself (``StoreWitness``). What the
writer was told when it wrote (``java/StoreWriter.java``) is the ledger.
"""

from __future__ import annotations

import random
import re
import subprocess
import time
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

from tests.interop.jars import class_path, java_executable
from tests.interop.processes import OPEN_MODULES, PeerFailed, guard

from pymq.protocol.codes import MessageFlag
from pymq.protocol.compression import compression_of, decompress
from pymq.protocol.message import UNIQUE_KEY, decode_properties
from pymq.protocol.record import (
    Record,
    decode_record,
    decode_records,
    offset_message_id,
    unpack_host,
)
from pymq.store import MessageStore

SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
SCHEDULE_LEVELS: Final = 18
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
#: Of the levels that are used, those that are due at once, or when the next broker serves.
LEVELS_DUE: Final = (1, 2, 3)

PROGRAM_TIMEOUT_S: Final = 300.0
POLL_S: Final = 0.02
_JAVA: Final = Path(__file__).resolve().parent / "java"
_READ_COUNT: Final = 1_000
_READ_BYTES: Final = 4 << 20
_SHOWN_MAX: Final = 5
_SHOWN_CHARS: Final = 400
_COMPRESSED: Final = int(MessageFlag.COMPRESSED)
_KEY_COUNT_MAX: Final = 64
_FAR_MS: Final = 1 << 42

#: (topic, queue id)
Queue = tuple[str, int]
#: (topic, queue id, queue offset)
Place = tuple[str, int, int]


# --------------------------------------------------------------------------------- programs


class Program:
    """One of the Java programs as a child process.

    Args:
        name: of its class.
        version: of the official client.
        home: existing directory; for its logs and output.
        arguments: of the program.
    """

    def __init__(
        self, name: str, version: str, home: Path, arguments: Sequence[str | int | Path]
    ) -> None:
        self._name = f"{name} {version} {' '.join(map(str, arguments))}"
        self._log = home / f"{name}.log"
        (home / "logback.xml").write_text('<configuration><root level="WARN"/></configuration>')
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    str(java_executable()), "-Xms64m", "-Xmx512m", "-XX:+UseSerialGC",
                    "-XX:TieredStopAtLevel=1", *OPEN_MODULES, f"-Duser.home={home}",
                    f"-Drocketmq.client.logRoot={home}",
                    f"-Dlogback.configurationFile={home / 'logback.xml'}",
                    "-cp", class_path(version), str(_JAVA / f"{name}.java"),
                    *map(str, arguments),
                ],
                cwd=home,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )  # fmt: skip
        guard.watch(self._process.pid)

    def wait_text(self, text: str) -> None:
        """Wait until it has written ``text``.

        Raises:
            PeerFailed: it ended first, or takes too long.
        """
        deadline = time.monotonic() + PROGRAM_TIMEOUT_S
        while True:
            is_over = self._process.poll() is not None or time.monotonic() > deadline
            if text in self.output():  # looked at after that: its last word counts
                return
            if is_over:
                raise self._failed(f"no {text!r}")
            time.sleep(POLL_S)

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def wait_end(self) -> None:
        """Close its standard input and wait for its success.

        Raises:
            PeerFailed: it failed, or takes too long.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(PROGRAM_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise self._failed("goes on") from error
        if code != 0:
            raise self._failed(f"exit {code}")

    def output(self) -> str:
        """Return what it has written."""
        return self._log.read_text(errors="replace")

    def _failed(self, what: str) -> PeerFailed:
        return PeerFailed(f"{self._name}: {what}; it wrote:\n{self.output()[-4_000:]}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        assert self._process.stdin is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        guard.forget(self._process.pid)


def run_report(
    version: str, home: Path, name_server: str, broker_name: str, questions: Sequence[str]
) -> list[str]:
    """Ask a broker through the official client; return the lines of its report."""
    asked, report = home / "questions.txt", home / "report.txt"
    asked.write_text("".join(f"{question}\n" for question in questions))
    with Program("StoreReport", version, home, [name_server, broker_name, asked, report]) as java:
        java.wait_end()
    return lines_of(report)


def lines_of(path: Path) -> list[str]:
    """Return the whole lines of a file; the last one may have been cut by a kill."""
    return path.read_text().split("\n")[:-1]


# ----------------------------------------------------------------------------------- ledger


@dataclass(frozen=True, slots=True)
class Written:
    """One message that a writer was told is stored; see ``StoreWriter.java``."""

    kind: str
    topic: str
    queue_id: int
    queue_offset: int
    message_id: str
    offset_message_id: str
    answered_ms: int
    delay_level: int
    fate: str
    body_crc: int
    body_bytes: int
    properties: dict[str, str]

    @property
    def place(self) -> Place:
        """Where it was stored at first."""
        if self.kind == "delayed":
            return (SCHEDULE_TOPIC, self.delay_level - 1, self.queue_offset)
        if self.kind == "half":
            return (HALF_TOPIC, 0, self.queue_offset)
        return (self.topic, self.queue_id, self.queue_offset)

    @property
    def physical_offset(self) -> int | None:
        """None for half messages: the client does not say."""
        offset_id = self.offset_message_id
        return None if offset_id == "null" else int(offset_id[-16:], 16)

    @property
    def keys(self) -> list[str]:
        return self.properties.get("KEYS", "").split()

    @property
    def is_visible(self) -> bool:
        """Whether it comes to the queue of the topic it was sent to."""
        if self.kind == "half":
            return self.fate == "commit"
        return self.kind != "delayed" or self.delay_level in LEVELS_DUE


def parse_ledger(path: Path) -> list[Written]:
    """Return what the writer recorded."""
    return [
        Written(
            kind,
            topic,
            int(queue_id),
            int(queue_offset),
            message_id,
            offset_id,
            int(answered),
            int(level),
            fate,
            int(crc),
            int(size),
            decode_properties(bytes.fromhex(properties)),
        )
        for kind, topic, queue_id, queue_offset, message_id, offset_id, answered, level, fate, crc,
        size, properties in (line.split("\t") for line in lines_of(path))
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Served:
    """A message as a report has it; see ``StoreReport.java``."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    born_ms: int
    stored_ms: int
    born_host: str
    store_host: str
    sys_flag: int
    flag: int
    reconsume_times: int
    half_offset: int
    body_crc: int
    body_bytes: int
    message_id: str
    properties: dict[str, str]

    @property
    def place(self) -> Place:
        return (self.topic, self.queue_id, self.queue_offset)


def parse_messages(report: Iterable[str]) -> list[Served]:
    """Return the messages of a report's ``queue`` questions."""
    return [
        Served(
            fields[1], *map(int, fields[2:8]), fields[8], fields[9],  # type: ignore[arg-type]
            *map(int, fields[10:16]), fields[16], decode_properties(bytes.fromhex(fields[17])),
        )
        for fields in (line.split("\t") for line in report if line.startswith("message\t"))
    ]  # fmt: skip


def check_ledger(ledger: Sequence[Written], messages: Sequence[Served], topics: set[str]) -> None:
    """Every message of the ledger is there as it was sent, once, and nothing else is.

    Of what was sent last, at the moment of a kill, one message more may be there: the one that
    nobody was told of.
    """
    at = {message.place: message for message in messages}
    assert len(at) == len(messages), "two messages at one place"
    reported = {message.topic for message in messages}
    by_id: dict[tuple[str, str], list[Served]] = {}
    for message in messages:
        by_id.setdefault((message.topic, message.message_id), []).append(message)
    accounted = set()
    for written in ledger:
        if written.place[0] in reported:  # 4.5.1 does not serve its delayed messages
            first = at.get(written.place)
            assert first is not None, f"lost: {written}"
            assert written.physical_offset in (None, first.physical_offset), f"{written}: {first}"
            _check_content(written, first)
            accounted.add(first.place)
        if written.kind in ("delayed", "half"):
            copies = by_id.get((written.topic, written.message_id), [])
            assert len(copies) == written.is_visible, f"{written}: {copies}"
            for copy in copies:
                _check_content(written, copy)
                accounted.add(copy.place)
    others = [one for one in messages if one.topic in topics and one.place not in accounted]
    assert len(others) <= any(written.kind == "last" for written in ledger), others[:_SHOWN_MAX]


def _check_content(written: Written, message: Served) -> None:
    content = (message.body_crc, message.body_bytes)
    assert content == (written.body_crc, written.body_bytes), f"{written}: {message}"
    # Of the client's properties, DELAY goes when a message is delivered, and WAIT since 4.9. A
    # client of 5.x gives a batch an id of its own, which brokers up to 5.3.3 put behind the
    # properties of each message. The broker adds some of its own.
    dropped = ("DELAY", "WAIT", UNIQUE_KEY) if written.kind == "batch" else ("DELAY", "WAIT")
    for name, value in written.properties.items():
        if name not in dropped:
            assert message.properties.get(name) == value, f"{written}: {message}"


def check_dense(report: Iterable[str], messages: Sequence[Served]) -> None:
    """Every queue holds the offsets of its bounds, each once, in the order of the log."""
    offsets: dict[Queue, list[int]] = {}
    for message in sorted(messages, key=lambda message: message.physical_offset):
        offsets.setdefault((message.topic, message.queue_id), []).append(message.queue_offset)
    for line in report:
        if line.startswith("bounds\t"):
            _, topic, queue_id, first, end = line.split("\t")
            found = offsets.get((topic, int(queue_id)), [])
            expected = list(range(int(first), int(end)))
            differing = set(found) ^ set(expected)
            assert found == expected, f"{line}: {len(found)} found, not the same: {differing}"


# -------------------------------------------------------------------------------- questions


def queue_questions(version: str, topics: Iterable[str], queue_count: int) -> list[str]:
    """Ask for all messages of the topics, and of the topics for delays and transactions."""
    queues = [(topic, queue_id) for topic in topics for queue_id in range(queue_count)]
    earliest = [f"earliest\t{topic}\t{queue_id}" for topic, queue_id in queues]
    # 4.x writes to topics that it does not know when asked for them.
    queues += [(HALF_TOPIC, 0)]
    if version != "4.5.1":
        queues += [(SCHEDULE_TOPIC, level) for level in range(SCHEDULE_LEVELS)]
    if not version.startswith("4."):
        queues += [(OP_TOPIC, 0)]
    return [*(f"queue\t{topic}\t{queue_id}" for topic, queue_id in queues), *earliest]


def view_questions(written: Iterable[Written]) -> list[str]:
    """Ask for messages by their offset ids."""
    return [
        f"view\t{one.topic}\t{one.offset_message_id}"
        for one in written
        if one.physical_offset is not None
    ]


def key_questions(written: Sequence[Written], chance: random.Random, count: int) -> list[str]:
    """Ask for messages by keys of their own and shared ones, at all times and in time ranges.

    The ranges end in the middle of the writer's pause: an index knows seconds only, and those in
    the index of a newer or an older version need not be the same.
    """
    middle_ms = longest_pause(written)
    asked = []
    for one in chance.sample([one for one in written if one.keys], count):
        for key in one.keys:
            ranges = [(0, _FAR_MS)]
            if "-s" not in key:
                ranges += [(0, middle_ms), (middle_ms, _FAR_MS)]
            asked += [
                f"key\t{one.topic}\t{key}\t{_KEY_COUNT_MAX}\t{begin}\t{end}"
                for begin, end in ranges
            ]
    for one in chance.sample(written, count):
        asked.append(f"unique\t{one.topic}\t{one.message_id}")
        asked.append(f"key\t{one.topic}\tno-{one.message_id}\t{_KEY_COUNT_MAX}\t0\t{_FAR_MS}")
    return asked


def check_keys(report: Iterable[str], messages: Sequence[Served]) -> None:
    """Every ``key`` question was answered with the newest messages that have the key.

    The index has the times of messages in whole seconds since its first one, rounded down: so a
    message may count as up to a second older than it is.
    """
    by_key: dict[tuple[str, str], list[Served]] = {}
    for message in sorted(messages, key=lambda message: message.physical_offset):
        for key in set(message.properties.get("KEYS", "").split(" ")):
            by_key.setdefault((message.topic, key), []).append(message)
    for line in report:
        if line.startswith("key\t"):
            _, topic, key, most, begin_ms, end_ms, text = line.split("\t")
            answer = [] if text == "none" else [int(offset) for offset in text.split(",")]
            found = by_key.get((topic, key), [])
            possible = [
                one.physical_offset
                for one in found
                if int(begin_ms) <= one.stored_ms < int(end_ms) + 1000
            ]
            certain = [
                one.physical_offset
                for one in found
                if int(begin_ms) + 1000 <= one.stored_ms <= int(end_ms)
            ]
            if len(answer) >= int(most):
                certain = [offset for offset in certain if offset >= answer[0]]
            assert len(answer) <= int(most) and answer == sorted(answer), line
            assert set(certain) <= set(answer) <= set(possible), (line, certain, possible)


def longest_pause(written: Iterable[Written]) -> int:
    """Return the middle, in ms, of the longest time in which nothing was answered."""
    answered = sorted(one.answered_ms for one in written)
    gap, begin = max((b - a, a) for a, b in pairwise(answered))
    return begin + gap // 2


def time_questions(topics: Iterable[str], queue_count: int, times: Sequence[int]) -> list[str]:
    """Ask every queue for the offsets of times."""
    return [
        f"time\t{topic}\t{queue_id}\t{time_ms}"
        for topic in topics
        for queue_id in range(queue_count)
        for time_ms in times
    ]


def offset_by_time(messages: Sequence[Served], queue: Queue, time_ms: int) -> int:
    """Return what RocketMQ 5.1.4 and later answer: the first message not stored before a time."""
    stored = [one.stored_ms for one in messages if (one.topic, one.queue_id) == queue]
    return bisect_left(stored, time_ms)


# ---------------------------------------------------------------------------------- witness


class StoreWitness:
    """Answers questions out of an open ``MessageStore``, in the lines of ``StoreReport.java``."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        while store.keys.index_step():
            pass

    def report(self, questions: Iterable[str]) -> list[str]:
        """Return the lines for all questions."""
        return [line for question in questions for line in self._answer(question)]

    def _answer(self, question: str) -> Iterator[str]:
        kind, topic, *more = question.split("\t")
        if kind == "queue":
            yield from self._queue(topic, int(more[0]))
        elif kind == "earliest":
            first, _ = self._store.queue_bounds(topic, int(more[0]))
            yield f"{question}\t{self._store.message_time(topic, int(more[0]), first)}"
        elif kind == "time":
            yield f"{question}\t{self._store.offset_by_time(topic, int(more[0]), int(more[1]))}"
        elif kind == "key":
            yield f"{question}\t{self._by_key(topic, more[0], *map(int, more[1:]))}"
        elif kind == "unique":
            yield f"{question}\t{self._by_unique_key(topic, more[0])}"
        elif kind == "view":
            yield f"{question}\t{message_line(self._store.record_at(int(more[0][-16:], 16)))}"
        else:
            raise ValueError(f"no such question: {question}")

    def _by_key(self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> str:
        found = self._store.keys.query(
            topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms
        )
        records = [decode_record(buffer) for buffer in found.buffers]
        offsets = sorted(
            record.physical_offset
            for record in records
            if key in decode_properties(record.properties).get("KEYS", "").split(" ")
        )
        return ",".join(map(str, offsets)) or "none"

    def _by_unique_key(self, topic: str, key: str) -> str:
        found = [decode_record(buffer) for buffer in self._store.keys.query(topic, key).buffers]
        offsets = [
            record.physical_offset
            for record in found
            if decode_properties(record.properties).get(UNIQUE_KEY) == key
        ]
        return str(offsets[0]) if offsets else "none"

    def _queue(self, topic: str, queue_id: int) -> Iterator[str]:
        first, end = self._store.queue_bounds(topic, queue_id)
        yield f"bounds\t{topic}\t{queue_id}\t{first}\t{end}"
        while first < end:
            found = self._store.read(
                topic, queue_id, first, count_max=_READ_COUNT, bytes_max=_READ_BYTES
            )
            assert found.count, f"{topic} queue {queue_id} at {first}: {found.status}"
            for buffer in found.buffers:
                yield from map(message_line, decode_records(buffer, verify=True))
            first = found.next_queue_offset


def message_line(record: Record) -> str:
    """Return the line of a stored message."""
    body = record.body
    if compression_of(record.sys_flag) is not None:
        body = decompress(body, record.sys_flag)
    properties = decode_properties(record.properties)
    own_id = properties.get(UNIQUE_KEY)
    text = "".join(f"{name}\1{properties[name]}\2" for name in sorted(properties))
    fields = (
        "message",
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.size,
        record.born_timestamp,
        record.store_timestamp,
        _java_host(record.born_host),
        _java_host(record.store_host),
        record.sys_flag & ~_COMPRESSED,
        record.flag,
        record.reconsume_times,
        record.prepared_transaction_offset,
        zlib.crc32(body),
        len(body),
        own_id or offset_message_id(record.store_host, record.physical_offset),
        text.encode().hex(),
    )
    return "\t".join(map(str, fields))


def _java_host(packed: bytes) -> str:
    address, port = unpack_host(packed)
    return f"/{address}:{port}"


# ------------------------------------------------------------------------------- comparisons


def check_same(found: Sequence[str], expected: Sequence[str], what: str) -> None:
    """Two reports are line by line the same; else the first lines that differ are shown."""
    pairs = zip(found, expected, strict=False)
    differing = [
        f"  found    {a[:_SHOWN_CHARS]}\n  expected {b[:_SHOWN_CHARS]}"
        for a, b in pairs
        if a != b and not is_cut_short(a, b)
    ]
    if differing or len(found) != len(expected):
        raise AssertionError(
            f"{what}: {len(differing)} of {len(expected)} lines differ, {len(found)} found:\n"
            + "\n".join(differing[:_SHOWN_MAX])
        )


def is_cut_short(found: str, expected: str) -> bool:
    """Tell whether an answer to a key question lacks only the oldest of as many as there may be.

    An official broker that starts after a kill puts the last message that was in the index into
    it once more, and counts both entries of its keys towards the limit.
    """
    found_head, _, found_offsets = found.rpartition("\t")
    expected_head, _, expected_offsets = expected.rpartition("\t")
    if not found.startswith("key\t") or found_head != expected_head:
        return False
    wanted, got = expected_offsets.split(","), found_offsets.split(",")
    return len(wanted) == _KEY_COUNT_MAX == len(got) + 1 and wanted[1:] == got


def index_files(store: Path, version: str) -> list[bytes]:
    """Return the index files of a store, oldest first.

    4.5.1 counts entries where later versions count slots in use; nobody reads the number.
    """
    found = [path.read_bytes() for path in sorted((store / "index").iterdir())]
    if version == "4.5.1":
        return [data[:32] + bytes(4) + data[36:] for data in found]
    return found


def queue_files(store: Path) -> dict[str, bytes]:
    """Return the consume queues of a store: path of each file -> its bytes."""
    root = store / "consumequeue"
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def kinds(ledger: Iterable[Written]) -> Counter[str]:
    """Return how many messages of which kind and fate there are."""
    return Counter(re.sub(" -$", "", f"{one.kind} {one.fate}") for one in ledger)
