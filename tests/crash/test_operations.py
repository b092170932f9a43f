"""The process dies at every operation of a script, and again at every one of the recovery."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.crash.sampling import THOROUGH_ROUNDS, some_of
from tests.crash.session import Session, fixed_script, recover

from pymq.store import FlushMode
from pymq.testing.faulty_files import Crashed, Fault, FaultyFiles, Keep

pytestmark = pytest.mark.crash

#: What may be left of an operation; only of a write it may be a part.
OF_WRITES = (Keep.NOTHING, Keep.BYTES, Keep.SECTORS)
OF_OTHERS = (Keep.NOTHING,)
#: How records are flushed, and whether queues have extensions.
KINDS = ((FlushMode.SYNC, False), (FlushMode.ASYNC, False), (FlushMode.SYNC, True))


def faults(operations: list[tuple[str, Path]]) -> Iterator[Fault]:
    """Yield a crash before every operation, and in the middle of every write."""
    for number, (name, _) in enumerate(operations, start=1):
        for keep in OF_WRITES if name == "pwrite" else OF_OTHERS:
            yield Fault(at=number, keep=keep)


def session_of(mode: FlushMode, extended: bool) -> Session:
    return Session(mode, queue_extension=extended, queue_extension_file_bytes=90)


def operations_of_script(root: Path, mode: FlushMode, extended: bool) -> list[tuple[str, Path]]:
    files = FaultyFiles()
    session = session_of(mode, extended)
    session.start(root, files)
    fixed_script(session)
    shutil.rmtree(root)
    return files.operations


def crashed_session(root: Path, mode: FlushMode, extended: bool, fault: Fault) -> Session:
    """Run the script until the process dies; return its past."""
    files, session = FaultyFiles(fault), session_of(mode, extended)
    with pytest.raises(Crashed):
        session.start(root, files)
        fixed_script(session)
    files.abandon()
    session.store = None
    return session


@pytest.mark.parametrize(("mode", "extended"), KINDS)
def test_dies_at_every_operation(
    memory_path: Path, mode: FlushMode, extended: bool, seed: int, crash_rounds: int
) -> None:
    """With extensions, there are twice as many."""
    every = list(faults(operations_of_script(memory_path / "store", mode, extended)))
    assert len(every) > 250
    one_in = 10 if extended else 5
    for fault in some_of(every, crash_rounds, random.Random(seed), one_in):
        root = memory_path / "store"
        session = crashed_session(root, mode, extended, fault)
        complaints = recover(session, root, FaultyFiles())
        assert not complaints, "\n".join([f"{fault}", *complaints])
        shutil.rmtree(root)


@pytest.mark.parametrize(("mode", "extended"), KINDS)
def test_dies_again_while_it_recovers(
    memory_path: Path, mode: FlushMode, extended: bool, seed: int, crash_rounds: int
) -> None:
    """Pairs of crashes: by chance, or all of them."""
    every = list(faults(operations_of_script(memory_path / "store", mode, extended)))
    chance = random.Random(seed)
    count = 0
    for fault in every if crash_rounds >= THOROUGH_ROUNDS else chance.sample(every, crash_rounds):
        template = memory_path / "template"
        session = crashed_session(template, mode, extended, fault)
        template.mkdir(exist_ok=True)  # the first operation makes it
        counting = FaultyFiles()
        recover(session.fork(), shutil.copytree(template, memory_path / "counting"), counting)
        shutil.rmtree(memory_path / "counting")
        seconds = list(faults(counting.operations))
        for second in seconds if crash_rounds >= THOROUGH_ROUNDS else chance.sample(seconds, 4):
            count += 1
            root = shutil.copytree(template, memory_path / "store")
            files, again = FaultyFiles(second), session.fork()
            with pytest.raises(Crashed):
                recover(again, root, files)
            files.abandon()
            again.store = None
            complaints = recover(again, root, FaultyFiles())
            assert not complaints, "\n".join([f"{seed=}: {fault}, {second}", *complaints])
            shutil.rmtree(root)
        shutil.rmtree(template)
    assert count >= 4 * crash_rounds
