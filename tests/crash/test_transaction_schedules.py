"""Transactions in random schedules: ends, checks, restarts, deaths and lost power, against a model.

The clock is virtual. Producers end transactions twice and late, by any place that they ever had,
and several at once; the first decision must win. Brokers die in the middle of writes, disks fail.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.crash.simulation import random_fault
from tests.crash.transaction_model import Fate, Model, Transaction, Truth, is_refused
from tests.crash.transaction_run import GROUP, TransactionRun
from tests.unit.store.stores import HOST, FakeClock

from pymq.errors import StoreError
from pymq.protocol.codes import MessageFlag, RequestCode, ResponseCode
from pymq.protocol.command import Command
from pymq.protocol.message import decode_properties
from pymq.protocol.record import NewRecord, Record, offset_message_id
from pymq.store import FlushMode, PutResult
from pymq.testing.faulty_files import Crashed, FaultyFiles
from pymq.testing.lost_power import Disk

pytestmark = pytest.mark.crash

COMMIT, ROLLBACK = int(MessageFlag.TRANSACTION_COMMIT), int(MessageFlag.TRANSACTION_ROLLBACK)
OK = ResponseCode.SUCCESS
STEPS = 14
#: What a message may say about its first check.
IMMUNITIES = (None, None, None, "5", "60", "-1", "x")


class Schedule:
    """One random schedule.

    Args:
        home: an empty directory.
        dice: of everything else.
        run_dice: of runs: half messages and ends that are handled many at a time; None: none are.
    """

    def __init__(self, home: Path, dice: random.Random, run_dice: random.Random | None) -> None:
        self.home = home
        self.dice = dice
        self.run_dice = run_dice
        self.clock = FakeClock()
        self.broker: dict[str, Any] = {
            "transaction_timeout_ms": dice.choice([0, 1000, 6000]),
            "transaction_check_max": dice.choice([1, 2, 3, 15]),
        }
        self.memory_bytes = 3000 if run_dice is None else run_dice.choice([3000, 1 << 20])
        self.settings: dict[str, Any] = {
            "segment_bytes": dice.choice([4096, 9000, 1 << 16]),
            "queue_file_bytes": dice.choice([400, 2000]),
            "flush_mode": dice.choice([FlushMode.ASYNC, FlushMode.SYNC]),
            "index_slot_count": 200,
            "index_item_limit": 400,
            "message_bytes_max": 1000,
        }
        self.model = Model(
            timeout_ms=self.broker["transaction_timeout_ms"],
            check_max=self.broker["transaction_check_max"],
        )
        self.saved: str | None = None
        #: What a full disk did not take since the power was lost last.
        self.refused: list[Transaction] = []
        #: Did writes fail in any life?
        self.was_faulty = False
        self.count = 0
        #: May writes fail in this life?
        self.is_faulty = False
        #: Did the broker of this life start?
        self.is_up = False
        self.run: TransactionRun
        self.disk: Disk
        self.place = home / "0"
        self.place.mkdir()

    # --- lives

    async def live(self, lives: int) -> None:
        """Go through some lives of a broker, then bring everything to its end."""
        self.disk = Disk(self.place)
        for number in range(lives):
            await self.one_life(number)
        files = FaultyFiles()
        self.start(files)
        await self.finish()
        await self.run.close()
        files.abandon()

    async def one_life(self, number: int) -> None:
        dice = self.dice
        fault = random_fault(dice)
        files = FaultyFiles(fault, disk=self.disk)
        self.is_faulty = fault is not None and fault.code is not None
        self.was_faulty |= self.is_faulty
        loses_power = self.is_up = False
        try:
            self.start(files)
            for _ in range(STEPS):
                await self.step()
            self.is_faulty = False
            files.mend()
            kind = dice.random()
            if kind < 0.4:
                await self.run.close()
            else:
                loses_power = kind < 0.6
                self.doubt_nothing()
        except Crashed:
            loses_power = dice.random() < 0.3
        except StoreError:
            assert self.is_faulty  # it does not start while the disk is full
        if self.is_up:
            self.saved = self.run.saved
            await self.run.leave()
        files.abandon()
        if loses_power:
            self.place = self.home / str(number + 1)
            self.disk.lose_power(dice, self.place)
            self.disk = Disk(self.place)
            # A write that failed may have been done, and the zeros over it may be what is lost.
            self.model.all |= {one.number: one for one in self.refused}
            self.refused.clear()
            # What could not be flushed counts as stored as long as there is power.
            if self.settings["flush_mode"] is FlushMode.ASYNC or self.was_faulty:
                for one in self.model.all.values():
                    one.is_doubtful = True

    def start(self, files: FaultyFiles) -> None:
        """Start a broker, and find out what nobody could know."""
        self.run = TransactionRun(
            self.place / "store",
            self.clock,
            files,
            saved=self.saved,
            broker=self.broker,
            memory_bytes=self.memory_bytes,
            **self.settings,
        )
        self.is_up = True
        for _ in range(self.dice.randrange(3)):
            self.run.join()
        self.model.reconcile(
            Truth(self.run.root), [one for one in self.model.all.values() if one.is_doubtful]
        )
        if not self.is_faulty:
            self.model.check(self.run)

    def doubt_nothing(self) -> None:
        assert not [one for one in self.model.all.values() if one.is_doubtful]

    # --- steps

    async def step(self) -> None:
        dice = self.dice
        action = dice.random()
        if action < 0.25:
            await self.prepare()
        elif action < 0.55:
            await self.end_some()
        elif action < 0.72:
            await self.check_back()
        elif action < 0.78:
            await self.resume()
        elif action < 0.83:
            self.run.join() if dice.random() < 0.6 else self.run.part()
        elif action < 0.88:
            self.run.save()
        elif action < 0.9:
            self.run.flush()
        self.clock.now_ms += dice.choice([1, 500, 3000, 20_000])
        if dice.random() < 0.01:
            self.clock.now_ms += 3 * 3_600_000
        if not self.is_faulty and dice.random() < 0.4:
            self.model.check(self.run)

    async def prepare(self) -> None:
        """Several messages, among others that are no business of ours."""
        run, dice = self.run, self.dice
        told: list[tuple[Transaction, list[bool]]] = []
        if self.run_dice is not None and self.run_dice.random() < 0.6:
            stored = list[bool]()
            for _ in range(self.run_dice.randint(1, 4)):
                self.clock.now_ms += 1
                one = Transaction(self.count, self.clock.now_ms, None, is_doubtful=True)
                self.model.all[self.count] = one
                self.count += 1
                told.append((one, stored))
            numbers, born_ms = [one.number for one, _ in told], [one.born_ms for one, _ in told]
            halves = run.prepare_together(numbers, self.run_dice.choice("AB"), born_ms)
            run.writer.append(halves, _keep(stored))
        for _ in range(dice.randint(1, 4)):
            self.clock.now_ms += 1
            immunity = dice.choice(IMMUNITIES)
            more = "" if immunity is None else f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{immunity}\x02"
            more += "TIMER_DELAY_MS\x015\x02" if dice.random() < 0.2 else ""
            one = Transaction(self.count, self.clock.now_ms, immunity, is_doubtful=True)
            half = run.prepare(self.count, dice.choice("AB"), more=more)
            self.model.all[self.count] = one
            self.count += 1
            stored = []
            run.writer.append(half, _keep(stored))
            told.append((one, stored))
            if dice.random() < 0.3:
                run.writer.append(NewRecord("C", 0, b"other", b"", HOST, 0), _keep([]))
        await run.settle_all()
        for one, stored in told:
            one.is_doubtful = False
            if stored != [True]:
                assert self.is_faulty, stored
                self.refused.append(self.model.all.pop(one.number))

    async def end_some(self) -> None:
        """Ends of some transactions that arrive together, some of them of the same one."""
        run, dice = self.run, self.dice
        truth = Truth(run.root)
        known = [one for one in self.model.all.values() if one.number in truth.halves]
        if not known:
            return
        chosen = dice.choices(known, k=dice.randint(1, 5))
        if dice.random() < 0.5 and (opened := [one for one in known if one.fate is Fate.OPEN]):
            chosen[0] = dice.choice(opened)
            if self.run_dice is not None and self.run_dice.random() < 0.8:
                # As a producer does: what was just prepared.
                count = min(len(opened), self.run_dice.randint(1, 4))
                chosen = self.run_dice.sample(opened[-4:], k=count)
        requests, expected = [], []
        for one in chosen:
            half = dice.choice(truth.halves[one.number])
            commit, is_checked = dice.random() < 0.5, dice.random() < 0.7
            requests.append(_end(half, commit=commit, is_checked=is_checked))
            expected.append((one, half, commit, is_checked))
            one.is_doubtful = True
        if self.run_dice is not None and self.run_dice.random() < 0.5:
            answers = run.end_together(*requests)
        else:
            answers = run.ask(RequestCode.END_TRANSACTION, *requests)
        await run.settle_all()
        while len(found := answers()) < len(requests):
            await run.settle_all()
        # What has to be read from the disk first may come last.
        order = sorted(range(len(found)), key=lambda row: not _is_first(found[row]))
        for row in order:
            one, half, commit, is_checked = expected[row]
            answer = found[row]
            one.is_doubtful = False
            if self.is_faulty and is_refused(answer):
                continue
            before = one.fate
            if self.is_faulty and before is Fate.DISCARDED and not _is_first(answer):
                continue  # The disk failed for good: what was discarded is not visible.
            code = self.model.end(one, self.clock.now_ms, commit=commit, is_checked=is_checked)
            if answer.code != ResponseCode.FLUSH_DISK_TIMEOUT or not self.is_faulty:
                assert answer.code == code, (one, half, answer)
            if code in (OK, ResponseCode.FLUSH_DISK_TIMEOUT):
                is_first = before in (Fate.OPEN, Fate.DISCARDED)
                assert _is_first(answer) == is_first, (before, one, half, answer)

    async def check_back(self) -> None:
        """A round of checks; producers answer some of the questions."""
        run, dice = self.run, self.dice
        due = self.model.round(Truth(run.root), self.clock.now_ms)
        touched = [*(number for number, _ in due.asked), *due.discarded, *due.copied]
        for number in touched:
            self.model.all[number].is_doubtful = True
        await run.settle(run.checks.round())
        questions = run.questions()
        asked = [(int(one.body), _times(one)) for one in questions]
        if self.is_faulty:
            assert set(asked) <= set(due.asked)
            self.model.reconcile(Truth(run.root), map(self.model.all.__getitem__, touched))
            return
        assert asked == (due.asked if run.producers else [])
        for number in due.discarded:
            self.model.all[number].fate = Fate.DISCARDED
        for number in touched:
            self.model.all[number].is_doubtful = False
        self.model.check(run)
        for half in questions:
            if dice.random() < 0.4:
                await self.answer(half)

    async def answer(self, half: Record) -> None:
        one = self.model.all[int(half.body)]
        commit = self.dice.random() < 0.5
        one.is_doubtful = True
        answers = self.run.ask(
            RequestCode.END_TRANSACTION, _end(half, commit=commit, is_checked=True)
        )
        await self.run.settle_all()
        (answer,) = answers()
        one.is_doubtful = False
        if not (self.is_faulty and is_refused(answer)):
            assert answer.code in (OK, ResponseCode.FLUSH_DISK_TIMEOUT)
            self.model.end(one, self.clock.now_ms, commit=commit, is_checked=True)

    async def resume(self) -> None:
        """An administrator wants a transaction to be checked as often as at first."""
        run, dice = self.run, self.dice
        truth = Truth(run.root)
        known = [one for one in self.model.all.values() if one.number in truth.halves]
        if not known:
            return
        one = dice.choice(known)
        record = dice.choice(truth.halves[one.number])
        if one.number in truth.discarded and dice.random() < 0.7:
            record = truth.discarded[one.number]
        one.is_doubtful = True
        message_id = offset_message_id(HOST, record.physical_offset)
        answers = run.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"msgId": message_id})
        await run.settle_all()
        while not (found := answers()):
            await run.settle_all()
        one.is_doubtful = False
        if self.is_faulty:
            self.model.reconcile(Truth(run.root), [one])
            return
        may = one.fate in (Fate.OPEN, Fate.DISCARDED)
        assert found[0].code == (OK if may else ResponseCode.SYSTEM_ERROR), (one, found)
        if may:
            one.fate = Fate.OPEN

    async def finish(self) -> None:
        """Have everything checked and answered: nothing is open then, and nothing read again."""
        run = self.run
        run.join()
        for _ in range(40):
            if not self.model.those(Fate.OPEN):
                break
            self.clock.now_ms += 61_000
            await self.check_back()
        else:
            raise AssertionError(f"still open: {self.model.those(Fate.OPEN)}")
        run.flush()
        run.save()
        truth = self.model.check(run)
        table = run.transactions.table
        assert (table.half_cursor, table.op_cursor) == (truth.half_end, len(truth.ops))
        assert not (table._closed or table._ops or table._newest or table._found)


def _is_first(answer: Command) -> bool:
    """Does an answer say that a decision counts?"""
    return answer.remark is None or answer.code == ResponseCode.FLUSH_DISK_TIMEOUT


def _keep(stored: list[bool]) -> Callable[[PutResult, Any], None]:
    return lambda result, outcome: stored.append(result.physical_offset >= 0)


def _times(half: Record) -> int:
    return int(decode_properties(half.properties)["TRANSACTION_CHECK_TIMES"])


def _end(half: Record, *, commit: bool, is_checked: bool) -> dict[str, object]:
    return {
        "producerGroup": GROUP,
        "tranStateTableOffset": half.queue_offset,
        "commitLogOffset": half.physical_offset,
        "commitOrRollback": COMMIT if commit else ROLLBACK,
        "fromTransactionCheck": "true" if is_checked else "false",
    }


def play(home: Path, seed: int, *, runs: bool = True) -> None:
    """Play one schedule."""
    dice, run_dice = random.Random(seed), random.Random(f"runs {seed}") if runs else None
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(_only_deaths)
        runner.run(Schedule(home, dice, run_dice).live(dice.randint(1, 4)))


def _only_deaths(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), Crashed):
        loop.default_exception_handler(context)


def test_the_first_decision_wins_whatever_happens(
    memory_path: Path, seed: int, crash_rounds: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    for number in range(20 * crash_rounds):
        home = memory_path / "home"
        home.mkdir()
        try:
            play(home, seed + number)
        except BaseException as error:
            error.add_note(f"play(home, {seed + number})")
            raise
        shutil.rmtree(home)


@pytest.mark.parametrize(
    ("number", "runs"), [(917267881, False), (1405163777, True), (1334974699, True)]
)
def test_schedules_that_have_failed(
    memory_path: Path, number: int, caplog: pytest.LogCaptureFixture, *, runs: bool
) -> None:
    """A commit is in the log of a full disk, but is not found yet: the next one was done, too.

    So was what an administrator asked for: to check a transaction again that had been discarded.
    The first file of the log was left by a creation that failed, and lost its size.
    """
    caplog.set_level(logging.CRITICAL)
    play(memory_path, number, runs=runs)
