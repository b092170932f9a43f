"""Runs of half messages and of ends against the same ones one by one: same outcome."""

import asyncio
import math
import random
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.protocol.test_plain_ends import end_frame
from tests.unit.protocol.test_plain_sends import frame

from pymq.broker.broker import Broker
from pymq.broker.config import BrokerConfig
from pymq.broker.plain_sends import PlainSendStore
from pymq.broker.pressure import disk_pressure
from pymq.broker.transactions.end_runs import EndRuns
from pymq.net.dispatcher import RequestRun
from pymq.protocol.codes import MessageFlag
from pymq.protocol.command import Command
from pymq.protocol.framing import FrameDecoder
from pymq.protocol.names import HALF_OP_TOPIC, HALF_TOPIC
from pymq.protocol.plain_ends import PlainEnds
from pymq.protocol.record import decode_records
from pymq.store import FlushMode, StoreConfig
from pymq.store.inspection import check_store

COMMIT, ROLLBACK = int(MessageFlag.TRANSACTION_COMMIT), int(MessageFlag.TRANSACTION_ROLLBACK)
DEADLINE_S = 60.0
DAY_MS = 86_400_000
ROUNDS, HALVES = 40, 12
#: From here on the numbers of requests that end halves; the lower bits are the half's.
FIRST_END = 1 << 20
#: What a half message may say besides; most say nothing.
MORE = ("",) * 30 + (
    "TAGS\x01t\x02", "TAGS\x01a\x02TAGS\x01\u4e2d\x02", "KEYS\x01k1 k2\x02", "DELAY\x0118\x02",
    "CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02", "REAL_TOPIC\x01x\x02", "PGROUP\x01other\x02",
    "__transactionId__\x01x\x02", "UNIQ_KEY\x01not plain\x02", "TRAN_MSG\x01false\x02",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Half:
    """An acknowledged half message."""

    number: int
    queue_offset: int
    physical_offset: int


class Script:
    """What a producer sends, the same in each run but for physical offsets."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.halves: list[Half] = []
        self.count = 0
        #: Whether all is usual now: anything else sends a whole run to the ordinary handlers.
        self.is_usual = True
        #: Whether ends are to be answered, which they usually are not.
        self.is_last = False

    def half(self) -> bytes:
        rng, number = self.rng, self.count
        self.count += 1
        text = f"TRAN_MSG\x01true\x02UNIQ_KEY\x01KEY{number}\x02WAIT\x01true\x02PGROUP\x01group\x02"
        if self._is_unusual(0.02):
            text = text.replace("PGROUP\x01group\x02", "")
        return frame(
            number,
            b"%d" % number,
            b=rng.choice("TTTU"),
            e=str(rng.randrange(4)),
            f="5" if self._is_unusual(0.01) else "4",
            g=str(1700000000000 + number),
            h=str(rng.randrange(2)),
            i=text + ("" if self.is_usual else rng.choice(MORE)),
        )

    def _is_unusual(self, chance: float) -> bool:
        return not self.is_usual and self.rng.random() < chance

    def end(self, half: Half) -> bytes:
        rng = self.rng
        changes = {
            "commitLogOffset": str(half.physical_offset),
            "tranStateTableOffset": str(half.queue_offset),
            "commitOrRollback": str(rng.choice((COMMIT, COMMIT, COMMIT, ROLLBACK))),
            "msgId": f"KEY{half.number}",
            "transactionId": f"KEY{half.number}",
        }
        kind = 1.0 if self.is_usual else rng.random()
        if kind < 0.02:
            changes["commitOrRollback"] = "0"
        elif kind < 0.03:
            changes["tranStateTableOffset"] = str(half.queue_offset + 1)
        elif kind < 0.04:
            changes["commitLogOffset"] = str(half.physical_offset + 1)
        elif kind < 0.05:
            changes["producerGroup"] = "other"
        return end_frame(FIRST_END | half.number, flag=0 if self.is_last else 2, **changes)

    def some_ends(self) -> list[bytes]:
        rng = self.rng
        chosen = [half for half in self.halves[-HALVES:] if rng.random() < 0.9]
        if self.halves and self._is_unusual(0.3):
            chosen.append(rng.choice(self.halves))  # perhaps a second time
        rng.shuffle(chosen)
        return [self.end(half) for half in chosen]


async def played(root: Path, seed: int) -> tuple[Any, Any]:
    """Play a script; return answers, and what is stored by topic and queue."""
    # However long flushes take: nobody is asked about halves, and what is stored is answered so.
    config = BrokerConfig(
        name="broker-a",
        listen_port=0,
        vip_port=False,
        transaction_timeout_ms=DAY_MS,
        transaction_check_interval_ms=DAY_MS,
        sync_flush_timeout_ms=DAY_MS,
    )
    store = StoreConfig(
        root_path=root,
        flush_mode=FlushMode.SYNC,
        segment_bytes=1 << 24,
        disk_free_enough_bytes=1,
    )
    broker, script = Broker(config, store), Script(seed)
    await broker.start()
    said = []
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        decoder = FrameDecoder()
        for number in range(ROUNDS):
            script.is_usual = script.rng.random() < 0.6
            script.is_last = number == ROUNDS - 1
            numbers = range(script.count, script.count + HALVES)
            frames = [script.half() for _ in numbers]
            ends = script.some_ends()
            for end in ends:  # those of one kind keep their order
                frames.insert(script.rng.randrange(len(frames) + 1), end)
            writer.write(b"".join(frames))
            answers: list[Command] = []
            # The last ones are answered, so that all of them have had their effect.
            while len(answers) < HALVES + script.is_last * len(ends):
                data = await asyncio.wait_for(reader.read(1 << 16), DEADLINE_S)
                answers += [one for one in decoder.feed(data) if isinstance(one, Command)]
            for answer in sorted(answers, key=lambda one: one.opaque):
                found = dict(answer.fields or {})
                physical = int(found.pop("msgId", "0")[16:] or "0", 16)
                said.append((answer.opaque, answer.code, answer.remark, found))
                if answer.code == 0 and answer.opaque < FIRST_END:
                    half = Half(answer.opaque, int(found["queueOffset"]), physical)
                    script.halves.append(half)
        writer.close()
    finally:
        await broker.close()
    report = check_store(store)
    assert report.is_whole, list(report.findings.groups())
    return said, contents(root)


def contents(root: Path) -> dict[tuple[str, int], list[Any]]:
    """Return what matters of all records: without physical offsets, and times of ops."""
    queues: dict[tuple[str, int], list[Any]] = defaultdict(list)
    halves = {}
    data = b"".join(path.read_bytes() for path in sorted((root / "commitlog").iterdir()))
    for one in decode_records(data[: data.find(b"\x00" * 200)]):
        if one.topic == HALF_TOPIC:
            halves[one.physical_offset] = one.queue_offset
        born = 0 if one.topic == HALF_OP_TOPIC else one.born_timestamp
        queues[one.topic, one.queue_id].append(
            (
                one.queue_offset, one.body, one.properties, one.flag, one.sys_flag, born,
                one.reconsume_times, one.body_crc, one.size,
                halves.get(one.prepared_transaction_offset, one.prepared_transaction_offset),
            )
        )  # fmt: skip
    return queues


@pytest.mark.parametrize("salt", range(2))
def test_runs_of_ends_and_single_ends_have_the_same_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, salt: int
) -> None:
    print(f"seed {seed + salt}")
    taken = {"ends": 0, "halves": 0}
    take_ends, take_sends = EndRuns.take, PlainSendStore.take

    def counting_ends(self: EndRuns, run: RequestRun[PlainEnds]) -> bool:
        is_taken = take_ends(self, run)
        taken["ends"] += is_taken * len(run.plain)
        return is_taken

    def counting_sends(self: PlainSendStore, run: RequestRun[Any]) -> bool:
        is_taken = take_sends(self, run)
        taken["halves"] += is_taken * len(run.plain)
        return is_taken

    # A busy disk is slow to the one run and not to the other: the sends that it refuses differ.
    for limit in ("SLOW_S", "SLOW_FLUSH_S"):
        monkeypatch.setattr(disk_pressure, limit, math.inf)
    monkeypatch.setattr(EndRuns, "take", counting_ends)
    monkeypatch.setattr(PlainSendStore, "take", counting_sends)
    together = asyncio.run(played(tmp_path / "runs", seed + salt))
    # Rounds alone are often the ordinary handlers' work: some 0.2 of them by the script.
    assert min(taken.values()) > 0, taken
    monkeypatch.setattr(EndRuns, "take", lambda self, run: False)
    monkeypatch.setattr(PlainSendStore, "take", lambda self, run: False)
    single = asyncio.run(played(tmp_path / "single", seed + salt))
    assert together[0] == single[0]
    assert together[1].keys() == single[1].keys()
    for queue, stored in single[1].items():
        assert told_apart(queue, together[1][queue]) == told_apart(queue, stored), queue


def told_apart(queue: tuple[str, int], stored: list[Any]) -> list[Any]:
    """Return what must be the same: transactions that end at a time end in any order."""
    if queue[0] == HALF_TOPIC:
        return stored
    assert [one[0] for one in stored] == list(range(len(stored))), queue
    return sorted(one[1:] for one in stored)
