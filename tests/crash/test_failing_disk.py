"""The disk fails or is full at every operation of a script; what then is promised is kept.

Whatever happens, errors are ours, what was acknowledged is there when the store is opened on a
good disk, what was refused is not, and a disk that was full is written to again. The same if the
power is lost then: what a failed flush was to bring to the disk may not be there.
"""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.ledger import Acknowledged
from tests.crash.sampling import THOROUGH_ROUNDS, some_of
from tests.crash.session import FIXED_STEPS, Send, Session, recover
from tests.crash.test_operations import operations_of_script, session_of

from pymq.errors import FlushFailed, StoreError
from pymq.store import FlushMode
from pymq.testing.faulty_files import Fault, FaultyFiles, Keep
from pymq.testing.lost_power import Disk

pytestmark = pytest.mark.crash

#: A refused write is tried again after this.
RETRY_MS = 1001
STARTS_MAX = 3
FOREVER = 1 << 30


def faults(operations: list[tuple[str, Path]], code: int) -> Iterator[list[Fault]]:
    """Yield the failures of every operation: once, for a while, and for good."""
    for number, (name, _) in enumerate(operations, start=1):
        yield [
            Fault(at=number, code=code, keep=keep, count=count)
            for keep in ((Keep.NOTHING, Keep.SECTORS) if name == "pwrite" else (Keep.NOTHING,))
            for count in (1, 8, FOREVER)
        ]


def work_through(session: Session, root: Path, files: FaultyFiles) -> list[StoreError]:
    """Do the script on a disk that fails, restarting where the store does not run; return errors.

    A step that fails is not repeated.
    """
    errors: list[StoreError] = []
    for step in (None, *FIXED_STEPS):
        for _ in range(STARTS_MAX):
            if session.store is None:
                with _collecting(errors):
                    session.start(root, files)
            session.pass_time(RETRY_MS)
        if session.store is None:
            break
        if step is not None:
            with _collecting(errors):
                step(session)
    return errors


@contextlib.contextmanager
def _collecting(errors: list[StoreError]) -> Iterator[None]:
    try:
        yield
    except StoreError as error:
        errors.append(error)


def go_on(session: Session, root: Path, files: FaultyFiles) -> list[str]:
    """Mend the disk and write; return what is wrong.

    A store that was only full goes on by itself, one whose disk failed after a restart.
    """
    files.mend()
    session.pass_time(RETRY_MS)
    store = session.store
    if store is not None and "no more writes" in (store.not_writable_reason or ""):
        with contextlib.suppress(FlushFailed):
            session.stop()
        session.store = None
    if session.store is None:
        session.start(root, files)
    session.put(Send("new", 0, (10,)))
    session.flush()
    (_, last) = session.history.lives["new"].events
    return [] if isinstance(last, Acknowledged) else [f"does not write again: {last}"]


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("mode", FlushMode)
def test_fails_at_every_operation(
    memory_path: Path, mode: FlushMode, code: int, seed: int, crash_rounds: int
) -> None:
    """Each in every way, or some of them in one by chance."""
    chance = random.Random(seed)
    every = list(faults(operations_of_script(memory_path / "store", mode, False), code))
    for fault in (
        fault
        for ways in some_of(every, crash_rounds, chance)
        for fault in (ways if crash_rounds >= THOROUGH_ROUNDS else [chance.choice(ways)])
    ):
        home = memory_path / "home"
        home.mkdir()
        complaints = fail_and_go_on(home, mode, fault, chance)
        assert not complaints, "\n".join([str(fault), *complaints])
        shutil.rmtree(home)


def fail_and_go_on(home: Path, mode: FlushMode, fault: Fault, chance: random.Random) -> list[str]:
    """Work with a fault, mend it, go on, and stop or lose the power; return what is wrong then."""
    place, lost = home / "place", home / "lost"
    place.mkdir()
    disk = Disk(place)
    files, session = FaultyFiles(fault, disk=disk), session_of(mode, False)
    loses_power = chance.random() < 0.5
    errors: list[StoreError] = []
    try:
        errors += work_through(session, place / "store", files)
        complaints = go_on(session, place / "store", files)
        if loses_power:
            session.store = None
            files.abandon()
            disk.lose_power(chance, lost)
            complaints += recover(session, lost / "store", FaultyFiles(), lost_power=True)
        else:
            session.stop()
            complaints += recover(session, place / "store", FaultyFiles())
    except BaseException as error:
        error.add_note(f"{fault}, {loses_power=}: {errors}")
        raise
    return [f"{loses_power=}: {errors}", *complaints] if complaints else []
