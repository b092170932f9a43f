"""Decisions about batches of exactly-once sinks: packed runs, and those of several records."""

import pickle
import random
from dataclasses import replace

import pytest

from pymq.errors import LocalProtocolError, RemoteProtocolError
from pymq.protocol import sink_decisions
from pymq.protocol.framing import FRAME_BYTES_MAX
from pymq.protocol.sink_bodies import SinkBatch, StagedRun
from pymq.protocol.sink_decisions import (
    RUNS_MAX,
    JournalEntry,
    JournalKind,
    PublishRequest,
    StagedRuns,
)

RUN = StagedRun(topic="T", queue_id=3, physical_offset=1 << 40, size_bytes=5, count=2, part=7)
TEXT = '{"packed":"AAAAAAADAAABAAAAAAAAAAAFAAAAAgAAAAAAAAAH","topics":["T"]}'
LONGEST = "x" * 255


def many(count: int, topics: tuple[str, ...] = ("T",)) -> StagedRuns:
    return StagedRuns.of(
        replace(RUN, topic=topics[number % len(topics)], physical_offset=number)
        for number in range(count)
    )


def batch() -> SinkBatch:
    return SinkBatch(sink="s", query="q", run="r", batch=1)


def test_runs_are_packed() -> None:
    assert StagedRuns.of([RUN]).encode() == TEXT.encode()
    assert list(StagedRuns.decode(TEXT)) == [RUN]
    assert list(StagedRuns.decode(StagedRuns().encode())) == []


def test_packed_runs_are_a_sequence() -> None:
    names = ("T", "U", "V")
    runs = [replace(RUN, topic=random.choice(names), part=number) for number in range(3000)]
    packed = StagedRuns.of(runs)
    assert list(packed) == list(pickle.loads(pickle.dumps(packed))) == runs
    assert (len(packed), packed.row_count, packed[-1]) == (3000, 6000, runs[-1])
    assert packed.queues() == {(name, 3) for name in names}
    pieces = [packed[:7], StagedRuns.decode(packed[7:8].encode()), packed[8:]]
    joined = StagedRuns.joined(pieces)
    assert list(joined) == list(StagedRuns.decode(joined.encode())) == runs
    assert list(StagedRuns.joined([])) == []


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{}",
        '{"packed":7,"topics":[]}',
        '{"packed":"","topics":[7]}',
        TEXT.replace("AAAAAAADAAAB", "AAAAAAADAA"),
        TEXT.replace("AAAAAAAD", "-"),
        TEXT.replace('["T"]', "[]"),
        StagedRuns.of([replace(RUN, count=0)]).encode().decode(),
        StagedRuns.of([replace(RUN, physical_offset=-1)]).encode().decode(),
    ],
)
def test_what_are_no_runs(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        StagedRuns.decode(text)


def test_the_most_runs_of_a_batch_fit_into_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = many(RUNS_MAX, tuple(f"{number:0>127}" for number in range(10_000)))
    name = "\N{GRINNING FACE}" * 255
    largest = SinkBatch(sink=name, query=name, run=name, batch=1 << 62, digest=name)
    body = PublishRequest(batch=largest, runs=runs).encode()
    assert len(body) < FRAME_BYTES_MAX - 4096
    monkeypatch.setattr(sink_decisions, "RUNS_MAX", RUNS_MAX - 1)
    with pytest.raises(RemoteProtocolError, match=r"300000 staged runs, .* 299999 \(RUNS_MAX\)"):
        PublishRequest.decode(body)
    with pytest.raises(LocalProtocolError, match=r"300000 staged runs .* 299999 \(RUNS_MAX\)"):
        StagedRuns.of(runs)


@pytest.mark.parametrize("topics", [("T",), ("T", "U"), tuple(map(str, range(900))), (LONGEST, "")])
@pytest.mark.parametrize("count", [0, 1, 25, 26, 1000])
def test_a_decision_takes_as_many_records_as_it_has_to(count: int, topics: tuple[str, ...]) -> None:
    whole = JournalEntry(kind=JournalKind.DECIDED.value, batch=batch(), runs=many(count, topics))
    entries = whole.split(1500)
    assert [entry.kind for entry in entries[:-1]] == [JournalKind.RUNS] * (len(entries) - 1)
    assert entries[-1].kind == JournalKind.DECIDED
    assert [entry.part for entry in entries] == list(range(len(entries)))
    assert max(len(entry.encode()) for entry in entries) <= 1500
    assert list(StagedRuns.joined([entry.runs for entry in entries])) == list(whole.runs)
    if len(topics) == 1:  # Each record but the last is full.
        assert all(len(entry.encode()) > 1400 for entry in entries[:-1])
